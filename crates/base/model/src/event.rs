//! What the path tells whoever listens. Subscribers never hold it up.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{InvocationId, WorkerId};
use crate::timeline::{StartKind, Timeline};
use crate::version::Version;

/// How an invocation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The handler returned.
    Ok,
    /// The handler raised.
    FunctionError,
    /// It took longer than `timeout_s`.
    Timeout,
    /// The worker ended: exit, signal.
    Crash,
    /// The worker was killed for using more than `memory_mb`.
    OutOfMemory,
    /// The handler could not be imported, or the worker could not be started.
    InitError,
    /// The queue was full or the deadline passed in it.
    Throttled,
    /// The client hung up.
    Cancelled,
}

impl Outcome {
    /// The word used in metrics, logs and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::FunctionError => "function_error",
            Self::Timeout => "timeout",
            Self::Crash => "crash",
            Self::OutOfMemory => "out_of_memory",
            Self::InitError => "init_error",
            Self::Throttled => "throttled",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One ended invocation.
#[derive(Debug, Clone)]
pub struct InvocationRecord {
    /// Its request id.
    pub id: InvocationId,
    /// What was invoked.
    pub version: Arc<Version>,
    /// Who served it.
    pub worker: Option<WorkerId>,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended.
    pub outcome: Outcome,
    /// Phase by phase.
    pub timeline: Timeline,
    /// Most memory its worker has used so far, bytes; `None` where it was not measured for this one.
    pub memory_bytes_max: Option<u64>,
    /// Request and response bodies, bytes.
    pub bytes_in: u64,
    /// See `bytes_in`.
    pub bytes_out: u64,
    /// What it printed, bounded.
    pub output: Bytes,
}

impl InvocationRecord {
    /// Lambda's REPORT line, without a line break. Init Duration stands on cold ones only.
    #[must_use]
    pub fn report_line(&self) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let handler = ms(self.timeline.handler().unwrap_or_default());
        let limit_mb = self.version.config.memory_bytes >> 20;
        let mut line = format!(
            "REPORT RequestId: {}\tDuration: {handler:.2} ms\tBilled Duration: {:.0} ms\tMemory Size: {limit_mb} MB",
            self.id,
            handler.ceil(),
        );
        if let Some(bytes) = self.memory_bytes_max {
            let _ = write!(line, "\tMax Memory Used: {} MB", bytes.div_ceil(1 << 20));
        }
        if self.start != StartKind::Warm {
            let init = self
                .timeline
                .initialised
                .map_or(Duration::ZERO, |at| at.since(self.timeline.received));
            let _ = write!(line, "\tInit Duration: {:.2} ms", ms(init));
        }
        let _ = write!(
            line,
            "\tStart: {}\tTotal: {:.2} ms\tStatus: {}",
            self.start.as_str(),
            ms(self.timeline.total().unwrap_or_default()),
            self.outcome.as_str(),
        );
        line
    }
}

/// What happens on the path.
#[derive(Debug, Clone)]
pub enum Event {
    /// An invocation was admitted: what forecasters count.
    Arrived {
        /// What was invoked.
        version: Arc<Version>,
    },
    /// An invocation ended.
    Invoked(Arc<InvocationRecord>),
    /// A worker has come up.
    WorkerStarted {
        /// Of which version.
        version: Arc<Version>,
        /// Which.
        worker: WorkerId,
        /// From the decision to readiness.
        took: Duration,
    },
    /// A worker is gone.
    WorkerEnded {
        /// Of which version.
        version: Arc<Version>,
        /// Which.
        worker: WorkerId,
        /// Why: `idle`, `scaled`, `crash`, `timeout`, `once`, `retired`, `pressure`, `cancelled`.
        reason: &'static str,
    },
}
