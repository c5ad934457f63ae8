//! The records as they are stored, with `postcard`: fields in their order, integers of variable length. Enums are stored by the
//! position of their variant, so variants are only added at the end.

use pilot_model::ports::CostsOf;
use pilot_model::timeline::WorkerOrigin;
use pilot_model::{InvocationRecord, Outcome, StartKind, WorkerRecord};
use serde::{Deserialize, Serialize};

use crate::bill::{TIME_NS_MAX, Usage};

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A daemon of a version without [`Entry::Daemon`] began. No worker of an earlier one lives any more, and its functions'
    /// indices are void.
    Began {
        /// When, Unix milliseconds.
        unix_ms: u64,
    },
    /// What an index stands for from here on.
    Function(Function),
    /// An invocation ended.
    Call(Call),
    /// A worker is ready.
    WorkerStarted {
        /// The index of its function.
        function: u32,
        /// When it began, Unix milliseconds.
        unix_ms: u64,
        /// Its number since the daemon's start. In the log this is an entry of its own, [`Entry::Worker`]. Older records have none.
        #[serde(skip)]
        worker: Option<u64>,
    },
    /// A worker ended.
    WorkerEnded(WorkerEnd),
    /// How long the call that comes next was throttled, nanoseconds. Older records have none.
    Throttled(u64),
    /// The proportional set size of the worker of the call that comes next, bytes. Older records have none.
    Pss(u64),
    /// The number of the worker of the call, or of the start or end of a worker, that comes next. Older records have none.
    Worker(u64),
    /// When the worker of the call that comes next was awake again, nanoseconds since the call was received. It had rested.
    Thawed(u64),
    /// The daemon of the entries from here on: at its start, and at the beginning of each segment. No worker of another one lives any
    /// more, and all indices of functions are void.
    Daemon(Daemon),
    /// What the clocks showed when the entries from here on were written.
    Clock(Clock),
}

/// A run of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// When it began, Unix milliseconds.
    pub began_unix_ms: u64,
    /// The same for all daemons between two starts of the machine.
    pub boot: u64,
    /// When it began, milliseconds of the monotonic clock.
    pub began_ms: u64,
}

/// Two clocks at the same moment. All dates of the entries after it are as far from `unix_ms` as they were in truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The monotonic clock of the kernel, milliseconds.
    pub at_ms: u64,
    /// The wall clock, Unix milliseconds.
    pub unix_ms: u64,
}

/// A version of a function, with what was allocated to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Function {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its owner.
    pub owner: String,
    /// The number of the version.
    pub version: u32,
    /// `memory_mb`, bytes.
    pub memory_bytes: u64,
    /// `cpu`, thousandths of a CPU.
    pub cpu_milli: u32,
}

impl Function {
    /// Whether its records are asked for. `None`: those of all functions are.
    pub(crate) fn is_of(&self, wanted: Option<&CostsOf>) -> bool {
        wanted.is_none_or(|of| of.name.as_str() == self.name && of.owner == self.owner)
    }
}

/// One invocation. Stamps are nanoseconds since it was received: a step of the wall clock does not change them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The index of its function.
    pub function: u32,
    /// When it was received, Unix milliseconds.
    pub unix_ms: u64,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended.
    pub outcome: Outcome,
    /// Where its worker came from.
    pub origin: WorkerOrigin,
    /// In the order of [`STAMPS`]. `None`: that phase did not take place.
    pub stamps: [Option<u64>; 10],
    /// CPU time in user mode and in the kernel, nanoseconds. `None`: it cannot be measured.
    pub cpu_ns: Option<(u64, u64)>,
    /// The highest memory use of its worker so far, bytes. `None`: it was not measured for this invocation.
    pub memory_used: Option<u64>,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the response's body.
    pub bytes_out: u64,
    /// How long it waited for the next period of its CPU limit, nanoseconds. `None`: it was not measured. In the log this is an entry
    /// of its own, [`Entry::Throttled`], so that logs without it can be read.
    #[serde(skip)]
    pub throttled_ns: Option<u64>,
    /// Proportional set size of its worker, bytes, as it was last sampled. `None`: it was not yet. Also an entry of its own,
    /// [`Entry::Pss`].
    #[serde(skip)]
    pub pss_bytes: Option<u64>,
    /// The number of its worker since the daemon's start. `None`: it had none. Also an entry of its own, [`Entry::Worker`].
    #[serde(skip)]
    pub worker: Option<u64>,
    /// When its worker was awake again. `None`: it did not rest. Also an entry of its own, [`Entry::Thawed`].
    #[serde(skip)]
    pub thawed_ns: Option<u64>,
}

