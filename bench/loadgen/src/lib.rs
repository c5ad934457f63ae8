//! A load client over raw HTTP/1.1, with TLS or without, that uses little CPU time: one thread, `poll(2)` or `epoll(7)` over
//! keep-alive connections, no async runtime. On a machine with two cores, the client must not be the bottleneck, and must cost
//! every server the same. `pilot bench` is its front end. It knows nothing of Pilotlight.
//!
//! [`closed`]: a connection sends its next request after its response, or all connections send at once. A slow response delays the
//! next request, so this measures what a client with this number of connections sees.
//!
//! [`open`]: requests are sent at their times, independently of earlier ones. A slow response delays nothing, and the time of a
//! request counts from its intended send time.

pub mod answer;
pub mod closed;
pub mod control;
mod error;
pub mod open;
pub mod report;
pub mod request;
pub mod stream;
pub mod times;

pub use error::LoadError;
