//! The driver around the state machine: the hosts, the known versions, and the steps from a request to a worker.

mod hold;
mod start;
mod ticking;
mod waiting;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::{PrewarmedRuntime, RuntimeHost, StartError, TemplateMemory};
use pilot_model::runtime_key::RuntimeKey;
use pilot_model::status::{RuntimeCounts, RuntimeStart, RuntimeStatus};
use pilot_model::{
    Event, FunctionName, Instant, RuntimeOrigin, Seldom, Version, VersionId, WorkerId,
};
use tokio::sync::Notify;

use super::state::{Acquired, KeyedState, Limits, Look, Near};
use super::{KeyedParts, KeyedSettings};
use crate::tasks::Tasks;
use hold::{Claim, Hold};
use ticking::Forecasts;
use waiting::RuntimeWait;
use worker::KeyedWorker;

type Handle = Arc<dyn PrewarmedRuntime>;

/// What the pool, its tasks and its workers share.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) parts: KeyedParts,
    pub(super) settings: KeyedSettings,
    /// Cleanings, and runtimes that end. When the pool is closed, they may finish.
    pub(super) tasks: Tasks,
    /// Starts ahead of demand. They are aborted when the pool is closed.
    pub(super) ahead: Tasks,
    /// Guards the decisions; never held across an await, nor while a runtime is started, ended or measured.
    pub(super) state: Mutex<DriverState>,
    /// Guards the forecasters while they tick; taken before `state`, never on the path of a request.
    pub(super) forecasts: Mutex<Forecasts>,
    /// Wakes the timer: there may be a new base key.
    pub(super) wake: Arc<Notify>,
    /// Notified when a runtime has become available or has ended: waiting requests look again.
    pub(super) settled: Notify,
    /// The counts that were published last. Guards nothing else.
    pub(super) told: Mutex<RuntimeCounts>,
}

/// The state that is guarded.
#[derive(Debug)]
pub(super) struct DriverState {
    pub(super) runtimes: KeyedState<Handle>,
    /// Versions that were prepared or started, and not forgotten. Bounded by the number of deployed versions.
    versions: HashMap<(FunctionName, VersionId), Known>,
}

#[derive(Debug)]
struct Known {
    key: Arc<RuntimeKey>,
    /// The host that made the key and starts its runtimes.
    host: Arc<dyn RuntimeHost>,
    last: Option<RuntimeStart>,
}

/// Where a worker's runtime came from.
#[derive(Debug)]
pub(super) enum Origin {
    Reused,
    Adapted(Near),
    Started,
}

