//! `arima`: Edge FaaS §4.2's baseline. An ARIMA(2,1,2) is fitted to the rates of the last 30 ticks and forecasts the next one.
//! With fewer than 10 ticks it is `reactive`.
//!
//! The fit is by exact maximum likelihood, as in statsmodels (`tests/arima/make.py` made the reference values). Each tick fits
//! from scratch. Starting from the previous fit would be cheaper, but then the forecast would depend on more than the window, and
//! one window could have two forecasts. The work is bounded (`arima/fit.rs`), but a tick is not O(1).

mod fit;
mod likelihood;

use std::collections::VecDeque;
use std::time::Duration;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::ArimaPolicy;

use crate::policies::signal::{Observed, Window};
use crate::policies::sizing::{Sized, Sizing};

/// The policy, with the inputs of its newest answer.
#[derive(Debug)]
pub(crate) struct Arima {
    interval: Duration,
    sizing: Sizing,
    samples_min: usize,
    rates: Window,
    newest: Newest,
}

#[derive(Debug, Default)]
struct Newest {
    rate: f64,
    forecast: Option<f64>,
    sized: Sized,
}

impl Arima {
    pub(crate) fn new(constants: ArimaPolicy, scale: &ScaleConfig) -> Self {
        Self {
            interval: crate::policies::duration::interval(constants.tick_s),
            sizing: Sizing::new(constants.margin, scale),
            samples_min: constants.samples_min as usize,
            rates: Window::new(constants.window),
            newest: Newest::default(),
        }
    }
}

impl Forecaster for Arima {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        let rate = Observed::of(tick, self.interval).rate;
        self.rates.push(rate);
        let enough = self.rates.values().len() >= self.samples_min;
        let forecast = enough
            .then(|| forecast_next(self.rates.values()))
            .flatten()
            .map(|forecast| forecast.max(0.0));
        let sized = self.sizing.by_rate(forecast.unwrap_or(rate), tick);
        self.newest = Newest {
            rate,
            forecast,
            sized,
        };
        sized.target()
    }

    fn reason(&self) -> String {
        let Newest {
            rate,
            forecast,
            sized,
        } = &self.newest;
        let count = self.rates.values().len();
        match forecast {
            Some(forecast) => format!(
                "{sized}; ARIMA(2,1,2) over {count} ticks expects {forecast:.1} requests/s after {rate:.1}"
            ),
            None => format!(
                "{sized}; the rate of the last tick is expected to go on, because only {count} of the {} ticks that a forecast needs \
                 have passed",
                self.samples_min
            ),
        }
    }
}

/// The next value that an ARIMA(2,1,2) of `values`, oldest first, expects. `None`: there are too few values, or no finite result.
pub(crate) fn forecast_next(values: &VecDeque<f64>) -> Option<f64> {
    let last = *values.back()?;
    let steps: Vec<f64> = values
        .iter()
        .zip(values.iter().skip(1))
        .map(|(before, after)| after - before)
        .collect();
    let next = last + fit::next_step(&steps)?;
    next.is_finite().then_some(next)
}

#[cfg(test)]
mod tests;
