//! What all engines of a daemon share: the spawner, the isolation, links to other hosts, the workers' files, and ids that must
//! be unique.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ipnet::Ipv4Net;
use pilot_model::ports::{Secrets, StartError};
use pilot_model::{Enforcement, FunctionConfig, Network, SecretValues, Version};
use pilot_protocols::MemoryBudget;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::cgroup::{Branch, Cgroup, Hierarchy, Limits, Owner, TotalLimits};
use crate::descriptors;
use crate::filter::{FilterError, Filters};
use crate::isolation::Isolation;
use crate::network::outbound::Outbound;
use crate::network::resolver::{OF_THE_HOST, Resolver};
use crate::pace::{Paceable, Pacer};
use crate::refused::refused;
use crate::runtime_files::RuntimeFiles;
use crate::spawner::Spawner;

/// Configuration of the engines.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// A folder of the daemon for mount points and the workers' sources.
    pub dir: PathBuf,
    /// Size limit of a worker's `/tmp`, bytes.
    pub tmp_bytes_max: u64,
    /// Processes and threads in one sandbox.
    pub pids_max: u32,
    /// Memory limit of an interpreter's or environment's template, bytes. A function's template has the function's limit.
    pub template_memory_bytes: u64,
    /// The limits of everything below the daemon together. `None`: only each group is limited.
    pub total: Option<TotalLimits>,
    /// Range of the addresses for functions with `network = "outbound"`; see [`crate::OUTBOUND_CIDR_DEFAULT`].
    pub outbound_cidr: Ipv4Net,
    /// The memory of Python's templates becomes huge pages, where the kernel can do it (decision 0025).
    pub huge_pages: bool,
    /// Memory of all buffers of a function that others may have, bytes.
    pub buffers_bytes_max: u64,
    /// Holds the answers of workers.
    pub answers: MemoryBudget,
    /// The values of functions' secrets.
    pub secrets: Arc<dyn Secrets>,
}

/// Why the engines cannot be made.
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
    /// The kernel refuses the limits of everything together.
    #[error(
        "cannot limit all functions and builds together (limits.total_memory_mb, limits.total_pids): {0}"
    )]
    Total(io::Error),
    /// The filters do not compile for this architecture.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    pub(crate) config: EngineConfig,
    pub(crate) spawner: Spawner,
    pub(crate) isolation: Isolation,
    pub(crate) outbound: Outbound,
    pub(crate) files: RuntimeFiles,
    /// The workers' filter in the format of the wire protocol.
    pub(crate) worker_filter: Vec<u8>,
    next_user: AtomicU32,
    next_group: AtomicU64,
    pacer: Arc<Pacer>,
}

/// First user id for functions, and their number; then ids are reused.
const USERS: (u32, u32) = (2_000, 60_000);

/// Pause between checks whether sandboxes have ended, and the number of checks.
const CLOSE_ROUND: Duration = Duration::from_millis(5);
const CLOSE_ROUNDS_MAX: usize = 400;

/// How often the spawner is looked for without a signal.
const SPAWNER_LOOK_EVERY: Duration = Duration::from_millis(500);

impl Machine {
    /// # Errors
    /// The folder cannot be written to.
    pub fn new(
        config: EngineConfig,
        spawner: Spawner,
        isolation: Isolation,
    ) -> Result<Arc<Self>, EngineError> {
        let files = RuntimeFiles::unpack(&config.dir).map_err(|source| EngineError::Files {
            dir: config.dir.clone(),
            source,
        })?;
        if let (Some(cgroups), Some(total)) = (isolation.cgroups(), &config.total) {
            cgroups.limit_total(total).map_err(EngineError::Total)?;
        }
        for feature in isolation.unavailable() {
            tracing::warn!("not available on this machine: {feature}");
        }
        Ok(Arc::new(Self {
            outbound: Outbound::new(config.outbound_cidr, isolation.daemon().random()),
            config,
            spawner,
            isolation,
            files,
            worker_filter: Filters::compile()?.worker.to_bytes(),
            next_user: AtomicU32::new(0),
            next_group: AtomicU64::new(0),
            pacer: Arc::new(Pacer::new()),
        }))
    }

    /// Resolves when the spawner has ended. Then no template and no runtime can be started in this process any more.
    ///
    /// # Errors
    /// SIGCHLD cannot be handled.
    pub fn spawner_ended(self: &Arc<Self>) -> io::Result<impl Future<Output = ()> + use<>> {
        let mut child_ended = signal(SignalKind::child())?;
        let machine = Arc::clone(self);
        Ok(async move {
            while machine.has_spawner() {
                // Not the signal alone: a process that the spawner has just made has its socket, too, for a moment after its end.
                let _ = timeout(SPAWNER_LOOK_EVERY, child_ended.recv()).await;
            }
        })
    }

    /// Whether the spawner is there, so that templates and runtimes can be started.
    #[must_use]
    pub fn has_spawner(&self) -> bool {
        !self.spawner.has_ended()
    }

