//! The subscriber `summaries`: what `list` and `describe` say of a function's invocations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::invocation::InvocationSummary;
use pilot_model::ports::{Clock, Observation};
use pilot_model::sharing::Sharing;
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
    /// Of the version that was invoked last.
    sharing: Option<(u32, Sharing)>,
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
                sharing: summary.sharing.map(|(_, sharing)| sharing),
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
        self.share(record);
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

impl Summary {
    /// Adds an invocation to what sharing a worker costs.
    fn share(&mut self, record: &InvocationRecord) {
        let number = record.version.number;
        let Some(shared) = record.shared else {
            if self.sharing.is_some_and(|(of, _)| of < number) {
                self.sharing = None;
            }
            return;
        };
        let sharing = match &mut self.sharing {
            Some((of, sharing)) if *of == number => sharing,
            // An invocation of an older version that has ended late.
            Some((of, _)) if *of > number => return,
            other => &mut other.insert((number, Sharing::default())).1,
        };
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cpu = shared.cpu.map_or(0, |cpu| nanos(cpu.total()));
        sharing.cpu_ns = sharing.cpu_ns.saturating_add(cpu);
        let Some(took) = record.timeline.handler().map(nanos) else {
            return;
        };
        if shared.alone {
            sharing.alone += 1;
            sharing.alone_ns = sharing.alone_ns.saturating_add(took);
        } else {
            sharing.shared += 1;
            sharing.shared_ns = sharing.shared_ns.saturating_add(took);
            sharing.at_once = sharing.at_once.saturating_add(u64::from(shared.at_once));
        }
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
