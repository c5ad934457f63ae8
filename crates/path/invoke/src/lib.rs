//! An invocation: version look-up, admission, queue, deadline, exchange, timeline.
//!
//! Takes a [`Request`] from the gateway and returns a [`Response`] or an [`InvokeError`]. It gets a worker from the pool and uses
//! it through the [`Worker`](pilot_model::ports::Worker) port: by calls, or by passing an HTTP request through
//! ([`Invoker::pass`]). It contains no code for sockets or processes.

mod body;
mod duration;
mod elsewhere;
mod error;
mod fault;
mod functions;
mod invocation;
mod invoker;
mod limits;
mod passed;
mod request;
mod response;
mod script;
mod starting;
mod tail;
mod task;
mod traffic;
mod upload;

pub use body::HttpBody;
pub use elsewhere::Elsewhere;
pub use error::{InvokeError, ThrottleReason};
pub use fault::function_error;
pub use invoker::Invoker;
pub use limits::Limits;
pub use passed::PassedBody;
pub use passed::tunnel::{Tunnel, TunnelEnd};
pub use pilot_pool::{Class, Urgency};
pub use request::{Chain, Payload, Request};
pub use response::{Response, ResponseBody};
pub use traffic::TunnelTraffic;
