//! A fake host of runtimes: the test says how long starting, adapting, specialising and cleaning take and when they fail.
//! Afterwards it can check what was done with each runtime, and whether it is still alive.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{Clock, PrewarmedRuntime, RuntimeHost, StartError, StartStamps, Worker};
use pilot_model::runtime::container::ContainerRuntime;
use pilot_model::runtime_key::{Access, Base, Ipc, Limits, Mount, RuntimeKey, RuntimeSpec};
use pilot_model::{BoxFuture, FunctionName, Instant, Runtime, Version, WorkerId};

use crate::worker::{Behaviour, FakeWorker};

/// A fake host of runtimes. It uses tokio's time.
#[derive(Debug)]
pub struct FakeHost {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: Arc<dyn Clock>,
    script: Mutex<Script>,
}

#[derive(Debug, Default)]
struct Script {
    start: Step,
    adapt: Step,
    specialise: Step,
    clean: Step,
    keys_fail: Option<StartError>,
    starts_base_keys: bool,
    memory_bytes: u64,
    asked: usize,
    runtimes: Vec<Arc<FakeRuntime>>,
}

/// How long a step takes, and its next errors.
#[derive(Debug, Default)]
struct Step {
    takes: Duration,
    failures: VecDeque<StartError>,
}

/// A runtime that was started, as the test sees it; the pool has its own handle.
#[derive(Debug)]
pub struct FakeRuntime {
    number: usize,
    alive: AtomicBool,
    dropped: AtomicBool,
    steps: Mutex<Vec<RuntimeStep>>,
    worker: Mutex<Option<Arc<FakeWorker>>>,
}

/// What was done with a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeStep {
    /// It was started with this key.
    Started(Arc<RuntimeKey>),
    /// It was adapted to this key.
    Adapted(Arc<RuntimeKey>),
    /// It was specialised for this function.
    Specialised(FunctionName),
    /// It was cleaned.
    Cleaned,
}

