//! The tasks of the path: each is tracked here and ends with the pools. Nothing is detached.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Tracked tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// Guards only the set; never held across an await.
    set: Mutex<JoinSet<()>>,
    home: Handle,
}

impl Tasks {
    /// For tasks of this runtime.
    pub(crate) fn new() -> Self {
        Self {
            set: Mutex::new(JoinSet::new()),
            home: Handle::current(),
        }
    }

    /// Runs a task: on the caller's runtime, so that it stays on the caller's thread where it can, else at home.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.set.lock();
        while set.try_join_next().is_some() {}
        match Handle::try_current() {
            Ok(here) => set.spawn_on(task, &here),
            Err(_) => set.spawn_on(task, &self.home),
        };
    }

    /// Ends every task at its next await.
    pub(crate) fn abort(&self) {
        self.set.lock().abort_all();
    }

    /// Waits, for so long at most, until every task has ended by itself; then ends the others, as [`Tasks::end`].
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
        // Those that were being waited for end as the wait is dropped.
        let _ = timeout(patience, all).await;
        self.end().await;
    }

    /// Ends every task at its next await, and waits until all have ended, with what they held.
    pub(crate) async fn end(&self) {
        loop {
            let mut set = std::mem::take(&mut *self.set.lock());
            if set.is_empty() {
                return;
            }
            // What ends may have spawned before it did: therefore once more.
            set.shutdown().await;
        }
    }
}
