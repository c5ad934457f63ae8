//! A task that belongs to an invocation.

use tokio::task::AbortHandle;

/// A running task. Dropping it aborts the task.
#[derive(Debug)]
pub(crate) struct Task(AbortHandle);

impl Task {
    /// Starts it.
    pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
