//! `Deployer`: the control plane. A deployment is unpack → environment → trial start → commit → activate. After a failure before
//! the commit, the old version keeps serving and nothing is left on disk. Commit and activation are one step that is not
//! interrupted. If the machine crashes in between, the registry decides.
//!
//! Deployments of one function run one after another. Deployments of different functions run in parallel, as far as [`turns`] permits.
//! What waits has nothing but its archive. A removal or a rollback ends deployments of its function ([`underway`]).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::api::{LayerInfo, PruneReport, PruneRequest};
use pilot_model::deployment::{
    DeployError, DeployReport, FunctionDescription, FunctionSummary, RollbackReport,
};
use pilot_model::ports::{
    Actor, BuildHost, ControlPlane, Deployment, Observation, Observed, Platform, Scaling,
    SecretUser,
};
use pilot_model::runtime::shown;
use pilot_model::status::PoolStatus;
use pilot_model::{BoxFuture, FunctionConfig, FunctionName, LayerId, Policy, SecretId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::archive::ArchiveLimits;
use crate::blocking::blocking;
use crate::data_dir::{self, DataDir};
use crate::disk_use::DiskUse;
use crate::environment::{EnvironmentConfig, Environments};
use crate::errors;
use crate::keyed_locks::KeyedLocks;
use crate::layers::LayerStore;
use crate::registry::{Registry, RegistryError, StoredFunction, StoredVersion};
use crate::reserve::Reserve;
use crate::state::{DeployState, Deployed, Function};

mod attempt;
mod bounds;
mod hints;
mod logged;
mod prune;
mod rollback;
mod sweep;
mod tried;
mod turns;
mod underway;

pub use bounds::StoreLimits;
use sweep::Sweeps;
use turns::{TURNS_MAX, Turns};
use underway::{Overtaken, Underway};

/// How many versions of a function are kept, including the live one. `NAME:NUMBER` can be invoked for these. Versions that cannot
/// run do not count.
pub const VERSIONS_KEPT: usize = 3;

/// How many archives are unpacked at the same time. Further ones wait.
const UNPACKED_AT_ONCE_MAX: usize = 4;

/// Configuration of deployments.
#[derive(Debug, Clone)]
pub struct DeployConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Limits of archives.
    pub archive: ArchiveLimits,
    /// How environments are built.
    pub environment: EnvironmentConfig,
    /// What runs installers and compilers.
    pub builds: Arc<dyn BuildHost>,
    /// What all functions together may keep.
    pub store: StoreLimits,
    /// The reserve on the disk of the data directory.
    pub reserve: Arc<Reserve>,
    /// The data directory, if it is held already.
    pub held: Option<HeldDataDir>,
}

/// A data directory that no other daemon uses, as long as this is there.
#[derive(Debug, Clone)]
pub struct HeldDataDir(Arc<DataDir>);

impl HeldDataDir {
    /// Takes it. Call this before anything in it is opened.
    ///
    /// # Errors
    /// Another daemon uses it, or it cannot be used.
    pub fn hold(path: &Path) -> Result<Self, OpenError> {
        let path_of_error = || path.to_owned();
        match DataDir::open(path) {
            Ok(Some(data_dir)) => Ok(Self(Arc::new(data_dir))),
            Ok(None) => Err(OpenError::InUse {
                path: path_of_error(),
            }),
            Err(source) => Err(OpenError::DataDir {
                path: path_of_error(),
                source,
            }),
        }
    }
}

impl DeployConfig {
    /// The defaults, for a data directory.
    #[must_use]
    pub fn new(data_dir: PathBuf, builds: Arc<dyn BuildHost>) -> Self {
        Self {
            reserve: Arc::new(Reserve::of(&data_dir)),
            data_dir,
            archive: ArchiveLimits::default(),
            environment: EnvironmentConfig::default(),
            builds,
            store: StoreLimits::default(),
            held: None,
        }
    }
}

/// Why the deployer cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another daemon uses the data directory.
    #[error(
        "the data directory {path} is in use by another daemon; stop that one, or choose another with --data-dir"
    )]
    InUse {
        /// Its path.
        path: PathBuf,
    },
    /// The data directory cannot be created or written.
    #[error("the data directory {path} cannot be used: {source}")]
    DataDir {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The registry cannot be opened.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// The functions after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of functions that can be invoked.
    pub functions: usize,
    /// Functions that cannot be invoked, and why.
    pub broken: Vec<(FunctionName, String)>,
}

