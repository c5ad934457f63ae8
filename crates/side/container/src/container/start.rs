//! The start of a container: it is created and started, its shim connects, and its initial state is recorded.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::Network;
use pilot_model::log_line::one_line;
use pilot_model::ports::StartError;
use pilot_model::runtime_key::{Base, ContainerDisk, RuntimeKey};
use pilot_protocols::OwnProcesses;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::{Container, Shown};
use crate::cgroup::Counters;
use crate::credentials;
use crate::engine::{CreateOptions, EngineError};
use crate::folder::{Folder, SOCKET, VOLUME_INSIDE};
use crate::image::Image;
use crate::parts::{Parts, now};
use crate::reaper::ContainerGuard;
use crate::shim::{Shim, ShimError};

impl Container {
    /// Starts a new container.
    ///
    /// # Errors
    /// The engine's, as a message for whoever deploys a function.
    pub(crate) async fn start(
        parts: Arc<Parts>,
        key: Arc<RuntimeKey>,
    ) -> Result<Arc<Self>, StartError> {
        let Base::Container {
            image: reference,
            disk,
        } = key.base()
        else {
            return Err(sandbox("make a container", "its key is a sandbox's"));
        };
        if pilot_sys::shim::BINARY.is_empty() {
            return Err(sandbox(
                "make a container",
                "this build of Pilotlight has no process 1 for containers: build it where there is a static C library (Debian: \
                 libc6-dev)",
            ));
        }
        let began = now();
        let image = parts.images.look_up(reference).await?;
        if let Some(problem) = image.unusable() {
            let problem = format!(
                "image {}: {problem}",
                pilot_model::image::familiar(reference)
            );
            return Err(sandbox("make a container", problem));
        }
        let name = parts.next_name();
        let guard = make_folder(&parts, name, *disk).await?;
        let name = guard.name();
        let door = pilot_sys::shim::door(&guard.folder().ours(), SOCKET)
            .and_then(|door| UnixListener::from_std(door.into()))
            .map_err(|error| sandbox("make a container's socket", error))?;
        let group = parts.group().await?;
        let options = CreateOptions {
            name,
            group: group.as_deref(),
            image: &image.id,
            key: &key,
            ours: &guard.folder().ours(),
            volume: &guard.folder().volume(),
            daemon: &parts.config.data_dir.display().to_string(),
            run: &parts.run,
            tmp_bytes_max: parts.config.tmp_bytes_max,
        };
        parts.engine.create(&options).await?;
        parts.engine.start(name).await?;
        let caller = caller(&parts, name, door).await?;
        // Absent, or 0, if the container is not in a PID namespace below the daemon's.
        let pid = caller.peer_cred().ok().and_then(|peer| peer.pid());
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        let total = parts.config.group.in_total(group.as_deref());
        let counters = Counters::of(pid, total);
        parts.check_group(group.as_deref(), pid);
        let (own_processes, kept_from_credentials) = restrict(&key, pid).await?;
        let shim = Shim::greet(caller)
            .await
            .map_err(|error| sandbox("talk to a container", error))?;
        let places = places(&image);
        let (sealed, user, layer) = tokio::join!(
            shim.seal(&places),
            shim.user(&image.user),
            timeout(LAYER_TIME_MAX, parts.engine.changes(name)),
        );
        let user = user.map_err(|error| {
            sandbox(
                &format!(
                    "find USER {} of image {reference}",
                    one_line(&image.user, USER_CHARS_MAX)
                ),
                error,
            )
        })?;
        let new = what_it_has(sealed, layer)?;
        image.started_in(now().since(began));
        Ok(Arc::new(Self {
            shim: Arc::new(shim),
            guard,
            parts,
            image,
            user,
            counters: Arc::new(counters),
            own_processes,
            kept_from_credentials,
            new,
            key: Mutex::new(key),
            usage: Mutex::new(None),
            shown: Mutex::new(Shown::Nothing),
        }))
    }
}

/// The paths of the layer of a new container, or why it cannot be made as new again.
fn what_it_has(
    sealed: Result<(), ShimError>,
    layer: Result<Result<Vec<String>, EngineError>, Elapsed>,
) -> Result<Result<Vec<String>, String>, StartError> {
    Ok(match (sealed, layer) {
        (Err(ShimError::Failed { what, error }), _)
            if error.kind() == io::ErrorKind::DirectoryNotEmpty =>
        {
            Err(format!("its image has files in {what}, which functions write to"))
        }
        (Err(error), _) => return Err(sandbox("record the state of a new container", error)),
        (Ok(()), Ok(Ok(layer))) => Ok(layer),
        (Ok(()), Ok(Err(error))) => Err(error.to_string()),
        (Ok(()), Err(_)) => Err(
            "the engine takes too long to list a container's changes; use the storage driver overlay2".to_owned(),
        ),
    })
}

