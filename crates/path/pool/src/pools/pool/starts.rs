//! The starts of a pool that are in progress. A start has a permit, and what it runs may hang, so it can be abandoned.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Whether a start was abandoned. Shared with its task.
#[derive(Debug, Clone, Default)]
pub(super) struct Abandoned(Arc<AtomicBool>);

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

    /// Abandons all.
    pub(super) fn abandon_all(&self) {
        self.0.lock().values().for_each(Start::abandon);
    }

    /// Abandons the oldest one, if it is overdue. Returns whether it was.
    pub(super) fn abandon_overdue(&self, now: Instant) -> bool {
        let starts = self.0.lock();
        let running = starts.values().filter(|start| !start.abandoned.get());
        let overdue = running
            .min_by_key(|start| start.asked)
            .filter(|start| now.since(start.asked) >= OVERDUE);
        if let Some(start) = overdue {
            start.abandon();
        }
        overdue.is_some()
    }
}

impl Start {
    fn abandon(&self) {
        self.abandoned.0.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

impl Abandoned {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
