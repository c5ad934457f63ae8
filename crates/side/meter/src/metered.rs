//! A report of the log's records. Workers are billed for their lives, cut to the time of the report. No time is a difference of dates:
//! see `log::time`.

use std::collections::HashMap;

use pilot_model::StartKind;
use pilot_model::cost::CostReport;
use pilot_model::ports::CostsOf;

use crate::bill::TIME_NS_MAX;
use crate::log::time::{LogMillis, LogTime, between};
use crate::platform::{Match, Size};
use crate::record::{Call, Clock, Daemon, Entry, Function, WorkerEnd};
use crate::report::{Counted, Sizes, Span, Tally};
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
    time: LogTime,
    /// When the first call began, and its date.
    first: Option<(LogMillis, u64)>,
}

/// When a report is made, and by whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) daemon: Daemon,
    pub(crate) clock: Clock,
}

struct Known {
    /// Without an index.
    function: Function,
    need: Size,
    sizes: Sizes,
    /// The last memory use that was measured.
    memory_used: Option<u64>,
    /// Its workers that live.
    alive: Vec<Living>,
}

struct Living {
    /// `None`: the record is of an older version.
    worker: Option<u64>,
    began: LogMillis,
}

impl<'a> Metered<'a> {
    pub(crate) fn new(table: &'a Table, wanted: Wanted) -> Self {
        Self {
            tally: Tally::new(table),
            table,
            wanted,
            functions: HashMap::new(),
            known: Vec::new(),
            time: LogTime::default(),
            first: None,
        }
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::Began { unix_ms } => {
                self.end_all();
                self.time.began(*unix_ms);
                self.functions.clear();
            }
            Entry::Daemon(daemon) => {
                self.written_by(*daemon);
                self.functions.clear();
            }
            Entry::Clock(clock) => self.time.clock(*clock),
            Entry::Function(function) => self.define(function),
            Entry::Call(call) => self.call(call),
            Entry::WorkerStarted {
                function,
                unix_ms,
                worker,
            } => self.started(*function, *unix_ms, *worker),
            Entry::WorkerEnded(end) => self.ended(end),
            Entry::Throttled(_) | Entry::Pss(_) | Entry::Worker(_) | Entry::Thawed(_) => {}
        }
    }

    /// The report, of now.
    pub(crate) fn report(mut self, now: Now) -> CostReport {
        self.written_by(now.daemon);
        self.time.clock(now.clock);
        self.end_all();
        let span = self.first.map(|(first, unix_ms)| Span {
            since_unix_ms: unix_ms,
            until_unix_ms: now.clock.unix_ms.max(unix_ms),
            lasted_ms: between(first, self.time.newest()),
        });
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

    /// Workers of another daemon have ended with what was seen of it.
    fn written_by(&mut self, daemon: Daemon) {
        if self.time.daemon(daemon) {
            self.end_all();
        }
    }

    /// A worker that lives when a segment begins is in that one again.
    fn started(&mut self, function: u32, unix_ms: u64, worker: Option<u64>) {
        let began = self.time.place(unix_ms);
        self.time.seen(began);
        let place = self.functions.get(&function).copied().flatten();
        let Some(known) = place.and_then(|place| self.known.get_mut(place)) else {
            return;
        };
        let is_it = |living: &Living| worker.is_some() && living.worker == worker;
        if !known.alive.iter().any(is_it) {
            known.alive.push(Living { worker, began });
        }
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
        let wanted = Function {
            index: 0,
            ..function.clone()
        };
        let same = |known: &Known| known.function == wanted;
        let place = self.known.iter().position(same).unwrap_or_else(|| {
            let matched = if self.wanted.match_cpu {
                Match::MemoryAndCpu
            } else {
                Match::Memory
            };
            self.known.push(Known {
                function: wanted.clone(),
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
        let ended = self.time.place(end.unix_ms);
        self.time.seen(ended);
        let place = self.functions.get(&end.function).copied().flatten();
        let Some(known) = place.and_then(|place| self.known.get_mut(place)) else {
            return;
        };
        let by_number = |living: &Living| end.worker.is_some() && living.worker == end.worker;
        let lived_ms = i64::try_from(end.lived_ns / MS_NS).unwrap_or(i64::MAX);
        let began = ended.saturating_sub(lived_ms);
        // Where starts have no numbers: the one that began at that time.
        let nearest = || {
            let unnumbered = known.alive.iter().enumerate();
            unnumbered
                .filter(|(_, living)| living.worker.is_none())
                .min_by_key(|(_, living)| living.began.abs_diff(began))
                .map(|(index, _)| index)
        };
        if let Some(index) = known.alive.iter().position(by_number).or_else(nearest) {
            known.alive.swap_remove(index);
        }
        // Only what lies in the time of the report.
        let in_time = self.wanted.since_unix_ms.map_or(u64::MAX, |since| {
            between(self.time.place(since), ended).saturating_mul(MS_NS)
        });
        let lived = end.lived_ns.min(in_time).min(TIME_NS_MAX);
        if lived > 0 {
            self.tally.instance(self.table, &known.sizes, lived);
        }
    }

    /// Workers that live are counted until the newest record: until now, or until their daemon was seen for the last time.
    fn end_all(&mut self) {
        let since = self.wanted.since_unix_ms;
        let since = since.map_or(LogMillis::MIN, |since| self.time.place(since));
        for known in &mut self.known {
            for living in known.alive.drain(..) {
                let lived_ms = between(living.began.max(since), self.time.newest());
                let lived = lived_ms.saturating_mul(MS_NS).min(TIME_NS_MAX);
                if lived > 0 {
                    self.tally.instance(self.table, &known.sizes, lived);
                }
            }
        }
    }

    fn call(&mut self, call: &Call) {
        let began = self.time.place(call.unix_ms);
        let took_ms = i64::try_from(call.total_ns() / MS_NS).unwrap_or(i64::MAX);
        self.time.seen(began.saturating_add(took_ms));
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
        let this = (began, call.unix_ms);
        self.first = Some(self.first.map_or(this, |first| first.min(this)));
        let counted = Counted {
            cold: call.start != StartKind::Warm,
            bytes_in: call.bytes_in,
            bytes_out: call.bytes_out,
        };
        self.tally
            .request(self.table, known.need, &known.sizes, &usage, counted);
    }
}

const MS_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
