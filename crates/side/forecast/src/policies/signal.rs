//! What the models compute from a tick before they forecast: the observed rate, the EWMA baseline (Edge FaaS, Eq. 1) and the
//! CUSUM statistic (Eq. 2).

use std::collections::VecDeque;
use std::time::Duration;

use pilot_model::forecast::Tick;

/// The observation of one tick.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Observed {
    /// λ: arrivals per second.
    pub(super) rate: f64,
    /// The number of intervals that the tick covers: more than 1 after a gap.
    pub(super) intervals: f64,
}

impl Observed {
    /// Evaluates `tick`, which should come every `interval`.
    ///
    /// A span below half an interval counts as half an interval: the first tick has no span, and a clock that jumps back makes it
    /// arbitrarily short, which would make the rate arbitrarily high.
    pub(super) fn of(tick: &Tick, interval: Duration) -> Self {
        let interval_s = interval.as_secs_f64().max(1e-3);
        let span_s = tick.span.as_secs_f64();
        Self {
            rate: exact(tick.arrivals) / span_s.max(interval_s / 2.0),
            intervals: (span_s / interval_s).round().clamp(1.0, 1e6),
        }
    }
}

/// The exponentially weighted moving average of Eq. 1, λ̂.
#[derive(Debug, Clone, Copy)]
pub(super) struct Baseline {
    alpha: f64,
    value: f64,
}

impl Baseline {
    /// λ̂ = 0: before the first tick there was no traffic. If it began with the first observation, an initial spike would count
    /// as normal.
    pub(super) fn new(alpha: f64) -> Self {
        Self {
            alpha: alpha.clamp(0.0, 1.0),
            value: 0.0,
        }
    }

    /// Adds an observation and returns the new λ̂. After a gap, it counts once for each missing tick.
    pub(super) fn add(&mut self, observed: Observed) -> f64 {
        let kept = (1.0 - self.alpha).powf(observed.intervals);
        self.value = (1.0 - kept) * observed.rate + kept * self.value;
        self.value
    }
}

/// The statistic S of Eq. 2 with its alarm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accumulator {
    k: f64,
    h: f64,
    sum: f64,
}

impl Accumulator {
    pub(super) fn new(k: f64, h: f64) -> Self {
        Self { k, h, sum: 0.0 }
    }

    /// Adds a deviation. Returns whether the alarm was raised, which resets the sum to zero.
    pub(super) fn add(&mut self, deviation: f64) -> bool {
        self.sum = (self.sum + deviation - self.k).max(0.0);
        let alarm = self.sum > self.h;
        if alarm {
            self.sum = 0.0;
        }
        alarm
    }

    /// S; never negative.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }
}

/// The newest values of a series, oldest first.
#[derive(Debug)]
pub(super) struct Window {
    values: VecDeque<f64>,
    length: usize,
}

impl Window {
    /// A window of `length` values; at least two.
    pub(super) fn new(length: u32) -> Self {
        let length = length.clamp(2, 10_000) as usize;
        Self {
            values: VecDeque::with_capacity(length),
            length,
        }
    }

    /// Adds a value; if there is no room, removes the oldest.
    pub(super) fn push(&mut self, value: f64) {
        if self.values.len() == self.length {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    pub(super) fn values(&self) -> &VecDeque<f64> {
        &self.values
    }
}

/// A count as a number; beyond 2⁵³ the last digits are lost.
pub(super) fn exact(count: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "nobody counts 2^53 arrivals in a tick"
    )]
    let number = count as f64;
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(rate: f64) -> Observed {
        Observed {
            rate,
            intervals: 1.0,
        }
    }

    #[test]
    fn the_baseline_is_equation_1() {
        let mut baseline = Baseline::new(0.2);
        // 0.2 × 10; 0.2 × 5 + 0.8 × 2; 0.2 × 0 + 0.8 × 2.6
        for (rate, expected) in [(10.0, 2.0), (5.0, 2.6), (0.0, 2.08)] {
            assert!((baseline.add(seen(rate)) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn a_gap_counts_as_many_ticks() {
        let mut once = Baseline::new(0.2);
        let mut often = Baseline::new(0.2);
        once.add(seen(10.0));
        often.add(seen(10.0));
        once.add(Observed {
            rate: 1.0,
            intervals: 5.0,
        });
        for _ in 0..5 {
            often.add(seen(1.0));
        }
        assert!((once.value - often.value).abs() < 1e-12);
    }

    #[test]
    fn the_statistic_is_equation_2() {
        let mut statistic = Accumulator::new(5.0, 8.0);
        // 0 + 7 − 5; 2 + 10 − 5 = 7, not above 8; 7 + 3 − 5; 5 + 9 − 5 = 9, above 8.
        for (deviation, sum, alarm) in [
            (7.0, 2.0, false),
            (10.0, 7.0, false),
            (3.0, 5.0, false),
            (9.0, 0.0, true),
            (-20.0, 0.0, false),
        ] {
            assert_eq!(statistic.add(deviation), alarm);
            assert!((statistic.sum() - sum).abs() < 1e-12);
        }
    }

    #[test]
    fn an_alarm_needs_more_than_the_threshold() {
        let mut statistic = Accumulator::new(0.0, 8.0);
        assert!(!statistic.add(8.0));
        assert!(statistic.add(0.5));
    }

    proptest! {
        #[test]
        fn the_statistic_is_never_negative_and_an_alarm_resets_it(
            k in 0.0..20.0_f64, h in 0.0..50.0_f64,
            deviations in proptest::collection::vec(-1e6..1e6_f64, 1..100),
        ) {
            let mut statistic = Accumulator::new(k, h);
            for deviation in deviations {
                let alarm = statistic.add(deviation);
                prop_assert!(statistic.sum() >= 0.0);
                prop_assert!(statistic.sum() <= h);
                if alarm {
                    prop_assert_eq!(statistic.sum(), 0.0);
                }
            }
        }

        #[test]
        fn the_baseline_stays_between_what_it_has_seen(
            rates in proptest::collection::vec(0.0..1e6_f64, 1..100), alpha in 1e-6..=1.0_f64,
        ) {
            let mut baseline = Baseline::new(alpha);
            let most = rates.iter().copied().fold(0.0, f64::max);
            for rate in rates {
                let value = baseline.add(seen(rate));
                prop_assert!((0.0..=most * (1.0 + 1e-12)).contains(&value));
            }
        }
    }
}
