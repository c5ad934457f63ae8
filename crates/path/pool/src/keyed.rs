//! The keyed pool: an [`Engine`] for what cannot fork. It keeps runtimes (sandboxes with an interpreter, containers), gives each
//! worker one that fits, has it cleaned afterwards and keeps it for the next (HotC, section IV).
//!
//! Runtimes are made by [`RuntimeHost`]s; this crate never looks into one. What is decided is decided by a pure state machine
//! (`state.rs`); around it is a driver (`driver.rs`) with one mutex, never held across an await. Nothing here is on the path of a call: a
//! worker is wrapped, but its exchanges are the host's own futures.
//!
//! A runtime that was used belongs to the owner of the function that used it, and never reaches another's. One that could not be
//! cleaned or adapted is ended, whatever it cost to start.

mod driver;
mod hold;
mod memory;
mod start;
mod state;
#[cfg(test)]
mod tests;
mod ticking;
mod waiting;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::deployment::TemplateReport;
use pilot_model::forecast::MakeForecaster;
use pilot_model::policy::SmoothingMarkovPolicy;
use pilot_model::ports::{
    Clock, Engine, EventSink, RuntimeHost, StartError, TemplateMemory, Worker,
};
use pilot_model::status::RuntimeStatus;
use pilot_model::{BoxFuture, Policy, Version, WorkerId};
use tokio::time::timeout;

use crate::forecasting;
use crate::tasks::Tasks;
use driver::Driver;
pub use memory::{MachineMemory, machine_memory};

/// What a keyed pool is made of.
pub struct KeyedParts {
    /// What makes the runtimes: of each version, the first that hosts its `runtime`.
    pub hosts: Vec<Arc<dyn RuntimeHost>>,
    /// Where its events go.
    pub sink: Arc<dyn EventSink>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Makes one forecaster per base key.
    pub forecaster: MakeForecaster,
    /// How full the machine's memory is: [`machine_memory`]. Called every few seconds, off the path.
    pub memory: Arc<dyn Fn() -> Option<MachineMemory> + Send + Sync>,
}

impl fmt::Debug for KeyedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedParts")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// How much is kept, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyedSettings {
    /// Runtimes, beyond which the oldest that are available are evicted. Those that workers have are never taken away, and a
    /// request is served beyond it. 0: none is kept, every worker gets a new one.
    pub runtimes_max: usize,
    /// Share of the machine's memory in use, percent, above which the oldest available are evicted.
    pub memory_percent_max: u8,
    /// A runtime that has been available for longer, and is not forecast to be wanted, is let go.
    pub keep: Duration,
    /// Longest that cleaning may take, the end of the use included; then the runtime is ended.
    pub clean_max: Duration,
    /// Longest that adapting may take; then the runtime is ended and another one taken.
    pub adapt_max: Duration,
    /// How many runtimes of a base key there are to be.
    pub policy: Policy,
}

/// The paper's limits (section IV-B) and forecaster. Its forecast adds no margin; with one of 1 there is a pre-warmed runtime for
/// the first request as well.
impl Default for KeyedSettings {
    fn default() -> Self {
        Self {
            runtimes_max: 500,
            memory_percent_max: 80,
            keep: Duration::from_secs(600),
            clean_max: Duration::from_secs(15),
            adapt_max: Duration::from_secs(5),
            policy: Policy::SmoothingMarkov(SmoothingMarkovPolicy {
                margin: 1,
                ..SmoothingMarkovPolicy::default()
            }),
        }
    }
}

/// The keyed pool. Dropping it ends every runtime that no worker has.
#[derive(Debug)]
pub struct KeyedPool {
    driver: Arc<Driver>,
    timer: Tasks,
}

impl KeyedPool {
    /// Without a runtime. Call it inside a tokio runtime: its tasks run there.
    #[must_use]
    pub fn new(parts: KeyedParts, settings: KeyedSettings) -> Self {
        let driver = Arc::new(Driver::new(parts, settings));
        let timer = Tasks::new();
        let wake = Arc::clone(&driver.wake);
        timer.spawn(forecasting::drive(
            Arc::downgrade(&driver),
            wake,
            Driver::tick,
        ));
        Self { driver, timer }
    }

    /// What is kept for a version, and what became of it so far. `None`: its worker's runtime cannot be had on this machine.
    #[must_use]
    pub fn status(&self, version: &Version) -> Option<RuntimeStatus> {
        self.driver.status(version)
    }

    /// Ends everything that is kept or being started ahead, and waits until it has ended; what a worker has just left has the time
    /// that it was promised. What workers still have ends with them; end those first. Nothing is started any more.
    pub async fn close(&self) {
        drop(self.driver.close());
        self.timer.end().await;
        self.driver.ahead.end().await;
        self.driver
            .tasks
            .finish(self.driver.settings.clean_max)
            .await;
    }
}

impl Drop for KeyedPool {
    fn drop(&mut self) {
        drop(self.driver.close());
        self.timer.abort();
        self.driver.ahead.abort();
        self.driver.tasks.abort();
    }
}

impl Engine for KeyedPool {
    /// Starts a worker, lets it go and waits, for a while, until its runtime is clean and kept, so that the first request finds
    /// it. Concurrent calls for one version try a worker each.
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let (driver, version) = (Arc::clone(&self.driver), Arc::clone(version));
        Box::pin(async move {
            let was_known = driver.knows(&version);
            let asked = driver.now();
            let trial = timeout(TRIAL_TIME_MAX, driver.start(&version, TRIAL, asked)).await;
            let worker = match trial.unwrap_or_else(|_| Err(too_slow(&version))) {
                Ok(worker) => worker,
                Err(error) => {
                    if !was_known {
                        driver.forget(&version);
                    }
                    return Err(error);
                }
            };
            let took = driver.now().since(asked);
            worker.end(TRIAL_CLEAN_WAIT_MAX).await;
            let host = driver.host(&version)?;
            Ok(TemplateReport {
                took,
                ..host.report(&version)
            })
        })
    }

    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let (driver, version) = (Arc::clone(&self.driver), Arc::clone(version));
        let asked = driver.now();
        Box::pin(async move {
            let worker = driver.start(&version, id, asked).await?;
            Ok(Arc::new(worker) as Arc<dyn Worker>)
        })
    }

    /// Lets go what no other version can use: see `KeyedState::disuse_key`.
    fn forget(&self, version: &Arc<Version>) {
        self.driver.forget(version);
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        self.driver.templates()
    }

    /// Nothing is started ahead for a while, either.
    fn relieve(&self, bytes: u64) -> u64 {
        self.driver.evict(self.driver.now(), bytes).bytes
    }

    fn runtimes(&self, version: &Version) -> Option<RuntimeStatus> {
        self.status(version)
    }
}

fn too_slow(version: &Version) -> StartError {
    StartError::Runtime {
        problem: format!(
            "no worker of {} comes up within {} s; do less before the first request can be taken",
            version.config.name,
            TRIAL_TIME_MAX.as_secs()
        ),
        output: String::new(),
    }
}

/// The worker that a deployment tries; those that serve are numbered from 1.
const TRIAL: WorkerId = WorkerId(0);
/// Longest that it may take. Hosts have bounds of their own for each step, and say more about which.
const TRIAL_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest that a deployment waits for its runtime's cleaning: a server may take its time to end.
const TRIAL_CLEAN_WAIT_MAX: Duration = Duration::from_secs(2);