async fn make_folder(
    parts: &Arc<Parts>,
    name: String,
    disk: ContainerDisk,
) -> Result<ContainerGuard, StartError> {
    let (parts, run) = (Arc::clone(parts), parts.config.dir.clone());
    let limit = parts.config.volume.of_function(disk.volume_mb);
    let limit = limit.map_err(|problem| sandbox("make a container", problem))?;
    // Guarded there, so that it is removed also if nobody waits for it any more, because the daemon stops.
    let making = tokio::task::spawn_blocking(move || {
        let folder = Folder::make(&run, &name, limit)?;
        Ok::<_, io::Error>(parts.reaper.guard(name, folder))
    });
    making
        .await
        .map_err(io::Error::other)
        .and_then(|made| made)
        .map_err(|error| sandbox("make a container's folder", error))
}

/// Waits for the shim's connection. tokio has no type for `SOCK_SEQPACKET`, so its stream sockets provide the readiness and the
/// calls that are common to both types.
async fn caller(parts: &Parts, name: &str, door: UnixListener) -> Result<UnixStream, StartError> {
    tokio::select! {
        biased;
        call = door.accept() => match call {
            Ok((caller, _)) => Ok(caller),
            Err(error) => Err(sandbox("wait for a container", error)),
        },
        status = parts.engine.stopped(name) => Err(sandbox(
            "start a container",
            format!(
                "its shim ended before it connected to the daemon (status {}); can programs below {} be executed, and does the engine \
                 see that folder?",
                status.map_or_else(|| "unknown".to_owned(), |status| status.to_string()),
                parts.config.dir.display(),
            ),
        )),
        () = tokio::time::sleep(CALL_TIME_MAX) => Err(sandbox(
            "start a container",
            format!("its shim did not connect to the daemon within {} s", CALL_TIME_MAX.as_secs()),
        )),
    }
}

/// The folders that are emptied: every writable place outside the image's layer.
fn places(image: &Image) -> Vec<String> {
    [
        "/tmp",
        "/var/tmp",
        "/run",
        "/dev/shm",
        "/dev/mqueue",
        VOLUME_INSIDE,
    ]
    .into_iter()
    .map(str::to_owned)
    .chain(image.volumes.iter().cloned())
    .collect()
}

/// What follows from its network: whose connections are the container's, and whether it is kept from credentials.
async fn restrict(
    key: &RuntimeKey,
    shim: Option<u32>,
) -> Result<(Option<OwnProcesses>, Result<(), String>), StartError> {
    if key.network() == Network::Host {
        return Ok((Some(own_processes(shim)?), Ok(())));
    }
    let kept_from_credentials = keep_from_credentials(shim).await;
    if key.network() == Network::Outbound {
        check_credentials(&kept_from_credentials)?;
    }
    Ok((None, kept_from_credentials))
}

/// Whose connections in the host's network are the container's.
fn own_processes(shim: Option<u32>) -> Result<OwnProcesses, StartError> {
    let around = shim
        .filter(|pid| *pid != 0)
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        .and_then(OwnProcesses::around);
    around.map_err(|error| {
        sandbox(
            "tell a container's connections from those of others in the host's network",
            format!(
                "{error}: its processes are not below the daemon's PID namespace; run the daemon on the host, or use another network"
            ),
        )
    })
}

/// Before its first program runs. A container without a network may get one later.
async fn keep_from_credentials(shim: Option<u32>) -> Result<(), String> {
    // The owner of this folder is the daemon's user.
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        // Said in docs/security-model.md. Whoever may use the engine is as good as root.
        return Ok(());
    }
    match shim.filter(|pid| *pid != 0) {
        Some(pid) => tokio::task::spawn_blocking(move || credentials::refuse(pid))
            .await
            .unwrap_or_else(|error| Err(error.to_string())),
        None => Err(
            "its processes are not below the daemon's PID namespace; run the daemon on the host, or use another network"
                .to_owned(),
        ),
    }
}

/// A container may only have a network if it is kept from the credentials.
pub(super) fn check_credentials(kept: &Result<(), String>) -> Result<(), StartError> {
    match kept {
        Ok(()) => Ok(()),
        Err(problem) => Err(sandbox(
            "keep a container from the addresses where clouds serve the machine's credentials",
            problem,
        )),
    }
}

fn sandbox(what: &str, problem: impl std::fmt::Display) -> StartError {
    StartError::Sandbox {
        problem: format!("{what}: {problem}"),
    }
}

/// Most characters of an image's `USER` in a message.
const USER_CHARS_MAX: usize = 100;

/// Longest time until the shim of a new container connects.
const CALL_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest time for the engine to list the changes of a new container's layer. Storage drivers that compare every file take
/// seconds; with these, containers are not reused.
const LAYER_TIME_MAX: Duration = Duration::from_secs(2);
