//! The parts of the Docker Engine API that are used. Each function makes one or two calls.
//!
//! Invariants: at most [`CALLS_MAX`] calls run at the same time, and each has a time limit. Each call uses a new connection, so
//! nothing has to be done when the engine was restarted, and has a limit of what comes on it. Images are never pulled.

mod address;
mod create_options;
mod error;
mod transport;

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::{
    ContainerUpdateBody, EventMessage, ImageInspect, NetworkConnectRequest,
    NetworkDisconnectRequest, SystemInfoCgroupDriverEnum,
};
use bollard::query_parameters::{
    CreateContainerOptions, EventsOptions, ListContainersOptions, RemoveContainerOptions,
    WaitContainerOptions,
};
use futures_util::{Stream, StreamExt as _};
use parking_lot::Mutex;
use pilot_model::image;
use pilot_model::runtime_key::Limits;
use tokio::sync::Semaphore;

pub(crate) use address::Address;
pub(crate) use create_options::{CreateOptions, LABEL_DAEMON, LABEL_RUN, limits_of};
pub(crate) use error::EngineError;

/// An engine on this machine.
#[derive(Debug)]
pub(crate) struct Engine {
    /// An error is reported when the engine is needed, not at the daemon's start.
    address: Result<Address, EngineError>,
    /// The client, once the API version is negotiated. Guards only that; never held across an await.
    client: Mutex<Option<Docker>>,
    calls: Semaphore,
}

/// A container of this daemon or an earlier one.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) id: String,
    /// The daemon's run that created it.
    pub(crate) run: Option<String>,
}

impl Engine {
    pub(crate) fn new(address: Result<Address, EngineError>) -> Self {
        Self {
            address,
            client: Mutex::new(None),
            calls: Semaphore::new(CALLS_MAX),
        }
    }

    /// Inspects a local image.
    pub(crate) async fn image(&self, reference: &str) -> Result<ImageInspect, EngineError> {
        let result = self
            .call("inspect an image", |docker| async move {
                docker.inspect_image(reference).await
            })
            .await;
        result.map_err(|error| match error {
            EngineError::Refused { status: 404, .. } => EngineError::NoImage {
                image: image::familiar(reference).to_owned(),
                address: self.address.clone().unwrap_or_default(),
            },
            other => other,
        })
    }

    /// Whether it manages control groups itself, as folders, and does not leave them to systemd.
    pub(crate) async fn manages_groups(&self) -> Result<bool, EngineError> {
        let info = self
            .call("ask for the engine's settings", |docker| async move {
                docker.info().await
            })
            .await?;
        Ok(info.cgroup_driver == Some(SystemInfoCgroupDriverEnum::CGROUPFS))
    }

    /// Creates a container without starting it.
    pub(crate) async fn create(&self, options: &CreateOptions<'_>) -> Result<(), EngineError> {
        let parameters = CreateContainerOptions {
            name: Some(options.name.to_owned()),
            ..Default::default()
        };
        let body = options.body();
        self.call("create a container", |docker| async move {
            docker.create_container(Some(parameters), body).await
        })
        .await
        .map(drop)
    }

    /// Starts a container.
    pub(crate) async fn start(&self, name: &str) -> Result<(), EngineError> {
        self.call("start a container", |docker| async move {
            docker.start_container(name, None).await
        })
        .await
    }

    /// Resolves once a container does not run, with its exit status if there is one.
    pub(crate) async fn stopped(&self, name: &str) -> Option<i64> {
        self.waited(name, "not-running").await
    }

    async fn waited(&self, name: &str, condition: &str) -> Option<i64> {
        let docker = self.docker().await.ok()?;
        let options = WaitContainerOptions {
            condition: condition.to_owned(),
        };
        let mut ends = std::pin::pin!(docker.wait_container(name, Some(options)));
        match ends.next().await? {
            Ok(end) => Some(end.status_code),
            Err(Cause::DockerContainerWaitError { code, .. }) => Some(code),
            Err(_) => None,
        }
    }

    /// The paths at which a container's own layer differs from its image.
    pub(crate) async fn changes(&self, name: &str) -> Result<Vec<String>, EngineError> {
        let changes = self
            .call("list a container's changes", |docker| async move {
                docker.container_changes(name).await
            })
            .await?;
        let mut paths: Vec<String> = changes
            .unwrap_or_default()
            .into_iter()
            .map(|change| change.path)
            .collect();
        paths.sort();
        Ok(paths)
    }

