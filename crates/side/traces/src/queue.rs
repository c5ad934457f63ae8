//! The spans that wait to be sent. Bounded: what does not fit is refused.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::spans::Recorded;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Held for a push or a pop.
    state: Mutex<WaitingSpans>,
    /// Signalled when there is enough for a batch, at the first span, and at the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WaitingSpans {
    waiting: VecDeque<Recorded>,
    /// In all of `waiting`.
    spans: usize,
    /// When the queue must be empty. `None`: nobody has asked for its end.
    ends: Option<Instant>,
    /// The sender has ended.
    ended: bool,
}

impl Queue {
    /// Adds spans. Returns how many were refused.
    pub(crate) fn push(&self, recorded: Recorded) -> usize {
        let count = recorded.spans.len();
        let mut state = self.state.lock();
        if state.spans + count > SPANS_MAX || state.ends.is_some() {
            return count;
        }
        let before = state.spans;
        state.spans += count;
        state.waiting.push_back(recorded);
        let wakes = before == 0 || (before < BATCH_SPANS && state.spans >= BATCH_SPANS);
        drop(state);
        if wakes {
            self.changed.notify_all();
        }
        0
    }

    /// Waits for spans, and then for more of them to gather. `None`: there will be no more.
    pub(crate) fn next(&self) -> Option<Vec<Recorded>> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.spans == 0 && state.ends.is_none());
        self.changed.wait_while_for(
            &mut state,
            |state| state.spans < BATCH_SPANS && state.ends.is_none(),
            GATHER,
        );
        let mut batch = Vec::new();
        let mut spans = 0;
        while let Some(next) = state.waiting.front()
            && (spans == 0 || spans + next.spans.len() <= BATCH_SPANS)
        {
            spans += next.spans.len();
            batch.extend(state.waiting.pop_front());
        }
        state.spans -= spans;
        (!batch.is_empty()).then_some(batch)
    }

    /// Waits so long, or until the end is asked for. Returns whether the end is asked for.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |state| state.ends.is_none(), time);
        state.ends.is_some()
    }

    /// The time that is left until the queue must be empty. `None`: nobody has asked for its end.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let ends = self.state.lock().ends?;
        Some(ends.saturating_duration_since(Instant::now()))
    }

    /// Asks for the end, and waits for a limited time until everything is sent. Returns how many spans are left.
    pub(crate) fn close(&self, patience: Duration) -> usize {
        let mut state = self.state.lock();
        state.ends = Some(Instant::now() + patience);
        self.changed.notify_all();
        self.changed
            .wait_while_for(&mut state, |state| !state.ended, patience);
        state.waiting.clear();
        std::mem::take(&mut state.spans)
    }

    /// The sender ends.
    pub(crate) fn sender_ended(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

/// Most spans that wait. One has about 1 KiB.
const SPANS_MAX: usize = 8192;
/// Spans of one request, about. As OpenTelemetry's own senders.
const BATCH_SPANS: usize = 512;
/// How long spans gather.
const GATHER: Duration = Duration::from_secs(1);
