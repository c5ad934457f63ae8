//! What is due, in memory: one lane per function, and who may run. Pure: time comes in as an argument. The store has the same
//! invocations; an entry is added after its commit and removed after the commit that ends it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use pilot_model::FunctionName;

use crate::rules::Progress;

/// One invocation that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) function: FunctionName,
    pub(crate) progress: Progress,
    pub(crate) due_ms: i64,
    /// What it takes of the limits.
    pub(crate) bytes: u64,
    /// It has an idempotency key: the beginning of each attempt is stored, too.
    pub(crate) keyed: bool,
    /// An attempt had begun when an earlier daemon ended.
    pub(crate) interrupted: bool,
    pub(crate) running: bool,
}

/// All invocations that wait or run.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: HashMap<i64, Entry>,
    lanes: BTreeMap<FunctionName, Lane>,
    /// Time of acceptance and number of each entry.
    ages: BTreeSet<(i64, i64)>,
    running: usize,
    /// The function that was served last.
    turn: Option<FunctionName>,
}

/// The invocations of one function.
#[derive(Debug, Default)]
struct Lane {
    /// Those that wait: when they are due, and their number.
    due: BTreeSet<(i64, i64)>,
    running: usize,
}

impl Schedule {
    /// Adds an invocation that waits.
    pub(crate) fn add(&mut self, seq: i64, entry: Entry) {
        self.ages.insert((entry.progress.accepted_ms, seq));
        let lane = self.lanes.entry(entry.function.clone()).or_default();
        lane.due.insert((entry.due_ms, seq));
        self.entries.insert(seq, entry);
    }

    /// Takes the next invocation to run. The functions take turns; `places` says how many may run of one.
    pub(crate) fn take(
        &mut self,
        now_ms: i64,
        places: impl Fn(&FunctionName) -> usize,
    ) -> Option<(i64, Entry)> {
        let is_next = |(name, lane): &(&FunctionName, &Lane)| {
            let first = lane.due.first();
            first.is_some_and(|(due, _)| *due <= now_ms) && lane.running < places(name)
        };
        let after = self.turn.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let later = self
            .lanes
            .range::<FunctionName, _>((after, Bound::Unbounded));
        let name = later.chain(self.lanes.iter()).find(is_next)?.0.clone();
        let lane = self.lanes.get_mut(&name)?;
        let (_, seq) = lane.due.pop_first()?;
        lane.running += 1;
        self.running += 1;
        self.turn = Some(name);
        let entry = self.entries.get_mut(&seq)?;
        entry.running = true;
        Some((seq, entry.clone()))
    }

    /// Takes a certain invocation out of its lane, so that it is not run. False: it runs, or is not there.
    pub(crate) fn hold(&mut self, seq: i64) -> bool {
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| !entry.running) else {
            return false;
        };
        entry.running = true;
        self.running += 1;
        if let Some(lane) = self.lanes.get_mut(&entry.function) {
            lane.due.remove(&(entry.due_ms, seq));
            lane.running += 1;
        }
        true
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
        self.running -= 1;
        if let Some(lane) = self.lanes.get_mut(&entry.function) {
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

    /// Removes an invocation.
    pub(crate) fn remove(&mut self, seq: i64) {
        let Some(entry) = self.entries.remove(&seq) else {
            return;
        };
        self.ages.remove(&(entry.progress.accepted_ms, seq));
        let Some(lane) = self.lanes.get_mut(&entry.function) else {
            return;
        };
        if entry.running {
            lane.running -= 1;
            self.running -= 1;
        } else {
            lane.due.remove(&(entry.due_ms, seq));
        }
        if lane.running == 0 && lane.due.is_empty() {
            self.lanes.remove(&entry.function);
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

    pub(crate) fn is_running(&self, seq: i64) -> bool {
        self.entries.get(&seq).is_some_and(|entry| entry.running)
    }

    /// How many run.
    pub(crate) fn running(&self) -> usize {
        self.running
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
