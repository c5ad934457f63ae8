//! A programmable engine: starts take as long as the test says, fail when it says so, and their workers do what it says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{
    Call, Clock, Engine, PassedRequest, StartError, StartStamps, TemplateMemory, Worker,
};
use pilot_model::{BoxFuture, Version, VersionId, WorkerId};

use crate::worker::{Behaviour, Deed, FakeWorker, Served};

/// A programmable engine. Its time is tokio's.
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
    asked: usize,
    prepared: Vec<VersionId>,
    forgotten: Vec<VersionId>,
    workers: Vec<Arc<FakeWorker>>,
}

impl std::fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeEngine").finish_non_exhaustive()
    }
}

impl FakeEngine {
    /// Starts take no time, succeed, and give workers that answer `{}` at once.
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
                asked: 0,
                prepared: Vec::new(),
                forgotten: Vec::new(),
                workers: Vec::new(),
            }),
        })
    }

    /// From now on, a start takes `latency`, and two come up at least `spacing` apart.
    pub fn starts_take(&self, latency: Duration, spacing: Duration) {
        let mut script = self.script.lock();
        script.start_takes = latency;
        script.start_spacing = spacing;
    }

    /// The next starts fail, one for each error, after the time that a start takes.
    pub fn fail_starts(&self, errors: impl IntoIterator<Item = StartError>) {
        self.script.lock().failures.extend(errors);
    }

    /// What workers do when they are called, from now on.
    pub fn serve(&self, behaviour: impl Fn(&Call) -> Deed + Send + Sync + 'static) {
        self.script.lock().behaviour.calls = Arc::new(behaviour);
    }

    /// What workers make of requests that pass through to them, from now on. They are HTTP servers then.
    pub fn serve_http(&self, behaviour: impl Fn(PassedRequest) -> Served + Send + Sync + 'static) {
        self.script.lock().behaviour.passes = Arc::new(behaviour);
    }

    /// The memory of workers that are started from now on, bytes.
    pub fn workers_use(&self, pss: u64) {
        self.script.lock().pss = pss;
    }

    /// What [`Engine::templates`] says, until the template of a version is forgotten (by its id as name), or one of level `prewarmed`
    /// goes for its memory.
    pub fn templates_are(&self, templates: Vec<TemplateMemory>) {
        self.script.lock().templates = templates;
    }

    /// Starts asked for so far.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.script.lock().asked
    }

    /// Every worker that came up, in that order.
    #[must_use]
    pub fn workers(&self) -> Vec<Arc<FakeWorker>> {
        self.script.lock().workers.clone()
    }

    /// Workers that came up and were not ended.
    #[must_use]
    pub fn alive(&self) -> usize {
        let script = self.script.lock();
        script
            .workers
            .iter()
            .filter(|worker| worker.is_alive())
            .count()
    }

    /// Versions that were given up.
    #[must_use]
    pub fn forgotten(&self) -> Vec<VersionId> {
        self.script.lock().forgotten.clone()
    }

    /// When the start that is asked for now ends, and how.
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
                    memory_bytes: 1 << 20,
                    forkable: true,
                    reason: None,
                    took: script.start_takes,
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
        // The worker is made now and handed over later: until then it is nobody's.
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
            worker.came_up(StartStamps {
                asked,
                forked: now,
                sandboxed: now,
                initialised: now,
            });
            Ok(worker as Arc<dyn Worker>)
        })
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
        script
            .templates
            .retain(|template| template.name != version.id.as_str());
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        self.script.lock().templates.clone()
    }
}
