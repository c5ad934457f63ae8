//! What all containers of a host share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pilot_model::ports::{Secrets, StartError};
use pilot_model::{Instant, Version};
use pilot_protocols::MemoryBudget;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::folder;
use crate::reaper::ContainerReaper;
use crate::volume::VolumeLimit;
use crate::watch::Images;

/// Configuration of containers.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// The engine's socket, `unix:///run/docker.sock` or a path; `None`: `DOCKER_HOST`, or else Docker's default.
    pub engine: Option<String>,
    /// The daemon's run directory, absolute and the same for the engine, because its folders are mounted in containers.
    pub dir: PathBuf,
    /// The data directory, absolute. Containers are labelled with it and belong to the daemon that uses it.
    pub data_dir: PathBuf,
    /// Size of each of `/tmp`, `/var/tmp` and `/run`, bytes.
    pub tmp_bytes_max: u64,
    /// Processes and threads of one container.
    pub pids_max: u32,
    /// The size of each container's volume.
    pub volume: VolumeLimit,
    /// Holds the answers of workers.
    pub answers: MemoryBudget,
    /// The values of functions' secrets.
    pub secrets: Arc<dyn Secrets>,
}

/// What all containers share.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: ContainerConfig,
    pub(crate) engine: Arc<Engine>,
    pub(crate) images: Images,
    pub(crate) reaper: ContainerReaper,
    pub(crate) tasks: Tasks,
    /// Identifies this process, so that the sweep keeps its containers.
    pub(crate) run: String,
    serial: AtomicU64,
    swept: OnceCell<usize>,
}

impl Parts {
    pub(crate) fn new(config: ContainerConfig, engine: Engine) -> Self {
        let engine = Arc::new(engine);
        Self {
            images: Images::new(Arc::clone(&engine)),
            reaper: ContainerReaper::new(Arc::clone(&engine)),
            engine,
            tasks: Tasks::new(),
            run: format!("{:x}-{:x}", std::process::id(), now().0),
            serial: AtomicU64::new(0),
            swept: OnceCell::new(),
            config,
        }
    }

    /// Removes what an earlier daemon left, once, and says how many containers.
    pub(crate) async fn sweep(&self) -> Result<usize, StartError> {
        let sweep = async {
            let daemon = self.config.data_dir.display().to_string();
            let mut removed = 0;
            for container in self.engine.made_by(&daemon).await? {
                if container.run.as_deref() != Some(&self.run) {
                    self.engine.remove(&container.id).await?;
                    removed += 1;
                }
            }
            let (dir, ours) = (self.config.dir.clone(), self.name_prefix());
            tokio::task::spawn_blocking(move || {
                folder::remove_all(&dir, |name| name == "shim" || name.starts_with(&ours))
            })
            .await
            .map_err(std::io::Error::other)
            .and_then(|swept| swept)
            .map_err(|error| StartError::Sandbox {
                problem: format!("remove folders of an earlier daemon: {error}"),
            })?;
            if removed > 0 {
                tracing::info!(removed, "containers of an earlier daemon are removed");
            }
            Ok(removed)
        };
        self.swept.get_or_try_init(|| sweep).await.copied()
    }

    pub(crate) fn next_name(&self) -> String {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        format!("{}{serial}", self.name_prefix())
    }

    fn name_prefix(&self) -> String {
        format!("pilotlight-{}-", self.run)
    }
}

/// Tasks that outlive a call. They end with the host.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// Guards only the set; never held across an await.
    set: Mutex<JoinSet<()>>,
    home: Handle,
}

impl Tasks {
    fn new() -> Self {
        Self {
            set: Mutex::default(),
            home: Handle::current(),
        }
    }

    /// Bounded by the callers: one task per container that is being started or released.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.set.lock();
        while set.try_join_next().is_some() {}
        set.spawn_on(task, &self.home);
    }
}

/// `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Instant {
    Instant(pilot_sys::clock::monotonic_ns())
}

pub(crate) fn not_a_container(version: &Version) -> StartError {
    StartError::Sandbox {
        problem: format!(
            "runtime \"{}\" of function '{}' is not a container",
            version.config.runtime, version.config.name
        ),
    }
}
