//! What all containers of a host share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pilot_model::ports::{Secrets, StartError};
use pilot_model::{Instant, Version};
use pilot_protocols::MemoryBudget;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::cgroup;
use crate::engine::Engine;
use crate::folder;
use crate::reaper::ContainerReaper;
use crate::rubbish::Rubbish;
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
    /// The control group around all containers.
    pub group: ContainerGroup,
    /// The size of each container's volume.
    pub volume: VolumeLimit,
    /// Holds the answers of workers.
    pub answers: MemoryBudget,
    /// The values of functions' secrets.
    pub secrets: Arc<dyn Secrets>,
}

/// The control group around all containers of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerGroup {
    /// The engine's own.
    Engine,
    /// One with this name, whoever manages groups: a path, or a slice of systemd.
    Named(String),
    /// This folder of the hierarchy, if the engine manages groups itself. One that leaves them to systemd has no folders.
    Folder(String),
}

impl ContainerGroup {
    /// The group, if it is in the group of everything below the daemon.
    pub(crate) fn in_total<'a>(&self, group: Option<&'a str>) -> Option<&'a str> {
        group.filter(|_| matches!(self, Self::Folder(_)))
    }
}

/// What all containers share.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: ContainerConfig,
    pub(crate) engine: Arc<Engine>,
    pub(crate) images: Images,
    pub(crate) reaper: ContainerReaper,
    pub(crate) rubbish: Arc<Rubbish>,
    pub(crate) tasks: Tasks,
    /// Identifies this process, so that the sweep keeps its containers.
    pub(crate) run: String,
    serial: AtomicU64,
    swept: OnceCell<usize>,
    /// Whether the engine manages control groups itself.
    has_group_folders: OnceCell<bool>,
    told_group: AtomicBool,
}

impl Parts {
    pub(crate) fn new(config: ContainerConfig, engine: Engine) -> Self {
        let engine = Arc::new(engine);
        let rubbish = Arc::new(Rubbish::new(&config.dir));
        Self {
            images: Images::new(Arc::clone(&engine)),
            reaper: ContainerReaper::new(Arc::clone(&engine), Arc::clone(&rubbish)),
            rubbish,
            engine,
            tasks: Tasks::new(),
            run: format!("{:x}-{:x}", std::process::id(), now().0),
            serial: AtomicU64::new(0),
            swept: OnceCell::new(),
            has_group_folders: OnceCell::new(),
            told_group: AtomicBool::new(false),
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
            let rubbish = Arc::clone(&self.rubbish);
            tokio::task::spawn_blocking(move || {
                rubbish.take_left()?;
                let kept = |name: &str| name == "shim" || name.starts_with(&ours);
                folder::discard_all(&dir, &rubbish, kept)
            })
            .await
            .map_err(std::io::Error::other)
            .and_then(|swept| swept)
            .map_err(|error| StartError::Sandbox {
                problem: format!("remove folders of an earlier daemon: {error}"),
            })?;
            self.rubbish.settled().await;
            if removed > 0 {
                tracing::info!(removed, "containers of an earlier daemon are removed");
            }
            Ok(removed)
        };
        self.swept.get_or_try_init(|| sweep).await.copied()
    }

    /// The control group around all containers, as the engine names it; `None`: its own.
    pub(crate) async fn group(&self) -> Result<Option<String>, StartError> {
        let folder = match &self.config.group {
            ContainerGroup::Engine => return Ok(None),
            ContainerGroup::Named(name) => return Ok(Some(name.clone())),
            ContainerGroup::Folder(folder) => folder,
        };
        let asked = || self.engine.manages_groups();
        let is_folder = *self.has_group_folders.get_or_try_init(asked).await?;
        if !is_folder {
            self.tell_group(
                "systemd manages the control groups of the engine: limits.total_memory_mb is not for containers; set \
                 container_cgroup_parent in pilotd.toml to a slice with a limit",
            );
        }
        Ok(is_folder.then(|| folder.clone()))
    }

    /// Says so once if a container is not in the daemon's group: the engine may see other control groups than the daemon.
    pub(crate) fn check_group(&self, group: Option<&str>, pid: Option<u32>) {
        let (ContainerGroup::Folder(_), Some(group), Some(pid)) = (&self.config.group, group, pid)
        else {
            return;
        };
        if !cgroup::is_in(pid, group) {
            self.tell_group(
                "the engine puts containers into other control groups than the daemon's: limits.total_memory_mb is not for \
                 containers; run the daemon on the host, or set container_cgroup_parent in pilotd.toml",
            );
        }
    }

    fn tell_group(&self, problem: &str) {
        if !self.told_group.swap(true, Ordering::Relaxed) {
            tracing::warn!("{problem}");
        }
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
