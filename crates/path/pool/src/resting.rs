//! Whether a worker rests (is frozen or throttled), and that it does not while it serves.
//!
//! The state machine says when an idle worker is to rest. By the time that is done, the worker may have been leased. The lock here
//! decides: a worker rests only if no exchange has begun, and an exchange begins only when its worker is awake. The lock is held for
//! a write to a file of the kernel, which does not wait for the worker.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pilot_model::ports::Worker;
use pilot_model::{Enforcement, FunctionConfig, Rest, Seldom};

/// See the module.
#[derive(Debug)]
pub(crate) struct Resting {
    /// `None`: it does not rest, but its engine is told when it serves.
    how: Option<Rest>,
    /// Guards what is known, and rest and waking themselves.
    state: Mutex<RestState>,
    /// As in the state, readable without the lock.
    rests: AtomicBool,
}

#[derive(Debug, Default)]
struct RestState {
    /// Exchanges that have begun and not ended.
    exchanges: u32,
    rests: bool,
}

/// Workers that could not rest and are logged, per interval, of all functions.
static FAILURES: Seldom = Seldom::new(5);
static CANNOT_FREEZE: Once = Once::new();

impl Resting {
    /// `None`: such workers do not rest, and nobody needs to know when they serve.
    pub(crate) fn new(config: &FunctionConfig) -> Option<Self> {
        let how = config.keep_alive.rest();
        let is_precise = config.cpu_limit.enforcement == Enforcement::Precise;
        (how.is_some() || is_precise).then(|| Self {
            how,
            state: Mutex::default(),
            rests: AtomicBool::new(false),
        })
    }

    /// Whether it rests.
    pub(crate) fn is_on(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    /// An exchange begins: the worker is awake from here on. Returns whether it had to be woken.
    ///
    /// # Errors
    /// The kernel's: the worker is unusable.
    pub(crate) fn begin(&self, worker: &dyn Worker) -> io::Result<bool> {
        let mut state = self.state.lock();
        state.exchanges += 1;
        let rested = std::mem::take(&mut state.rests);
        if rested {
            self.rests.store(false, Ordering::Relaxed);
            worker.resources().wake()?;
        }
        if state.exchanges == 1 {
            worker.resources().engage();
        }
        Ok(rested)
    }

    /// An exchange that began has ended.
    pub(crate) fn end(&self, worker: &dyn Worker) {
        let mut state = self.state.lock();
        state.exchanges = state.exchanges.saturating_sub(1);
        if state.exchanges == 0 {
            worker.resources().disengage();
        }
    }

    /// Lets the worker rest, unless it serves. Where it cannot be frozen, it is throttled.
    pub(crate) fn rest(&self, worker: &dyn Worker) {
        let Some(how) = self.how else {
            return;
        };
        let mut state = self.state.lock();
        if state.exchanges > 0 || state.rests || !worker.is_alive() {
            return;
        }
        let mut rested = worker.resources().rest(how);
        if let (Rest::Freeze, Err(error)) = (how, &rested)
            && error.kind() == io::ErrorKind::Unsupported
        {
            CANNOT_FREEZE.call_once(|| {
                tracing::warn!(
                    "workers cannot be frozen here: idle ones get 0.01 CPU instead. Mount cgroup v2 (Linux 5.2 or newer)"
                );
            });
            rested = worker.resources().rest(Rest::Throttle);
        }
        state.rests = match rested {
            Ok(()) => true,
            Err(error) => {
                if worker.is_alive()
                    && let Some(left_out) = FAILURES.admit(std::time::Instant::now())
                {
                    tracing::warn!(%error, left_out, "an idle worker cannot rest: it runs on");
                }
                false
            }
        };
        self.rests.store(state.rests, Ordering::Relaxed);
    }
}
