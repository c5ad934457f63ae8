//! A fake engine: the test says how long starts take, whether they fail, and what their workers do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{
    Call, Clock, Engine, MemoryPressure, PassedRequest, StartError, StartStamps, TemplateMemory,
    Worker, WorkerFault,
};
use pilot_model::{BoxFuture, Version, VersionId, WorkerId};

use crate::worker::{Behaviour, FakeWorker, Reaction, Served};

/// A fake engine. It uses tokio's time.
pub struct FakeEngine {
    clock: Arc<dyn Clock>,
    script: Mutex<Script>,
}

struct Script {
    start_takes: Duration,
    start_spacing: Duration,
    last_ready: Option<tokio::time::Instant>,
    failures: VecDeque<StartError>,
    behaviour: Behaviour,
    pss: u64,
    templates: Vec<TemplateMemory>,
    kept_so_far: u64,
    pressure: MemoryPressure,
    asked: usize,
    prepared: Vec<VersionId>,
    forgotten: Vec<VersionId>,
    evicted: Vec<VersionId>,
    workers: Vec<Arc<FakeWorker>>,
}

impl Script {
    fn end_template(&mut self, version: &Version) {
        self.templates
            .retain(|template| template.name != version.id.as_str());
    }
}

impl std::fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeEngine").finish_non_exhaustive()
    }
}

impl FakeEngine {
    /// Starts take no time and succeed; workers answer `{}` at once.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            script: Mutex::new(Script {
                start_takes: Duration::ZERO,
                start_spacing: Duration::ZERO,
                last_ready: None,
                failures: VecDeque::new(),
                behaviour: Behaviour::default(),
                pss: 0,
                templates: Vec::new(),
                kept_so_far: 0,
                pressure: MemoryPressure::None,
                asked: 0,
                prepared: Vec::new(),
                forgotten: Vec::new(),
                evicted: Vec::new(),
                workers: Vec::new(),
            }),
        })
    }

    /// From now on a start takes `latency`, and two starts end at least `spacing` apart.
    pub fn starts_take(&self, latency: Duration, spacing: Duration) {
        let mut script = self.script.lock();
        script.start_takes = latency;
        script.start_spacing = spacing;
    }

    /// The next starts fail, one per error, after the normal time of a start.
    pub fn fail_starts(&self, errors: impl IntoIterator<Item = StartError>) {
        self.script.lock().failures.extend(errors);
    }

    /// What workers do from now on when they are called.
    pub fn serve(&self, behaviour: impl Fn(&Call) -> Reaction + Send + Sync + 'static) {
        self.script.lock().behaviour.calls = Arc::new(behaviour);
    }

    /// How workers answer requests that are passed through from now on. This makes them HTTP servers.
    pub fn serve_http(&self, behaviour: impl Fn(PassedRequest) -> Served + Send + Sync + 'static) {
        self.script.lock().behaviour.passes = Arc::new(behaviour);
    }

    /// Whether workers that are started from now on refuse a request that is passed through, and why.
    pub fn refuse_http(&self, behaviour: impl Fn() -> Option<WorkerFault> + Send + Sync + 'static) {
        self.script.lock().behaviour.refuses = Arc::new(behaviour);
    }

    /// Memory of each worker that is started from now on, bytes.
    pub fn workers_use(&self, pss: u64) {
        self.script.lock().pss = pss;
    }

    /// What [`Engine::templates`] returns, until a version is forgotten or evicted (its id is the template's name), or a template of level
    /// `prewarmed` is evicted for its memory.
    pub fn templates_are(&self, templates: Vec<TemplateMemory>) {
        let mut script = self.script.lock();
        let kept = templates
            .iter()
            .filter(|template| template.level == "prewarmed");
        script.kept_so_far += kept.count() as u64;
        script.templates = templates;
    }

    /// How short memory is from now on.
    pub fn memory_is(&self, pressure: MemoryPressure) {
        self.script.lock().pressure = pressure;
    }

    /// Number of starts so far.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.script.lock().asked
    }

    /// Every worker that was started, in order.
    #[must_use]
    pub fn workers(&self) -> Vec<Arc<FakeWorker>> {
        self.script.lock().workers.clone()
    }

    /// Number of workers that are still alive.
    #[must_use]
    pub fn alive(&self) -> usize {
        let script = self.script.lock();
        script
            .workers
            .iter()
            .filter(|worker| worker.is_alive())
            .count()
    }

    /// Versions that the pool has told the engine to forget.
    #[must_use]
    pub fn forgotten(&self) -> Vec<VersionId> {
        self.script.lock().forgotten.clone()
    }

    /// Versions whose template the pool has told the engine to drop for lack of memory.
    #[must_use]
    pub fn evicted(&self) -> Vec<VersionId> {
        self.script.lock().evicted.clone()
    }

    /// When the start that begins now ends, and with which result.
    fn plan(&self) -> (tokio::time::Instant, Option<StartError>) {
        let mut script = self.script.lock();
        script.asked += 1;
        let alone = tokio::time::Instant::now() + script.start_takes;
        let spacing = script.start_spacing;
        let ready = script
            .last_ready
            .map_or(alone, |last| alone.max(last + spacing));
        script.last_ready = Some(ready);
        (ready, script.failures.pop_front())
    }
}

