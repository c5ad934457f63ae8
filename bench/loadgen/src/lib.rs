//! A load client over raw HTTP/1.1, leaner than what it measures: one thread, `poll(2)` or `epoll(7)` over keep-alive
//! connections, no runtime. On the two cores of a small machine the client must not be what is measured, and must weigh the
//! same on every server. `pilot bench` is its front end; it knows nothing of Pilotlight itself.
//!
//! [`closed`]: a connection's next request follows its answer, or all connections send at one instant. A slow answer delays
//! the next request, so this says what a client with so many connections sees.
//!
//! [`open`]: requests are sent when their time has come, whatever became of those before. A slow answer delays nothing, and
//! what a request had to wait counts from the instant at which it was meant to be sent.

pub mod answer;
pub mod closed;
mod error;
pub mod open;
pub mod report;
pub mod request;
pub mod times;

pub use error::LoadError;
