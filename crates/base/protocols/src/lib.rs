//! How the daemon talks to a worker that it did not fork: as the server of the Lambda Runtime API that the worker polls
//! ([`ProvidedWorker`]), or as the client of the worker's HTTP server ([`HttpWorker`]).
//!
//! Sandboxes and containers implement [`Instance`] and provide a listener or a [`Reach`] into their network. Nothing here
//! starts a process. Every task belongs to a worker and ends when the worker is dropped.

mod answers;
mod error_body;
mod http;
mod instance;
mod life;
mod provided;
mod start;
#[cfg(test)]
mod testing;

pub use answers::{AnswerMemory, FREE_LEN, FunctionMemory, Reserved};
pub use http::HttpWorker;
pub use instance::{Awaited, End, Held, Instance, Reach, Retire};
pub use provided::ProvidedWorker;
pub use start::Start;

/// Longest answer that is not streamed, bytes: Lambda's 6 MiB plus what Lambda allows for the envelope.
const RESPONSE_LEN_MAX: usize = 6 * 1024 * 1024 + 100;
