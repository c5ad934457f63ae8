//! The tasks of the path: each is tracked here and ends with the pools. Nothing is detached.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Tracked tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// Guards only the set; never held across an await.
    set: Mutex<JoinSet<()>>,
    home: Handle,
}

impl Tasks {
    /// Runs its tasks on this tokio runtime.
    pub(crate) fn new() -> Self {
        Self {
            set: Mutex::new(JoinSet::new()),
            home: Handle::current(),
        }
    }

    /// Spawns a task: on the caller's runtime if possible, so that it stays on the caller's thread, otherwise on its own.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut set = self.set.lock();
        while set.try_join_next().is_some() {}
        match Handle::try_current() {
            Ok(here) => set.spawn_on(task, &here),
            Err(_) => set.spawn_on(task, &self.home),
        }
    }

    /// Ends every task at its next await.
    pub(crate) fn abort(&self) {
        self.set.lock().abort_all();
    }

    /// Waits at most `patience` until every task has ended by itself; then ends the others, as [`Tasks::end`].
    pub(crate) async fn finish(&self, patience: Duration) {
        let all = async {
            loop {
                let mut set = std::mem::take(&mut *self.set.lock());
                if set.is_empty() {
                    return;
                }
                while set.join_next().await.is_some() {}
            }
        };
        // Dropping the wait aborts the tasks that it waited for.
        let _ = timeout(patience, all).await;
        self.end().await;
    }

    /// Ends every task at its next await, and waits until all have ended and dropped what they held.
    pub(crate) async fn end(&self) {
        loop {
            let mut set = std::mem::take(&mut *self.set.lock());
            if set.is_empty() {
                return;
            }
            // Ending tasks may have spawned others: therefore once more.
            set.shutdown().await;
        }
    }
}
