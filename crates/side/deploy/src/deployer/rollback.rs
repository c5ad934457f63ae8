//! A rollback: a kept version becomes the live one again. The version is tried first, as in a deployment. So a rollback to a version that
//! no longer starts changes nothing.

use std::sync::Arc;

use pilot_model::FunctionName;
use pilot_model::deployment::{DeployError, RollbackReport};
use pilot_model::ports::Actor;
use tokio::sync::OwnedMutexGuard;

use super::tried::Tried;
use super::{Inner, hints};
use crate::blocking::blocking;
use crate::errors;
use crate::registry::RegistryError;
use crate::state::{Deployed, Function};

impl Inner {
    pub(super) async fn rollback(
        self: Arc<Self>,
        name: FunctionName,
        number: Option<u32>,
        actor: Actor,
    ) -> Result<RollbackReport, DeployError> {
        let function_lock = self.function_locks.lock(name.as_str()).await;
        self.check_actor(&name, &actor)?;
        let function = self
            .state
            .function(&name)
            .ok_or_else(|| errors::no_function(&name))?;
        let live = &function.live.version;
        if number == Some(live.number) && function.live.problem.is_none() {
            return Ok(report(live.number, &function.live, false));
        }
        let target = choose(&function, number)?;
        let version = &target.version;
        let trial = version.config.runtime.trial(&version.config.handler);
        let tried = Tried::new(&self.platform, version);
        let template = self.platform.try_version(version).await;
        template
            .map_err(|error| errors::from_start(&error, &trial, || hints::of(&error, version)))?;
        blocking(move || self.make_live_again(&name, function, target, tried, function_lock)).await
    }

    /// Commits and activates the version. It runs to its end on its own thread, even if nobody waits for it.
    fn make_live_again(
        &self,
        name: &FunctionName,
        before: Function,
        target: Deployed,
        tried: Tried,
        function_lock: OwnedMutexGuard<()>,
    ) -> Result<RollbackReport, DeployError> {
        let number = target.version.number;
        let known = self
            .reserve
            .spend(RegistryError::is_full, || {
                self.registry.make_live(name, number)
            })
            .map_err(|error| errors::from_registry(&error))?;
        if !known {
            return Err(errors::no_version(name, Some(number), &before));
        }
        let replaced = before.live.version.number;
        let was_broken = before.live.problem.is_some();
        let function = before.with_live(target.clone());
        if was_broken {
            // A broken function has no versions that can be invoked. They are activated as after a restart, the last live one last.
            for one in function.older_whole().rev() {
                self.platform.activate(Arc::clone(&one.version));
            }
        }
        self.state.put(name.clone(), function);
        tried.activate(&target.version);
        drop(function_lock);
        Ok(report(replaced, &target, true))
    }
}

/// The version with this number, or the newest one that is older than the live version and can run.
fn choose(function: &Function, number: Option<u32>) -> Result<Deployed, DeployError> {
    let live = &function.live.version;
    let found = match number {
        Some(number) => function
            .older
            .iter()
            .find(|one| one.version.number == number),
        None => function
            .older_whole()
            .filter(|one| one.version.number < live.number)
            .max_by_key(|one| one.version.number),
    };
    let name = &live.config.name;
    let found = found.ok_or_else(|| errors::no_version(name, number, function))?;
    match &found.problem {
        Some(problem) => Err(errors::broken_version(name, found.version.number, problem)),
        None => Ok(found.clone()),
    }
}

impl Function {
    /// The same function with another of its versions as the live one.
    fn with_live(self, live: Deployed) -> Self {
        let others = [self.live].into_iter().chain(self.older);
        let others = others.filter(|one| one.version.number != live.version.number);
        Self {
            older: others.collect(),
            live,
        }
    }
}

fn report(replaced: u32, live: &Deployed, changed: bool) -> RollbackReport {
    RollbackReport {
        name: live.version.config.name.clone(),
        version: live.version.id.clone(),
        number: live.version.number,
        replaced,
        changed,
    }
}
