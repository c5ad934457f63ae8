//! What the path tells whoever listens. Subscribers never hold it up.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::choices::words;
use crate::invocation::{CpuTime, InvocationRecord};
use crate::status::RuntimeCounts;
use crate::version::Version;

/// What happens on the path.
#[derive(Debug, Clone)]
pub enum Event {
    /// An invocation ended.
    Invoked(Arc<InvocationRecord>),
    /// A worker has come up.
    WorkerStarted {
        /// Of which version.
        version: Arc<Version>,
        /// From the decision to readiness.
        took: Duration,
    },
    /// A worker ended.
    WorkerEnded(Arc<WorkerRecord>),
    /// A worker that does not fork was given a runtime.
    RuntimeGiven {
        /// Of which version.
        version: Arc<Version>,
        /// Where the runtime came from.
        origin: RuntimeOrigin,
        /// From asking for it to having it.
        took: Duration,
    },
    /// How many runtimes there are now, of all keys; told when it has changed, every few seconds at most.
    RuntimesCounted(RuntimeCounts),
}

/// One ended worker.
#[derive(Debug, Clone)]
pub struct WorkerRecord {
    /// Of which version.
    pub version: Arc<Version>,
    /// Why it ended.
    pub reason: EndReason,
    /// From its first instruction to its end.
    pub lived: Duration,
    /// CPU time of its main process, as last read: when it ended, or at the end of its last invocation if it had ended by
    /// itself. `None`: it was never read.
    pub cpu: Option<CpuTime>,
    /// Most memory that it was seen to use, bytes. `None`: it ended before the first sample.
    pub memory_bytes_max: Option<u64>,
}

impl Event {
    /// Bytes of the function's output that the event holds.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        match self {
            Self::Invoked(record) => record.output.len(),
            Self::WorkerStarted { .. }
            | Self::WorkerEnded(_)
            | Self::RuntimeGiven { .. }
            | Self::RuntimesCounted(_) => 0,
        }
    }
}

words! {
    /// Why a worker ended.
    EndReason {
        /// It was idle for longer than it is kept.
        Idle = "idle",
        /// The function was scaled down.
        Scaled = "scaled",
        /// It ended by itself, or did not keep to the protocol.
        Crash = "crash",
        /// An invocation took longer than `timeout_s`.
        Timeout = "timeout",
        /// It serves one invocation only (`reuse = "once"`).
        Once = "once",
        /// Its version is no longer the live one.
        Retired = "retired",
        /// The daemon's memory was short.
        Pressure = "pressure",
        /// The client hung up in the middle of an invocation.
        Cancelled = "cancelled",
    }
}
words! {
    /// Where the runtime of a worker that does not fork came from.
    RuntimeOrigin {
        /// It was kept, with the same key.
        Reused = "reused",
        /// It was kept with another key, and adapted.
        Adapted = "adapted",
        /// It was started for this worker.
        Started = "started",
    }
}