impl Driver {
    pub(super) fn new(parts: KeyedParts, settings: KeyedSettings) -> Self {
        let limits = Limits {
            runtimes_max: settings.runtimes_max,
            keep: settings.keep,
        };
        Self {
            parts,
            settings,
            tasks: Tasks::new(),
            ahead: Tasks::new(),
            state: Mutex::new(DriverState {
                runtimes: KeyedState::new(limits),
                versions: HashMap::new(),
            }),
            forecasts: Mutex::default(),
            wake: Arc::new(Notify::new()),
            settled: Notify::new(),
            told: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.parts.clock.now()
    }

    /// The host of this version's runtimes.
    pub(super) fn host(&self, version: &Version) -> Result<&Arc<dyn RuntimeHost>, StartError> {
        let runtime = &version.config.runtime;
        let mut hosts = self.parts.hosts.iter();
        hosts
            .find(|host| host.hosts(runtime))
            .ok_or_else(|| StartError::Sandbox {
                problem: format!("this daemon has no host for runtime = \"{runtime}\""),
            })
    }

    /// Starts a worker in a runtime that is reused, adapted, or started.
    pub(super) async fn start(
        self: &Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> Result<KeyedWorker, StartError> {
        let host = self.host(version)?;
        let key = self.know(version, host)?;
        let hold = self.acquire(version, host, &key).await?;
        let specialised = Arc::clone(hold.runtime()).specialise(version, id, asked);
        match specialised.await {
            Ok(worker) => Ok(KeyedWorker::new(worker, hold)),
            Err(error) => {
                // If user code failed, the runtime can be cleaned. After any other error its state is unknown, and the next
                // worker in it might fail as well. It ends here.
                if matches!(error, StartError::Import { .. }) {
                    drop(hold.give_back());
                }
                Err(error)
            }
        }
    }

    /// Whether the version was prepared or started before.
    pub(super) fn knows(&self, version: &Version) -> bool {
        self.state.lock().versions.contains_key(&name_of(version))
    }

    /// Forgets a version, which will not be started again soon.
    pub(super) fn forget(&self, version: &Version) {
        let mut gone = Vec::new();
        {
            let mut state = self.state.lock();
            if let Some(known) = state.versions.remove(&name_of(version)) {
                state.runtimes.disuse_key(&known.key, &mut gone);
            }
        }
        self.bury(gone);
    }

    /// From now on, no runtime is given or kept. Returns the kept ones.
    pub(super) fn close(&self) -> Vec<Handle> {
        let mut gone = Vec::new();
        self.state.lock().runtimes.close(&mut gone);
        gone
    }

    /// Measures the kept runtimes; reads `/proc`.
    pub(super) fn templates(&self) -> Vec<TemplateMemory> {
        let kept: Vec<(Arc<RuntimeKey>, Handle)> = {
            let state = self.state.lock();
            let kept = state.runtimes.kept();
            kept.map(|(key, runtime)| (Arc::clone(key), Arc::clone(runtime)))
                .collect()
        };
        let measured = kept.into_iter().map(|(key, runtime)| TemplateMemory {
            level: "prewarmed".to_owned(),
            name: key.to_string(),
            memory_bytes: runtime.memory_bytes(),
        });
        measured.collect()
    }

    pub(super) fn kept_so_far(&self) -> u64 {
        self.state.lock().runtimes.kept_so_far()
    }

    pub(super) fn status(&self, version: &Version) -> Option<RuntimeStatus> {
        let known = {
            let state = self.state.lock();
            let known = state.versions.get(&name_of(version));
            known.map(|known| (Arc::clone(&known.key), known.last.clone()))
        };
        let (key, last) = match known {
            Some(known) => known,
            None => (Arc::new(self.host(version).ok()?.key(version).ok()?), None),
        };
        let base_key = key.base_key();
        let forecast = self.forecasts.lock().status(&base_key);
        let state = self.state.lock();
        let (own, totals) = state.runtimes.of_key(&key);
        Some(RuntimeStatus {
            key: key.short(),
            line: key.to_string(),
            availability: state.runtimes.availability(&key),
            own,
            base: state.runtimes.of_base_key(&base_key),
            totals,
            last,
            forecast,
        })
    }

    /// Drops these runtimes off the path.
    pub(super) fn bury(&self, gone: Vec<Handle>) {
        if !gone.is_empty() {
            self.tasks.spawn(async move { drop(gone) });
        }
    }

    /// Starts the runtimes that the forecast requires of a base key.
    pub(super) fn refill(self: &Arc<Self>, base_key: &Arc<RuntimeKey>) {
        let now = self.now();
        let (starts, host) = {
            let mut state = self.state.lock();
            let starts = state.runtimes.refill(now, base_key);
            if starts.is_empty() {
                return;
            }
            let mut known = state.versions.values();
            let same = known.find(|known| known.key.base_key() == **base_key);
            (starts, same.map(|known| Arc::clone(&known.host)))
        };
        for id in starts {
            let claim = Claim::new(self, id);
            // Without a host the claim is dropped: the start has failed, and the next one is delayed.
            let Some(host) = &host else { continue };
            let start = host.start(base_key);
            let (driver, base_key) = (Arc::clone(self), Arc::clone(base_key));
            self.ahead.spawn(async move {
                match start.await {
                    Ok(runtime) => claim.up_ahead(runtime),
                    Err(error) => {
                        tracing::warn!(key = %base_key, %error, "a runtime that is expected to be wanted did not come up");
                        drop(claim);
                    }
                }
                driver.refill(&base_key);
            });
        }
    }

    /// The version's key. The host is asked once, and the key stays in use until the version is forgotten.
    fn know(
        &self,
        version: &Version,
        host: &Arc<dyn RuntimeHost>,
    ) -> Result<Arc<RuntimeKey>, StartError> {
        let name = name_of(version);
        if let Some(known) = self.state.lock().versions.get(&name) {
            return Ok(Arc::clone(&known.key));
        }
        let key = host.key(version)?;
        if key.owner() != Some(version.config.owner()) {
            // This must not happen: runtimes would be passed from one owner to another.
            return Err(StartError::Sandbox {
                problem: format!(
                    "the runtime of {} has no owner, or another one than {}",
                    version.config.name,
                    version.config.owner()
                ),
            });
        }
        let mut state = self.state.lock();
        let DriverState { runtimes, versions } = &mut *state;
        // Another start may have inserted it first.
        let known = versions.entry(name).or_insert_with(|| {
            let key = Arc::new(key);
            runtimes.use_key(&key);
            Known {
                key,
                host: Arc::clone(host),
                last: None,
            }
        });
        let key = Arc::clone(&known.key);
        drop(state);
        self.wake.notify_one();
        Ok(key)
    }

    /// Executes Algorithm 1.
    async fn acquire(
        self: &Arc<Self>,
        version: &Arc<Version>,
        host: &Arc<dyn RuntimeHost>,
        key: &Arc<RuntimeKey>,
    ) -> Result<Hold, StartError> {
        let asked = self.now();
        let mut look = Look::First;
        let mut failures = 0;
        let mut waiting: Option<RuntimeWait<'_>> = None;
        loop {
            // Created before the look, so that no notification after it is missed.
            let settled = self.settled.notified();
            let mut gone = Vec::new();
            let acquired = {
                let runtimes = &mut self.state.lock().runtimes;
                let is_alive = |runtime: &Handle| runtime.is_alive();
                runtimes.acquire(self.now(), key, look, is_alive, &mut gone)
            };
            self.bury(gone);
            if !matches!(acquired, Some(Acquired::Wait(_)))
                && let Some(waiting) = waiting.take()
            {
                waiting.answered();
            }
            let (hold, origin) = match acquired {
                None => return Err(closed()),
                Some(Acquired::Reused(id, runtime)) => {
                    (Hold::new(self, id, runtime), Origin::Reused)
                }
                Some(Acquired::Near(near, runtime)) => {
                    let hold = Hold::new(self, near.id, runtime);
                    if let Err(problem) = hold.adapt(key).await {
                        if let Some(left_out) = NOT_ADAPTED.admit(std::time::Instant::now()) {
                            tracing::warn!(from = %near.from, to = %key, problem, left_out, "a runtime could not be adapted: it is ended");
                        }
                        failures += 1;
                        look = match failures {
                            ADAPTATIONS_MAX.. => Look::Nowhere,
                            _ => Look::Again,
                        };
                        continue;
                    }
                    hold.adapted();
                    (hold, Origin::Adapted(near))
                }
                Some(Acquired::Wait(wait)) => {
                    let waits = waiting.get_or_insert_with(|| RuntimeWait::new(self, key, wait));
                    look = waits.for_change(settled).await;
                    if look == Look::Again {
                        waiting = None;
                    }
                    continue;
                }
                Some(Acquired::Start(id)) => self.start_or_find(id, host, key, look).await?,
            };
            self.note(version, key, &origin, asked);
            return Ok(hold);
        }
    }

    /// Records how a worker got its runtime.
    fn note(&self, version: &Arc<Version>, key: &RuntimeKey, origin: &Origin, asked: Instant) {
        let took = self.now().since(asked);
        let base_key = key.base_key();
        {
            let mut state = self.state.lock();
            let DriverState { runtimes, versions } = &mut *state;
            let fresh = match origin {
                Origin::Started => None,
                Origin::Reused | Origin::Adapted(_) => runtimes.fresh_start(&base_key),
            };
            if let Some(known) = versions.get_mut(&name_of(version)) {
                known.last = Some(RuntimeStart {
                    how: origin.in_words(),
                    took_ms: ms(took),
                    saved_ms: fresh.map(|fresh| ms(fresh) - ms(took)),
                });
            }
        }
        self.parts.sink.publish(Event::RuntimeGiven {
            version: Arc::clone(version),
            origin: origin.kind(),
            took,
        });
    }
}

impl Origin {
    fn kind(&self) -> RuntimeOrigin {
        match self {
            Self::Reused => RuntimeOrigin::Reused,
            Self::Adapted(_) => RuntimeOrigin::Adapted,
            Self::Started => RuntimeOrigin::Started,
        }
    }

    fn in_words(&self) -> String {
        let Self::Adapted(near) = self else {
            return self.kind().as_str().to_owned();
        };
        let what: Vec<_> = near.differences.iter().map(|what| what.as_str()).collect();
        format!("adapted from {}: {}", near.from.short(), what.join(", "))
    }
}

fn name_of(version: &Version) -> (FunctionName, VersionId) {
    (version.config.name.clone(), version.id.clone())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn closed() -> StartError {
    StartError::Sandbox {
        problem: "the daemon is stopping".to_owned(),
    }
}

/// The number of runtimes that are adapted for one request before a fresh one is started.
const ADAPTATIONS_MAX: u32 = 2;

/// Runtimes that could not be adapted and are logged, per interval.
static NOT_ADAPTED: Seldom = Seldom::new(20);
