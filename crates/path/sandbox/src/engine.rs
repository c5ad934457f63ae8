//! The `Engine` port for runtimes that fork: keeps the tree of templates, hands out workers.
//!
//! A node of the tree is built when it is first needed, once however many ask ([`slots`]), and built again when its process
//! has ended. A function's node also keeps a few sandboxes ready, made and cleaned off the path by the [`keeper`].

mod keeper;
mod nodes;
mod slots;
mod specs;
mod trial;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ipnet::Ipv4Net;
use pilot_model::ports::{BoxFuture, Engine, StartError, TemplateMemory, TemplateReport, Worker};
use pilot_model::timeline::Instant;
use pilot_model::{EnvironmentId, Version, VersionId, WorkerId};
use pilot_sys::clock::monotonic_ns;
use pilot_sys::seqpacket;
use pilot_wire::control::Role;

use crate::cgroup::{Cgroup, Limits};
use crate::engine::keeper::Keeper;
use crate::engine::nodes::{Base, BaseKey, Function};
use crate::engine::slots::Slots;
use crate::filter::{FilterError, Filters};
use crate::isolation::Isolation;
use crate::network::Outbound;
use crate::runtime_files::RuntimeFiles;
use crate::spawner::Spawner;
use crate::worker::{Body, ForkedWorker, Output};

/// What an engine needs to know.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// A folder of the daemon's own, for mount points and the workers' sources.
    pub dir: PathBuf,
    /// Size limit of a worker's `/tmp`, bytes.
    pub tmp_bytes_max: u64,
    /// Processes and threads in one sandbox.
    pub pids_max: u32,
    /// Memory limit of an interpreter's or environment's template, bytes. A function's template has its function's.
    pub template_memory_bytes: u64,
    /// Where functions with `network = "outbound"` get their addresses from; see [`crate::OUTBOUND_CIDR_DEFAULT`].
    pub outbound_cidr: Ipv4Net,
}

/// Forks workers from templates.
#[derive(Debug)]
pub struct ForkEngine {
    shared: Arc<Shared>,
}

