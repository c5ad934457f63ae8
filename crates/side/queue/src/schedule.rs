//! What is due, in memory: for each function a lane of attempts and one of deliveries, and who may run. Pure: time comes in as an
//! argument. The store has the same invocations; an entry is added after its commit and removed after the commit that ends it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use pilot_model::FunctionName;

use crate::rules::Progress;

/// What is to be done. Each has limits of its own, so that a destination that does not answer keeps no function from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// The function is invoked.
    Attempt,
    /// A record is delivered to a destination of the function that is no function.
    Delivery,
}

impl Work {
    pub(crate) fn of(delivers: bool) -> Self {
        match delivers {
            false => Self::Attempt,
            true => Self::Delivery,
        }
    }
}

/// One invocation that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) function: FunctionName,
    pub(crate) work: Work,
    pub(crate) progress: Progress,
    pub(crate) due_ms: i64,
    /// What it takes of the limits.
    pub(crate) bytes: u64,
    /// It has an idempotency key: the beginning of each attempt is stored, too.
    pub(crate) keyed: bool,
    /// An attempt had begun when an earlier daemon ended, or when it panicked.
    pub(crate) interrupted: bool,
    pub(crate) running: bool,
}

/// All invocations that wait or run.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: HashMap<i64, Entry>,
    lanes: BTreeMap<LaneKey, Lane>,
    /// Time of acceptance and number of each entry.
    ages: BTreeSet<(i64, i64)>,
    /// How many run, of each kind.
    running: [usize; 2],
    /// The lane that was served last.
    turn: Option<LaneKey>,
}

type LaneKey = (FunctionName, Work);

/// What is to be done of one kind for one function.
#[derive(Debug, Default)]
struct Lane {
    /// Those that wait: when they are due, and their number.
    due: BTreeSet<(i64, i64)>,
    running: usize,
}

impl Entry {
    fn lane(&self) -> LaneKey {
        (self.function.clone(), self.work)
    }
}

impl Schedule {
    /// Adds an invocation that waits.
    pub(crate) fn add(&mut self, seq: i64, entry: Entry) {
        self.ages.insert((entry.progress.accepted_ms, seq));
        let lane = self.lanes.entry(entry.lane()).or_default();
        lane.due.insert((entry.due_ms, seq));
        self.entries.insert(seq, entry);
    }

    /// Takes the next invocation to run. The lanes take turns; `places` says how many may run of one.
    pub(crate) fn take(
        &mut self,
        now_ms: i64,
        places: impl Fn(&FunctionName, Work) -> usize,
    ) -> Option<(i64, Entry)> {
        let is_next = |((name, work), lane): &(&LaneKey, &Lane)| {
            let first = lane.due.first();
            first.is_some_and(|(due, _)| *due <= now_ms) && lane.running < places(name, *work)
        };
        let after = self.turn.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.lanes.range::<LaneKey, _>((after, Bound::Unbounded));
        let key = later.chain(self.lanes.iter()).find(is_next)?.0.clone();
        let lane = self.lanes.get_mut(&key)?;
        let (_, seq) = lane.due.pop_first()?;
        lane.running += 1;
        self.running[key.1 as usize] += 1;
        self.turn = Some(key);
        let entry = self.entries.get_mut(&seq)?;
        entry.running = true;
        Some((seq, entry.clone()))
    }

    /// Takes a certain invocation out of its lane, so that it is not run, until [`Schedule::let_go`]. False: it runs, or is not there.
    pub(crate) fn hold(&mut self, seq: i64) -> bool {
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| !entry.running) else {
            return false;
        };
        entry.running = true;
        self.running[entry.work as usize] += 1;
        if let Some(lane) = self.lanes.get_mut(&entry.lane()) {
            lane.due.remove(&(entry.due_ms, seq));
            lane.running += 1;
        }
        true
    }

    /// An invocation that was held waits again, and is due when it was.
    pub(crate) fn let_go(&mut self, seq: i64) {
        if let Some(entry) = self.entries.get(&seq) {
            self.release(seq, entry.due_ms);
        }
    }

    /// An invocation that ran waits again.
    pub(crate) fn again(&mut self, seq: i64, due_ms: i64, attempts: u32, waits: u32) {
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| entry.running) else {
            return;
        };
        entry.running = false;
        entry.due_ms = due_ms;
        entry.progress.attempts = attempts;
        entry.progress.waits = waits;
        self.running[entry.work as usize] -= 1;
        if let Some(lane) = self.lanes.get_mut(&entry.lane()) {
            lane.running -= 1;
            lane.due.insert((due_ms, seq));
        }
    }

    /// An invocation that ran waits again, as it did before, but not before `due_ms`.
    pub(crate) fn release(&mut self, seq: i64, due_ms: i64) {
        if let Some(entry) = self.entries.get(&seq) {
            let progress = entry.progress;
            self.again(seq, due_ms, progress.attempts, progress.waits);
        }
    }

    /// An attempt of an invocation with a key has begun, and nobody knows how it ended.
    pub(crate) fn interrupt(&mut self, seq: i64) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.interrupted = true;
        }
    }

    /// Removes an invocation.
    pub(crate) fn remove(&mut self, seq: i64) {
        let Some(entry) = self.entries.remove(&seq) else {
            return;
        };
        self.ages.remove(&(entry.progress.accepted_ms, seq));
        if entry.running {
            self.running[entry.work as usize] -= 1;
        }
        let Some(lane) = self.lanes.get_mut(&entry.lane()) else {
            return;
        };
        if entry.running {
            lane.running -= 1;
        } else {
            lane.due.remove(&(entry.due_ms, seq));
        }
        if lane.running == 0 && lane.due.is_empty() {
            self.lanes.remove(&entry.lane());
        }
    }

    /// When the next invocation becomes due that is not due yet.
    pub(crate) fn next_due_ms(&self, now_ms: i64) -> Option<i64> {
        let firsts = self.lanes.values().filter_map(|lane| lane.due.first());
        let later = firsts.map(|(due, _)| *due).filter(|due| *due > now_ms);
        later.min()
    }

    /// Whether something is due. After [`Schedule::take`] had nothing, that is what has no place.
    pub(crate) fn has_due(&self, now_ms: i64) -> bool {
        let mut firsts = self.lanes.values().filter_map(|lane| lane.due.first());
        firsts.any(|(due, _)| *due <= now_ms)
    }

    #[cfg(test)]
    pub(crate) fn entry(&self, seq: i64) -> Option<&Entry> {
        self.entries.get(&seq)
    }

    pub(crate) fn is_running(&self, seq: i64) -> bool {
        self.entries.get(&seq).is_some_and(|entry| entry.running)
    }

    /// How many run.
    pub(crate) fn running(&self) -> usize {
        self.running.iter().sum()
    }

    /// How many run of one kind.
    pub(crate) fn running_of(&self, work: Work) -> usize {
        self.running[work as usize]
    }

    /// How many wait or run.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// When the oldest was accepted.
    pub(crate) fn oldest_ms(&self) -> Option<i64> {
        self.ages.first().map(|(accepted, _)| *accepted)
    }
}

#[cfg(test)]
mod tests;
