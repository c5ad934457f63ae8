//! What came of a simulation, and how it is counted while it runs.

use std::time::Duration;

use hdrhistogram::Histogram;
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

/// Waiting times as they are counted: those above nothing in a histogram, the others as a number.
#[derive(Debug)]
pub(super) struct WaitCount {
    none: u64,
    some: Histogram<u64>,
    max: u64,
    sum: u128,
}

impl WaitCount {
    pub(super) fn new() -> Self {
        // Three digits, up to a day and a half; longer ones count as that. These bounds always do.
        let some = Histogram::new_with_max(1 << 47, 3).or_else(|_| Histogram::new(3));
        Self {
            none: 0,
            some: some.expect("a histogram of three digits can be made"),
            max: 0,
            sum: 0,
        }
    }

    pub(super) fn none(&mut self) {
        self.none += 1;
    }

    pub(super) fn add(&mut self, nanos: u64) {
        if nanos == 0 {
            return self.none();
        }
        self.some.saturating_record(nanos);
        self.max = self.max.max(nanos);
        self.sum += u128::from(nanos);
    }

    pub(super) fn waits(&self) -> Waits {
        let total = self.none + self.some.len();
        let quantile = |share: f64| {
            let rank = share * total as f64;
            let above = rank - self.none as f64;
            if above <= 0.0 || self.some.is_empty() {
                return 0.0;
            }
            let nanos = self.some.value_at_quantile(above / self.some.len() as f64);
            nanos.min(self.max) as f64 / 1e6
        };
        Waits {
            mean_ms: self.sum as f64 / 1e6 / total.max(1) as f64,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
            max_ms: self.max as f64 / 1e6,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_do_not_wait_count_in_the_percentiles() {
        let mut count = WaitCount::new();
        (0..98).for_each(|_| count.add(0));
        count.add(1_000_000);
        count.add(5_000_000);
        let waits = count.waits();
        assert_eq!((waits.p50_ms, waits.max_ms), (0.0, 5.0));
        assert!((waits.p99_ms - 1.0).abs() < 0.001, "{waits:?}");
        assert!((waits.p999_ms - 5.0).abs() < 0.001, "{waits:?}");
        assert!((waits.mean_ms - 0.06).abs() < 1e-9, "{waits:?}");
    }

    #[test]
    fn of_nobody_nothing_is_said() {
        assert_eq!(WaitCount::new().waits().max_ms, 0.0);
    }
}
