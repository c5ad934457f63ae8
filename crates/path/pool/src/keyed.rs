//! The keyed pool: an [`Engine`] for workers that cannot fork. It keeps runtimes (sandboxes with an interpreter, containers),
//! gives each worker one that fits, has it cleaned after the use, and keeps it for the next worker (HotC, section IV).
//!
//! [`RuntimeHost`]s make the runtimes; this crate does not know what is inside. A pure state machine (`state.rs`) decides. Its
//! driver (`driver.rs`) has one mutex, which is never held across an await. Nothing here is on the path of a call: a worker is
//! wrapped, but its exchanges are the host's own futures.
//!
//! A used runtime belongs to the owner of the function that used it, and is never given to another owner. A runtime that could
//! not be cleaned or adapted is ended, even if its start was expensive.

mod driver;
mod memory;
mod state;
#[cfg(test)]
mod tests;

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

/// The parts of a keyed pool.
pub struct KeyedParts {
    /// The hosts. The first one that supports a version's `runtime` makes its runtimes.
    pub hosts: Vec<Arc<dyn RuntimeHost>>,
    /// The sink for its events.
    pub sink: Arc<dyn EventSink>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Makes one forecaster per base key.
    pub forecaster: MakeForecaster,
    /// Returns the machine's memory use: [`machine_memory`]. Called every few seconds, off the path.
    pub memory: Arc<dyn Fn() -> Option<MachineMemory> + Send + Sync>,
}

impl fmt::Debug for KeyedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedParts")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// How many runtimes are kept, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyedSettings {
    /// Beyond this number of runtimes, the oldest available ones are evicted. Leased runtimes are never evicted, and a request is
    /// served even beyond the limit. 0: none is kept, and every worker gets a new one.
    pub runtimes_max: usize,
    /// Share of the machine's memory in use, percent, above which the oldest available runtimes are evicted.
    pub memory_percent_max: u8,
    /// A runtime that has been available for longer than this is ended, unless the forecast needs it.
    pub keep: Duration,
    /// The longest that cleaning may take, including the end of the use. After that, the runtime is ended.
    pub clean_max: Duration,
    /// The longest that adapting may take. After that, the runtime is ended and the request gets another one.
    pub adapt_max: Duration,
    /// The policy that decides how many runtimes a base key has.
    pub policy: Policy,
}

/// The paper's limits (section IV-B) and forecaster. Its forecast has no margin. With a margin of 1, the first request also finds
/// a pre-warmed runtime.
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

/// The keyed pool. Dropping it ends every runtime that is not leased.
#[derive(Debug)]
pub struct KeyedPool {
    driver: Arc<Driver>,
    timer: Tasks,
}

impl KeyedPool {
    /// Makes a pool without runtimes. Call it inside a tokio runtime: its tasks run there.
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

    /// The runtimes that are kept for a version, with their totals. `None`: this machine cannot make a runtime for it.
    #[must_use]
    pub fn status(&self, version: &Version) -> Option<RuntimeStatus> {
        self.driver.status(version)
    }

    /// Ends every kept or starting runtime and waits for their end. The processes of a retired worker have their promised time to
    /// end. Leased runtimes end when their workers end; end those first. After this call, nothing is started.
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
    /// Starts a worker and releases it. Waits for a limited time until its runtime is clean and kept, so that the first request
    /// can use it. Concurrent calls for one version start a worker each.
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let (driver, version) = (Arc::clone(&self.driver), Arc::clone(version));
        Box::pin(async move {
            let was_known = driver.knows(&version);
            let asked = driver.now();
            let trial = timeout(START_TIME_MAX, driver.start(&version, TRIAL, asked)).await;
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
            let start = driver.start(&version, id, asked);
            let worker = timeout(START_TIME_MAX, start)
                .await
                .unwrap_or_else(|_| Err(too_slow(&version)))?;
            Ok(Arc::new(worker) as Arc<dyn Worker>)
        })
    }

    /// Ends the runtimes that no other version can use: see `KeyedState::disuse_key`.
    fn forget(&self, version: &Arc<Version>) {
        self.driver.forget(version);
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        self.driver.templates()
    }

    fn kept_so_far(&self) -> u64 {
        self.driver.kept_so_far()
    }

    /// After this, nothing is started ahead of demand for some time.
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
            START_TIME_MAX.as_secs()
        ),
        output: String::new(),
    }
}

/// The worker of a deployment's trial; other workers are numbered from 1.
const TRIAL: WorkerId = WorkerId(0);
/// Longest time for a worker's start. Hosts limit most steps as well, and their errors name the step.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// The longest that a deployment waits for its runtime's cleaning: a server may need time to end.
const TRIAL_CLEAN_WAIT_MAX: Duration = Duration::from_secs(2);
