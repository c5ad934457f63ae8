//! The control side: the running functions as deployment uses them, and deployment as the control API uses it.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::{BoxFuture, StartError};
use crate::api::{LayerInfo, PruneReport, PruneRequest};
use crate::deployment::{
    DeployError, DeployReport, FunctionDescription, FunctionSummary, Progress, RollbackReport,
    TemplateReport,
};
use crate::ids::FunctionName;
use crate::invocation::InvocationSummary;
use crate::layer::LayerId;
use crate::policy::Policy;
use crate::secret::SecretId;
use crate::sharing::Sharing;
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
    /// What it costs that invocations share a worker. `None`: none did since the daemon started.
    pub sharing: Option<Sharing>,
}

/// The numbers that were made from the events, for deployment.
pub trait Observed: Send + Sync + Debug {
    /// Everything published before this call is counted. Zeroes for a function that was never invoked.
    fn observation(&self, name: &FunctionName) -> Observation;

    /// The function is removed: deletes its counts, metric series and log files.
    fn forget(&self, name: &FunctionName);
}

/// The running functions, as the control side uses them. The path implements it.
pub trait Platform: Send + Sync + Debug {
    /// Imports the handler in its sandbox, keeps the template, and starts one worker as a test.
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>>;

    /// A version that was tried does not become the live one: what its trial has left ends.
    fn discard(&self, version: &Arc<Version>);

    /// Makes this version the live one. Requests to the previous one finish there; then it is retired.
    fn activate(&self, version: Arc<Version>);

    /// The function cannot be run: its requests get an error that says why and what to do, until a version is activated or the
    /// function is removed.
    fn mark_broken(&self, name: &FunctionName, problem: &str);

    /// Of a function's versions only the live one and these can be invoked from now on.
    fn keep_versions(&self, name: &FunctionName, kept: &[u32]);

    /// Removes a function: new requests get 404, running ones finish.
    fn remove(&self, name: &FunctionName);

    /// What the workers of all versions are given at their start has changed: running requests finish, and new ones get new workers.
    fn renew(&self, name: &FunctionName);

    /// Workers by state. `None`: no such function.
    fn status(&self, name: &FunctionName) -> Option<PoolStatus>;

    /// Scales manually, until the next request or deploy. `None`: no such function.
    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus>;

    /// The forecast of a function. `None`: it has no forecast, or there is no such function.
    fn forecast(&self, name: &FunctionName) -> Option<ForecastStatus>;

    /// The runtimes that are kept for a function. `None`: it forks, or there is no such function.
    fn runtimes(&self, name: &FunctionName) -> Option<RuntimeStatus> {
        let _ = name;
        None
    }
}

/// A change to a function's workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Scaling {
    /// Idle workers beyond this number are retired, or workers are started up to it.
    pub workers: Option<u32>,
    /// Which forecaster sizes the pool.
    pub policy: Option<Policy>,
}

/// A function that uses a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUser {
    /// The function.
    pub function: FunctionName,
    /// A variable that has the value; `None`: all its uses are files.
    pub variable: Option<String>,
}

/// On whose behalf a function is changed.
#[derive(Clone)]
pub struct Actor {
    /// Who shares what deployments need of the machine, for people: `the owner 'team'`.
    pub share: String,
    /// Refused if there is such a function with another owner.
    pub only_of: Option<String>,
    /// Whether it may still do so. It is asked again when its turn has come.
    pub is_permitted: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Actor {
    /// Somebody who may change everything.
    #[must_use]
    pub fn operator() -> Self {
        Self {
            share: "the operator".to_owned(),
            only_of: None,
            is_permitted: Arc::new(|| true),
        }
    }
}

impl Debug for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Actor")
            .field("share", &self.share)
            .field("only_of", &self.only_of)
            .finish_non_exhaustive()
    }
}

/// What is deployed.
pub struct Deployment {
    /// The function.
    pub name: FunctionName,
    /// Its configuration.
    pub spec: FunctionSpec,
    /// A gzip-compressed tar of the code.
    pub archive: File,
    /// Who deploys it.
    pub actor: Actor,
    /// Is told each step.
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
}

impl Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployment")
            .field("name", &self.name)
            .field("actor", &self.actor)
            .finish_non_exhaustive()
    }
}

/// The operations of the control API. Deployment implements them; the API only translates.
pub trait ControlPlane: Send + Sync + Debug {
    /// An empty file for an upload, on the disk of the data directory. It is gone when it is closed.
    ///
    /// # Errors
    /// The disk's.
    fn spool(&self) -> io::Result<File>;

    /// A layer that is there, and stays for the deployment that follows. `None`: it must be uploaded.
    fn layer(&self, id: &LayerId) -> BoxFuture<'static, Result<Option<LayerInfo>, DeployError>>;

    /// Adds a layer. `archive` is a gzip-compressed tar of its content, which must have this id.
    fn add_layer(
        &self,
        id: LayerId,
        archive: File,
    ) -> BoxFuture<'static, Result<LayerInfo, DeployError>>;

    /// Deploys: all or nothing.
    fn deploy(
        &self,
        deployment: Deployment,
    ) -> BoxFuture<'static, Result<DeployReport, DeployError>>;

    /// The functions of which a kept version uses this secret.
    fn users(&self, secret: &SecretId) -> Vec<SecretUser>;

    /// See [`Platform::renew`].
    fn renew(&self, name: &FunctionName);

    /// Removes files that nothing uses, and if asked for, versions that are not live. What a running deployment or rollback needs
    /// stays.
    fn prune(&self, request: PruneRequest) -> BoxFuture<'static, Result<PruneReport, DeployError>>;

    /// Every function.
    fn list(&self) -> Vec<FunctionSummary>;

    /// One function. `None`: no such function.
    fn describe(&self, name: &FunctionName) -> Option<FunctionDescription>;

    /// Removes a function and its versions. Deployments and rollbacks of it that run or wait are given up. False: there was nothing.
    fn remove(
        &self,
        name: &FunctionName,
        actor: Actor,
    ) -> BoxFuture<'static, Result<bool, DeployError>>;

    /// Makes a kept version the live one again: `number`, or the newest one that is older than the live version. Invocations that
    /// run on the version before finish there. Deployments and other rollbacks of it that run or wait are given up. The errors have the codes `not_found` (no such function) and `unknown_version`.
    fn rollback(
        &self,
        name: &FunctionName,
        number: Option<u32>,
        actor: Actor,
    ) -> BoxFuture<'static, Result<RollbackReport, DeployError>>;

    /// See [`Platform::scale`]. More workers than the function's `scale.max` are an error. `None`: no such function.
    fn scale(
        &self,
        name: &FunctionName,
        scaling: Scaling,
    ) -> Result<Option<PoolStatus>, DeployError>;
}
