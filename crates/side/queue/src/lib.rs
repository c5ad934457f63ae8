//! Durable asynchronous invocations. An invocation is accepted when it is on the disk. From then on it is run at least once, repeated
//! as AWS Lambda does it, and ends as a success, as a record for a destination, or as a dead letter.
//!
//! The way of an invocation: `queue` (the ports) → `command` → `writer` (one thread that commits in groups) → `store` (SQLite) →
//! `schedule` (what is due, in memory) → `dispatch` (attempts) → `rules` (what follows an attempt) → `destination`.
//!
//! Not here: running functions. That is the port [`AsyncRunner`](pilot_model::ports::AsyncRunner).

mod command;
mod destination;
mod dispatch;
mod marks;
mod open;
mod queue;
mod rules;
mod schedule;
mod shared;
mod store;
mod times;
mod writer;

pub use open::{Examined, OpenError, examine};
pub use queue::{Queue, QueueConfig};
