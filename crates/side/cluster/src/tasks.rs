//! The tasks of one connection, which end with it.

use std::future::Future;
use std::sync::Arc;

use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::task::JoinSet;

/// Runs the tasks of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
{
    fn execute(&self, future: F) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { drop(future.await) });
    }
}

impl Tasks {
    /// Ends them. Their results are gone.
    pub(crate) fn end(&self) {
        let tasks = std::mem::take(&mut *self.0.lock());
        drop(tasks);
    }
}

/// Ends the tasks when it is dropped. They have references to each other, so that this has to be said.
#[derive(Debug)]
pub(crate) struct EndTasks(pub(crate) Tasks);

impl Drop for EndTasks {
    fn drop(&mut self) {
        self.0.end();
    }
}
