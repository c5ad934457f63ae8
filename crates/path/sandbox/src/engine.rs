//! The `Engine` port for runtimes that fork: owns the tree of templates and starts workers from it.
//!
//! A node of the tree is built when it is first needed, once for all concurrent requests ([`Slots`]), and again when its
//! process has ended. A function's node also holds a few spare sandboxes, which the [`prewarmer`] makes and cleans in the
//! background.

mod bases;
mod kept;
mod launch;
mod modules;
mod nodes;
mod prewarmer;
mod report;
mod spares;
mod specs;
mod trial;

pub(crate) use specs::function_info;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{BoxFuture, Engine, MemoryPressure, StartError, TemplateMemory, Worker};
use pilot_model::timeline::Instant;
use pilot_model::{EnvironmentId, Version, VersionId, WorkerId};
use pilot_sys::clock::monotonic_ns;
use pilot_sys::seqpacket;
use pilot_wire::control::{Role, TemplateSpec};
use tokio::time::timeout;

use crate::cgroup::{Cgroup, Hierarchy};
use crate::child::Child;
use crate::engine::bases::{Base, BaseKey, Imported};
use crate::engine::kept::Kept;
use crate::engine::modules::SharedModules;
use crate::engine::nodes::Function;
use crate::engine::prewarmer::SandboxPrewarmer;
use crate::machine::{Machine, dev_null};
use crate::refused::refused;
use crate::slots::{SharedSlots, Slots, SlotsOf};
use crate::template::Template;
use crate::variables;
use crate::worker::{Body, Connection, ForkedWorker, Output};

/// Forks workers from templates.
#[derive(Debug)]
pub struct ForkEngine {
    tree: Arc<TemplateTree>,
}

/// The templates that are running, and what starting workers from them needs.
#[derive(Debug)]
struct TemplateTree {
    machine: Arc<Machine>,
    /// They stay until the engine is closed: there are few, they have imported no packages, and nearly every function needs one.
    interpreters: Slots<BaseKey<PathBuf>, Base>,
    /// Each runs as long as deployed versions keep it ([`Kept`]).
    environments: SharedSlots<BaseKey<EnvironmentId>, Base>,
    /// Below those of the environments.
    with_modules: SharedSlots<BaseKey<Imported>, Base>,
    modules: SharedModules,
    functions: SlotsOf<VersionId, Kept>,
    prewarmer: SandboxPrewarmer,
}

impl ForkEngine {
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn new(machine: Arc<Machine>) -> Self {
        let tree = TemplateTree {
            machine,
            interpreters: Slots::default(),
            environments: SharedSlots::default(),
            with_modules: SharedSlots::default(),
            modules: SharedModules::default(),
            functions: SlotsOf::default(),
            prewarmer: SandboxPrewarmer::start(),
        };
        Self {
            tree: Arc::new(tree),
        }
    }
}

impl ForkEngine {
    /// Waits until the workers that were told to end have ended, or have had their time for it.
    pub async fn settled(&self) {
        self.tree.prewarmer.settled().await;
    }

    /// Ends every template. All workers must have ended before. See [`Machine::vacated`].
    pub fn close(&self) {
        let tree = &self.tree;
        tree.functions.clear();
        tree.interpreters.clear();
    }
}