impl FakeHost {
    /// Every step takes no time and succeeds; workers answer `{}` at once.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(Inner {
                clock,
                script: Mutex::default(),
            }),
        })
    }

    /// From now on a start takes this long.
    pub fn starts_take(&self, time: Duration) {
        self.inner.script.lock().start.takes = time;
    }

    /// The next starts fail, one per error.
    pub fn fail_starts(&self, errors: impl IntoIterator<Item = StartError>) {
        self.inner.script.lock().start.failures.extend(errors);
    }

    /// From now on adapting takes this long.
    pub fn adaptations_take(&self, time: Duration) {
        self.inner.script.lock().adapt.takes = time;
    }

    /// The next adaptations fail, one per error.
    pub fn fail_adaptations(&self, errors: impl IntoIterator<Item = StartError>) {
        self.inner.script.lock().adapt.failures.extend(errors);
    }

    /// From now on specialising takes this long.
    pub fn specialisations_take(&self, time: Duration) {
        self.inner.script.lock().specialise.takes = time;
    }

    /// The next specialisations fail, one per error.
    pub fn fail_specialisations(&self, errors: impl IntoIterator<Item = StartError>) {
        self.inner.script.lock().specialise.failures.extend(errors);
    }

    /// From now on cleaning takes this long.
    pub fn cleanings_take(&self, time: Duration) {
        self.inner.script.lock().clean.takes = time;
    }

    /// The next cleanings fail, one per error.
    pub fn fail_cleanings(&self, errors: impl IntoIterator<Item = StartError>) {
        self.inner.script.lock().clean.failures.extend(errors);
    }

    /// From now on no version has a key.
    pub fn fail_keys(&self, error: StartError) {
        self.inner.script.lock().keys_fail = Some(error);
    }

    /// From now on, a start only makes a runtime of the base key.
    pub fn start_base_keys_only(&self) {
        self.inner.script.lock().starts_base_keys = true;
    }

    /// Memory of each runtime from now on, bytes.
    pub fn runtimes_use(&self, bytes: u64) {
        self.inner.script.lock().memory_bytes = bytes;
    }

    /// Number of starts so far.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.inner.script.lock().asked
    }

    /// Every runtime that was started, in order.
    #[must_use]
    pub fn runtimes(&self) -> Vec<Arc<FakeRuntime>> {
        self.inner.script.lock().runtimes.clone()
    }

    /// Runtimes that are alive: neither dropped nor dead.
    #[must_use]
    pub fn up(&self) -> usize {
        let script = self.inner.script.lock();
        script
            .runtimes
            .iter()
            .filter(|runtime| runtime.is_up())
            .count()
    }

    /// The key that [`RuntimeHost::key`] returns. `UV_THREADPOOL_SIZE` is an execution option.
    ///
    /// # Panics
    /// Never: this host has a key for every configuration.
    #[must_use]
    pub fn key_of(version: &Version) -> RuntimeKey {
        let config = &version.config;
        let base = match &config.runtime {
            Runtime::Container(ContainerRuntime { image, disk, .. }) => Base::Container {
                image: image.clone(),
                disk: *disk,
            },
            Runtime::Node(_) => Base::Native {
                interpreter: Some(PathBuf::from("/usr/bin/node")),
                shown: Vec::new(),
            },
            _ => Base::Native {
                interpreter: None,
                shown: Vec::new(),
            },
        };
        RuntimeSpec {
            base,
            owner: Some(config.owner().to_owned()),
            network: config.network,
            host_name: String::new(),
            ipc: Ipc::Private,
            command: Vec::new(),
            working_dir: String::new(),
            environment: config
                .environment
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            execution: config
                .environment
                .iter()
                .filter(|(name, _)| *name == "UV_THREADPOOL_SIZE")
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            mounts: vec![Mount {
                inside: PathBuf::from("/var/task"),
                host: version.code_dir.clone(),
                access: Access::Read,
            }],
            limits: Limits {
                memory_bytes: Some(config.memory_bytes),
                cpu_milli: Some(config.cpu_milli),
                pids: None,
            },
            user: None,
        }
        .canonical()
    }
}

impl FakeRuntime {
    /// Its number in the order of starts, from 1.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it is neither dead nor dropped by all owners.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.alive.load(Ordering::SeqCst) && !self.dropped.load(Ordering::SeqCst)
    }

    /// What was done with it.
    #[must_use]
    pub fn steps(&self) -> Vec<RuntimeStep> {
        self.steps.lock().clone()
    }

    /// How often it was cleaned.
    #[must_use]
    pub fn cleanings(&self) -> usize {
        let steps = self.steps.lock();
        let cleaned = steps.iter().filter(|step| **step == RuntimeStep::Cleaned);
        cleaned.count()
    }

    /// Makes it end by itself.
    pub fn die(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }

    /// The worker it was last specialised into.
    #[must_use]
    pub fn worker(&self) -> Option<Arc<FakeWorker>> {
        self.worker.lock().clone()
    }
}

impl Inner {
    /// Waits for the time of a step and returns its result.
    async fn perform(
        &self,
        step: impl Fn(&mut Script) -> &mut Step + Send,
    ) -> Result<(), StartError> {
        let (takes, failure) = {
            let mut script = self.script.lock();
            let step = step(&mut script);
            (step.takes, step.failures.pop_front())
        };
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        failure.map_or(Ok(()), Err)
    }
}

impl RuntimeHost for FakeHost {
    fn hosts(&self, runtime: &Runtime) -> bool {
        runtime.image().is_none()
    }

    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError> {
        match &self.inner.script.lock().keys_fail {
            Some(error) => Err(error.clone()),
            None => Ok(Self::key_of(version)),
        }
    }

