//! What of a queue waits: the messages that are still there, and those of batches that run. A message has waited until it is done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::status::Status;

/// Says in the status what waits.
#[derive(Debug, Clone)]
pub(super) struct Backlog {
    status: Arc<Status>,
    /// Guards the figures, for one change and for saying it.
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// When the queue was asked how many messages it has.
    asked_at: Option<Instant>,
    /// What it said, less what was received since then. `None`: nobody knows.
    at_the_queue: Option<u64>,
    /// How many messages of a running batch, and when the oldest one was sent.
    running: HashMap<u64, (u64, Option<i64>)>,
    next: u64,
}

/// A batch that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct RunningBatch {
    number: u64,
    of: Backlog,
}

impl Backlog {
    pub(super) fn new(status: &Arc<Status>) -> Self {
        Self {
            status: Arc::clone(status),
            waiting: Arc::default(),
        }
    }

    /// Whether the queue is to be asked how many messages it has. Then it counts as asked.
    pub(super) fn is_due(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let is_due = waiting.asked_at.is_none_or(|at| at.elapsed() >= ASK_EVERY);
        if is_due {
            waiting.asked_at = Some(Instant::now());
        }
        is_due
    }

    /// The queue has so many messages that nobody has received.
    pub(super) fn at_the_queue(&self, count: u64) {
        let mut waiting = self.waiting.lock();
        waiting.at_the_queue = Some(count);
        self.say(&waiting);
    }

    /// A batch was received.
    pub(super) fn begin(&self, count: u64, oldest_ms: Option<i64>) -> RunningBatch {
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.running.insert(number, (count, oldest_ms));
        if let Some(at_the_queue) = &mut waiting.at_the_queue {
            *at_the_queue = at_the_queue.saturating_sub(count);
        }
        self.say(&waiting);
        RunningBatch {
            number,
            of: self.clone(),
        }
    }

    fn say(&self, waiting: &Waiting) {
        let Some(at_the_queue) = waiting.at_the_queue else {
            return;
        };
        let running = waiting.running.values();
        let received: u64 = running.clone().map(|(count, _)| count).sum();
        let oldest_ms = running.filter_map(|(_, oldest_ms)| *oldest_ms).min();
        self.status
            .waits(at_the_queue.saturating_add(received), oldest_ms);
    }
}

impl Drop for RunningBatch {
    fn drop(&mut self) {
        let mut waiting = self.of.waiting.lock();
        waiting.running.remove(&self.number);
        self.of.say(&waiting);
    }
}

/// How often a queue is asked how many messages it has.
const ASK_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use pilot_model::trigger::{FolderSpec, TriggerConfig};

    use super::*;
    use crate::status::now_ms;

    #[test]
    fn a_message_waits_until_its_batch_ends_and_no_longer() {
        let status = Arc::<Status>::default();
        let config = TriggerConfig::Folder(FolderSpec {
            path: "/any".to_owned(),
            suffix: None,
        });
        let says = || {
            let info = status.info(&"lab".parse().unwrap(), &config);
            // In whole minutes.
            (info.waiting, info.lag_s.map(|lag_s| (lag_s / 60.0).floor()))
        };
        let backlog = Backlog::new(&status);
        let ago = |minutes: i64| Some(now_ms() - minutes * 60_000);
        let old = backlog.begin(2, ago(9));
        // The queue may have more than these.
        assert_eq!(says().0, None);
        assert!(backlog.is_due() && !backlog.is_due());
        backlog.at_the_queue(1);
        assert_eq!(says(), (Some(3), Some(9.0)));
        let new = backlog.begin(1, ago(4));
        assert_eq!(says(), (Some(3), Some(9.0)));
        drop(old);
        assert_eq!(says(), (Some(1), Some(4.0)));
        drop(new);
        assert_eq!(says(), (Some(0), Some(0.0)));
        // The queue does not say how old its messages are.
        backlog.at_the_queue(5);
        assert_eq!(says(), (Some(5), None));
    }
}