/// Deploys and lists functions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Deployer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    data_dir: Arc<DataDir>,
    reserve: Arc<Reserve>,
    registry: Registry,
    environments: Environments,
    layers: LayerStore,
    state: Arc<DeployState>,
    limits: ArchiveLimits,
    store_limits: StoreLimits,
    disk_use: DiskUse,
    sweeps: Sweeps,
    platform: Arc<dyn Platform>,
    observed: Arc<dyn Observed>,
    /// A lock per function.
    function_locks: KeyedLocks,
    turns: Arc<Turns>,
    underway: Underway,
    /// One permit for each archive that is unpacked.
    unpacking: Arc<Semaphore>,
}

impl Deployer {
    /// Opens the data directory and reads the registry. Starts nothing; see [`Deployer::restore`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        config: DeployConfig,
        platform: Arc<dyn Platform>,
        observed: Arc<dyn Observed>,
    ) -> Result<Self, OpenError> {
        let HeldDataDir(data_dir) = match config.held {
            Some(held) => held,
            None => HeldDataDir::hold(&config.data_dir)?,
        };
        data_dir.repair();
        let registry = Registry::open(data_dir.root())?;
        let state = Arc::new(DeployState::default());
        let stored = registry.functions();
        for stored in stored.map_err(|error| registry.unreadable(error))? {
            state.put(stored.live.version.config.name.clone(), loaded(stored));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                environments: Environments::new(
                    Arc::clone(&data_dir),
                    config.environment,
                    config.builds,
                ),
                layers: LayerStore::new(Arc::clone(&data_dir), Arc::clone(&state), config.archive),
                data_dir,
                reserve: config.reserve,
                registry,
                state,
                limits: config.archive,
                store_limits: config.store,
                disk_use: DiskUse::default(),
                sweeps: Sweeps::default(),
                platform,
                observed,
                function_locks: KeyedLocks::default(),
                turns: Turns::new(TURNS_MAX),
                underway: Underway::default(),
                unpacking: Arc::new(Semaphore::new(UNPACKED_AT_ONCE_MAX)),
            }),
        })
    }

    /// Activates every function of the registry, and returns those that cannot run, with the reason. It imports nothing and runs no
    /// interpreter, because the daemon waits for it before it serves.
    #[must_use]
    pub fn restore(&self) -> Restored {
        let mut restored = Restored::default();
        let functions = self.inner.state.functions();
        logged::log_broken_older(&functions);
        for (name, function) in functions {
            if let Some(problem) = function.problem() {
                tracing::error!(function = %name, problem, "a function is broken");
                self.inner.platform.mark_broken(&name, &problem);
                restored.broken.push((name, problem));
                continue;
            }
            // Oldest first, so that each version can still be invoked by its number.
            for one in function.older_whole().rev().chain([&function.live]) {
                self.inner.platform.activate(Arc::clone(&one.version));
            }
            restored.functions += 1;
        }
        restored
    }

    /// Removes the unfinished work of earlier runs, and code, layers and environments that no version uses. Call it when the daemon already
    /// serves.
    pub async fn tidy(&self) {
        let inner = Arc::clone(&self.inner);
        let tidied = blocking(move || {
            let foreign = data_dir::foreign(inner.data_dir.root());
            if let Some(first) = foreign.first() {
                tracing::warn!(
                    path = %first.display(),
                    count = foreign.len(),
                    "the data directory has files that are not the daemon's: they are left alone"
                );
            }
            inner.data_dir.clear_leftovers()?;
            inner.sweep()
        });
        if let Err(error) = tidied.await {
            tracing::warn!(%error, "files that earlier runs left were not removed");
        }
    }

    /// Removes the files of retired versions when the path no longer uses them, and layers for which no deployment came. Checks
    /// periodically, and does nothing if there are none. Never ends; drop it to stop.
    pub async fn keep_tidy(&self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let reserve = Arc::clone(&self.inner.reserve);
            blocking(move || reserve.refill()).await;
            let expired = self.inner.layers.release_expired();
            if expired || self.inner.sweeps.is_due() || self.inner.state.waits_for_release() {
                self.inner.sweep_aside().await;
            }
        }
    }
}

