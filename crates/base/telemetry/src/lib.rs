//! Set-up of logging, and the table of metrics.
//!
//! Not here: the source of the numbers. The control side updates the metrics from events. The path of an invocation does not
//! call this crate.

pub mod logging;
pub mod metrics;
pub mod table;

pub use logging::{LogFormat, LoggingError};
pub use metrics::{FunctionMetrics, Metrics};
