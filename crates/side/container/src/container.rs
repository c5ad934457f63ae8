//! A container: pre-warmed once it has started, specialised for a function, and pre-warmed again once it is cleaned.
//!
//! Invariants: nothing runs in it except through its shim. It ends at the latest when this is dropped. A cleaning must restore
//! the state of the new container; otherwise it is an error, and the container is dropped.

mod specialise;
mod start;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::{Resources, StartError, WorkerMemory};
use pilot_model::runtime_key::{Difference, RuntimeKey};
use pilot_model::{Network, Version, VersionId};
use pilot_protocols::OwnProcesses;

use crate::cgroup::Counters;
use crate::folder::{CODE_INSIDE, Folder};
use crate::image::Image;
use crate::parts::Parts;
use crate::reaper::ContainerGuard;
use crate::secret_files;
use crate::shim::{Shim, ShimError, User};
use crate::usage::Use;

/// A running container.
#[derive(Debug)]
pub(crate) struct Container {
    /// Must precede the guard: fields are dropped in this order, and closing the connection ends everything that could still
    /// write to the folder.
    pub(crate) shim: Arc<Shim>,
    guard: ContainerGuard,
    pub(crate) parts: Arc<Parts>,
    pub(crate) image: Arc<Image>,
    pub(crate) user: User,
    pub(crate) counters: Arc<Counters>,
    /// In the host's network: whose connections are its own.
    pub(crate) own_processes: Option<OwnProcesses>,
    /// Whether rules keep it from the addresses where clouds serve credentials, or why not.
    kept_from_credentials: Result<(), String>,
    /// How its own layer differed from the image when it was new (the mount points), or why it cannot be cleaned.
    new: Result<Vec<String>, String>,
    /// This mutex and the next ones guard only their value.
    key: Mutex<Arc<RuntimeKey>>,
    usage: Mutex<Option<Arc<Use>>>,
    /// Processes in the container cannot change the code, so it stays after a cleaning until another function needs the
    /// container.
    shown: Mutex<Shown>,
}

/// The code in a container.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    /// A change is running, or has failed.
    Unfinished,
    Code(VersionId),
}

impl Resources for Container {
    fn memory(&self) -> WorkerMemory {
        WorkerMemory {
            pss: self.counters.memory_bytes(),
            peak: self.counters.peak(),
        }
    }
}

