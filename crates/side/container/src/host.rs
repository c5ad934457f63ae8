//! [`ContainerHost`]: starts containers, computes the key that a version needs, and removes what an earlier daemon left.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{BoxFuture, PrewarmedRuntime, RuntimeHost, StartError};
use pilot_model::runtime_key::{Base, RuntimeKey};
use pilot_model::{Runtime, Version};
use tokio::sync::oneshot;

use crate::container::Container;
use crate::engine::{Address, Engine, EngineError};
use crate::folder;
use crate::parts::{ContainerConfig, Parts};

/// Starts containers.
#[derive(Debug)]
pub struct ContainerHost {
    parts: Arc<Parts>,
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
            .map_or_else(
                || Ok(Address::default()),
                |text| Address::parse(&text).map_err(EngineError::from),
            );
        Self {
            parts: Arc::new(Parts::new(config, Engine::new(address))),
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

    /// Waits until every released container is removed, and its folder, unless that takes long.
    pub async fn settled(&self) {
        self.parts.reaper.idle().await;
        self.parts.rubbish.settled().await;
    }

    /// At the daemon's end: waits until no container is left, also of those that are still being started, unless that takes long.
    /// Optional: the containers end with the daemon, and the next daemon removes the folders.
    pub async fn close(&self) {
        let empty = tokio::time::timeout(CLOSE_TIME_MAX, self.parts.reaper.empty());
        if empty.await.is_err() {
            tracing::warn!(
                "containers are left: they end with the daemon, and the next daemon removes their folders"
            );
        }
        self.settled().await;
        self.parts.rubbish.stop();
    }
}

impl RuntimeHost for ContainerHost {
    fn hosts(&self, runtime: &Runtime) -> bool {
        runtime.image().is_some()
    }

    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError> {
        // The host mounts nothing: it copies the code into the container and removes it again.
        let spec = version.runtime_spec(self.parts.config.pids_max);
        let spec = spec.map_err(|problem| StartError::Sandbox { problem })?;
        if let Base::Container { disk, .. } = &spec.base {
            let limit = self.parts.config.volume.of_function(disk.volume_mb);
            limit.map_err(|problem| StartError::Sandbox { problem })?;
        }
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
            let going = parts.reaper.start();
            parts.tasks.spawn(async move {
                let started = Box::pin(start(work, key)).await;
                // If the caller is gone, the container is dropped here, which removes it.
                drop(tell.send(started));
                drop(going);
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
        let Some(image) = version.config.runtime.image() else {
            return report("not a container".to_owned(), Duration::ZERO);
        };
        let reference = match self.key(version).as_ref().map(RuntimeKey::base) {
            Ok(Base::Container { image, .. }) => image.clone(),
            _ => image.to_owned(),
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

/// The longest that the daemon's end waits for containers that are still in use or being started.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

fn report(reason: String, took: Duration) -> TemplateReport {
    TemplateReport {
        reason: Some(reason),
        took,
        ..TemplateReport::default()
    }
}

async fn start(parts: Arc<Parts>, key: Arc<RuntimeKey>) -> Result<Arc<Container>, StartError> {
    parts.sweep().await?;
    Container::start(parts, key).await
}
