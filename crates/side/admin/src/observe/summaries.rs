//! The subscriber `summaries`: what `list` and `describe` say of a function's invocations.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::invocation::InvocationSummary;
use pilot_model::ports::{Clock, Observation};
use pilot_model::status::Totals;
use pilot_model::{
    Event, FunctionName, InvocationId, InvocationRecord, Outcome, StartKind, Timeline, Transfer,
};
use pilot_telemetry::Subscriber;

use super::wall_clock::WallClock;

/// The summaries of all functions. The subscriber and the reader have a clone each.
#[derive(Debug, Clone)]
pub(super) struct Summaries {
    clock: Arc<dyn Clock>,
    /// Held while a batch is added.
    functions: Arc<Mutex<HashMap<FunctionName, Summary>>>,
}

#[derive(Debug, Default)]
struct Summary {
    totals: Totals,
    last: Option<Seen>,
    last_cold: Option<Seen>,
}

/// An invocation, as far as it is remembered.
#[derive(Debug)]
struct Seen {
    id: InvocationId,
    start: StartKind,
    outcome: Outcome,
    timeline: Timeline,
    transfers: Vec<Transfer>,
    received_unix_ms: u64,
}

impl Summaries {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            functions: Arc::default(),
        }
    }

    /// The functions that have a summary.
    pub(super) fn names(&self) -> Vec<FunctionName> {
        self.functions.lock().keys().cloned().collect()
    }

    pub(super) fn observation(&self, name: &FunctionName) -> Observation {
        let functions = self.functions.lock();
        functions
            .get(name)
            .map_or_else(Observation::default, |summary| Observation {
                totals: summary.totals,
                last: summary.last.as_ref().map(Seen::summary),
                last_cold: summary.last_cold.as_ref().map(Seen::summary),
            })
    }

    pub(super) fn forget(&self, name: &FunctionName) {
        self.functions.lock().remove(name);
    }
}

impl Subscriber for Summaries {
    fn batch(&mut self, events: &[Event]) {
        let now = WallClock::read(&*self.clock);
        let mut functions = self.functions.lock();
        for event in events {
            if let Event::Invoked(record) = event {
                let name = record.version.config.name.clone();
                functions.entry(name).or_default().add(record, &now);
            }
        }
    }
}

impl Summary {
    fn add(&mut self, record: &InvocationRecord, now: &WallClock) {
        self.totals.invocations += 1;
        self.totals.cold += u64::from(record.start != StartKind::Warm);
        self.totals.errors += u64::from(record.outcome != Outcome::Ok);
        let seen = || Seen {
            id: record.id.clone(),
            start: record.start,
            outcome: record.outcome,
            timeline: record.timeline,
            transfers: record.transfers.clone(),
            received_unix_ms: now.of(record.timeline.received),
        };
        if record.start != StartKind::Warm {
            self.last_cold = Some(seen());
        }
        self.last = Some(seen());
    }
}

impl Seen {
    fn summary(&self) -> InvocationSummary {
        InvocationSummary {
            id: self.id.to_string(),
            start: self.start,
            outcome: self.outcome,
            timeline: self.timeline,
            transfers: self.transfers.clone(),
            received_unix_ms: self.received_unix_ms,
        }
    }
}
