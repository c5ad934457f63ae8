//! The state of a running function: its workers, its kept runtimes, its forecast, and counts since the daemon's start. The control
//! API serves these as JSON.

use serde::{Deserialize, Serialize};

/// Counts since the daemon's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Totals {
    /// Ended invocations.
    pub invocations: u64,
    /// Cold ones.
    pub cold: u64,
    /// Ones that did not end with `ok`.
    pub errors: u64,
}

/// Workers of a function by state, and the number of waiting requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolStatus {
    /// Being started.
    pub starting: u32,
    /// Free.
    pub idle: u32,
    /// Of the free ones, those that are frozen or throttled.
    #[serde(default)]
    pub frozen: u32,
    /// Serving.
    pub busy: u32,
    /// Requests in the queue.
    pub waiting: u32,
    /// PSS of all workers as last sampled, bytes.
    pub memory_bytes: u64,
}

/// The newest result of a function's forecaster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastStatus {
    /// The policy in force, as written in `[scale] policy`.
    pub policy: String,
    /// Target number of workers, including the busy ones.
    pub target: u32,
    /// Idle workers beyond the target are reaped after this, seconds; `None`: after the function's `idle_s`.
    pub idle_s: Option<f64>,
    /// The reason for the target.
    pub reason: String,
}

/// The kept runtimes of a function: those of its key, and those that can be adapted to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeStatus {
    /// The short form of its key ([`RuntimeKey::short`](crate::runtime_key::RuntimeKey::short)).
    pub key: String,
    /// What the key contains, in one line, without values of variables.
    pub line: String,
    /// Whether a runtime of its key exists and is free.
    pub availability: Availability,
    /// Runtimes of its key.
    pub own: RuntimeCounts,
    /// All runtimes of its base key, including its own: pre-warmed ones, and those of other keys and owners that were made from
    /// the same base.
    #[serde(alias = "stem")]
    pub base: RuntimeCounts,
    /// What happened to runtimes of its key, since the daemon's start or since a version last began to use the key.
    pub totals: RuntimeTotals,
    /// How its newest worker got its runtime; `None`: no worker has got one since the version was deployed or the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<RuntimeStart>,
    /// The forecast for the base key, in runtimes; `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastStatus>,
}

/// The three states of a key (HotC, Fig. 7). The paper writes -1, 0 and 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// No runtime of the key.
    #[default]
    NotExisting,
    /// There are some, but none is free.
    NotAvailable,
    /// At least one is free.
    Available,
}

/// Runtimes by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeCounts {
    /// Being started, for a request or ahead of one.
    pub starting: u32,
    /// Clean and free.
    pub available: u32,
    /// Being adapted to another key.
    pub adapting: u32,
    /// A worker has it.
    pub leased: u32,
    /// Being cleaned after a use.
    pub cleaning: u32,
}

/// What happened to runtimes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeTotals {
    /// Given to a worker unchanged.
    pub reused: u64,
    /// Adapted to this key and given to a worker.
    pub adapted: u64,
    /// Started, for a worker or ahead of demand.
    pub started: u64,
    /// Cleaned after a use, and kept.
    pub cleaned: u64,
    /// Ended because they could not be cleaned or adapted, or had died.
    pub destroyed: u64,
    /// Ended because there were too many, or because memory was short.
    pub evicted: u64,
    /// Ended because no request is expected to need them.
    pub let_go: u64,
}

/// How a worker got its runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RuntimeStart {
    /// `reused`, `adapted from KEY: environment, mounts`, or `started`.
    pub how: String,
    /// From requesting the runtime to having it, milliseconds. Without the time that the function itself needs to start in it.
    pub took_ms: f64,
    /// How much faster that was than an average fresh start of its base key, milliseconds; negative: slower. `None`: it was a
    /// fresh start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_ms: Option<f64>,
}
