//! Removes containers that are no longer used: from the engine, and their folders from the disk.
//!
//! A container ends when the daemon's connection to its shim closes, and the engine then removes it by itself (`AutoRemove`). The
//! reaper is for the rest: the folder, containers that were created and never ran, and engines that were unreachable.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::engine::Engine;
use crate::folder::Folder;
use crate::rubbish::Rubbish;

/// The task that removes containers. Ends with its host.
#[derive(Debug)]
pub(crate) struct ContainerReaper {
    queue: RemovalQueue,
    task: AbortHandle,
}

#[derive(Debug, Clone)]
struct RemovalQueue {
    // Unbounded: each container is in it once, and their number is bounded by who starts them.
    sender: mpsc::UnboundedSender<Removal>,
    counts: Arc<Counts>,
}

/// How many containers are not removed yet.
#[derive(Debug, Default)]
struct Counts {
    /// All that were guarded, and those that are about to be.
    guarded: watch::Sender<usize>,
    /// Those of them whose guard was dropped.
    pending: watch::Sender<usize>,
}

/// Has the reaper remove a container and its folder when it is dropped.
#[derive(Debug)]
pub(crate) struct ContainerGuard {
    /// Taken by the drop alone.
    removal: Option<Removal>,
    queue: RemovalQueue,
}

/// Counts a container that is about to be guarded, until this is dropped.
#[derive(Debug)]
pub(crate) struct ContainerStart(Arc<Counts>);

/// What is to be removed.
#[derive(Debug)]
struct Removal {
    name: String,
    folder: Folder,
}

impl ContainerReaper {
    /// Must be called within a tokio runtime.
    pub(crate) fn new(engine: Arc<Engine>, rubbish: Arc<Rubbish>) -> Self {
        let (sender, removals) = mpsc::unbounded_channel();
        let queue = RemovalQueue {
            sender,
            counts: Arc::default(),
        };
        let parts = (engine, rubbish);
        let task = tokio::spawn(reap(parts, removals, Arc::clone(&queue.counts))).abort_handle();
        Self { queue, task }
    }

    /// Waits until every container whose guard was dropped is removed, and its folder out of the way.
    pub(crate) async fn idle(&self) {
        none(&self.queue.counts.pending).await;
    }

    /// A start has begun.
    pub(crate) fn start(&self) -> ContainerStart {
        let counts = Arc::clone(&self.queue.counts);
        counts.guarded.send_modify(|count| *count += 1);
        ContainerStart(counts)
    }

    /// Waits until no start goes on, every container that was guarded is removed, and its folder out of the way.
    pub(crate) async fn empty(&self) {
        none(&self.queue.counts.guarded).await;
    }

    /// Guards a container; called before it is created.
    pub(crate) fn guard(&self, name: String, folder: Folder) -> ContainerGuard {
        self.queue.counts.guarded.send_modify(|count| *count += 1);
        ContainerGuard {
            removal: Some(Removal { name, folder }),
            queue: self.queue.clone(),
        }
    }
}

impl Drop for ContainerReaper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for ContainerStart {
    fn drop(&mut self) {
        self.0.guarded.send_modify(|count| *count -= 1);
    }
}

impl ContainerGuard {
    pub(crate) fn name(&self) -> &str {
        &self.removal().name
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.removal().folder
    }

    fn removal(&self) -> &Removal {
        self.removal.as_ref().expect("the drop alone takes it")
    }
}

impl Drop for ContainerGuard {
    fn drop(&mut self) {
        if let Some(removal) = self.removal.take() {
            self.queue.counts.pending.send_modify(|count| *count += 1);
            // An error means that the host is gone: the next daemon's sweep removes the container. Nothing stays mounted until then.
            if let Err(mpsc::error::SendError(removal)) = self.queue.sender.send(removal)
                && let Err(error) = removal.folder.unmount()
            {
                tracing::warn!(container = removal.name, %error, "a container's folder stays mounted");
            }
        }
    }
}

async fn none(count: &watch::Sender<usize>) {
    // An error means that the sender is gone, and it is here.
    drop(count.subscribe().wait_for(|count| *count == 0).await);
}

async fn reap(
    (engine, rubbish): (Arc<Engine>, Arc<Rubbish>),
    mut removals: mpsc::UnboundedReceiver<Removal>,
    counts: Arc<Counts>,
) {
    let mut jobs = JoinSet::new();
    while let Some(removal) = removals.recv().await {
        while jobs.len() >= REMOVALS_MAX {
            jobs.join_next().await;
        }
        let (engine, counts) = (Arc::clone(&engine), Arc::clone(&counts));
        let rubbish = Arc::clone(&rubbish);
        jobs.spawn(async move {
            remove(engine, rubbish, removal).await;
            for count in [&counts.pending, &counts.guarded] {
                count.send_modify(|count| *count -= 1);
            }
        });
    }
    while jobs.join_next().await.is_some() {}
}

async fn remove(engine: Arc<Engine>, rubbish: Arc<Rubbish>, Removal { name, folder }: Removal) {
    // The folder last: until it has ended, the container may still write to it.
    if let Err(problem) = engine.remove(&name).await {
        tracing::warn!(container = name, %problem, "a container was not removed");
    }
    let removed = tokio::task::spawn_blocking(move || folder.discard(&rubbish)).await;
    if let Ok(Err(problem)) = removed {
        tracing::warn!(container = name, %problem, "a container's folder was not removed");
    }
}

/// Most concurrent removals. They are not urgent and should leave the engine to starts.
const REMOVALS_MAX: usize = 4;
