//! What all engines of a daemon share of the machine: the spawner, what isolation there is, links to other hosts, the workers'
//! files, and the numbers that must not be given twice.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ipnet::Ipv4Net;
use pilot_model::ports::StartError;
use pilot_model::{Network, Version};

use crate::cgroup::{Cgroup, Limits};
use crate::filter::{FilterError, Filters};
use crate::isolation::Isolation;
use crate::network::{OF_THE_HOST, Outbound, Resolver};
use crate::runtime_files::RuntimeFiles;
use crate::spawner::Spawner;

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

/// See the module.
#[derive(Debug)]
pub struct Machine {
    pub(crate) config: EngineConfig,
    pub(crate) spawner: Spawner,
    pub(crate) isolation: Isolation,
    pub(crate) outbound: Outbound,
    pub(crate) files: RuntimeFiles,
    /// The workers' filter as the wire protocol has it.
    pub(crate) worker_filter: Vec<u8>,
    next_user: AtomicU32,
    next_group: AtomicU64,
}

/// Functions' users begin here; there are this many before one is used again.
const USERS: (u32, u32) = (2_000, 60_000);

/// How often, and how many times, it is looked whether sandboxes have ended.
const CLOSE_ROUND: Duration = Duration::from_millis(5);
const CLOSE_ROUNDS_MAX: usize = 400;

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
        for feature in isolation.unavailable() {
            tracing::warn!("not available on this machine: {feature}");
        }
        Ok(Arc::new(Self {
            outbound: Outbound::new(config.outbound_cidr),
            config,
            spawner,
            isolation,
            files,
            worker_filter: Filters::compile()?.worker.to_bytes(),
            next_user: AtomicU32::new(0),
            next_group: AtomicU64::new(0),
        }))
    }

    /// Waits, for a while, until nothing is left of all sandboxes. True: nothing is. Whatever holds one must have let go.
    pub async fn vacated(&self) -> bool {
        let Some(cgroups) = self.isolation.cgroups() else {
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

    /// A cgroup, on machines that have them.
    pub(crate) fn cgroup(&self, limits: &Limits) -> Result<Option<Cgroup>, StartError> {
        let number = self.next_group.fetch_add(1, Ordering::Relaxed);
        self.isolation
            .cgroups()
            .map(|hierarchy| hierarchy.create(&format!("s{number}"), limits))
            .transpose()
            .map_err(no_sandbox("a cgroup"))
    }

    /// A user inside the sandboxes' user namespace that nobody else has, on machines that have them.
    pub(crate) fn user(&self) -> Option<u32> {
        self.isolation.has_users().then(|| {
            let number = self.next_user.fetch_add(1, Ordering::Relaxed);
            USERS.0 + number % USERS.1
        })
    }

    /// The host's file that tells a version's processes where names are resolved. Refuses what this machine cannot give.
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

pub(crate) fn dev_null() -> Result<OwnedFd, StartError> {
    std::fs::File::open("/dev/null")
        .map(OwnedFd::from)
        .map_err(no_sandbox("/dev/null"))
}

pub(crate) fn no_sandbox(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::Sandbox {
        problem: format!("{step}: {error}"),
    }
}
