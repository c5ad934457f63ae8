//! `static`: always the same number of workers, none of which is reaped. Edge FaaS's Static-15 (§4.2).

use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::StaticPolicy;

/// The policy; it has no state.
#[derive(Debug)]
pub(super) struct Constant {
    constants: StaticPolicy,
    max: u32,
}

impl Constant {
    pub(super) fn new(constants: StaticPolicy, scale: &ScaleConfig) -> Self {
        Self {
            constants,
            max: scale.max,
        }
    }

    fn workers(&self) -> u32 {
        self.constants.workers.min(self.max)
    }
}

impl Forecaster for Constant {
    fn interval(&self) -> Duration {
        super::duration::interval(self.constants.tick_s)
    }

    fn tick(&mut self, _tick: &Tick) -> Target {
        Target {
            workers: self.workers(),
            idle: None,
        }
    }

    fn reason(&self) -> String {
        format!(
            "{} always kept: the policy says this number",
            super::sizing::workers_are(self.workers())
        )
    }
}