    /// Changes the limits of a running container.
    pub(crate) async fn update(&self, name: &str, limits: Limits) -> Result<(), EngineError> {
        let limits = limits_of(limits);
        let body = ContainerUpdateBody {
            memory: Some(limits.memory.unwrap_or(-1)),
            memory_swap: Some(limits.memory.unwrap_or(-1)),
            nano_cpus: Some(limits.nano_cpus.unwrap_or_else(all_nano_cpus)),
            pids_limit: Some(limits.pids),
            ..Default::default()
        };
        self.call("change a container's limits", |docker| async move {
            docker.update_container(name, body).await
        })
        .await
    }

    /// Moves a running container from network `none` to the engine's default network.
    pub(crate) async fn join_bridge(&self, name: &str) -> Result<(), EngineError> {
        let leave = NetworkDisconnectRequest {
            container: name.to_owned(),
            force: Some(false),
        };
        let join = NetworkConnectRequest {
            container: name.to_owned(),
            endpoint_config: None,
        };
        self.call(
            "disconnect a container from network none",
            |docker| async move { docker.disconnect_network("none", leave).await },
        )
        .await?;
        self.call(
            "connect a container to network bridge",
            |docker| async move { docker.connect_network("bridge", join).await },
        )
        .await
    }

    /// Ends and removes a container and its anonymous volumes. It is no error if the container is already removed or being
    /// removed.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            ..Default::default()
        };
        let result = self
            .call("remove a container", |docker| async move {
                docker.remove_container(name, Some(options)).await
            })
            .await;
        match result {
            Err(EngineError::Refused { status: 404, .. }) => Ok(()),
            // The engine is already removing it, because it ended.
            Err(EngineError::Refused { status: 409, .. }) => {
                let removed = self.waited(name, "removed");
                drop(tokio::time::timeout(REMOVAL_TIME_MAX, removed).await);
                Ok(())
            }
            other => other,
        }
    }

    /// All containers made by daemons with this data directory, running or not.
    pub(crate) async fn made_by(&self, daemon: &str) -> Result<Vec<Known>, EngineError> {
        let filters =
            HashMap::from([("label".to_owned(), vec![format!("{LABEL_DAEMON}={daemon}")])]);
        let options = ListContainersOptions {
            all: true,
            filters: Some(filters),
            ..Default::default()
        };
        let found = self
            .call("list containers", |docker| async move {
                docker.list_containers(Some(options)).await
            })
            .await?;
        Ok(found
            .into_iter()
            .filter_map(|container| {
                Some(Known {
                    id: container.id?,
                    run: container
                        .labels
                        .and_then(|mut labels| labels.remove(LABEL_RUN)),
                })
            })
            .collect())
    }

    /// Events about images, from now on. The stream ends with the engine.
    pub(crate) async fn image_events(
        &self,
    ) -> Result<impl Stream<Item = Result<EventMessage, Cause>>, EngineError> {
        let filters = HashMap::from([("type".to_owned(), vec!["image".to_owned()])]);
        let options = EventsOptions {
            filters: Some(filters),
            ..Default::default()
        };
        Ok(self.docker().await?.events(Some(options)))
    }

    /// The client. Negotiates the API version at the first call and after the engine was unreachable.
    async fn docker(&self) -> Result<Docker, EngineError> {
        if let Some(docker) = self.client.lock().clone() {
            return Ok(docker);
        }
        let address = self.address.as_ref().map_err(Clone::clone)?;
        let connect = async {
            let client = transport::client(address, CALL_TIME_MAX)?;
            client.negotiate_version().await
        };
        let docker = connect
            .await
            .map_err(|cause| EngineError::of("negotiate an API version", address, cause))?;
        *self.client.lock() = Some(docker.clone());
        Ok(docker)
    }

    async fn call<T, F>(
        &self,
        what: &'static str,
        call: impl FnOnce(Docker) -> F,
    ) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Cause>>,
    {
        let _permit = self
            .calls
            .acquire()
            .await
            .expect("the semaphore is never closed");
        let docker = self.docker().await?;
        let address = self.address.as_ref().map_err(Clone::clone)?;
        // The client's own limit is for the head of an answer.
        let answer = tokio::time::timeout(CALL_TIME_MAX, call(docker)).await;
        let answer = answer.unwrap_or(Err(Cause::RequestTimeoutError));
        answer.map_err(|cause| {
            let error = EngineError::of(what, address, cause);
            if matches!(error, EngineError::Unreachable { .. }) {
                // The engine may return with another version.
                *self.client.lock() = None;
            }
            error
        })
    }
}

/// The API cannot remove a limit once it is set; all CPUs have the same effect.
fn all_nano_cpus() -> i64 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    i64::try_from(cpus).map_or(i64::MAX, |cpus| cpus * 1_000_000_000)
}

/// Most concurrent calls. An engine works on a few at once; more would only wait there.
const CALLS_MAX: usize = 8;

/// Longest wait for a removal that the engine has already started.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest time for one call. Starting a container on a busy machine takes seconds.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