impl Engine for FakeEngine {
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let mut script = self.script.lock();
        script.prepared.push(version.id.clone());
        let result = script.failures.pop_front().map_or_else(
            || {
                Ok(TemplateReport {
                    python: "3.11.7".to_owned(),
                    imports: Vec::new(),
                    failed_imports: Vec::new(),
                    findings: Vec::new(),
                    memory_bytes: 1 << 20,
                    forkable: true,
                    reason: None,
                    own_imports: None,
                    modules: Vec::new(),
                    took: script.start_takes,
                    warnings: Vec::new(),
                })
            },
            Err,
        );
        Box::pin(std::future::ready(result))
    }

    fn start(
        &self,
        _version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let asked = self.clock.now();
        let (ready, failure) = self.plan();
        // The worker is made now and returned later; until then nobody uses it.
        let clock = Arc::clone(&self.clock);
        let (behaviour, pss) = {
            let script = self.script.lock();
            (script.behaviour.clone(), script.pss)
        };
        let worker = FakeWorker::new(id, Arc::clone(&clock), behaviour, pss);
        if failure.is_none() {
            self.script.lock().workers.push(Arc::clone(&worker));
        }
        Box::pin(async move {
            tokio::time::sleep_until(ready).await;
            if let Some(failure) = failure {
                return Err(failure);
            }
            let now = clock.now();
            worker.became_ready(StartStamps {
                asked,
                template: asked,
                forked: now,
                sandboxed: now,
                initialised: now,
            });
            Ok(worker as Arc<dyn Worker>)
        })
    }

    fn kept_so_far(&self) -> u64 {
        self.script.lock().kept_so_far
    }

    fn relieve(&self, bytes: u64) -> u64 {
        let mut script = self.script.lock();
        let mut relieved = 0;
        script.templates.retain(|template| {
            let goes = template.level == "prewarmed" && relieved < bytes;
            relieved += if goes { template.memory_bytes } else { 0 };
            !goes
        });
        relieved
    }

    fn forget(&self, version: &Arc<Version>) {
        let mut script = self.script.lock();
        script.forgotten.push(version.id.clone());
        script.end_template(version);
    }

    fn evict(&self, version: &Arc<Version>) {
        let mut script = self.script.lock();
        script.evicted.push(version.id.clone());
        script.end_template(version);
    }

    fn memory_pressure(&self) -> MemoryPressure {
        self.script.lock().pressure
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        self.script.lock().templates.clone()
    }
}
