//! A deployment: its progress, its result, the report of its template, and the description of a deployed function. The control
//! API serves these as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::FunctionConfig;
use crate::ids::{FunctionName, VersionId};
use crate::invocation::InvocationSummary;
use crate::sharing::Sharing;
use crate::status::{ForecastStatus, PoolStatus, RuntimeStatus, Totals};
use crate::trigger::TriggerInfo;

/// A step of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    /// `unpack`, `environment`, `template`, `activate`.
    pub stage: String,
    /// For people.
    pub message: String,
}

/// A deployment that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeployReport {
    /// Which function.
    pub name: FunctionName,
    /// Its version.
    pub version: VersionId,
    /// The version's number.
    pub number: u32,
    /// False: it equals the version that was live, and nothing was done.
    pub changed: bool,
    /// How its code is run: `python3.11`, `node`, `http` … Empty: the daemon is too old to say it.
    #[serde(default)]
    pub runtime: String,
    /// Whether the environment existed before.
    pub environment_reused: bool,
    /// What is in the environment, for people: `Node 20.20.2, 3 packages`. Empty: nothing.
    #[serde(default)]
    pub environment_has: String,
    /// The result of the trial in the sandbox.
    pub template: TemplateReport,
    /// The function URL's path.
    pub url_path: String,
}

/// A rollback that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackReport {
    /// Which function.
    pub name: FunctionName,
    /// The version that is live now.
    pub version: VersionId,
    /// Its number.
    pub number: u32,
    /// The number of the version that was live before. It is kept.
    pub replaced: u32,
    /// False: the version was live already, and nothing was done.
    pub changed: bool,
}

/// Why a deployment failed. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    /// The request is invalid: configuration, archive, requirement or handler. The user can correct it.
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
    pub config: FunctionConfig,
    /// The environment's id.
    pub environment: String,
    /// The result of the deployment's trial.
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
    /// Its triggers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<TriggerInfo>,
    /// What it costs that invocations share a worker. `None`: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

/// What a template reported when it was ready.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateReport {
    /// The interpreter's version, e.g. `3.11.7`; empty where there is none.
    pub python: String,
    /// Slowest imports first.
    pub imports: Vec<ImportTime>,
    /// Declared packages that could not be imported in the template; the handler may still import them.
    #[serde(default)]
    pub failed_imports: Vec<FailedImport>,
    /// What the imports left open or running that a fork cannot carry.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// What the configuration asks for and does not get, and what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Memory of the function's template, PSS, bytes.
    pub memory_bytes: u64,
    /// Whether workers are forked from the function's own template.
    pub forkable: bool,
    /// If not: why, and what is done instead. If they are: what is unusual about the template.
    pub reason: Option<String>,
    /// Why the template does its own imports instead of sharing those of its environment. `None`: it shares them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_imports: Option<String>,
    /// The modules of the environment's packages that its code imports, beyond those that the environment's template imports.
    /// Functions of an environment that import the same ones share them after a restart. Empty: none, or not known, or they must
    /// not be shared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// How long the template took to start.
    #[serde(rename = "took_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub took: Duration,
}

/// Something that the imports left open or running and that a fork cannot carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// File and line: `app.py:12`. May be empty.
    pub r#where: String,
    /// What it is: `opened TCP 10.0.0.5:6379 at import`.
    pub what: String,
    /// What each worker gets or does instead.
    pub instead: String,
}

/// One import.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImportTime {
    /// Module.
    pub module: String,
    /// Time including everything that it imports, ms.
    pub ms: f64,
}

/// An import that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedImport {
    /// Module.
    pub module: String,
    /// The exception, one line.
    pub error: String,
}
