//! [`ContainerHost`]: starts containers, computes the key that a version needs, and removes what an earlier daemon left.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{BoxFuture, PrewarmedRuntime, RuntimeHost, StartError};
use pilot_model::runtime_key::{Base, Ipc, Limits, RuntimeKey, RuntimeSpec};
use pilot_model::{Instant, Runtime, Version};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinSet;

use crate::container::Container;
use crate::engine::{Address, Engine};
use crate::folder;
use crate::reaper::ContainerReaper;
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
}

/// Starts containers.
#[derive(Debug)]
pub struct ContainerHost {
    parts: Arc<Parts>,
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

impl ContainerHost {
    /// Does not call the engine yet. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(config: ContainerConfig) -> Self {
        let address = config
            .engine
            .clone()
            .or_else(|| std::env::var("DOCKER_HOST").ok())
            .filter(|address| !address.is_empty())
            .map_or_else(|| Ok(Address::default()), |text| Address::parse(&text));
        let engine = Arc::new(Engine::new(address));
        Self {
            parts: Arc::new(Parts {
                images: Images::new(Arc::clone(&engine)),
                reaper: ContainerReaper::new(Arc::clone(&engine)),
                engine,
                tasks: Tasks::new(),
                run: format!("{:x}-{:x}", std::process::id(), now().0),
                serial: AtomicU64::new(0),
                swept: OnceCell::new(),
                config,
            }),
        }
    }

    /// Removes the containers and folders of earlier daemons with this data directory, and returns the number of containers.
    /// Runs once per host; the first start runs it, too. Without such folders there were no containers, and the engine is not
    /// called.
    ///
    /// # Errors
    /// The engine is unreachable, or a folder cannot be removed.
    pub async fn sweep(&self) -> Result<usize, StartError> {
        if !folder::all(&self.parts.config.dir).exists() {
            return Ok(0);
        }
        self.parts.sweep().await
    }

    /// Waits until every released container and its folder is removed. Optional at the daemon's end: the containers end with
    /// the daemon, and the next daemon removes the folders.
    pub async fn settled(&self) {
        self.parts.reaper.idle().await;
    }
}

impl RuntimeHost for ContainerHost {
    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError> {
        let config = &version.config;
        let Runtime::Container { image, command, .. } = &config.runtime else {
            return Err(not_a_container(version));
        };
        let spec = RuntimeSpec {
            base: Base::Container {
                image: image.clone(),
            },
            owner: Some(config.owner().to_owned()),
            network: config.network,
            host_name: String::new(),
            ipc: Ipc::Private,
            command: command.clone().unwrap_or_default(),
            working_dir: String::new(),
            environment: config.environment.clone().into_iter().collect(),
            // Programs are started per worker, with all of its variables.
            execution: Vec::new(),
            // The code is not a mount of the key: it changes with the version.
            mounts: Vec::new(),
            limits: Limits {
                memory_bytes: config.memory_bytes,
                cpu_milli: config.cpu_milli,
                pids: self.parts.config.pids_max,
            },
            // The image's.
            user: None,
        };
        Ok(spec.canonical())
    }

    fn start(
        &self,
        key: &Arc<RuntimeKey>,
    ) -> BoxFuture<'static, Result<Arc<dyn PrewarmedRuntime>, StartError>> {
        let (parts, key) = (Arc::clone(&self.parts), Arc::clone(key));
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            let work = Arc::clone(&parts);
            // In a task of its own: if the caller is cancelled, the engine still creates the container, and something must
            // remove it.
            parts.tasks.spawn(async move {
                let started = Box::pin(work.start(key)).await;
                // If the caller is gone, the container is dropped here, which removes it.
                drop(tell.send(started));
            });
            let started = told.await.unwrap_or_else(|_| {
                Err(StartError::Sandbox {
                    problem: "the daemon is shutting down".to_owned(),
                })
            })?;
            Ok(started as Arc<dyn PrewarmedRuntime>)
        })
    }

    fn report(&self, version: &Version) -> TemplateReport {
        let Runtime::Container { image, .. } = &version.config.runtime else {
            return report("not a container".to_owned(), Duration::ZERO);
        };
        let reference = match self.key(version).as_ref().map(RuntimeKey::base) {
            Ok(Base::Container { image }) => image.clone(),
            _ => image.clone(),
        };
        let Some(found) = self.parts.images.known(&reference) else {
            return report(format!("image {image}"), Duration::ZERO);
        };
        let learnt = found.learnt();
        let what = format!(
            "image {image} is {} ({} MB)",
            found.short_id(),
            found.size.div_ceil(1_000_000)
        );
        let how = match learnt.not_reused {
            None => "its containers are cleaned and reused".to_owned(),
            Some(reason) => format!("its containers are not reused: {reason}"),
        };
        report(
            format!("{what}; {how}"),
            learnt.start.unwrap_or(Duration::ZERO),
        )
    }
}

impl Parts {
    async fn start(self: Arc<Self>, key: Arc<RuntimeKey>) -> Result<Arc<Container>, StartError> {
        self.sweep().await?;
        Container::start(self, key).await
    }

    async fn sweep(&self) -> Result<usize, StartError> {
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

fn report(reason: String, took: Duration) -> TemplateReport {
    TemplateReport {
        python: String::new(),
        imports: Vec::new(),
        failed_imports: Vec::new(),
        memory_bytes: 0,
        forkable: false,
        reason: Some(reason),
        took,
    }
}
