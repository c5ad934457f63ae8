//! The control side: what deployment sees of the running functions, and what the control API sees of deployment.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::{BoxFuture, StartError};
use crate::deployment::{
    DeployError, DeployReport, FunctionDescription, FunctionSummary, Progress, TemplateReport,
};
use crate::ids::FunctionName;
use crate::invocation::InvocationSummary;
use crate::policy::Policy;
use crate::spec::FunctionSpec;
use crate::status::{ForecastStatus, PoolStatus, RuntimeStatus, Totals};
use crate::version::Version;

/// What was observed of a function since the daemon's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// Counts.
    pub totals: Totals,
    /// The newest invocation.
    pub last: Option<InvocationSummary>,
    /// The newest cold invocation.
    pub last_cold: Option<InvocationSummary>,
}

/// What was made of the events, as deployment sees it.
pub trait Observed: Send + Sync + Debug {
    /// Everything published before this call is counted. Zeroes for a function nobody has invoked.
    fn observation(&self, name: &FunctionName) -> Observation;

    /// The function is removed: its counts, metric series and log files go.
    fn forget(&self, name: &FunctionName);
}

/// The running functions, as the control side sees them. The path implements it.
pub trait Platform: Send + Sync + Debug {
    /// Imports the handler in its sandbox, keeps the template, and tries whether a worker comes of it.
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>>;

    /// Makes this version the one that NAME means; requests to the one before finish there, then it is retired.
    fn activate(&self, version: Arc<Version>);

    /// Has requests to a function that cannot be run answered with why and what to do, until a version of it is activated or it
    /// is removed.
    fn mark_broken(&self, name: &FunctionName, problem: &str);

    /// Takes a function away: new requests get 404, those running finish.
    fn remove(&self, name: &FunctionName);

    /// Workers by state. `None`: no such function.
    fn status(&self, name: &FunctionName) -> Option<PoolStatus>;

    /// Scales by hand, until the next request or deploy. `None`: no such function.
    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus>;

    /// What is predicted of a function. `None`: nothing, or no such function.
    fn forecast(&self, name: &FunctionName) -> Option<ForecastStatus>;

    /// The runtimes that are kept for a function. `None`: it forks, or no such function.
    fn runtimes(&self, name: &FunctionName) -> Option<RuntimeStatus> {
        let _ = name;
        None
    }
}

/// What is to change about a function's workers now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Scaling {
    /// Idle workers beyond this are retired, or some started up to it.
    pub workers: Option<u32>,
    /// Which forecaster sizes the pool from now on.
    pub policy: Option<Policy>,
}

/// What the control API does. Deployment implements it; the API only translates.
pub trait ControlPlane: Send + Sync + Debug {
    /// Deploys: all or nothing. `archive` is a gzip-compressed tar of the code.
    fn deploy(
        &self,
        name: FunctionName,
        spec: FunctionSpec,
        archive: Bytes,
        progress: Arc<dyn Fn(Progress) + Send + Sync>,
    ) -> BoxFuture<'static, Result<DeployReport, DeployError>>;

    /// Every function.
    fn list(&self) -> Vec<FunctionSummary>;

    /// One function. `None`: no such function.
    fn describe(&self, name: &FunctionName) -> Option<FunctionDescription>;

    /// Takes a function away, with its versions. False: no such function.
    fn remove(&self, name: &FunctionName) -> BoxFuture<'static, Result<bool, DeployError>>;

    /// See [`Platform::scale`].
    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus>;
}
