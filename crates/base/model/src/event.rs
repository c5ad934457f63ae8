//! The events that the path publishes. It never waits for a subscriber.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::choices::words;
use crate::ids::{InvocationId, WorkerId};
use crate::invocation::{CpuTime, InvocationRecord};
use crate::status::RuntimeCounts;
use crate::timeline::Instant;
use crate::trace::Hop;
use crate::version::Version;

/// An event of the path.
#[derive(Debug, Clone)]
pub enum Event {
    /// An invocation of a function that is an HTTP server begins. Its output is not part of its record: see [`Event::Printed`].
    Began {
        /// The request id.
        id: InvocationId,
        /// Of which version.
        version: Arc<Version>,
        /// When.
        at: Instant,
    },
    /// A function's HTTP server printed something, within an invocation or between two.
    Printed {
        /// Of which version.
        version: Arc<Version>,
        /// Whole lines, as far as the server ends them.
        output: Bytes,
        /// When the output was taken over.
        at: Instant,
    },
    /// An invocation ended.
    Invoked(Arc<InvocationRecord>),
    /// A worker is ready.
    WorkerStarted {
        /// Which worker.
        worker: WorkerId,
        /// Of which version.
        version: Arc<Version>,
        /// When its first instruction ran.
        forked: Instant,
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
    /// The number of runtimes of all keys. Published when it has changed, at most every few seconds.
    RuntimesCounted(RuntimeCounts),
    /// A recorded request that is no invocation itself has ended. Published only if traces are recorded.
    Hopped(Arc<Hop>),
}

/// One ended worker.
#[derive(Debug, Clone)]
pub struct WorkerRecord {
    /// Which worker.
    pub worker: WorkerId,
    /// Of which version.
    pub version: Arc<Version>,
    /// Why it ended.
    pub reason: EndReason,
    /// From its first instruction to its end.
    pub lived: Duration,
    /// CPU time of all its processes until it was told to end, or until it ended by itself. `None`: it was never read.
    pub cpu: Option<CpuTime>,
    /// The highest memory use of the samples, bytes. `None`: it ended before the first sample.
    pub memory_bytes_max: Option<u64>,
}

impl Event {
    /// Bytes of the function's output that the event holds.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        match self {
            Self::Invoked(record) => record.output.len(),
            Self::Printed { output, .. } => output.len(),
            Self::Began { .. }
            | Self::WorkerStarted { .. }
            | Self::WorkerEnded(_)
            | Self::RuntimeGiven { .. }
            | Self::RuntimesCounted(_)
            | Self::Hopped(_) => 0,
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
        /// It ended by itself, or violated the protocol.
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
