//! `reactive`: Little's law on the rate of the last tick (Edge FaaS, §4.2: "always one step behind"). No prediction, no state.

use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::ReactivePolicy;

use crate::policies::signal::Observed;
use crate::policies::sizing::{Sized, Sizing};

/// The policy, with its newest answer.
#[derive(Debug)]
pub(crate) struct Reactive {
    interval: Duration,
    sizing: Sizing,
    newest: Sized,
}

impl Reactive {
    pub(crate) fn new(constants: ReactivePolicy, scale: &ScaleConfig) -> Self {
        Self {
            interval: crate::policies::duration::interval(constants.tick_s),
            sizing: Sizing::new(constants.margin, scale),
            newest: Sized::default(),
        }
    }
}

impl Forecaster for Reactive {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        let observed = Observed::of(tick, self.interval);
        self.newest = self.sizing.by_rate(observed.rate, tick);
        self.newest.target()
    }

    fn reason(&self) -> String {
        format!(
            "{}; the rate of the last tick is expected to go on",
            self.newest
        )
    }
}