    fn start(
        &self,
        key: &Arc<RuntimeKey>,
    ) -> BoxFuture<'static, Result<Arc<dyn PrewarmedRuntime>, StartError>> {
        let (inner, mut key) = (Arc::clone(&self.inner), Arc::clone(key));
        {
            let mut script = inner.script.lock();
            script.asked += 1;
            if script.starts_base_keys {
                key = Arc::new(key.base_key());
            }
        }
        Box::pin(async move {
            inner.perform(|script| &mut script.start).await?;
            let record = {
                let mut script = inner.script.lock();
                let record = Arc::new(FakeRuntime {
                    number: script.runtimes.len() + 1,
                    alive: AtomicBool::new(true),
                    dropped: AtomicBool::new(false),
                    steps: Mutex::new(vec![RuntimeStep::Started(Arc::clone(&key))]),
                    worker: Mutex::default(),
                });
                script.runtimes.push(Arc::clone(&record));
                record
            };
            Ok(Arc::new(Up {
                record,
                inner,
                key: Mutex::new(key),
            }) as Arc<dyn PrewarmedRuntime>)
        })
    }

    fn report(&self, _version: &Version) -> TemplateReport {
        TemplateReport {
            python: String::new(),
            imports: Vec::new(),
            failed_imports: Vec::new(),
            findings: Vec::new(),
            memory_bytes: self.inner.script.lock().memory_bytes,
            forkable: false,
            reason: None,
            own_imports: None,
            modules: Vec::new(),
            took: Duration::ZERO,
            warnings: Vec::new(),
        }
    }
}

/// The pool's handle.
#[derive(Debug)]
struct Up {
    record: Arc<FakeRuntime>,
    inner: Arc<Inner>,
    key: Mutex<Arc<RuntimeKey>>,
}

impl Up {
    fn note(&self, step: RuntimeStep) {
        self.record.steps.lock().push(step);
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.record.dropped.store(true, Ordering::SeqCst);
    }
}

impl PrewarmedRuntime for Up {
    fn key(&self) -> Arc<RuntimeKey> {
        Arc::clone(&self.key.lock())
    }

    fn specialise(
        self: Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let version = Arc::clone(version);
        Box::pin(async move {
            // Detects a runtime that is specialised for a version of another key.
            let wanted = FakeHost::key_of(&version);
            if *self.key() != wanted {
                return Err(StartError::Sandbox {
                    problem: format!("{} is wanted of {}", wanted, self.key()),
                });
            }
            self.note(RuntimeStep::Specialised(version.config.name.clone()));
            self.inner.perform(|script| &mut script.specialise).await?;
            let clock = &self.inner.clock;
            let worker = FakeWorker::new(id, Arc::clone(clock), Behaviour::default(), 0);
            let now = clock.now();
            worker.became_ready(StartStamps {
                asked,
                template: asked,
                forked: now,
                sandboxed: now,
                initialised: now,
            });
            *self.record.worker.lock() = Some(Arc::clone(&worker));
            Ok(worker as Arc<dyn Worker>)
        })
    }

    /// Fails while the runtime is in use.
    fn clean(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(async move {
            let worker = self.record.worker.lock().clone();
            if worker.is_some_and(|worker| worker.is_alive()) {
                return Err(StartError::Sandbox {
                    problem: "its worker was not let go".to_owned(),
                });
            }
            self.inner.perform(|script| &mut script.clean).await?;
            self.note(RuntimeStep::Cleaned);
            Ok(())
        })
    }

    fn adapt(&self, to: &Arc<RuntimeKey>) -> BoxFuture<'_, Result<(), StartError>> {
        let to = Arc::clone(to);
        Box::pin(async move {
            if self.key().adaptation(&to).is_none() {
                return Err(StartError::Sandbox {
                    problem: format!("{} cannot become {to}", self.key()),
                });
            }
            self.inner.perform(|script| &mut script.adapt).await?;
            *self.key.lock() = Arc::clone(&to);
            self.note(RuntimeStep::Adapted(to));
            Ok(())
        })
    }

    fn is_alive(&self) -> bool {
        self.record.alive.load(Ordering::SeqCst)
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.script.lock().memory_bytes
    }
}
