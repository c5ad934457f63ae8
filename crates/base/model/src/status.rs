//! The state of a running function: its workers, its kept runtimes, its forecast, and counts since the daemon's start. The control
//! API serves these as JSON.

use serde::{Deserialize, Serialize};

/// Counts since the daemon's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Totals {
    /// Ended invocations.
    pub invocations: u64,
    /// Of these, cold.
    pub cold: u64,
    /// Of these, not `ok`.
    pub errors: u64,
}

/// Workers of a function by state, and who waits for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolStatus {
    /// Being started.
    pub starting: u32,
    /// Free.
    pub idle: u32,
    /// Serving.
    pub busy: u32,
    /// Requests in the queue.
    pub waiting: u32,
    /// PSS of all workers as last sampled, bytes.
    pub memory_bytes: u64,
}

/// What a function's forecaster says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastStatus {
    /// The policy in force, as `[scale] policy` would have it.
    pub policy: String,
    /// Workers it wants, the busy ones among them.
    pub target: u32,
    /// Idle workers beyond them are reaped after this, seconds; `None`: after the function's `idle_s`.
    pub idle_s: Option<f64>,
    /// Why.
    pub reason: String,
}

/// The kept runtimes of a function: those of its key, and those that can be turned into it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeStatus {
    /// The short form of its key ([`RuntimeKey::short`](crate::runtime_key::RuntimeKey::short)).
    pub key: String,
    /// What the key says, in one line, without values of variables.
    pub line: String,
    /// Whether there is one of its key.
    pub availability: Availability,
    /// Runtimes of its key.
    pub own: RuntimeCounts,
    /// All of its base key, its own among them: nobody's, and those of other keys and owners that were made from the same.
    #[serde(alias = "stem")]
    pub base: RuntimeCounts,
    /// What became of runtimes of its key since the daemon's start, or since no version has had the key.
    pub totals: RuntimeTotals,
    /// How its newest worker got its runtime; `None`: none has since the version was deployed or the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<RuntimeStart>,
    /// What is predicted of the base key, in runtimes; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastStatus>,
}

/// The three states of a key (HotC, Fig. 7); the paper's marks are -1, 0 and 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// No runtime of the key.
    #[default]
    NotExisting,
    /// There are some, and none is free.
    NotAvailable,
    /// One at least is free.
    Available,
}

/// Runtimes by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeCounts {
    /// Being started, for a request or ahead of one.
    pub starting: u32,
    /// Clean, and nobody's at the moment.
    pub available: u32,
    /// Being turned into one of another key.
    pub adapting: u32,
    /// A worker has it.
    pub leased: u32,
    /// Being cleaned after a use.
    pub cleaning: u32,
}

/// What became of runtimes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeTotals {
    /// Given to a worker as they were.
    pub reused: u64,
    /// Given to a worker after they were turned into this key.
    pub adapted: u64,
    /// Started, for a worker or ahead of one.
    pub started: u64,
    /// Cleaned after a use and kept.
    pub cleaned: u64,
    /// Ended because they could not be cleaned or adapted, or had died.
    pub destroyed: u64,
    /// Ended because there were too many, or the machine's memory was short.
    pub evicted: u64,
    /// Ended because nobody is expected to want them.
    pub let_go: u64,
}

/// How a worker got its runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeStart {
    /// `reused`, `adapted from KEY: environment, mounts`, or `started`.
    pub how: String,
    /// From asking for the runtime to having it, milliseconds. What the function itself takes to come up in it is not in it.
    pub took_ms: f64,
    /// By how much that was less than a fresh start of its base key takes on the average, milliseconds; negative: more. `None`: it was
    /// a fresh start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_ms: Option<f64>,
}
