//! `cusum`: Edge FaaS §3.3. An EWMA baseline (Eq. 1), a CUSUM alarm on the deviation from it (Eq. 2), Little's law (Eq. 3).
//!
//! Where the paper is ambiguous, it is interpreted as follows:
//! - S_t uses λ̂_t, the baseline that already includes λ_t: both equations have the index t. So the deviation is (1 − α) times
//!   the deviation from the previous baseline.
//! - λ̂ is 0 before the first tick.
//! - Between alarms, Eq. 3 gets the baseline. The paper only says what is predicted "on alarm". With the observed rate, `cusum`
//!   would always hold at least as much as `reactive`, but the paper measures less memory for it (2357 against 2780 MB).
//! - An alarm's target lasts one tick: "without an explicit scale-down rule", the workers that were forked for it are reaped when
//!   idle.
//! - "Exceeds" is >, and an alarm resets the sum to 0.

use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::CusumPolicy;

use crate::policies::signal::{Accumulator, Baseline, Observed};
use crate::policies::sizing::{Sized, Sizing};

/// The policy, with the inputs of its newest answer.
#[derive(Debug)]
pub(crate) struct Cusum {
    interval: Duration,
    overshoot: f64,
    threshold: f64,
    sizing: Sizing,
    baseline: Baseline,
    statistic: Accumulator,
    newest: Newest,
}

#[derive(Debug, Default)]
struct Newest {
    rate: f64,
    baseline: f64,
    alarm: bool,
    sized: Sized,
}

impl Cusum {
    pub(crate) fn new(constants: CusumPolicy, scale: &ScaleConfig) -> Self {
        Self {
            interval: crate::policies::duration::interval(constants.tick_s),
            overshoot: constants.overshoot,
            threshold: constants.h,
            sizing: Sizing::new(constants.margin, scale),
            baseline: Baseline::new(constants.alpha),
            statistic: Accumulator::new(constants.k, constants.h),
            newest: Newest::default(),
        }
    }
}

impl Forecaster for Cusum {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        let observed = Observed::of(tick, self.interval);
        let baseline = self.baseline.add(observed);
        let alarm = self.statistic.add(observed.rate - baseline);
        let predicted = if alarm {
            self.overshoot * observed.rate
        } else {
            baseline
        };
        let sized = self.sizing.by_rate(predicted, tick);
        self.newest = Newest {
            rate: observed.rate,
            baseline,
            alarm,
            sized,
        };
        sized.target()
    }

    fn reason(&self) -> String {
        let Newest {
            rate,
            baseline,
            alarm,
            sized,
        } = &self.newest;
        if *alarm {
            format!(
                "{sized}; the rate rises: {rate:.1} requests/s, well above its usual {baseline:.1}, so {} times the rate is expected",
                self.overshoot
            )
        } else {
            format!(
                "{sized}; the usual rate of {baseline:.1} requests/s is expected: the last {rate:.1} is not an increase (sum of deviations \
                 {:.1}, a rise from {} on)",
                self.statistic.sum(),
                self.threshold
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::tests::{scale, tick_of};

    #[test]
    fn the_papers_ramp_raises_the_alarm_and_provisions_for_half_as_much_again() {
        let mut cusum = Cusum::new(CusumPolicy::default(), &scale(64));
        // arrivals in 2 s; λ̂ and S by hand, then ⌈rate × 0.5⌉ + 1:
        //  4 → λ 2:  λ̂ 0.4,     S max(0, 1.6 − 5) = 0        → ⌈0.2⌉ + 1 = 2
        // 13 → λ 6.5: λ̂ 1.62,   S max(0, 4.88 − 5) = 0       → ⌈0.81⌉ + 1 = 2
        // 31 → λ 15.5: λ̂ 4.396, S 11.104 − 5 = 6.104         → ⌈2.198⌉ + 1 = 4
        // 60 → λ 30: λ̂ 9.5168,  S 6.104 + 20.4832 − 5 > 8    → ⌈1.5 × 30 × 0.5⌉ + 1 = ⌈22.5⌉ + 1 = 24
        // 60 → λ 30: λ̂ 13.61344, S 16.38656 − 5 > 8          → 24 again
        // 60 → λ 30: λ̂ 16.890752, S 13.109248 − 5 > 8        → 24 again
        // 60 → λ 30: λ̂ 19.5126016, S 10.4873984 − 5 = 5.487  → ⌈9.756⌉ + 1 = 11
        let targets: Vec<u32> = [4, 13, 31, 60, 60, 60, 60]
            .into_iter()
            .map(|arrivals| cusum.tick(&tick_of(arrivals, 2.0, 0.5)).workers)
            .collect();
        assert_eq!(targets, [2, 2, 4, 24, 24, 24, 11]);
        assert!((cusum.statistic.sum() - 5.487_398_4).abs() < 1e-9);
    }

    #[test]
    fn the_reason_has_the_numbers() {
        let mut cusum = Cusum::new(CusumPolicy::default(), &scale(64));
        cusum.tick(&tick_of(4, 2.0, 0.5));
        assert_eq!(
            cusum.reason(),
            "2 workers are kept: 0.4 requests/s × 0.500 s each + 1 spare; the usual rate of 0.4 requests/s is expected: the last 2.0 is not an increase (sum of deviations 0.0, a rise from 8 on)"
        );
        cusum.tick(&tick_of(60, 2.0, 0.5));
        assert_eq!(
            cusum.reason(),
            "24 workers are kept: 45.0 requests/s × 0.500 s each + 1 spare; the rate rises: 30.0 requests/s, well above its usual 6.3, so 1.5 times the rate is expected"
        );
    }

    #[test]
    fn steady_traffic_raises_no_alarm() {
        let mut cusum = Cusum::new(CusumPolicy::default(), &scale(64));
        for _ in 0..1000 {
            cusum.tick(&tick_of(10, 2.0, 0.5));
            assert!(!cusum.newest.alarm);
        }
        // ⌈5 × 0.5⌉ + 1
        assert_eq!(cusum.newest.sized.target().workers, 4);
    }
}