impl ControlPlane for Deployer {
    fn deploy(
        &self,
        deployment: Deployment,
    ) -> BoxFuture<'static, Result<DeployReport, DeployError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let begun = std::time::Instant::now();
            let name = deployment.name.clone();
            let owner = deployment.spec.owner.as_deref();
            let owner = owner.unwrap_or(name.as_str()).to_owned();
            let deploying = Box::pin(Arc::clone(&inner).deploy(deployment));
            let deployed = inner
                .unless_overtaken(&name, &owner, deploying)
                .await
                .map_err(|error| errors::from_full_disk(error, &inner.reserve));
            logged::log_deployment(&name, &deployed, begun.elapsed());
            deployed
        })
    }

    fn spool(&self) -> std::io::Result<File> {
        self.inner.reserve.admit()?;
        self.inner.data_dir.spool()
    }

    fn layer(&self, id: &LayerId) -> BoxFuture<'static, Result<Option<LayerInfo>, DeployError>> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        Box::pin(blocking(move || inner.layers.find(&id)))
    }

    fn add_layer(
        &self,
        id: LayerId,
        archive: File,
    ) -> BoxFuture<'static, Result<LayerInfo, DeployError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let permit = inner.turn_to_unpack().await;
            blocking(move || {
                let _permit = permit;
                inner
                    .layers
                    .add(&id, archive)
                    .map_err(|error| errors::from_full_disk(error, &inner.reserve))
            })
            .await
        })
    }

    fn users(&self, secret: &SecretId) -> Vec<SecretUser> {
        let functions = self.inner.state.functions();
        let users = functions.into_iter().filter_map(|(name, function)| {
            let versions = std::iter::once(&function.live).chain(&function.older);
            let mut uses = versions
                .flat_map(|one| &one.version.config.secrets)
                .filter(|(_, used)| used.id() == *secret)
                .peekable();
            uses.peek()?;
            let as_variable = uses.find(|(_, used)| used.file.is_none());
            Some(SecretUser {
                variable: as_variable.map(|(variable, _)| variable.clone()),
                function: name,
            })
        });
        users.collect()
    }

    fn renew(&self, name: &FunctionName) {
        self.inner.platform.renew(name);
    }

    fn prune(&self, request: PruneRequest) -> BoxFuture<'static, Result<PruneReport, DeployError>> {
        Box::pin(Arc::clone(&self.inner).prune_aside(request))
    }

    fn list(&self) -> Vec<FunctionSummary> {
        let functions = self.inner.state.functions();
        functions
            .iter()
            .map(|(name, function)| {
                let observation = self.inner.observed.observation(name);
                self.inner.summary(name, function, &observation)
            })
            .collect()
    }

    fn describe(&self, name: &FunctionName) -> Option<FunctionDescription> {
        let function = self.inner.state.function(name)?;
        let observation = self.inner.observed.observation(name);
        let summary = self.inner.summary(name, &function, &observation);
        let version = &function.live.version;
        Some(FunctionDescription {
            summary,
            config: version.config.clone(),
            environment: version.environment.id.to_string(),
            template: function.live.template.clone(),
            url_path: url_path(name),
            last_cold: observation.last_cold,
            last: observation.last,
            versions: function.other_numbers(),
            forecast: self.inner.platform.forecast(name),
            runtimes: self.inner.platform.runtimes(name),
            // The control API knows them.
            triggers: Vec::new(),
            sharing: observation.sharing,
        })
    }

    fn remove(
        &self,
        name: &FunctionName,
        actor: Actor,
    ) -> BoxFuture<'static, Result<bool, DeployError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(async move {
            let (only_of, by) = (actor.only_of.as_deref(), Overtaken::Removed);
            let was_underway = inner.underway.overtake(&name, only_of, by);
            let function_lock = inner.function_locks.lock(name.as_str()).await;
            inner.check_actor(&name, &actor)?;
            blocking(move || {
                let _function_lock = function_lock;
                Ok(inner.remove(&name)? || was_underway)
            })
            .await
        })
    }

    fn rollback(
        &self,
        name: &FunctionName,
        number: Option<u32>,
        actor: Actor,
    ) -> BoxFuture<'static, Result<RollbackReport, DeployError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(async move {
            let (only_of, by) = (actor.only_of.as_deref(), Overtaken::RolledBack);
            let function = inner.state.function(&name);
            let function = function.ok_or_else(|| errors::no_function(&name))?;
            inner.underway.overtake(&name, only_of, by);
            let owner = function.live.version.config.owner();
            let rollback = Arc::clone(&inner).rollback(name.clone(), number, actor);
            inner.unless_overtaken(&name, owner, rollback).await
        })
    }

    fn scale(
        &self,
        name: &FunctionName,
        scaling: Scaling,
    ) -> Result<Option<PoolStatus>, DeployError> {
        let Some(function) = self.inner.state.function(name) else {
            return Ok(None);
        };
        if let Some(problem) = function.problem() {
            return Err(errors::broken(name, &problem));
        }
        let max = function.live.version.config.scale.max;
        let by_policy = scaling.policy.as_ref().and_then(Policy::fixed_workers);
        let mut asked_for = scaling.workers.into_iter().chain(by_policy);
        if let Some(wanted) = asked_for.find(|wanted| *wanted > max) {
            return Err(errors::too_many_workers(name, wanted, max));
        }
        let policy = scaling.policy.as_ref().map(ToString::to_string);
        let workers = scaling.workers;
        let status = self.inner.platform.scale(name, scaling);
        tracing::info!(function = %name, workers, policy, "scaled");
        Ok(status)
    }
}

