//! `smoothing-markov`: HotC §IV-C, as a policy. [`predictor`] computes the expected value; this file makes a target of it.
//!
//! Where the paper is ambiguous, it is interpreted as follows:
//! - history\[t\], "total minus available", is the number in use at once. Here it is the maximum of the tick (`demand_max`), so
//!   that no burst between two ticks is lost. No service time is needed: Little's law is not applied.
//! - Algorithm 3 starts E minus the *available* ones, in addition to those in use. E forecasts how many will be in use, including
//!   those in use now, so it is interpreted as the total.

pub mod predictor;

use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::{Reading, SmoothingMarkovPolicy};

use self::predictor::{Beginning, Expected, Predictor, Step};
use crate::policies::sizing::{Sized, Sizing};

/// The policy, with the inputs of its newest answer. A tick costs one pass over the history.
#[derive(Debug)]
pub(crate) struct SmoothingMarkov {
    interval: Duration,
    constants: SmoothingMarkovPolicy,
    sizing: Sizing,
    predictor: Predictor,
    newest: Newest,
}

#[derive(Debug, Default)]
struct Newest {
    expected: Option<Expected>,
    sized: Sized,
}

impl SmoothingMarkov {
    pub(crate) fn new(constants: SmoothingMarkovPolicy, scale: &ScaleConfig) -> Self {
        Self {
            interval: crate::policies::duration::interval(constants.tick_s),
            constants,
            sizing: Sizing::new(constants.margin, scale),
            predictor: Predictor::new(constants, Beginning::Mean),
            newest: Newest::default(),
        }
    }
}

impl Forecaster for SmoothingMarkov {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        let expected = self.predictor.observe(f64::from(tick.demand_max));
        self.newest.sized = self.sizing.by_count(expected.corrected(), tick);
        self.newest.expected = Some(expected);
        self.newest.sized.target()
    }

    fn reason(&self) -> String {
        let expected = self.newest.expected.unwrap_or_default();
        let smoothed = expected.smoothed;
        let sized = &self.newest.sized;
        let Some(Step { middle, .. }) = expected.step else {
            return format!(
                "{sized}; the smoothed use is {smoothed:.1}, and too few ticks have passed to correct it"
            );
        };
        let what = match self.constants.reading {
            Reading::Literal => "what usually follows use like the last tick's",
            Reading::Correction => "the error that usually follows one like the last tick's",
        };
        format!("{sized}; the smoothed use is {smoothed:.1}, corrected by {middle:+.1}: {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::tests::{scale, tick};

    #[test]
    fn the_reason_has_the_numbers() {
        let mut forecaster = SmoothingMarkov::new(
            SmoothingMarkovPolicy {
                reading: Reading::Literal,
                ..SmoothingMarkovPolicy::default()
            },
            &scale(64),
        );
        for _ in 0..3 {
            forecaster.tick(&Tick {
                demand_max: 6,
                busy_max: 0,
                ..tick()
            });
        }
        assert_eq!(
            forecaster.reason(),
            "12 workers are kept: 12.0 requests at once; the smoothed use is 6.0, corrected by +6.0: what usually follows use like the last tick's"
        );
    }
}
