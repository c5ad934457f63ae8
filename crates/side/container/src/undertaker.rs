//! What is left of containers is removed: from the engine, and from the disk.
//!
//! A container ends when the daemon's connection to its shim does, and the engine removes it then by itself (`AutoRemove`). This
//! is for what that leaves: the folder, containers that were created and never ran, and engines that were away.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::engine::Engine;
use crate::folder::Folder;

/// Takes remains. Ends with its host.
#[derive(Debug)]
pub(crate) struct Undertaker {
    inbox: Inbox,
    task: AbortHandle,
}

#[derive(Debug, Clone)]
struct Inbox {
    // Unbounded: each container is in it once, and their number is bounded by who starts them.
    remains: mpsc::UnboundedSender<Remains>,
    /// How many are not removed yet.
    open: Arc<watch::Sender<usize>>,
}

/// A container's name and folder, which nobody uses any more once this is dropped.
#[derive(Debug)]
pub(crate) struct Estate {
    remains: Option<Remains>,
    inbox: Inbox,
}

#[derive(Debug)]
struct Remains {
    name: String,
    folder: Folder,
}

impl Undertaker {
    /// Must be called within a tokio runtime.
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let (sender, remains) = mpsc::unbounded_channel();
        let inbox = Inbox {
            remains: sender,
            open: Arc::new(watch::Sender::new(0)),
        };
        let task = tokio::spawn(work(engine, remains, Arc::clone(&inbox.open))).abort_handle();
        Self { inbox, task }
    }

    /// Waits until everything that was let go is removed.
    pub(crate) async fn idle(&self) {
        // The sender is here: it cannot be gone.
        drop(
            self.inbox
                .open
                .subscribe()
                .wait_for(|open| *open == 0)
                .await,
        );
    }

    /// Takes care of a container from before it is created.
    pub(crate) fn estate(&self, name: String, folder: Folder) -> Estate {
        Estate {
            remains: Some(Remains { name, folder }),
            inbox: self.inbox.clone(),
        }
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Estate {
    pub(crate) fn name(&self) -> &str {
        &self.remains().name
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.remains().folder
    }

    fn remains(&self) -> &Remains {
        self.remains
            .as_ref()
            .expect("it is taken out by the drop alone")
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        if let Some(remains) = self.remains.take() {
            // A host that is gone leaves it to the next daemon's sweep.
            self.inbox.open.send_modify(|open| *open += 1);
            drop(self.inbox.remains.send(remains));
        }
    }
}

async fn work(
    engine: Arc<Engine>,
    mut inbox: mpsc::UnboundedReceiver<Remains>,
    open: Arc<watch::Sender<usize>>,
) {
    let mut burials = JoinSet::new();
    while let Some(remains) = inbox.recv().await {
        while burials.len() >= BURIALS_MAX {
            burials.join_next().await;
        }
        let (engine, open) = (Arc::clone(&engine), Arc::clone(&open));
        burials.spawn(async move {
            bury(engine, remains).await;
            open.send_modify(|open| *open -= 1);
        });
    }
    while burials.join_next().await.is_some() {}
}

async fn bury(engine: Arc<Engine>, Remains { name, folder }: Remains) {
    // The folder last: what runs in the container may write to it until it has ended.
    if let Err(problem) = engine.remove(&name).await {
        tracing::warn!(container = name, %problem, "a container was not removed");
    }
    let removed = tokio::task::spawn_blocking(move || folder.remove()).await;
    if let Ok(Err(problem)) = removed {
        tracing::warn!(container = name, %problem, "a container's folder was not removed");
    }
}

/// Removals at the same time: they are not urgent, and leave the engine to those that start.
const BURIALS_MAX: usize = 4;
