//! Fakes for the ports, clocks, test versions, and probes of the machine; for tests only.
//!
//! [`FakeEngine`] and [`FakeHost`] start [`FakeWorker`]s in tokio's time, so that a test with a paused clock controls when
//! everything happens.

mod build;
mod clock;
mod corpus;
mod engine;
mod fixture;
mod host;
pub mod namespaces;
pub mod probe;
mod random;
mod secrets;
mod sink;
mod tokens;
mod worker;

pub use build::UnconfinedBuilds;
pub use clock::{ManualClock, TokioClock};
pub use corpus::corpus;
pub use engine::FakeEngine;
pub use fixture::{config, event_call, http_head, version, version_with};
pub use host::{FakeHost, FakeRuntime, RuntimeStep};
pub use random::{Random, simulated_seed, simulated_steps};
pub use secrets::FixedSecrets;
pub use sink::RecordingSink;
pub use tokens::FixedTokens;
pub use worker::{Deal, FakeWorker, Reaction, Served};