impl Inner {
    /// Runs a deployment or a rollback, unless a removal or another rollback ends it.
    async fn unless_overtaken<T>(
        self: &Arc<Self>,
        name: &FunctionName,
        owner: &str,
        change: impl Future<Output = Result<T, DeployError>>,
    ) -> Result<T, DeployError> {
        let overtaken = self.underway.enter(name, owner);
        let by = tokio::select! {
            biased;
            Ok(by) = overtaken => by,
            changed = change => return changed,
        };
        // What it has staged is dropped. Its folders are not needed any more.
        self.sweep_aside().await;
        Err(errors::overtaken(name, by.done()))
    }

    /// Checks whether somebody may still change this function. Call it under the function's lock: who was first with a new name has it.
    fn check_actor(&self, name: &FunctionName, actor: &Actor) -> Result<(), DeployError> {
        if !(actor.is_permitted)() {
            return Err(errors::not_permitted_any_more(name));
        }
        if let Some(only_of) = &actor.only_of
            && let Some(function) = self.state.function(name)
            && function.live.version.config.owner() != only_of
        {
            return Err(errors::of_another_owner(name, only_of));
        }
        Ok(())
    }

    /// Waits while too many archives are unpacked. The semaphore is never closed, so there is always a permit.
    async fn turn_to_unpack(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unpacking).acquire_owned().await.ok()
    }

    fn remove(&self, name: &FunctionName) -> Result<bool, DeployError> {
        let removed = self
            .reserve
            .spend(RegistryError::is_full, || self.registry.remove(name))
            .map_err(|error| errors::from_registry(&error))?;
        if self.state.take(name) {
            self.platform.remove(name);
        }
        if removed {
            tracing::info!(function = %name, "removed");
            self.observed.forget(name);
            if let Err(error) = self.sweep() {
                tracing::warn!(%error, function = %name, "a removed function's files are left until the next start");
            }
        }
        Ok(removed)
    }

    fn summary(
        &self,
        name: &FunctionName,
        function: &Function,
        observation: &Observation,
    ) -> FunctionSummary {
        let version = &function.live.version;
        FunctionSummary {
            name: name.clone(),
            version: version.id.clone(),
            number: version.number,
            runtime: version.config.runtime.to_string(),
            handler: handler_or_command(&version.config),
            deployed_unix_s: function.live.deployed_unix_s,
            workers: self.platform.status(name).unwrap_or_default(),
            totals: observation.totals,
            problem: function.problem(),
        }
    }
}

fn loaded(stored: StoredFunction) -> Function {
    Function {
        live: deployed(stored.live),
        older: stored.older.into_iter().map(deployed).collect(),
    }
}

fn deployed(stored: StoredVersion) -> Deployed {
    Deployed {
        version: Arc::new(stored.version),
        template: stored.template,
        deployed_unix_s: stored.deployed_unix_s,
        problem: stored.problem,
    }
}

/// The handler, or the command if there is no handler.
fn handler_or_command(config: &FunctionConfig) -> String {
    if !config.handler.is_empty() {
        return config.handler.clone();
    }
    config.runtime.command().map(shown).unwrap_or_default()
}

fn url_path(name: &FunctionName) -> String {
    format!("/fn/{name}/")
}

#[cfg(test)]
mod tests;
