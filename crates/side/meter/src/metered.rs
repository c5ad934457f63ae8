//! A report of the log's records. Workers are billed for their lives, cut to the time of the report.

use std::collections::HashMap;

use pilot_model::StartKind;
use pilot_model::cost::CostReport;
use pilot_model::ports::CostsOf;

use crate::bill::TIME_NS_MAX;
use crate::platform::{Match, Size};
use crate::record::{Call, Entry, Function, WorkerEnd};
use crate::report::{Counted, Sizes, Tally};
use crate::table::Table;

/// Which records a report is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// `None`: all.
    pub(crate) function: Option<CostsOf>,
    pub(crate) since_unix_ms: Option<u64>,
    pub(crate) match_cpu: bool,
}

/// Adds up the entries of a log.
pub(crate) struct Metered<'a> {
    table: &'a Table,
    wanted: Wanted,
    tally: Tally,
    /// What an index stands for at this place of the log: a place in `known`. `None`: not wanted.
    functions: HashMap<u32, Option<usize>>,
    /// The wanted versions.
    known: Vec<Known>,
    /// The first record's begin and the newest record's end, Unix milliseconds.
    first_ms: Option<u64>,
    newest_ms: u64,
}

struct Known {
    name: String,
    version: u32,
    need: Size,
    sizes: Sizes,
    /// The last memory use that was measured.
    memory_used: Option<u64>,
    /// When its workers that live were started, Unix milliseconds.
    alive: Vec<u64>,
}

impl<'a> Metered<'a> {
    pub(crate) fn new(table: &'a Table, wanted: Wanted) -> Self {
        Self {
            tally: Tally::new(table),
            table,
            wanted,
            functions: HashMap::new(),
            known: Vec::new(),
            first_ms: None,
            newest_ms: 0,
        }
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::Began { unix_ms } => {
                self.end_all();
                self.newest_ms = *unix_ms;
                self.functions.clear();
            }
            Entry::Function(function) => self.define(function),
            Entry::Call(call) => self.call(call),
            Entry::WorkerStarted { function, unix_ms } => {
                self.newest_ms = self.newest_ms.max(*unix_ms);
                if let Some(known) = self.known(*function) {
                    known.alive.push(*unix_ms);
                }
            }
            Entry::WorkerEnded(end) => self.ended(end),
            Entry::Throttled(_) | Entry::Pss(_) | Entry::Worker(_) | Entry::Thawed(_) => {}
        }
    }

    /// The report, of now.
    pub(crate) fn report(mut self, now_ms: u64) -> CostReport {
        self.newest_ms = self.newest_ms.max(now_ms);
        let until = self.newest_ms;
        self.end_all();
        let span = self.first_ms.map(|first| (first, until.max(first)));
        let mut report = self.tally.report(self.table, span);
        let used = &report.used;
        if used.memory_unknown > 0 {
            report.notes.push(format!(
                "the memory of {} of {} calls was not measured: it counts as allocated",
                used.memory_unknown, used.calls
            ));
        }
        report
    }

    fn known(&mut self, function: u32) -> Option<&mut Known> {
        let place = self.functions.get(&function).copied().flatten()?;
        self.known.get_mut(place)
    }

    /// An index gets another meaning with a new segment; a version is the same one.
    fn define(&mut self, function: &Function) {
        if !function.is_of(self.wanted.function.as_ref()) {
            self.functions.insert(function.index, None);
            return;
        }
        let need = Size {
            cpu_milli: u64::from(function.cpu_milli),
            memory_bytes: function.memory_bytes,
        };
        let same = |known: &Known| {
            known.name == function.name && known.version == function.version && known.need == need
        };
        let place = self.known.iter().position(same).unwrap_or_else(|| {
            let matched = if self.wanted.match_cpu {
                Match::MemoryAndCpu
            } else {
                Match::Memory
            };
            self.known.push(Known {
                name: function.name.clone(),
                version: function.version,
                need,
                sizes: Sizes::of(self.table, need, matched),
                memory_used: None,
                alive: Vec::new(),
            });
            self.known.len() - 1
        });
        self.functions.insert(function.index, Some(place));
    }

    fn ended(&mut self, end: &WorkerEnd) {
        self.newest_ms = self.newest_ms.max(end.unix_ms);
        let since = self.wanted.since_unix_ms.unwrap_or(0);
        let place = self.functions.get(&end.function).copied().flatten();
        let Some(known) = place.and_then(|place| self.known.get_mut(place)) else {
            return;
        };
        let started = end.unix_ms.saturating_sub(end.lived_ns / 1_000_000);
        let nearest = (0..known.alive.len()).min_by_key(|index| {
            known
                .alive
                .get(*index)
                .map_or(u64::MAX, |at| at.abs_diff(started))
        });
        if let Some(index) = nearest {
            known.alive.swap_remove(index);
        }
        // Only what lies in the time of the report. The life itself is of the monotonic clock.
        let in_time = end.unix_ms.saturating_sub(since).saturating_mul(1_000_000);
        let lived = end.lived_ns.min(in_time).min(TIME_NS_MAX);
        if lived > 0 {
            self.tally.instance(self.table, &known.sizes, lived);
        }
    }

    /// Workers that live are counted until the newest record: until now, or until their daemon was seen for the last time.
    fn end_all(&mut self) {
        let since = self.wanted.since_unix_ms.unwrap_or(0);
        for known in &mut self.known {
            for started in known.alive.drain(..) {
                let lived_ms = self.newest_ms.saturating_sub(started.max(since));
                let lived = lived_ms.saturating_mul(1_000_000).min(TIME_NS_MAX);
                if lived > 0 {
                    self.tally.instance(self.table, &known.sizes, lived);
                }
            }
        }
    }

    fn call(&mut self, call: &Call) {
        let end_ms = call.unix_ms.saturating_add(call.total_ns() / 1_000_000);
        self.newest_ms = self.newest_ms.max(end_ms);
        if self
            .wanted
            .since_unix_ms
            .is_some_and(|since| call.unix_ms < since)
        {
            return;
        }
        let place = self.functions.get(&call.function).copied().flatten();
        let Some(known) = place.and_then(|place| self.known.get_mut(place)) else {
            return;
        };
        let Some(mut usage) = call.usage() else {
            return;
        };
        known.memory_used = usage.memory_used.or(known.memory_used);
        usage.memory_used = known.memory_used;
        let first = self.first_ms.get_or_insert(call.unix_ms);
        *first = call.unix_ms.min(*first);
        let counted = Counted {
            cold: call.start != StartKind::Warm,
            bytes_in: call.bytes_in,
            bytes_out: call.bytes_out,
        };
        self.tally
            .request(self.table, known.need, &known.sizes, &usage, counted);
    }
}

#[cfg(test)]
mod tests;