impl Engine for ForkEngine {
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let (tree, version) = (Arc::clone(&self.tree), Arc::clone(version));
        Box::pin(async move { tree.prepare(&version).await })
    }

    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let asked = Instant(monotonic_ns());
        let (tree, version) = (Arc::clone(&self.tree), Arc::clone(version));
        Box::pin(async move {
            let started = match tree.start(&version, id, asked).await {
                Err(StartError::Full { .. }) if tree.give_up_spares() => {
                    tree.start(&version, id, asked).await
                }
                started => started,
            };
            started.map(|worker| Arc::new(worker) as Arc<dyn Worker>)
        })
    }

    fn forget(&self, version: &Arc<Version>) {
        self.tree.functions.remove(&version.id);
    }

    fn evict(&self, version: &Arc<Version>) {
        self.tree.functions.let_go(&version.id);
    }

    fn relieve(&self, bytes: u64) -> u64 {
        self.tree.give_up_environments(bytes)
    }

    fn memory_pressure(&self) -> MemoryPressure {
        let groups = self.tree.machine.isolation.cgroups();
        groups.map_or(MemoryPressure::None, Hierarchy::memory_pressure)
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        let tree = &self.tree;
        let bases = [
            ("interpreter", tree.interpreters.built()),
            ("environment", tree.environments.built()),
            ("environment", tree.with_modules.built()),
        ];
        // The node of a template that has ended stays until somebody needs it again.
        let bases = bases.into_iter().flat_map(|(level, nodes)| {
            let running = nodes.into_iter().filter(|node| node.is_running());
            running.map(move |node| node.memory(level))
        });
        let functions = tree.functions.built();
        let functions = functions.iter().filter(|node| node.is_running());
        bases.chain(functions.map(|node| node.memory())).collect()
    }
}

/// Longest time for the start of a worker that is forked with everything imported.
const FORKED_TIME_MAX: Duration = Duration::from_secs(30);
/// The same for one that imports its function itself.
const IMPORTED_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest time for the fork alone, which takes milliseconds. Shorter than requests wait, so that they get a worker of the next template.
const FORK_TIME_MAX: Duration = Duration::from_secs(10);

/// Waits until a worker is ready. `group` is that of its sandbox. A template that does not fork is given up.
async fn when_forked(
    function: &Function,
    group: Option<Arc<Cgroup>>,
    ready: impl Future<Output = Result<ForkedWorker, StartError>>,
) -> Result<ForkedWorker, StartError> {
    let template = function.forks_from().map(|(template, _)| template);
    let before = template.map(Template::workers_ready);
    let mut ready = pin!(ready);
    if let Ok(worker) = timeout(FORK_TIME_MAX, ready.as_mut()).await {
        if let (Ok(_), Some(template)) = (&worker, template) {
            template.count_ready();
        }
        return worker;
    }
    // Before anything else, a child joins its group. The template does not say of every child that it is forked.
    let is_forked = group.is_none_or(|group| !group.processes().is_empty());
    match template.filter(|_| !is_forked) {
        // Others may have been asked for before.
        Some(template) if before == Some(template.workers_ready()) => {
            template.give_up();
            let seconds = FORK_TIME_MAX.as_secs();
            let problem = format!(
                "its template does not fork: it has not answered within {seconds} s. Most likely something that was started at import \
                 has stopped it: start nothing there. The template is built again"
            );
            Err(StartError::Runtime {
                problem,
                output: String::new(),
            })
        }
        _ => ready.await,
    }
}

impl TemplateTree {
    /// Makes the node of a version that is deployed.
    async fn prepare(
        self: &Arc<Self>,
        version: &Arc<Version>,
    ) -> Result<TemplateReport, StartError> {
        let function = match self.function(version).await {
            Err(StartError::Full { .. }) if self.give_up_spares() => self.function(version).await,
            found => found,
        };
        let function = function.map_err(trial::in_the_template)?;
        let mut report = function.report();
        if let Err(error) = trial::run(self, &function).await {
            self.functions.remove(&version.id);
            return Err(error);
        }
        drop(function);
        if report.modules != version.modules {
            if let Some(sharing) = self.share_modules(version, &report.modules).await {
                report.memory_bytes = sharing.report().memory_bytes;
            } else if self.modules.is_refused(version, &report.modules) {
                // Otherwise the first request after a restart would wait while it is tried again.
                report.modules.clear();
            }
        }
        Ok(report)
    }

