//! The keyed pool over a fake host, in paused time.

mod ends;
mod forecasts;
mod reuse;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::ports::{Engine, StartError, Worker};
use pilot_model::runtime::node::NodeRuntime;
use pilot_model::status::{Availability, RuntimeCounts, RuntimeStatus};
use pilot_model::{Event, FunctionConfig, Runtime, RuntimeOrigin, ScaleConfig, Version, WorkerId};
use pilot_testkit::{FakeHost, RecordingSink, RuntimeStep, TokioClock, version_with};

use super::*;

/// A keyed pool with its host.
struct Bench {
    host: Arc<FakeHost>,
    sink: Arc<RecordingSink>,
    /// Bytes in use, on a machine that has 1000.
    memory_used: Arc<AtomicU64>,
    pool: Arc<KeyedPool>,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// Without a forecast.
    fn with(change: impl FnOnce(&mut KeyedSettings)) -> Self {
        Self::forecasting(|_| None, change)
    }

    fn forecasting(forecaster: MakeForecaster, change: impl FnOnce(&mut KeyedSettings)) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let host = FakeHost::new(Arc::clone(&clock));
        let sink = Arc::new(RecordingSink::default());
        let memory_used = Arc::new(AtomicU64::new(0));
        let used = Arc::clone(&memory_used);
        let parts = KeyedParts {
            hosts: vec![Arc::clone(&host) as Arc<dyn RuntimeHost>],
            sink: Arc::clone(&sink) as Arc<dyn EventSink>,
            clock,
            forecaster,
            memory: Arc::new(move || {
                Some(MachineMemory {
                    used_bytes: used.load(Ordering::SeqCst),
                    total_bytes: 1000 << 20,
                })
            }),
        };
        let mut settings = KeyedSettings::default();
        change(&mut settings);
        let pool = Arc::new(KeyedPool::new(parts, settings));
        Self {
            host,
            sink,
            memory_used,
            pool,
        }
    }

    async fn start(&self, version: &Arc<Version>) -> Arc<dyn Worker> {
        self.try_start(version).await.expect("the start succeeds")
    }

    async fn try_start(&self, version: &Arc<Version>) -> Result<Arc<dyn Worker>, StartError> {
        self.pool.start(version, WorkerId(1)).await
    }

    /// Starts a worker, releases it, and waits until its runtime is kept.
    async fn use_once(&self, version: &Arc<Version>) {
        let before = self.counts(version).available;
        let worker = self.start(version).await;
        let taken = self.counts(version).available;
        worker.retire();
        drop(worker);
        assert!(taken <= before);
        eventually(|| self.counts(version).available == taken + 1).await;
    }

    fn status(&self, version: &Version) -> RuntimeStatus {
        self.pool.status(version).expect("the version has a key")
    }

    /// The counts of the version's key.
    fn counts(&self, version: &Version) -> RuntimeCounts {
        self.status(version).own
    }

    fn last_start(&self, version: &Version) -> String {
        self.status(version).last.expect("it was started").how
    }

    /// What was done with the nth runtime.
    fn steps(&self, number: usize) -> Vec<RuntimeStep> {
        self.host.runtimes()[number - 1].steps()
    }
}

/// A version of a Node function whose variable V is `variable`.
fn node(name: &str, number: u32, variable: &str) -> Arc<Version> {
    version_of(name, number, |config| {
        config
            .environment
            .insert("V".to_owned(), variable.to_owned());
    })
}

fn version_of(name: &str, number: u32, change: impl FnOnce(&mut FunctionConfig)) -> Arc<Version> {
    version_with(name, number, |config| {
        config.runtime = Runtime::Node(NodeRuntime { major: None });
        change(config);
    })
}

fn specialised(version: &Version) -> RuntimeStep {
    RuntimeStep::Specialised(version.config.name.clone())
}

fn no_sandbox() -> StartError {
    StartError::Sandbox {
        problem: "the machine refuses".to_owned(),
    }
}

/// In paused time: all ready tasks run before the clock advances.
async fn eventually(is_so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never came to be so");
}
