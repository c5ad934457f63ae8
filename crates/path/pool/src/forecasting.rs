//! Has forecasters tick: on a thread of its own, so that no request ever waits behind a prediction, whatever that costs.
//!
//! A forecaster belongs to the pool it predicts for; the thread holds only when it is due next. Ticks are put on a common
//! grid, so that a thousand functions wake the machine forty times a second and not a thousand times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::forecast::{Forecaster, Target};
use pilot_model::ports::Clock;
use pilot_model::{Instant, ScaleConfig};

use crate::pool::Pool;

/// A pool's forecaster with what it said last.
#[derive(Debug)]
pub(crate) struct Forecasting {
    /// What it was made from.
    pub(crate) scale: ScaleConfig,
    pub(crate) forecaster: Box<dyn Forecaster>,
    pub(crate) target: Target,
    /// A pool that is given another forecaster counts on; ticks ordered for the one before come to nothing.
    pub(crate) epoch: u64,
}

/// The thread; none before there is a forecaster. Dropping it ends and joins it.
pub(crate) struct Ticking {
    orders: Option<Sender<Due>>,
    inbox: Mutex<Option<Receiver<Due>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A pool whose forecaster is to tick.
struct Due {
    at: Instant,
    epoch: u64,
    pool: Weak<Pool>,
}

impl Ticking {
    pub(crate) fn new() -> Self {
        let (orders, inbox) = channel();
        Self {
            orders: Some(orders),
            inbox: Mutex::new(Some(inbox)),
            thread: Mutex::new(None),
        }
    }

    /// Has this pool's forecaster tick from now on, until the pool is gone or has moved on to another epoch.
    pub(crate) fn follow(&self, clock: &Arc<dyn Clock>, pool: &Arc<Pool>, epoch: u64) {
        self.run(clock);
        if let Some(orders) = &self.orders {
            let _ = orders.send(Due {
                at: Instant(0),
                epoch,
                pool: Arc::downgrade(pool),
            });
        }
    }

    fn run(&self, clock: &Arc<dyn Clock>) {
        let Some(inbox) = self.inbox.lock().take() else {
            return;
        };
        let clock = Arc::clone(clock);
        let thread = std::thread::Builder::new()
            .name("forecast".to_owned())
            .spawn(move || run(&inbox, clock.as_ref()));
        match thread {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => {
                tracing::error!(%error, "no thread for forecasts: workers start when somebody waits");
            }
        }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.lock().take() {
            // The last holder of the pools may be a tick: a thread cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Ticking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticking").finish_non_exhaustive()
    }
}

/// Ticks whoever is due until nobody can order ticks any more.
fn run(inbox: &Receiver<Due>, clock: &dyn Clock) {
    let mut heap: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    loop {
        let order = match heap.peek() {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(Reverse(next)) => {
                inbox.recv_timeout(next.at.since(clock.now()).min(LONGEST_PAUSE))
            }
        };
        match order {
            Ok(due) => heap.push(Reverse(due)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while heap
            .peek()
            .is_some_and(|Reverse(next)| next.at <= clock.now())
        {
            let Some(Reverse(due)) = heap.pop() else {
                break;
            };
            let again = due.pool.upgrade().and_then(|pool| {
                let tick = AssertUnwindSafe(|| pool.forecast(due.epoch));
                catch_unwind(tick).unwrap_or_else(|_| {
                    let function = &pool.version().config.name;
                    tracing::error!(%function, "its forecaster panicked: it is predicted no longer");
                    pool.stop_forecast();
                    None
                })
            });
            if let Some(interval) = again {
                let at = next_on_grid(clock.now(), interval);
                heap.push(Reverse(Due { at, ..due }));
            }
        }
    }
}

/// The point of the grid at or after `now + interval`.
fn next_on_grid(now: Instant, interval: Duration) -> Instant {
    let at = now.after(interval).0;
    Instant(at.div_ceil(GRID).saturating_mul(GRID))
}

/// 25 ms.
const GRID: u64 = 25_000_000;
/// A manual clock may be set while the thread sleeps.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_lie_on_a_common_grid_and_never_come_too_early() {
        let interval = Duration::from_millis(200);
        for now in [0, 1, 24_999_999, 25_000_000, 1_000_000_007] {
            let at = next_on_grid(Instant(now), interval);
            assert_eq!(at.0 % GRID, 0);
            assert!(at >= Instant(now).after(interval));
            assert!(at <= Instant(now).after(interval + Duration::from_millis(25)));
        }
    }
}
