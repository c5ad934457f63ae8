//! A request that waits for a runtime that is being cleaned or started, instead of starting another one.

use std::sync::Arc;

use pilot_model::runtime_key::RuntimeKey;
use tokio::sync::futures::Notified;
use tokio::time::{Instant as Deadline, timeout_at};

use super::super::state::{Awaited, Look, Wait};
use super::Driver;

/// See the module. Dropping it ends the wait and tells the state machine.
#[derive(Debug)]
pub(super) struct RuntimeWait<'a> {
    driver: &'a Driver,
    key: &'a Arc<RuntimeKey>,
    on: Awaited,
    until: Deadline,
    open: bool,
}

impl<'a> RuntimeWait<'a> {
    pub(super) fn new(driver: &'a Driver, key: &'a Arc<RuntimeKey>, wait: Wait) -> Self {
        Self {
            driver,
            key,
            on: wait.on,
            until: Deadline::now() + wait.patience,
            open: true,
        }
    }

    /// Waits for a change, and returns how to look again. [`Look::Again`]: the wait was without success; drop this first.
    pub(super) async fn for_change(&self, settled: Notified<'_>) -> Look {
        match timeout_at(self.until, settled).await {
            Ok(()) => Look::Waiting(self.on),
            Err(_) => Look::Again,
        }
    }

    /// The state machine has answered otherwise, which ends the wait.
    pub(super) fn answered(mut self) {
        self.open = false;
    }
}

impl Drop for RuntimeWait<'_> {
    fn drop(&mut self) {
        if self.open {
            let runtimes = &mut self.driver.state.lock().runtimes;
            runtimes.waited(self.key, self.on);
        }
    }
}
