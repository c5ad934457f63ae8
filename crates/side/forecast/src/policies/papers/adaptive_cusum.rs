//! `adaptive-cusum`: Edge FaaS §3.3, the standardised variant. The deviation is divided by its own running mean (Eq. 4 and 5)
//! before it is added up; everything else is as in `cusum.rs`.
//!
//! σ_t and z_t are interpreted as they are indexed: σ_t includes the deviation of t, so z never exceeds 1/β = 3.33. The paper
//! gives β = 0.3, but not k, h and ε. Ours:
//! - ε = 0.5 requests/s: one request in a tick of 2 s. A deviation that comes only from counting whole requests should not count,
//!   and sparse traffic (a single request now and then, z = 0.65) raises no alarm.
//! - k = 1: σ is the mean of the absolute deviations, so z = 1 is an ordinary deviation, and only a larger one counts.
//! - h = 1.25: the highest value (in steps of 0.25) that still raises an alarm in the second half of the paper's ramp (2→20
//!   requests/s in 4 s, §4.1) at each of 20 offsets of the tick; 1.5 misses a quarter of them. The cost is false alarms in steady
//!   Poisson traffic: one in 6,700 ticks at 10 requests/s, 690 at 50, 260 at 200 (20,000 ticks each). k = 0.5 with h = 1.5 reacts
//!   as fast, and has one in 78, 34 and 24.
//!
//! After bursts, σ stays high for about 1/β ticks and suppresses the next alarm: the paper's cliff at short intervals (§5.3)
//! comes from the equations, not from the constants.

use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::AdaptiveCusumPolicy;

use crate::policies::signal::{Accumulator, Baseline, Observed};
use crate::policies::sizing::{Sized, Sizing};

/// The policy, with the inputs of its newest answer.
#[derive(Debug)]
pub(crate) struct AdaptiveCusum {
    interval: Duration,
    constants: AdaptiveCusumPolicy,
    sizing: Sizing,
    baseline: Baseline,
    /// σ of Eq. 4.
    scale: f64,
    statistic: Accumulator,
    newest: Newest,
}

#[derive(Debug, Default)]
struct Newest {
    rate: f64,
    baseline: f64,
    z: f64,
    alarm: bool,
    sized: Sized,
}

impl AdaptiveCusum {
    pub(crate) fn new(constants: AdaptiveCusumPolicy, scale: &ScaleConfig) -> Self {
        Self {
            interval: crate::policies::duration::interval(constants.tick_s),
            constants,
            sizing: Sizing::new(constants.margin, scale),
            baseline: Baseline::new(constants.alpha),
            scale: 0.0,
            statistic: Accumulator::new(constants.k, constants.h),
            newest: Newest::default(),
        }
    }

    /// The rate to provision for.
    fn predict(&mut self, observed: Observed) -> f64 {
        let baseline = self.baseline.add(observed);
        let z = self.standardise(observed.rate - baseline, observed.intervals);
        self.newest.alarm = self.statistic.add(z);
        self.newest.rate = observed.rate;
        self.newest.baseline = baseline;
        self.newest.z = z;
        if self.newest.alarm {
            self.constants.overshoot * observed.rate
        } else {
            baseline
        }
    }

    /// z of Eq. 5 for a deviation, which also moves σ (Eq. 4).
    fn standardise(&mut self, deviation: f64, intervals: f64) -> f64 {
        let kept = (1.0 - self.constants.beta).powf(intervals);
        self.scale = (1.0 - kept) * deviation.abs() + kept * self.scale;
        deviation / (self.scale + self.constants.epsilon)
    }
}

