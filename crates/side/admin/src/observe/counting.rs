//! The subscriber `metrics`: counts events in the metrics of `pilot-telemetry`.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::{Event, FunctionName};
use pilot_telemetry::{FunctionMetrics, Metrics, Subscriber};

/// The series of all functions. The subscriber and the reader have a clone each.
#[derive(Debug, Clone)]
pub(super) struct Counting {
    metrics: Arc<Metrics>,
    /// Held while a batch is counted.
    functions: Arc<Mutex<HashMap<FunctionName, FunctionMetrics>>>,
}

impl Counting {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            functions: Arc::default(),
        }
    }

    /// The functions that have series.
    pub(super) fn names(&self) -> Vec<FunctionName> {
        self.functions.lock().keys().cloned().collect()
    }

    pub(super) fn forget(&self, name: &FunctionName) {
        self.functions.lock().remove(name);
        self.metrics.forget(name);
    }
}

impl Subscriber for Counting {
    fn batch(&mut self, events: &[Event]) {
        let mut functions = self.functions.lock();
        for event in events {
            let version = match event {
                Event::Invoked(record) => &record.version,
                Event::WorkerEnded(record) => &record.version,
                Event::WorkerStarted { version, .. } | Event::RuntimeGiven { version, .. } => {
                    version
                }
                Event::Began { .. } | Event::Printed { .. } | Event::Hopped(_) => continue,
                Event::RuntimesCounted(counts) => {
                    self.metrics.set_runtimes(counts);
                    continue;
                }
            };
            let name = &version.config.name;
            let series = functions
                .entry(name.clone())
                .or_insert_with(|| self.metrics.function(name));
            series.count(event);
        }
    }
}