/// What nodes, workers and the keeper share.
#[derive(Debug)]
struct Shared {
    config: EngineConfig,
    spawner: Spawner,
    isolation: Isolation,
    outbound: Outbound,
    files: RuntimeFiles,
    /// The workers' filter as the wire protocol has it.
    worker_filter: Vec<u8>,
    interpreters: Slots<BaseKey<PathBuf>, Base>,
    environments: Slots<BaseKey<EnvironmentId>, Base>,
    functions: Slots<VersionId, Function>,
    next_user: AtomicU32,
    next_group: AtomicU64,
    keeper: Keeper,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A file could not be written.
    #[error("cannot write below {dir}: {source}", dir = dir.display())]
    Files {
        /// Where.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The filters do not compile on this architecture.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl ForkEngine {
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn new(
        config: EngineConfig,
        spawner: Spawner,
        isolation: Isolation,
    ) -> Result<Self, EngineError> {
        let files = RuntimeFiles::unpack(&config.dir).map_err(|source| EngineError::Files {
            dir: config.dir.clone(),
            source,
        })?;
        for feature in isolation.unavailable() {
            tracing::warn!("not available on this machine: {feature}");
        }
        let shared = Shared {
            outbound: Outbound::new(config.outbound_cidr),
            config,
            spawner,
            isolation,
            files,
            worker_filter: Filters::compile()?.worker.to_bytes(),
            interpreters: Slots::default(),
            environments: Slots::default(),
            functions: Slots::default(),
            next_user: AtomicU32::new(0),
            next_group: AtomicU64::new(0),
            keeper: Keeper::start(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl ForkEngine {
    /// Ends every template, and waits, for a while, until nothing is left of all sandboxes. True: nothing is. The
    /// workers must be gone by then.
    pub async fn close(&self) -> bool {
        let shared = &self.shared;
        shared.functions.clear();
        shared.environments.clear();
        shared.interpreters.clear();
        let Some(cgroups) = shared.isolation.cgroups() else {
            return true;
        };
        // The kernel gives no sign when a control group's last process has gone.
        for _ in 0..CLOSE_ROUNDS_MAX {
            if cgroups.sweep() {
                return true;
            }
            tokio::time::sleep(CLOSE_ROUND).await;
        }
        false
    }
}

/// How often, and how many times, it is looked whether sandboxes have ended.
const CLOSE_ROUND: Duration = Duration::from_millis(5);
const CLOSE_ROUNDS_MAX: usize = 400;

impl Engine for ForkEngine {
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let (shared, version) = (Arc::clone(&self.shared), Arc::clone(version));
        Box::pin(async move {
            let function = shared.function(&version).await;
            let function = function.map_err(trial::in_the_template)?;
            if let Err(error) = trial::run(&shared, &function).await {
                shared.functions.remove(&version.id);
                return Err(error);
            }
            Ok(function.report().clone())
        })
    }

    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let asked = Instant(monotonic_ns());
        let (shared, version) = (Arc::clone(&self.shared), Arc::clone(version));
        Box::pin(async move {
            let function = shared.function(&version).await?;
            let worker = shared.start(&function, id, asked).await?;
            shared.keeper.refill(&shared, &function);
            Ok(Arc::new(worker) as Arc<dyn Worker>)
        })
    }

    fn forget(&self, version: &Arc<Version>) {
        self.shared.functions.remove(&version.id);
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        let shared = &self.shared;
        let bases = [
            ("interpreter", shared.interpreters.built()),
            ("environment", shared.environments.built()),
        ];
        let bases = bases
            .into_iter()
            .flat_map(|(level, nodes)| nodes.into_iter().map(move |node| node.memory(level)));
        let functions = shared.functions.built();
        bases
            .chain(functions.iter().map(|node| node.memory()))
            .collect()
    }
}

impl Shared {
    /// Starts a worker in a sandbox that is ready, or in a new one.
    async fn start(
        self: &Arc<Self>,
        function: &Arc<Function>,
        id: WorkerId,
        asked: Instant,
    ) -> Result<ForkedWorker, StartError> {
        let sandbox = match function.take_spare() {
            Some(sandbox) => sandbox,
            None => self.worker_sandbox(function).await?,
        };
        let (channel, theirs) = seqpacket::stream_pair().map_err(no_sandbox("a socket pair"))?;
        let (output, log) = Output::pipe().map_err(no_sandbox("a pipe"))?;
        crate::channel::set_nonblocking(&channel).map_err(no_sandbox("a socket pair"))?;
        let process = match function.forks_from() {
            Some((template, spec)) => {
                let child = template.fork(Role::Worker, &sandbox, &theirs, &log, spec);
                child.await?
            }
            None => {
                self.exec_worker(function, &sandbox, &theirs, &log).await?;
                sandbox.program()
            }
        };
        // Closed here before the worker's end is waited for, or it would never be seen.
        drop((theirs, log));
        let home = self.keeper.home(function);
        let config = &function.version().config;
        let body = Body { sandbox, process };
        ForkedWorker::come_up(id, asked, config, channel, output, body, home).await
    }

    /// A cgroup, on machines that have them.
    fn cgroup(&self, limits: &Limits) -> Result<Option<Cgroup>, StartError> {
        let number = self.next_group.fetch_add(1, Ordering::Relaxed);
        self.isolation
            .cgroups()
            .map(|hierarchy| hierarchy.create(&format!("s{number}"), limits))
            .transpose()
            .map_err(no_sandbox("a cgroup"))
    }

    /// A fresh interpreter: `template = "off"`.
    async fn exec_worker(
        &self,
        function: &Function,
        sandbox: &crate::sandbox::Sandbox,
        channel: &OwnedFd,
        log: &OwnedFd,
    ) -> Result<(), StartError> {
        let null = dev_null()?;
        let spec = specs::piped(function.spec())?;
        let program = self.python_program(function.version(), "worker", function.user());
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

fn dev_null() -> Result<OwnedFd, StartError> {
    std::fs::File::open("/dev/null")
        .map(OwnedFd::from)
        .map_err(no_sandbox("/dev/null"))
}

fn no_sandbox(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::Sandbox {
        problem: format!("{step}: {error}"),
    }
}