impl Forecaster for AdaptiveCusum {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        let predicted = self.predict(Observed::of(tick, self.interval));
        self.newest.sized = self.sizing.by_rate(predicted, tick);
        self.newest.sized.target()
    }

    fn reason(&self) -> String {
        let Newest {
            rate,
            baseline,
            z,
            alarm,
            sized,
        } = &self.newest;
        if *alarm {
            format!(
                "{sized}; the rate rises: {rate:.1} requests/s, {z:.1} mean deviations above its usual {baseline:.1}, so {} times the rate is expected",
                self.constants.overshoot
            )
        } else {
            format!(
                "{sized}; the usual rate of {baseline:.1} requests/s is expected: the last {rate:.1} is not an increase (sum of deviations \
                 {:.2}, a rise from {} on)",
                self.statistic.sum(),
                self.constants.h
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::tests::{scale, tick_of};

    fn plain() -> AdaptiveCusumPolicy {
        AdaptiveCusumPolicy {
            epsilon: 1e-9,
            ..AdaptiveCusumPolicy::default()
        }
    }

    #[test]
    fn the_score_is_equations_4_and_5() {
        let mut adaptive = AdaptiveCusum::new(plain(), &scale(64));
        // σ = 0.3 × 4 = 1.2, z = 4 / 1.2; σ = 0.3 × 2 + 0.7 × 1.2 = 1.44, z = −2 / 1.44.
        assert!((adaptive.standardise(4.0, 1.0) - 4.0 / 1.2).abs() < 1e-6);
        assert!((adaptive.standardise(-2.0, 1.0) + 2.0 / 1.44).abs() < 1e-6);
    }

    #[test]
    fn traffic_of_another_magnitude_raises_the_same_alarms() {
        let ramp = [40, 42, 38, 41, 130, 310, 600, 600, 40, 0, 0];
        let alarms = |factor: u64| {
            let mut adaptive = AdaptiveCusum::new(plain(), &scale(10_000));
            ramp.map(|arrivals| {
                adaptive.tick(&tick_of(arrivals * factor, 2.0, 0.5));
                adaptive.newest.alarm
            })
        };
        assert_eq!(alarms(1), alarms(1000));
        assert!(alarms(1).contains(&true));
    }

    /// The number of offsets of the tick against the paper's ramp, out of 20, with an alarm in the ramp's second half.
    fn caught(h: f64) -> usize {
        (0..20)
            .filter(|tenths| {
                let offset = f64::from(*tenths) / 10.0;
                let constants = AdaptiveCusumPolicy {
                    h,
                    ..AdaptiveCusumPolicy::default()
                };
                let mut adaptive = AdaptiveCusum::new(constants, &scale(64));
                (-100..=3).any(|number| {
                    let end = offset + 2.0 * f64::from(number);
                    adaptive.predict(Observed {
                        rate: ramp_mean(end - 2.0, end),
                        intervals: 1.0,
                    });
                    adaptive.newest.alarm && end > 2.0 && end <= 4.0
                })
            })
            .count()
    }

    #[test]
    fn the_threshold_is_the_highest_that_catches_the_papers_ramp_wherever_the_tick_falls() {
        let h = AdaptiveCusumPolicy::default().h;
        assert_eq!(caught(h), 20);
        assert_eq!(caught(h + 0.25), 15);
    }

    #[test]
    fn steady_poisson_traffic_raises_few_alarms() {
        // Requests of 20,000 ticks at 10/s: gaps between them are exponential.
        let mut state = 7_u64;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (f64::from(u32::try_from(state >> 32).unwrap_or(0)) + 0.5) / 2_f64.powi(32)
        };
        let mut adaptive = AdaptiveCusum::new(AdaptiveCusumPolicy::default(), &scale(64));
        let (mut next_s, mut alarms) = (0.0, 0);
        for number in 1..=20_000_u32 {
            let mut arrivals = 0;
            while next_s < 2.0 * f64::from(number) {
                arrivals += 1;
                next_s -= uniform().ln() / 10.0;
            }
            adaptive.tick(&tick_of(arrivals, 2.0, 0.5));
            alarms += u32::from(adaptive.newest.alarm);
        }
        assert!(alarms <= 8, "{alarms}");
    }

    /// Mean rate between two times; the ramp begins at 0.
    fn ramp_mean(from: f64, to: f64) -> f64 {
        let rate = |t: f64| match t {
            t if t < 0.0 => 2.0,
            t if t < 4.0 => 2.0 + 4.5 * t,
            _ => 30.0,
        };
        let steps = 200;
        (0..steps)
            .map(|step| rate(from + (to - from) * (f64::from(step) + 0.5) / f64::from(steps)))
            .sum::<f64>()
            / f64::from(steps)
    }
}
