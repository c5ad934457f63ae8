//! The results of a simulation, and their units.

use std::time::Duration;

use serde::Serialize;

/// The results of a simulation. Gigabytes are of 2^30 bytes, Lambda's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests that were served.
    pub invocations: u64,
    /// Requests that the full queue refused.
    pub refused: u64,
    /// Served requests that waited for a worker that was started for them.
    pub cold: u64,
    /// Served requests that waited for a worker that was started for another request or by a forecast. `cold + cold_shared` is
    /// what the daemon calls cold.
    pub cold_shared: u64,
    /// Total wait of these two, seconds.
    pub cold_wait_s: f64,
    /// Served requests that waited for a busy worker.
    pub queued: u64,
    /// Total wait of these, seconds.
    pub queue_wait_s: f64,
    /// From arrival to the beginning of the handler, over all served requests.
    pub wait: Waits,
    /// From arrival to the answer, minus the handler's time with a CPU of its own: `wait` plus the wait for CPUs.
    pub beyond_service: Waits,
    /// Memory over time of the workers, from the decision to start each one, and of the templates.
    pub gb_s: f64,
    /// The templates' part of it.
    pub template_gb_s: f64,
    /// Maximum memory of all workers at one instant, bytes.
    pub memory_max_bytes: u64,
    /// Sum of the life times of all workers, from the decision to start each one.
    pub worker_s: f64,
    /// Time that invocations ran.
    pub busy_s: f64,
    /// Workers that were started.
    pub forks: u64,
    /// Maximum number of workers of all functions at one instant, including starting ones.
    pub workers_max: u64,
    /// Ticks of forecasters.
    pub ticks: u64,
    /// Duration of the simulated load, until its last answer.
    pub span_s: f64,
}

/// Waiting times over all invocations, including those without a wait. Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waits {
    /// The mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
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

/// Nanoseconds; durations longer than 584 years count as that.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const GIGABYTE: f64 = (1_u64 << 30) as f64;
