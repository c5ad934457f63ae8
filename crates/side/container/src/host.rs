//! [`ContainerHost`]: makes containers, says what a version needs of one, and removes what an earlier daemon left.

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

/// What containers are made with.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// The engine's socket, `unix:///run/docker.sock` or a path; `None`: `DOCKER_HOST`, or else Docker's own.
    pub engine: Option<String>,
    /// The daemon's run directory, absolute, the engine's as well: folders of it are mounted in containers.
    pub dir: PathBuf,
    /// The data directory, absolute: containers with this label are this daemon's, or those of one that used it before.
    pub data_dir: PathBuf,
    /// Of `/tmp`, `/var/tmp` and `/run` each, bytes.
    pub tmp_bytes_max: u64,
    /// Processes and threads of one container.
    pub pids_max: u32,
}

/// Makes containers.
#[derive(Debug)]
pub struct ContainerHost {
    parts: Arc<Parts>,
}

/// What every container shares.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: ContainerConfig,
    pub(crate) engine: Arc<Engine>,
    pub(crate) images: Images,
    pub(crate) reaper: ContainerReaper,
    pub(crate) tasks: Tasks,
    /// Of this process, so that no sweep takes its containers.
    pub(crate) run: String,
    serial: AtomicU64,
    swept: OnceCell<usize>,
}

impl ContainerHost {
    /// Asks the engine nothing yet. Must be called within a tokio runtime.
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

    /// Removes containers and folders that an earlier daemon with this data directory left, and says how many containers. Once per
    /// host; the first start does it too. Where there are no folders the engine is not asked: there were no containers.
    ///
    /// # Errors
    /// The engine is not there, or a folder cannot be removed.
    pub async fn sweep(&self) -> Result<usize, StartError> {
        if !folder::all(&self.parts.config.dir).exists() {
            return Ok(0);
        }
        self.parts.sweep().await
    }

    /// Waits until every container that was let go is removed, with its folder: for the end of a daemon, which need not wait for it
    /// (the containers end with it; the next daemon removes the folders).
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
            // Whatever runs in it is started for its worker, with all of its variables.
            execution: Vec::new(),
            // The code is the container's affair: it comes and goes with the version.
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
            // On its own: an engine does not stop creating a container when nobody waits any more, so somebody must be there to
            // remove it.
            parts.tasks.spawn(async move {
                let started = Box::pin(work.start(key)).await;
                // Whoever asked may have gone; then it is dropped here, and removed.
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
                problem: format!("remove what an earlier daemon left: {error}"),
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

/// Tasks that outlive a call: owned here, ended with the host.
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

    /// Bounded by who asks: one per container that is being started or let go.
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
