//! `auto`: for now it holds what the last tick needed at once.

use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::AutoPolicy;

/// The policy, with its newest answer.
#[derive(Debug)]
pub(super) struct Auto {
    interval: Duration,
    max: u32,
    demand_max: u32,
}

impl Auto {
    pub(super) fn new(constants: AutoPolicy, scale: &ScaleConfig) -> Self {
        Self {
            interval: super::interval(constants.tick_s),
            max: scale.max,
            demand_max: 0,
        }
    }
}

impl Forecaster for Auto {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        self.demand_max = tick.demand_max;
        Target {
            workers: tick
                .demand_max
                .div_ceil(tick.concurrency.max(1))
                .min(self.max),
            idle: None,
        }
    }

    fn reason(&self) -> String {
        format!("{} at once in the last tick", self.demand_max)
    }
}