/// The stamps of a call.
pub const STAMPS: [&str; 10] = [
    "admitted",
    "leased",
    "forked",
    "sandboxed",
    "initialised",
    "inputs_ready",
    "started",
    "first_byte",
    "returned",
    "finished",
];

/// The end of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEnd {
    /// The index of its function.
    pub function: u32,
    /// When, Unix milliseconds.
    pub unix_ms: u64,
    /// From its first instruction to its end, nanoseconds.
    pub lived_ns: u64,
    /// CPU time of its main process in user mode and in the kernel, nanoseconds.
    pub cpu_ns: Option<(u64, u64)>,
    /// The highest memory use of the samples, bytes.
    pub memory_max: Option<u64>,
    /// Why it ended.
    pub reason: String,
    /// Its number since the daemon's start. In the log this is an entry of its own, [`Entry::Worker`].
    #[serde(skip)]
    pub worker: Option<u64>,
}

impl Call {
    /// The record of an invocation.
    #[must_use]
    pub fn of(record: &InvocationRecord, function: u32, unix_ms: u64) -> Self {
        let timeline = &record.timeline;
        let stamps = [
            timeline.admitted,
            timeline.leased,
            timeline.forked,
            timeline.sandboxed,
            timeline.initialised,
            timeline.inputs_ready,
            timeline.started,
            timeline.first_byte,
            timeline.returned,
            timeline.finished,
        ];
        let since_received =
            |at: Option<pilot_model::Instant>| at.map(|at| nanos(at.since(timeline.received)));
        Self {
            function,
            unix_ms,
            start: record.start,
            outcome: record.outcome,
            origin: timeline.origin,
            stamps: stamps.map(since_received),
            cpu_ns: record.cpu.map(|cpu| (nanos(cpu.user), nanos(cpu.system))),
            memory_used: record.memory_bytes_max,
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
            throttled_ns: record.throttled.map(nanos),
            pss_bytes: record.pss_bytes,
            worker: record.worker.map(|worker| worker.0),
            thawed_ns: since_received(timeline.thawed),
        }
    }

    /// What platforms bill. `None`: no worker served it and none was started for it, so nobody bills it.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let [_, leased, _, _, initialised, _, started, _, returned, _] = self.stamps;
        let execution = match (started, returned) {
            (Some(started), Some(returned)) => Some(returned.saturating_sub(started)),
            _ => None,
        };
        let init = initialised
            .filter(|_| self.start != StartKind::Warm)
            .map(|at| at.saturating_sub(leased.unwrap_or(0)));
        if execution.is_none() && init.is_none() {
            return None;
        }
        let cpu = self
            .cpu_ns
            .map(|(user, system)| user.saturating_add(system));
        Some(Usage {
            execution_ns: execution.unwrap_or(0).min(TIME_NS_MAX),
            init_ns: init.unwrap_or(0).min(TIME_NS_MAX),
            cpu_ns: cpu.map(|cpu| cpu.min(TIME_NS_MAX)),
            memory_used: self.memory_used,
        })
    }

    /// From received to the end, nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.stamps.iter().flatten().copied().max().unwrap_or(0)
    }
}

impl WorkerEnd {
    /// The record of a worker.
    #[must_use]
    pub fn of(record: &WorkerRecord, function: u32, unix_ms: u64) -> Self {
        Self {
            function,
            unix_ms,
            lived_ns: nanos(record.lived),
            cpu_ns: record.cpu.map(|cpu| (nanos(cpu.user), nanos(cpu.system))),
            memory_max: record.memory_bytes_max,
            reason: record.reason.as_str().to_owned(),
            worker: Some(record.worker.0),
        }
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
