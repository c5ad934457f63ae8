//! How the daemon talks to a worker that it did not fork: as the server of the Lambda Runtime API that the worker polls
//! ([`ProvidedWorker`]), or as the client of the worker's HTTP server ([`HttpWorker`]).
//!
//! [`MemoryBudget`] bounds the memory that functions make the daemon use: for what they answer, and for their inputs.
//!
//! [`Holders`] shows inputs as files to workers that cannot receive descriptors.
//!
//! Sandboxes and containers implement [`Instance`] and provide a listener or a [`Reach`] into their network. Nothing here
//! starts a process. Every task belongs to a worker and ends when the worker is dropped.

mod arriving;
mod budget;
mod error_body;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod holder;
mod http;
mod inputs;
mod instance;
mod joined;
mod life;
mod neighbours;
mod own_wakes;
mod pace;
mod provided;
mod start;
#[cfg(test)]
mod testing;

pub use arriving::read_reserved;
pub use budget::{FREE_LEN, FunctionBudget, MemoryBudget, Reserved};
pub use holder::{HolderHost, Holders};
pub use http::HttpWorker;
pub use inputs::input_variables;
pub use instance::{Awaited, End, Held, HeldFiles, Instance, Reach, Retire};
pub use neighbours::OwnProcesses;
pub use own_wakes::OwnWakes;
pub use pace::{CellRate, Pace, PiecePace};
pub use provided::ProvidedWorker;
pub use start::Start;

/// Longest answer that is not streamed, bytes: Lambda's 6 MiB plus what Lambda allows for the envelope.
const RESPONSE_LEN_MAX: usize = 6 * 1024 * 1024 + 100;
