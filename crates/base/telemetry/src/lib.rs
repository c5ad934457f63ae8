//! Logging set-up and the one table of metrics.
//!
//! Not here: where the numbers come from. The control side feeds the metrics from events; nothing on an invocation's
//! path calls into this crate.

pub mod logging;
pub mod metrics;
pub mod table;

pub use logging::{LogFormat, LoggingError};
pub use metrics::{FunctionMetrics, Metrics};
