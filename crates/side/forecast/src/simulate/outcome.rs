//! What came of a simulation, and the units it is told in.

use std::time::Duration;

use serde::Serialize;

/// What came of a simulation. Gigabytes are of 2^30 bytes, Lambda's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests that were served.
    pub invocations: u64,
    /// Requests that the full queue refused.
    pub refused: u64,
    /// Of those served: waited for a worker that was started for it.
    pub cold: u64,
    /// Waited for a worker that was started for another or by a forecast. `cold + cold_shared` is what the daemon calls cold.
    pub cold_shared: u64,
    /// Seconds that those two waited.
    pub cold_wait_s: f64,
    /// Waited for a busy worker.
    pub queued: u64,
    /// Seconds that those waited.
    pub queue_wait_s: f64,
    /// From arrival to the handler's beginning, over all that were served.
    pub wait: Waits,
    /// From arrival to the answer, beyond what the handler takes alone: `wait` and what it waited for a CPU.
    pub beyond_service: Waits,
    /// Memory over time of the workers, from the decision to start each, and of the templates.
    pub gb_s: f64,
    /// The templates' part of it.
    pub template_gb_s: f64,
    /// Most memory of all workers at one instant, bytes.
    pub memory_max_bytes: u64,
    /// Life times of all workers, from the decision to start each.
    pub worker_s: f64,
    /// Time that invocations ran.
    pub busy_s: f64,
    /// Workers that were started.
    pub forks: u64,
    /// Most workers of all functions at one instant, starting ones among them.
    pub workers_max: u64,
    /// Ticks of forecasters.
    pub ticks: u64,
    /// How long the simulated load lasted, until its last answer.
    pub span_s: f64,
}

/// Waiting times over all invocations, those that waited for nothing among them. Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waits {
    /// The mean.
    pub mean_ms: f64,
    /// Half wait no longer.
    pub p50_ms: f64,
    /// Of a hundred, 99 wait no longer.
    pub p99_ms: f64,
    /// Of a thousand, 999 wait no longer.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

pub(super) fn seconds(nanos: u128) -> f64 {
    nanos as f64 / 1e9
}

pub(super) fn gigabyte_seconds(bytes: u64, nanos: u128) -> f64 {
    bytes as f64 / GIGABYTE * seconds(nanos)
}

/// Nanoseconds; what is longer than 584 years is that.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const GIGABYTE: f64 = (1_u64 << 30) as f64;
