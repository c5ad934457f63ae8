//! One invocation: its head, how it ended, its record, and the summary that the control API serves.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{InvocationId, WorkerId};
use crate::initscript::ScriptRun;
use crate::timeline::{Instant, StartKind, Timeline};
use crate::trace::TraceSpan;
use crate::trigger::FaasTrigger;
use crate::version::Version;

/// What a worker receives of an invocation, except the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvocationHead {
    /// The request id.
    pub id: InvocationId,
    /// `arn:aws:lambda:us-east-1:000000000000:function:NAME[:QUALIFIER]`, as invoked.
    pub arn: String,
    /// The version's number.
    pub version: u32,
    /// The time at which the function's timeout ends, Unix milliseconds.
    pub deadline_unix_ms: u64,
    /// Lambda's client context, JSON, as received.
    pub client_context: Option<String>,
    /// X-Ray's trace header. The function's own spans belong below its parent.
    pub trace: Option<String>,
    /// W3C's `tracestate`, as the caller sent it.
    pub trace_state: Option<Arc<str>>,
    /// Inputs that could not be fetched and are optional.
    pub failed_inputs: Vec<FailedInput>,
    /// The payload is the body of this HTTP request, for an ASGI or WSGI application. `None`: the payload is an event, JSON.
    pub http: Option<HttpRequestHead>,
}

/// An optional input that could not be fetched. The handler gets the problem when it asks for the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedInput {
    /// Its name.
    pub name: String,
    /// Why.
    pub problem: String,
}

/// The way of one input from its store to the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Transfer {
    /// The input's name.
    pub input: String,
    /// Its location, with what the placeholders stand for.
    pub from: String,
    /// Its length, bytes; 0 if it failed. If the invocation ended first: what was here by then.
    pub bytes: u64,
    /// Whether its bytes were transferred for this invocation.
    #[serde(default, skip_serializing_if = "TransferWay::is_fetched")]
    pub way: TransferWay,
    /// The fetch began.
    pub began: Instant,
    /// The last byte was here, or the fetch failed, or the invocation ended.
    pub ended: Instant,
    /// If it was decoded for this invocation: when the decoder had all of the store's bytes. It was done at `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoding: Option<Instant>,
    /// If the worker could read it while it arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streamed: Option<Streamed>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Transfer {
    /// How long it took.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.ended.since(self.began)
    }

    /// How much of it passed while the worker started: time that the invocation did not wait for the transfer (Truffle, section
    /// IV, Eq. 4).
    #[must_use]
    pub fn hidden(&self, timeline: &Timeline) -> Duration {
        let (Some(admitted), Some(initialised)) = (timeline.admitted, timeline.initialised) else {
            return Duration::ZERO;
        };
        self.ended.min(initialised).since(self.began.max(admitted))
    }

    /// How long the decoder took after the last of the store's bytes. `None`: nothing was decoded for this invocation.
    #[must_use]
    pub fn decode_took(&self) -> Option<Duration> {
        self.decoding.map(|began| self.ended.since(began))
    }

    /// How much of the transfer took place while the handler ran and could already read the beginning. `None`: it was not streamed.
    #[must_use]
    pub fn beside_handler(&self, timeline: &Timeline) -> Option<Duration> {
        self.streamed?;
        let Some(started) = timeline.started else {
            return Some(Duration::ZERO);
        };
        let returned = timeline.returned.unwrap_or(self.ended);
        Some(self.ended.min(returned).since(started.max(self.began)))
    }
}

/// An input that the worker could read while it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Streamed {
    /// The store had answered, and there was room for the input.
    pub head: Instant,
    /// All of it was here before the invocation ended.
    pub whole: bool,
}

/// Where the bytes of an input came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransferWay {
    /// From the store, or it failed.
    #[default]
    Fetched,
    /// From the store, by the fetch of another invocation.
    Shared,
    /// They were here, and the store said that the object has not changed.
    Cached,
    /// From another function of this node, or from an initscript, which handed them over.
    Handed,
    /// They were here, as a message of the function's shared initscript that is not too old.
    Kept,
    /// It is no input: the run of an initscript, and the bytes of its messages.
    Script,
}

impl TransferWay {
    /// The word used in `Server-Timing` and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fetched => "fetched",
            Self::Shared => "shared",
            Self::Cached => "cached",
            Self::Handed => "handed",
            Self::Kept => "kept",
            Self::Script => "script",
        }
    }

    fn is_fetched(&self) -> bool {
        *self == Self::Fetched
    }
}

/// The head of an HTTP request for an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequestHead {
    /// `GET`, …
    pub method: String,
    /// Raw, as received, without `root_path`; begins with `/`.
    pub path: String,
    /// Raw, without `?`; empty when there is none.
    pub query: String,
    /// `/fn/NAME`.
    pub root_path: String,
    /// Lower-case names; values as UTF-8.
    pub headers: Vec<(String, String)>,
    /// The client's address.
    pub client: SocketAddr,
    /// `http` or `https`.
    pub scheme: &'static str,
}

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
    /// An input could not be fetched.
    InputError,
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
            Self::InputError => "input_error",
            Self::Throttled => "throttled",
            Self::Cancelled => "cancelled",
        }
    }
}

/// CPU time in user mode and in the kernel. The sum is exact; the kernel samples at its ticks (1 to 10 ms) how much of it was
/// user mode, so the split of a short span is rough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user mode.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

impl CpuTime {
    /// Both.
    #[must_use]
    pub fn total(self) -> Duration {
        self.user + self.system
    }

