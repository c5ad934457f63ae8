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

    /// Adds a sample to a mean that a single sample hardly moves: it weighs one thirty-second.
    pub(crate) fn add_steadily(&mut self, sample: Duration) {
        let sample = nanos(sample);
        self.0 = Some(match self.0 {
            None => sample,
            Some(mean) if sample >= mean => mean + (sample - mean) / 32,
            Some(mean) => mean - (mean - sample) / 32,
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

/// How often requests arrive, and how fast that grows: counts of the newest spans of time. No time is kept for each arrival.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrivals {
    /// When the newest span began, nanoseconds.
    begun: u64,
    span: u64,
    count: u64,
    /// In the span before.
    before: u64,
    /// In the one before that.
    earlier: u64,
}

impl Arrivals {
    /// The shortest span, nanoseconds.
    const SPAN_MIN: u64 = 50_000_000;

    /// A request arrives. A new span is `span` nanoseconds long.
    pub(crate) fn add(&mut self, now: Instant, span: u64) {
        let age = now.0.saturating_sub(self.begun);
        if age >= self.span {
            let is_recent = age < self.span.saturating_mul(2);
            self.earlier = if is_recent { self.before } else { 0 };
            self.before = if is_recent { self.count } else { 0 };
            self.count = 0;
            self.begun = if is_recent {
                self.begun.saturating_add(self.span)
            } else {
                now.0
            };
            self.span = span.max(Self::SPAN_MIN);
        }
        self.count += 1;
    }

    /// The arrivals to expect within `ahead` nanoseconds: as often as in the newest span, and more by twice the growth since the span
    /// before, at most twice as many. On a ramp, this is the rate two spans later.
    pub(crate) fn expected(self, now: Instant, ahead: u64) -> u64 {
        if self.span == 0 {
            return 0;
        }
        let age = now.0.saturating_sub(self.begun);
        let (span, gone) = (self.span, age % self.span);
        let (count, before, earlier) = match age / span {
            0 => (self.count, self.before, self.earlier),
            1 => (0, self.count, self.before),
            _ => return 0,
        };
        let wide = |of: u64, times: u64| u128::from(of) * u128::from(times);
        // Arrivals times the span: the divisions come last.
        let seen = wide(count, span).saturating_add(wide(before, span - gone));
        let previous = wide(before, gone).saturating_add(wide(earlier, span - gone));
        let growth = seen.saturating_sub(previous).saturating_mul(2).min(seen);
        let seen = seen.saturating_add(growth);
        let expected = seen.saturating_mul(u128::from(ahead)) / wide(span, span);
        u64::try_from(expected).unwrap_or(u64::MAX)
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
    fn arrivals_are_expected_as_often_as_they_came_and_are_forgotten_after_two_spans() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.expected(Instant(5), 1000 * MS), 0);
        // One every 10 ms.
        for at in 0..100 {
            arrivals.add(Instant(at * 10 * MS), 200 * MS);
        }
        let expected = |at, ahead| arrivals.expected(Instant(at * MS), ahead * MS);
        for (ahead, range) in [(200, 18..=24), (1000, 90..=120)] {
            let found = expected(990, ahead);
            assert!(range.contains(&found), "{found} in {ahead} ms");
        }
        assert!(expected(1100, 200) < 15, "{}", expected(1100, 200));
        assert_eq!(expected(1500, 200), 0);
        arrivals.add(Instant(u64::MAX), u64::MAX);
        assert!(arrivals.expected(Instant(u64::MAX), u64::MAX) <= 2);
    }

    #[test]
    fn on_a_ramp_more_arrivals_are_expected_than_came() {
        let mut arrivals = Arrivals::default();
        // 100 per second and second: after a second, 100 per second come, and two spans later 140.
        for number in 1..=50_u32 {
            let at_s = (f64::from(number) / 50.0).sqrt();
            let at = Duration::from_secs_f64(at_s);
            arrivals.add(Instant(0).after(at), 200 * MS);
        }
        let expected = arrivals.expected(Instant(1000 * MS), 100 * MS);
        assert!((11..=15).contains(&expected), "{expected}");
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
