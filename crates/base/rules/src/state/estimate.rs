//! What the pool has measured: how long an invocation uses a worker (S), how long a start takes (T), and the time between the
//! completions of concurrent starts. Exponentially weighted means in nanoseconds; no clock here.

use std::time::Duration;

use pilot_model::Instant;

/// An exponentially weighted mean of durations; `None` before the first sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean(Option<u64>);

impl Mean {
    /// A new sample weighs a quarter: four samples after a change, the mean has covered two thirds of it.
    const WEIGHT: u64 = 4;

    /// Adds a sample.
    pub fn add(&mut self, sample: Duration) {
        let sample = nanos(sample);
        self.0 = Some(match self.0 {
            None => sample,
            Some(mean) if sample >= mean => mean + (sample - mean) / Self::WEIGHT,
            Some(mean) => mean - (mean - sample) / Self::WEIGHT,
        });
    }

    /// Adds a sample of a duration that noise can only increase: a shorter sample weighs three quarters, a longer one an eighth.
    fn add_to_low(&mut self, sample: Duration) {
        let sample = nanos(sample);
        self.0 = Some(match self.0 {
            None => sample,
            Some(mean) if sample >= mean => mean + (sample - mean) / 8,
            Some(mean) => mean - (mean - sample) / 4 * 3,
        });
    }

    /// The mean.
    #[must_use]
    pub fn value(self) -> Option<Duration> {
        self.0.map(Duration::from_nanos)
    }

    pub(crate) fn nanos(self) -> Option<u64> {
        self.0
    }
}

/// T and the spacing of starts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StartTimes {
    latency: Mean,
    spacing: Mean,
    last_ready: Option<Instant>,
}

impl StartTimes {
    /// Until the first measurement: about the time of a fork from a template.
    const LATENCY_FIRST: u64 = 2_000_000;

    /// A worker that was ordered at `asked` is ready. If it started alone, this measures the latency. If it shared the machine with
    /// other starts, its latency is only an upper bound, and it measures the spacing. The first start may have had to build the
    /// template, which takes hundreds of times as long; the next samples soon outweigh it.
    pub(crate) fn ready(&mut self, asked: Instant, now: Instant, alone: bool) {
        let took = now.since(asked);
        if alone || self.latency.nanos().is_none_or(|mean| nanos(took) < mean) {
            self.latency.add_to_low(took);
        }
        if let Some(before) = self.last_ready.filter(|before| !alone && *before >= asked) {
            self.spacing.add(now.since(before));
        }
        self.last_ready = Some(now);
    }

    /// The time from ordering a start until the worker is ready, if `ahead` other starts are in progress.
    pub(crate) fn expected(self, ahead: u32) -> u64 {
        let latency = self.latency();
        // Until measured: two starts fit into the time of one, on a machine with two cores.
        let spacing = self.spacing.nanos().unwrap_or(latency / 2);
        latency.saturating_add(spacing.saturating_mul(u64::from(ahead)))
    }

    /// T as measured; `None`: no worker has started yet.
    pub(crate) fn measured(self) -> Option<u64> {
        self.latency.nanos()
    }

    /// T, or an initial guess.
    pub(crate) fn latency(self) -> u64 {
        self.latency.nanos().unwrap_or(Self::LATENCY_FIRST)
    }
}

/// How long nothing is started ahead of demand after starts failed: 1 s, doubled for each of `failures`, at most 64 s.
#[must_use]
pub fn backoff(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6))
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_template_built_in_the_first_start_is_soon_outweighed() {
        let mut times = StartTimes::default();
        times.ready(Instant(0), Instant(600 * MS), true);
        assert_eq!(times.latency(), 600 * MS);
        for at in 1..=5 {
            let asked = Instant(at * 1000 * MS);
            times.ready(asked, asked.after(Duration::from_millis(2)), false);
        }
        assert!(times.latency() < 3 * MS, "{} ns", times.latency());
    }

    #[test]
    fn starts_that_share_the_machine_measure_the_spacing_and_not_the_latency() {
        let mut times = StartTimes::default();
        times.ready(Instant(0), Instant(2 * MS), true);
        let asked = Instant(10 * MS);
        for count in 0..10 {
            times.ready(asked, Instant(12 * MS + count * MS / 2), count == 0);
        }
        assert_eq!(times.latency(), 2 * MS);
        assert_eq!(times.expected(4), 4 * MS);
    }
}