    /// Starts a worker, and makes spare sandboxes for the next ones.
    async fn start(
        self: &Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> Result<ForkedWorker, StartError> {
        let function = self.function(version).await?;
        let template = Instant(monotonic_ns());
        let worker = self.start_from(&function, id, asked, template).await?;
        self.prewarmer.refill(self, &function);
        Ok(worker)
    }

    /// Drops all spare sandboxes, because the machine has no room for something that is needed. Returns whether there were any.
    fn give_up_spares(&self) -> bool {
        let mut gave_up = false;
        for function in self.functions.built() {
            gave_up |= function.give_up_spares();
        }
        gave_up
    }

    /// Starts a worker, within a limited time: user code that runs in it, such as a hook, may never end.
    async fn start_from(
        self: &Arc<Self>,
        function: &Arc<Function>,
        id: WorkerId,
        asked: Instant,
        template: Instant,
    ) -> Result<ForkedWorker, StartError> {
        let (limit, runs) = match function.is_imported() {
            true => (
                FORKED_TIME_MAX,
                "an after_restore hook or the application's startup",
            ),
            false => (
                IMPORTED_TIME_MAX,
                "its imports, an after_restore hook or the application's startup",
            ),
        };
        let start = self.start_in_a_sandbox(function, id, asked, template);
        timeout(limit, start).await.unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            Err(StartError::Runtime {
                problem: format!(
                    "it is not ready within {seconds} s: {runs} takes too long; do less there"
                ),
                output: String::new(),
            })
        })
    }

    /// Starts a worker in a spare sandbox, or in a new one.
    async fn start_in_a_sandbox(
        self: &Arc<Self>,
        function: &Arc<Function>,
        id: WorkerId,
        asked: Instant,
        template: Instant,
    ) -> Result<ForkedWorker, StartError> {
        let secrets = self.machine.secrets(function.version())?;
        let sandbox = match function.take_spare() {
            Some(sandbox) => sandbox,
            None => self.worker_sandbox(function).await?,
        };
        if let Some(secrets) = &secrets {
            let files = sandbox
                .control()
                .show_secrets(&secrets.files, function.user());
            files.await?;
        }
        let (channel, theirs) =
            seqpacket::stream_pair_with_untrusted().map_err(refused("a socket pair"))?;
        let (output, log) = Output::pipe().map_err(refused("a pipe"))?;
        crate::channel::set_nonblocking(&channel).map_err(refused("a socket pair"))?;
        let process = match function.forks_from() {
            Some((template, spec)) => {
                // A template of the level above is in another user namespace than the function.
                let around = spec.map(|_| function.sandbox());
                let child = template.fork(Role::Worker, &sandbox, &theirs, &log, spec, around);
                child.await?
            }
            None => self.exec_worker(function, &sandbox, &theirs, &log).await?,
        };
        // These copies must be closed before waiting for the worker, or its end would not be seen.
        drop((theirs, log));
        let owner = self.prewarmer.owner_of(function);
        let config = &function.version().config;
        let body = Body { sandbox, process };
        let answers = self.machine.config.answers.of(&config.name);
        let mut connection = Connection::new(channel, output, answers)?;
        if let Some(secrets) = &secrets {
            connection
                .give(&secrets.environment, body.process.end())
                .await?;
        }
        let group = body.sandbox.shared_cgroup();
        let ready = ForkedWorker::when_ready(id, asked, template, config, connection, body, owner);
        let worker = when_forked(function, group, ready).await?;
        Ok(worker.paced(self.machine.paceable(config)))
    }

    /// Starts a fresh interpreter, for `template = "off"`, and if there is no template that it could be forked from.
    async fn exec_worker(
        &self,
        function: &Function,
        sandbox: &crate::sandbox::Sandbox,
        channel: &OwnedFd,
        log: &OwnedFd,
    ) -> Result<Child, StartError> {
        let null = dev_null()?;
        let at_start = variables::read_at_start(&function.spec().environment);
        let spec = specs::piped(&TemplateSpec {
            // The init has installed all filters, and no other can be installed then.
            filter: None,
            ..function.spec().clone()
        })?;
        let python = launch::python(&function.version().environment)?;
        let program = launch::python_program(python, "worker", at_start, function.user());
        let fds = [
            null.as_fd(),
            log.as_fd(),
            log.as_fd(),
            channel.as_fd(),
            spec.as_fd(),
        ];
        sandbox.exec(program, &fds).await
    }
}
