//! The control API's JSON: what `side/admin` serves and the CLI reads. One definition for both ends.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `PUT /_pilot/v1/functions/NAME` | multipart: `spec` ([`FunctionSpec`](crate::spec::FunctionSpec), JSON), `code` (tar.gz) | a line of JSON per [`DeployEvent`], the last is `done` or `failed` |
//! | `GET /_pilot/v1/functions` | | `[FunctionSummary]` |
//! | `GET /_pilot/v1/functions/NAME` | | [`FunctionDescription`] |
//! | `DELETE /_pilot/v1/functions/NAME` | | 204 |
//! | `POST /_pilot/v1/functions/NAME/scale` | [`ScaleRequest`] | [`PoolStatus`] |
//! | `GET /_pilot/v1/functions/NAME/logs?lines=N&follow=BOOL` | | text, one line each |
//! | `GET /_pilot/v1/version`, `/_pilot/v1/openapi.json` | | |
//!
//! Errors are [`ApiError`] with a fitting status.

use serde::{Deserialize, Serialize};

use crate::event::Outcome;
use crate::ids::{FunctionName, VersionId};
use crate::policy::PolicySpec;
use crate::ports::TemplateReport;
use crate::timeline::{StartKind, Timeline};

/// One line of a deployment's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum DeployEvent {
    /// It goes on.
    Progress(Progress),
    /// It is live.
    Done(Box<DeployReport>),
    /// Nothing has changed.
    Failed(ApiError),
}

/// What a deployment is at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    /// `unpack`, `environment`, `template`, `activate`.
    pub stage: String,
    /// For people.
    pub message: String,
}

/// A deployment that went well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeployReport {
    /// Which function.
    pub name: FunctionName,
    /// Its version.
    pub version: VersionId,
    /// The version's number.
    pub number: u32,
    /// False: equal to the one that was live; nothing was done.
    pub changed: bool,
    /// How its code is run: `python3.11`, `node`, `http` … Empty: the daemon is older than other runtimes.
    #[serde(default)]
    pub runtime: String,
    /// Whether the environment was there already.
    pub environment_reused: bool,
    /// What is in the environment, for people: `Node 20.20.2, 3 packages`. Empty: nothing.
    #[serde(default)]
    pub environment_has: String,
    /// What the try in the sandbox found.
    pub template: TemplateReport,
    /// The function URL's path.
    pub url_path: String,
}

/// Why a deployment changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    /// The request does not do: configuration, archive, requirement, handler. For the user to mend.
    #[error("{message}")]
    Invalid {
        /// Stable word, e.g. `bad_archive`, `bad_config`, `requirement_failed`, `import_failed`, `too_large`.
        code: &'static str,
        /// What is wrong and what to change, naming file, key or function.
        message: String,
        /// Traceback or installer output, may be empty.
        detail: String,
    },
    /// The machine failed: disk, registry, sandbox.
    #[error("{message}")]
    Internal {
        /// What failed.
        message: String,
    },
}

/// An error's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiError {
    /// Stable word.
    pub code: String,
    /// For people; says what to do.
    pub message: String,
    /// Traceback or tool output; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One line of `pilot list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FunctionSummary {
    /// Its name.
    pub name: FunctionName,
    /// The live version.
    pub version: VersionId,
    /// Its number.
    pub number: u32,
    /// `python`, `python3.11`, `node`, `provided`, `http`, `container IMAGE`.
    pub runtime: String,
    /// `module.attribute`; the command, where there is no handler.
    pub handler: String,
    /// When it was deployed, Unix seconds.
    pub deployed_unix_s: u64,
    /// Workers by state.
    pub workers: PoolStatus,
    /// Counts since the daemon's start.
    pub totals: Totals,
    /// Why it cannot be invoked (its files are gone or damaged) and what to do; `None`: it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `pilot describe`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FunctionDescription {
    /// As in the list.
    #[serde(flatten)]
    pub summary: FunctionSummary,
    /// The configuration in force, every key.
    pub config: crate::config::FunctionConfig,
    /// The environment's id.
    pub environment: String,
    /// What the deployment found.
    pub template: TemplateReport,
    /// The function URL's path.
    pub url_path: String,
    /// The newest cold invocation.
    pub last_cold: Option<InvocationSummary>,
    /// The newest invocation.
    pub last: Option<InvocationSummary>,
    /// Older versions that are still kept, newest first.
    pub versions: Vec<u32>,
    /// What its forecaster says; `None`: nothing is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastStatus>,
    /// The runtimes that are kept for it; `None`: its workers are forked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtimes: Option<RuntimeStatus>,
}

/// One invocation, for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InvocationSummary {
    /// Request id.
    pub id: String,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended.
    pub outcome: Outcome,
    /// Its stamps.
    pub timeline: Timeline,
    /// When it was received, Unix milliseconds.
    pub received_unix_ms: u64,
}

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
    /// All of its stem, its own among them: nobody's, and those of other keys and owners that were made from the same.
    pub stem: RuntimeCounts,
    /// What became of runtimes of its key since the daemon's start, or since no version has had the key.
    pub totals: RuntimeTotals,
    /// How its newest worker got its runtime; `None`: none has since the version was deployed or the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<RuntimeStart>,
    /// What is predicted of the stem, in runtimes; `None`: nothing.
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
    /// By how much that was less than a fresh start of its stem takes on the average, milliseconds; negative: more. `None`: it was
    /// a fresh start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_ms: Option<f64>,
}

/// `POST …/scale`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScaleRequest {
    /// Idle workers beyond this are retired at once, or some started up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// The policy from now on, until the next deploy or the daemon's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySpec>,
}
