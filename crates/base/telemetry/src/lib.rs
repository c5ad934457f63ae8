//! Set-up of logging, the table of metrics, and the bus that carries events from the path to their subscribers.
//!
//! Not here: the source of the numbers. The control side updates the metrics from events. The path of an invocation knows the bus
//! only as the port `EventSink`.

pub mod bus;
mod log_queue;
pub mod logging;
pub mod metrics;
pub mod table;

pub use bus::{Bus, BusConfig, Subscriber, Subscription};
pub use logging::{LogFormat, LoggingError};
pub use metrics::{FunctionMetrics, Metrics};