impl Container {
    /// Runs a task that its host owns.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.parts.tasks.spawn(task);
    }

    pub(crate) fn cannot_run(&self, command: &[String], error: &ShimError) -> StartError {
        let program = command.first().map_or("", String::as_str);
        StartError::Runtime {
            problem: format!(
                "`{program}` could not be started in a container of image {}: {}",
                self.image.short_id(),
                self.why_not_started(error)
            ),
            output: String::new(),
        }
    }

    /// Why a program was not started. The kernel's error alone is misleading for a foreign one: the C library then looks for a shell.
    pub(crate) fn why_not_started(&self, error: &ShimError) -> String {
        match self.image.foreign() {
            Some(foreign) => format!("{error}; {foreign}"),
            None => error.to_string(),
        }
    }

    /// A listener for the Runtime API. It gets any free port if the network is the host's, or if the listener of an earlier use
    /// is still open.
    async fn listen(&self) -> Result<tokio::net::TcpListener, ShimError> {
        let host = self.key.lock().network() == Network::Host;
        let listener = match self.shim.listen(if host { 0 } else { LAMBDA_PORT }).await {
            Err(ShimError::Failed { error, .. })
                if error.kind() == io::ErrorKind::AddrInUse && !host =>
            {
                self.shim.listen(0).await?
            }
            other => other?,
        };
        tokio::net::TcpListener::from_std(listener).map_err(|error| ShimError::Failed {
            what: "listen".to_owned(),
            error,
        })
    }

    /// The port that a server is told to use: the usual one, or a free one in the host's network, which is shared.
    async fn free_port(&self, usual: u16) -> Result<u16, StartError> {
        if self.key.lock().network() != Network::Host {
            return Ok(usual);
        }
        let listener = self
            .shim
            .listen(0)
            .await
            .map_err(cannot("find a free port"))?;
        let address = listener.local_addr().map_err(|error| StartError::Sandbox {
            problem: format!("find a free port: {error}"),
        })?;
        Ok(address.port())
    }

    /// Makes a version's code visible in the container, or removes it, so that no function sees another one's code.
    async fn show(&self, version: Option<&Version>) -> Result<(), StartError> {
        let wanted = version.map_or(Shown::Nothing, |version| Shown::Code(version.id.clone()));
        if *self.shown.lock() == wanted {
            return Ok(());
        }
        let folder: Folder = self.guard.folder().clone();
        let code = version.map(|version| version.code_dir.clone());
        *self.shown.lock() = Shown::Unfinished;
        tokio::task::spawn_blocking(move || folder.show(code.as_deref()))
            .await
            .map_err(io::Error::other)
            .and_then(|shown| shown)
            .map_err(|error| StartError::Sandbox {
                problem: format!("put the code into a container at {CODE_INSIDE}: {error}"),
            })?;
        *self.shown.lock() = wanted;
        Ok(())
    }

    /// Writes the secrets of a function that are files, or removes them.
    async fn show_secrets(&self, files: Vec<(String, Vec<u8>)>) -> io::Result<()> {
        let folder = self.guard.folder().secrets();
        let user = (self.user.uid, self.user.gid);
        tokio::task::spawn_blocking(move || secret_files::show(&folder, &files, user))
            .await
            .map_err(io::Error::other)?
    }

    async fn clean(&self) -> Result<(), StartError> {
        let cleaned = self.try_clean().await;
        if let Err(reason) = &cleaned
            && self.image.cannot_reuse(reason)
        {
            tracing::warn!(
                image = self.image.short_id(),
                %reason,
                "a container cannot be cleaned; it is removed instead of reused"
            );
        }
        cleaned.map_err(|reason| StartError::Sandbox {
            problem: format!("a container cannot be cleaned: {reason}"),
        })
    }

    async fn try_clean(&self) -> Result<(), String> {
        let usage = self.usage.lock().take();
        if let Some(usage) = usage {
            usage.settled().await;
        }
        let new = self.new.as_ref().map_err(Clone::clone)?;
        self.shim
            .clean(CLEAN_TIME_MAX)
            .await
            .map_err(|error| error.to_string())?;
        let removed = self.show_secrets(Vec::new()).await;
        removed.map_err(|error| format!("its secrets cannot be removed: {error}"))?;
        let changes = self.parts.engine.changes(self.guard.name());
        let now = tokio::time::timeout(CLEAN_TIME_MAX, changes)
            .await
            .map_err(|_| "the engine takes too long to list a container's changes".to_owned())?
            .map_err(|error| error.to_string())?;
        if let Some(path) = first_change(new, &now) {
            return Err(format!(
                "the function writes to {path} of its image; what it writes to /tmp, /var/tmp, /run, /dev/shm, or below $PILOT_VOLUME \
                 can be cleaned"
            ));
        }
        self.counters.reset();
        Ok(())
    }

    async fn adapt(&self, to: &Arc<RuntimeKey>) -> Result<(), StartError> {
        let from = Arc::clone(&self.key.lock());
        let cannot = |what: &str| StartError::Sandbox {
            problem: format!("a container's {what} cannot be changed while it runs"),
        };
        let differences = from
            .adaptation(to)
            .ok_or_else(|| cannot("image, owner or network"))?;
        let (engine, name) = (&self.parts.engine, self.guard.name());
        for difference in differences {
            match difference {
                // Set at each start of a program.
                Difference::Owner | Difference::Environment | Difference::Command => {}
                Difference::Limits => engine.update(name, to.limits()).await?,
                Difference::Network => {
                    start::check_credentials(&self.kept_from_credentials)?;
                    engine.join_bridge(name).await?;
                    // The engine has changed /etc/hosts and /etc/resolv.conf.
                    self.shim
                        .seal(&[])
                        .await
                        .map_err(self::cannot("look at it again"))?;
                }
                Difference::HostName => return Err(cannot("host name")),
                Difference::Mounts => return Err(cannot("mounts")),
            }
        }
        *self.key.lock() = Arc::clone(to);
        Ok(())
    }
}

/// The first path that is in only one of the lists. Folders that changed only because of their contents do not count. Both
/// lists are sorted.
fn first_change<'a>(new: &'a [String], now: &'a [String]) -> Option<&'a str> {
    let added = now.iter().filter(|path| new.binary_search(path).is_err());
    let is_within = |path: &str, folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let leaf = added
        .clone()
        .find(|folder| !added.clone().any(|path| is_within(path, folder)));
    leaf.or_else(|| new.iter().find(|path| now.binary_search(path).is_err()))
        .map(String::as_str)
}

fn cannot(what: &'static str) -> impl FnOnce(ShimError) -> StartError {
    move |error| StartError::Sandbox {
        problem: format!("{what}: {error}"),
    }
}

/// Port of the Runtime API: as in Lambda.
const LAMBDA_PORT: u16 = 9001;

/// Longest time for each part of a cleaning: inside the container, and the comparison of its layer. Beyond that a new container
/// is cheaper.
const CLEAN_TIME_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn what_a_container_came_with_is_no_change() {
        let new = paths(&["/.pilot", "/mnt", "/mnt/volume"]);
        assert_eq!(first_change(&new, &new), None);
    }

    #[test]
    fn the_file_is_named_and_not_the_folders_around_it() {
        let new = paths(&["/.pilot"]);
        let now = paths(&["/.pilot", "/app", "/app/cache", "/app/cache/a", "/root"]);
        assert_eq!(first_change(&new, &now), Some("/app/cache/a"));
    }

    #[test]
    fn what_is_missing_is_a_change_too() {
        let new = paths(&["/.pilot", "/run"]);
        assert_eq!(first_change(&new, &paths(&["/.pilot"])), Some("/run"));
    }
}