    /// Waits for some time until nothing is left of any sandbox or container, and returns whether that is so. Everything that holds
    /// one must have been dropped before, or be dropped meanwhile: an engine removes the groups of a container after it has said
    /// that it is gone.
    pub async fn vacated(&self) -> bool {
        let Some(cgroups) = self.isolation.cgroups() else {
            return true;
        };
        // The kernel does not notify when a cgroup's last process has ended.
        for _ in 0..CLOSE_ROUNDS_MAX {
            if cgroups.is_vacant() {
                return true;
            }
            tokio::time::sleep(CLOSE_ROUND).await;
        }
        false
    }

    /// A cgroup for a template, a worker or a runtime, if the machine has them, and the daemon has descriptors for its sandbox.
    pub(crate) fn cgroup(&self, limits: &Limits) -> Result<Option<Cgroup>, StartError> {
        descriptors::check()?;
        self.cgroup_of(Branch::Functions, limits)
    }

    /// Whose the cgroup of a worker or template of this version is.
    pub(crate) fn owner_of(&self, version: &Version) -> Owner {
        Owner::of(version, self.config.buffers_bytes_max)
    }

    /// A cgroup for what the branch is for, if the machine has them.
    pub(crate) fn cgroup_of(
        &self,
        branch: Branch,
        limits: &Limits,
    ) -> Result<Option<Cgroup>, StartError> {
        let number = self.next_group.fetch_add(1, Ordering::Relaxed);
        self.isolation
            .cgroups()
            .map(|hierarchy| hierarchy.create(branch, &format!("s{number}"), limits))
            .transpose()
            .map_err(refused("a cgroup"))
    }

    /// The limits of a function's workers, as its `cpu_limit` says.
    pub(crate) fn with_cpu_limit(&self, limits: Limits, config: &FunctionConfig) -> Limits {
        let cpu_period_us = u64::from(config.cpu_limit.period_ms) * 1000;
        let cpu_weight = config.cpu_limit.weight;
        match self.is_paced(config) {
            true => Limits {
                cpu_milli: backstop(config.cpu_milli),
                cpu_period_us,
                cpu_weight,
                freezable: true,
                ..limits
            },
            false => Limits {
                cpu_period_us,
                cpu_weight,
                ..limits
            },
        }
    }

    /// Memory of all functions and builds together, bytes. `None`: it is not limited.
    #[must_use]
    pub fn total_memory_bytes(&self) -> Option<u64> {
        let total = self.isolation.cgroups().and(self.config.total);
        total.map(|total| total.memory_bytes)
    }

    /// Whether workers run as users of their own.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.isolation.has_users()
    }

    /// What paces a function's workers; `None`: the kernel alone limits them.
    pub(crate) fn paceable(&self, config: &FunctionConfig) -> Option<Paceable> {
        let pacer = || Paceable::new(Arc::clone(&self.pacer), config.cpu_milli);
        self.is_paced(config).then(pacer)
    }

    fn is_paced(&self, config: &FunctionConfig) -> bool {
        config.cpu_limit.enforcement == Enforcement::Precise
            && self.isolation.cgroups().is_some_and(Hierarchy::freezes)
    }

    /// An unused user id of the sandboxes' user namespace, if the machine has one.
    pub(crate) fn user(&self) -> Option<u32> {
        self.isolation.has_users().then(|| {
            let number = self.next_user.fetch_add(1, Ordering::Relaxed);
            USERS.0 + number % USERS.1
        })
    }

    /// The values of the version's secrets as they are now. `None`: it has no secrets.
    pub(crate) fn secrets(&self, version: &Version) -> Result<Option<SecretValues>, StartError> {
        let wanted = &version.config.secrets;
        if wanted.is_empty() {
            return Ok(None);
        }
        let values = self.config.secrets.values(wanted);
        values.map(Some).map_err(|error| StartError::Runtime {
            problem: error.to_string(),
            output: String::new(),
        })
    }

    /// The host's file that becomes the version's `/etc/resolv.conf`. Fails if this machine cannot provide the version's
    /// network.
    pub(crate) fn resolver(&self, version: &Version) -> Result<Option<PathBuf>, StartError> {
        match version.config.network {
            Network::None => Ok(None),
            Network::Host => Ok(Some(PathBuf::from(OF_THE_HOST))),
            Network::Outbound => match self.isolation.outbound() {
                Ok(()) => Ok(Some(Resolver::find().file)),
                Err(why) => Err(StartError::Sandbox {
                    problem: format!(
                        "network = \"outbound\" is not available on this machine: {why}"
                    ),
                }),
            },
        }
    }
}

/// The kernel's quota for workers that are paced: a tenth more, so that it does not stop them first.
fn backstop(cpu_milli: u32) -> u32 {
    cpu_milli.saturating_add(cpu_milli.div_ceil(10))
}

pub(crate) fn dev_null() -> Result<OwnedFd, StartError> {
    std::fs::File::open("/dev/null")
        .map(OwnedFd::from)
        .map_err(refused("/dev/null"))
}
