//! The starts of a pool that are in progress. A start has a permit, and what it runs may hang, so it can be abandoned.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::Instant;
use pilot_rules::Key;
use tokio::task::AbortHandle;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Starts(Mutex<HashMap<Key, Start>>);

#[derive(Debug)]
struct Start {
    asked: Instant,
    task: AbortHandle,
    abandoned: Abandoned,
}

/// Whether a start was abandoned, and why. Shared with its task.
#[derive(Debug, Clone, Default)]
pub(super) struct Abandoned(Arc<OnceLock<Abandonment>>);

/// Why a start was abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abandonment {
    /// Nobody waits for the worker: its version was replaced, its function removed or scaled to 0, or the daemon ends.
    Needless,
    /// It took long, and another function needed its permit.
    Overdue,
}

/// A start that takes so long may be abandoned when another function needs its permit. Starts of servers and containers take about as long
/// on a busy machine.
const OVERDUE: Duration = Duration::from_secs(5);

impl Starts {
    /// A start is ordered. `spawn` spawns its task.
    pub(super) fn begin(
        &self,
        key: Key,
        asked: Instant,
        spawn: impl FnOnce(Abandoned) -> AbortHandle,
    ) {
        // The task that ends at once waits for this.
        let mut starts = self.0.lock();
        let abandoned = Abandoned::default();
        let start = Start {
            asked,
            task: spawn(abandoned.clone()),
            abandoned,
        };
        starts.insert(key, start);
    }

    /// A start has ended.
    pub(super) fn end(&self, key: Key) {
        self.0.lock().remove(&key);
    }

    /// Abandons all: they are needless.
    pub(super) fn abandon_all(&self) {
        let starts = self.0.lock();
        starts
            .values()
            .for_each(|start| start.abandon(Abandonment::Needless));
    }

    /// Abandons the oldest one, if it is overdue. Returns whether it was.
    pub(super) fn abandon_overdue(&self, now: Instant) -> bool {
        let starts = self.0.lock();
        let running = starts
            .values()
            .filter(|start| start.abandoned.get().is_none());
        let overdue = running
            .min_by_key(|start| start.asked)
            .filter(|start| now.since(start.asked) >= OVERDUE);
        if let Some(start) = overdue {
            start.abandon(Abandonment::Overdue);
        }
        overdue.is_some()
    }
}

impl Start {
    fn abandon(&self, why: Abandonment) {
        let _first = self.abandoned.0.set(why);
        self.task.abort();
    }
}

impl Abandoned {
    pub(super) fn get(&self) -> Option<Abandonment> {
        self.0.get().copied()
    }
}
