//! The owners of a runtime that is not available: a start in progress ([`Claim`]), and a runtime in use ([`Hold`]). Neither can
//! be lost: when it is dropped, the runtime ends and the state machine is told.
//!
//! Dropping does not spawn: it may happen inside [`Tasks::spawn`](crate::tasks::Tasks::spawn), which is not reentrant.

use std::sync::Arc;
use std::time::Instant;

use pilot_model::Seldom;
use pilot_model::ports::PrewarmedRuntime;
use pilot_model::runtime_key::RuntimeKey;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::state::{End, RuntimeId};
use super::Driver;

/// A start in progress.
#[derive(Debug)]
pub(super) struct Claim {
    driver: Arc<Driver>,
    id: RuntimeId,
    open: bool,
}

impl Claim {
    pub(super) fn new(driver: &Arc<Driver>, id: RuntimeId) -> Self {
        Self {
            driver: Arc::clone(driver),
            id,
            open: true,
        }
    }

    /// The runtime is ready, for the request that asked for it.
    pub(super) fn up(mut self, runtime: Arc<dyn PrewarmedRuntime>) -> Hold {
        self.open = false;
        let now = self.driver.now();
        self.driver.state.lock().runtimes.started(now, self.id);
        Hold::new(&self.driver, self.id, runtime)
    }

    /// The runtime is ready, ahead of demand.
    pub(super) fn up_ahead(mut self, runtime: Arc<dyn PrewarmedRuntime>) {
        self.open = false;
        let now = self.driver.now();
        let mut gone = Vec::new();
        self.driver
            .state
            .lock()
            .runtimes
            .started_ahead(now, self.id, runtime, &mut gone);
        self.driver.settled.notify_waiters();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.open {
            let now = self.driver.now();
            self.driver.state.lock().runtimes.start_failed(now, self.id);
            self.driver.settled.notify_waiters();
        }
    }
}

impl Driver {
    /// Adapts a runtime to another key, within the time limit. `Err`: the reason; drop the runtime.
    pub(super) async fn adapt(
        &self,
        runtime: &Arc<dyn PrewarmedRuntime>,
        to: &Arc<RuntimeKey>,
    ) -> Result<(), String> {
        let bound = self.settings.adapt_max;
        match timeout(bound, runtime.adapt(to)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it takes longer than {} s", bound.as_secs_f64())),
        }
    }
}

/// A runtime that is in use.
#[derive(Debug)]
pub(super) struct Hold {
    driver: Arc<Driver>,
    id: RuntimeId,
    runtime: Arc<dyn PrewarmedRuntime>,
    /// The state machine has not been told the end of this use.
    open: bool,
}

impl Hold {
    pub(super) fn new(
        driver: &Arc<Driver>,
        id: RuntimeId,
        runtime: Arc<dyn PrewarmedRuntime>,
    ) -> Self {
        Self {
            driver: Arc::clone(driver),
            id,
            runtime,
            open: true,
        }
    }

    pub(super) fn runtime(&self) -> &Arc<dyn PrewarmedRuntime> {
        &self.runtime
    }

    /// Adapts it to another key, within the time limit. `Err`: the reason; drop it.
    pub(super) async fn adapt(&self, to: &Arc<RuntimeKey>) -> Result<(), String> {
        self.driver.adapt(&self.runtime, to).await
    }

    /// Tells the state machine that it was adapted.
    pub(super) fn adapted(&self) {
        let now = self.driver.now();
        self.driver.state.lock().runtimes.adapted(now, self.id);
    }

    /// Gives it back: it is cleaned off the path and kept, or ended. The receiver resolves, with an error, after that; the caller
    /// need not wait for it.
    pub(super) fn give_back(self) -> oneshot::Receiver<()> {
        let driver = Arc::clone(&self.driver);
        let (done, settled) = oneshot::channel();
        if let Some(released) = self.release() {
            driver.tasks.spawn(async move {
                released.clean().await;
                drop(done);
            });
        }
        settled
    }

    /// Gives it up because memory is short. It ends after the processes of its worker have had their promised time to end.
    pub(super) fn give_up(mut self) {
        let now = self.driver.now();
        let is_closed = {
            let runtimes = &mut self.driver.state.lock().runtimes;
            runtimes.release(now, self.id);
            runtimes.end(self.id, End::Evicted);
            runtimes.is_closed()
        };
        self.open = false;
        self.driver.settled.notify_waiters();
        if !is_closed && self.runtime.is_alive() {
            let driver = Arc::clone(&self.driver);
            driver.tasks.spawn(async move { self.vacate().await });
        }
    }

    /// When the time is over, dropping `self` ends the runtime.
    async fn vacate(self) {
        let bound = self.driver.settings.clean_max;
        let _ = timeout(bound, self.runtime.vacate()).await;
    }

    /// The use has ended. `None`: there is nothing to clean.
    fn release(self) -> Option<Self> {
        let now = self.driver.now();
        let is_closed = {
            let runtimes = &mut self.driver.state.lock().runtimes;
            runtimes.release(now, self.id);
            runtimes.is_closed()
        };
        (!is_closed && self.runtime.is_alive()).then_some(self)
    }

    async fn clean(mut self) {
        if !self.driver.state.lock().runtimes.keeps() {
            return self.vacate().await;
        }
        let bound = self.driver.settings.clean_max;
        let problem = match timeout(bound, self.runtime.clean()).await {
            Ok(Ok(())) => {
                self.open = false;
                let (now, runtime) = (self.driver.now(), Arc::clone(&self.runtime));
                let mut gone = Vec::new();
                let runtimes = &mut self.driver.state.lock().runtimes;
                runtimes.cleaned(now, self.id, runtime, &mut gone);
                self.driver.settled.notify_waiters();
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it takes longer than {} s", bound.as_secs_f64()),
        };
        if let Some(left_out) = NOT_CLEANED.admit(Instant::now()) {
            tracing::warn!(key = %self.runtime.key(), problem, left_out, "a runtime could not be cleaned: it is ended");
        }
    }
}

/// Runtimes that could not be cleaned and are logged, per interval.
static NOT_CLEANED: Seldom = Seldom::new(20);

impl Drop for Hold {
    fn drop(&mut self) {
        if self.open {
            self.driver
                .state
                .lock()
                .runtimes
                .end(self.id, End::Destroyed);
            self.driver.settled.notify_waiters();
        }
    }
}
