//! An event sink that keeps every event.

use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::ports::EventSink;
use pilot_model::{EndReason, Event, InvocationRecord};

/// Keeps every event.
#[derive(Debug, Default)]
pub struct RecordingSink(Mutex<Vec<Event>>);

impl RecordingSink {
    /// Everything published so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().clone()
    }

    /// The records of completed invocations, in the order of their ends.
    #[must_use]
    pub fn records(&self) -> Vec<Arc<InvocationRecord>> {
        let record = |event: &Event| match event {
            Event::Invoked(record) => Some(Arc::clone(record)),
            _ => None,
        };
        self.0.lock().iter().filter_map(record).collect()
    }

    /// Why workers ended, in that order.
    #[must_use]
    pub fn ended(&self) -> Vec<EndReason> {
        let ended = |event: &Event| match event {
            Event::WorkerEnded(record) => Some(record.reason),
            _ => None,
        };
        self.0.lock().iter().filter_map(ended).collect()
    }
}

impl EventSink for RecordingSink {
    fn publish(&self, event: Event) {
        self.0.lock().push(event);
    }
}
