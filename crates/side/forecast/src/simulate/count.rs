//! The counters of a simulation. Waits are kept in a histogram, so that memory does not grow with their number.

use hdrhistogram::Histogram;
use pilot_model::StartKind;

use super::outcome::Waits;

/// Sums over all functions; times in nanoseconds, memory in bytes.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) invocations: u64,
    pub(super) refused: u64,
    pub(super) cold: u64,
    pub(super) cold_shared: u64,
    pub(super) cold_wait: u128,
    pub(super) queued: u64,
    pub(super) queue_wait: u128,
    pub(super) waits: WaitCount,
    /// Waits including those for CPUs, if the simulation has CPUs.
    pub(super) beyond: WaitCount,
    pub(super) busy: u128,
    pub(super) forks: u64,
    pub(super) ticks: u64,
    pub(super) workers: u64,
    pub(super) workers_max: u64,
    pub(super) memory: u64,
    pub(super) memory_max: u64,
    /// The time of the newest answer.
    pub(super) answered: u64,
}

impl Count {
    pub(super) fn new() -> Self {
        Self {
            invocations: 0,
            refused: 0,
            cold: 0,
            cold_shared: 0,
            cold_wait: 0,
            queued: 0,
            queue_wait: 0,
            waits: WaitCount::new(),
            beyond: WaitCount::new(),
            busy: 0,
            forks: 0,
            ticks: 0,
            workers: 0,
            workers_max: 0,
            memory: 0,
            memory_max: 0,
            answered: 0,
        }
    }

    /// A wait has ended.
    pub(super) fn give(&mut self, kind: StartKind, waited: u64) {
        self.waits.add(waited);
        match kind {
            StartKind::Cold => self.cold += 1,
            StartKind::ColdShared => self.cold_shared += 1,
            StartKind::Warm => {
                self.queued += 1;
                self.queue_wait += u128::from(waited);
                return;
            }
        }
        self.cold_wait += u128::from(waited);
    }
}

/// Counted waiting times: those above zero in a histogram, the others as a number.
#[derive(Debug)]
pub(super) struct WaitCount {
    none: u64,
    some: Histogram<u64>,
    max: u64,
    sum: u128,
}

impl WaitCount {
    pub(super) fn new() -> Self {
        // Three digits, up to a day and a half; longer waits count as that. These bounds are always valid.
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
