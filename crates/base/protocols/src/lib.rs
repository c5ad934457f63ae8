//! How the daemon speaks to a running worker that it did not fork: as the server of the Lambda Runtime API that the worker
//! polls ([`ProvidedWorker`]), or as the client of the HTTP server that the worker is ([`HttpWorker`]).
//!
//! What the worker runs in is somebody else's: native sandboxes and containers implement [`Instance`], and hand in a listener
//! or a [`Reach`] into its network. Nothing here starts a process, and nothing here outlives its worker: every task is owned
//! by it and ends when it is dropped.

mod error_body;
mod http;
mod instance;
mod life;
mod provided;
mod start;
#[cfg(test)]
mod testing;

pub use http::HttpWorker;
pub use instance::{Awaited, End, Held, Instance, Reach, Retire};
pub use provided::ProvidedWorker;
pub use start::Start;

/// Most that an invocation may answer in one piece, bytes: Lambda's 6 MiB with the room it leaves for the envelope.
const RESPONSE_LEN_MAX: usize = 6 * 1024 * 1024 + 100;