    /// The time used since `before`. If the user part grew by more than the sum, the excess counts in the next interval.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let total = self.total().saturating_sub(before.total());
        let user = self.user.saturating_sub(before.user).min(total);
        Self {
            user,
            system: total.saturating_sub(user),
        }
    }
}

impl std::ops::AddAssign for CpuTime {
    fn add_assign(&mut self, other: Self) {
        self.user += other.user;
        self.system += other.system;
    }
}

/// A worker that can serve several invocations at once, as one of them saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedWorker {
    /// Invocations of the worker when this one began, or when it ended, whichever are more; itself included.
    pub at_once: u32,
    /// The worker served nothing else meanwhile.
    pub alone: bool,
    /// CPU time of the worker since the end of whichever of its invocations ended before. It belongs to no single one, but adds up to
    /// what the worker used.
    pub cpu: Option<CpuTime>,
}

/// One ended invocation.
#[derive(Debug, Clone)]
pub struct InvocationRecord {
    /// Its request id.
    pub id: InvocationId,
    /// What was invoked.
    pub version: Arc<Version>,
    /// What it came from.
    pub trigger: FaasTrigger,
    /// The worker that served it.
    pub worker: Option<WorkerId>,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended.
    pub outcome: Outcome,
    /// The time of each phase.
    pub timeline: Timeline,
    /// The highest memory use of its worker so far, bytes; `None` if it was not measured for this invocation.
    pub memory_bytes_max: Option<u64>,
    /// Proportional set size of its worker, bytes, as it was last sampled; `None` if it was not yet.
    pub pss_bytes: Option<u64>,
    /// CPU time that its worker used since the end of the invocation before, or since its fork. So the first invocation of a
    /// worker includes the start, and the invocations add up to what the worker used. Of a worker that serves several at once, it is
    /// divided equally among those that run at the time. `None`: it cannot be measured.
    pub cpu: Option<CpuTime>,
    /// How long its worker waited for the next period of its CPU limit, added up over the CPUs. `None`: as `cpu`, or its worker can
    /// serve several at once.
    pub throttled: Option<Duration>,
    /// If its worker can serve several invocations at once.
    pub shared: Option<SharedWorker>,
    /// The inputs that were fetched for it.
    pub transfers: Vec<Transfer>,
    /// The runs of initscripts that it waited for, or that ended since the invocation before.
    pub scripts: Vec<ScriptRun>,
    /// Request and response bodies, bytes. Of event functions: the event and the result, as JSON.
    pub bytes_in: u64,
    /// See `bytes_in`.
    pub bytes_out: u64,
    /// What it printed, bounded, and then what Pilotlight says about its end.
    pub output: Bytes,
    /// This many bytes at the front of `output` were printed by the function. The rest is Pilotlight's.
    pub output_printed: usize,
    /// For a function that is an HTTP server: its beginning, and this many bytes at the front of `output`, were events of their
    /// own ([`Event::Began`](crate::Event::Began), [`Event::Printed`](crate::Event::Printed)).
    pub output_published: Option<usize>,
    /// Its span, if it is recorded.
    pub trace: Option<Arc<TraceSpan>>,
}

impl InvocationRecord {
    /// Lambda's REPORT line, without a line break. Only cold ones have an Init Duration.
    #[must_use]
    pub fn report_line(&self) -> String {
        let handler = self.timeline.handler().unwrap_or_default();
        let billed_ms =
            handler.as_secs() * 1_000 + u64::from(handler.subsec_nanos().div_ceil(1_000_000));
        let handler = Millis(handler);
        let limit_mb = self.version.config.memory_bytes >> 20;
        let mut line = format!(
            "REPORT RequestId: {}\tDuration: {handler} ms\tBilled Duration: {billed_ms} ms\tMemory Size: {limit_mb} MB",
            self.id,
        );
        if let Some(bytes) = self.memory_bytes_max {
            let _ = write!(line, "\tMax Memory Used: {} MB", bytes.div_ceil(1 << 20));
        }
        if self.start != StartKind::Warm {
            let init = self
                .timeline
                .initialised
                .map_or(Duration::ZERO, |at| at.since(self.timeline.received));
            let _ = write!(line, "\tInit Duration: {} ms", Millis(init));
        }
        let _ = write!(
            line,
            "\tStart: {}\tTotal: {} ms\tStatus: {}",
            self.start.as_str(),
            Millis(self.timeline.total().unwrap_or_default()),
            self.outcome.as_str(),
        );
        line
    }
}

/// A duration in milliseconds with two decimal places. Integers only: this runs for every invocation.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        let hundredths = micros.saturating_add(5) / 10;
        write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

/// One invocation, for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InvocationSummary {
    /// Request id.
    pub id: String,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended.
    pub outcome: Outcome,
    /// Its stamps.
    pub timeline: Timeline,
    /// The inputs that were fetched for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Transfer>,
    /// When it was received, Unix milliseconds.
    pub received_unix_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_cpu_time_add_up_to_the_whole_whatever_the_split_says() {
        let at = |user, system| CpuTime {
            user: Duration::from_millis(user),
            system: Duration::from_millis(system),
        };
        // Between the first two readings, the user part grew by more than the sum.
        let readings = [at(0, 1), at(2, 0), at(2, 0), at(3, 5)];
        let mut sum = CpuTime::default();
        for reading in readings {
            let span = reading.since(sum);
            sum += span;
            assert_eq!(sum.total(), reading.total());
        }
        assert_eq!(sum, at(3, 5));
        assert_eq!(at(1, 1).since(at(5, 5)), CpuTime::default());
    }
}
