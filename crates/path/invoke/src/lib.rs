//! An invocation: version look-up, admission, queue, deadline, exchange, timeline.
//!
//! Takes a [`Request`] from the gateway and gives back a [`Response`] or an [`InvokeError`]; asks the pool for a worker
//! and speaks to it through the [`Worker`](pilot_model::ports::Worker) port: in calls, or by letting an HTTP request pass through
//! ([`Invoker::pass`]). Knows neither sockets nor processes.

mod body;
mod error;
mod exchange;
mod fault;
mod functions;
mod invocation;
mod invoker;
mod join;
mod limits;
mod passing;
mod request;
mod response;
mod tail;

pub use body::HttpBody;
pub use error::{InvokeError, ThrottleReason};
pub use invoker::Invoker;
pub use limits::Limits;
pub use passing::{PassedBody, Tunnel, TunnelEnd, TunnelTraffic};
pub use request::{Payload, Request};
pub use response::{Response, ResponseBody};
