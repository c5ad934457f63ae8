//! The arrival models and their common parts: the observed rate and smoothing (`signal`), and Little's law (`sizing`). The models
//! for users are `auto` and `constant`; those of the papers are in `papers`. Nothing here reads a clock. A tick allocates only if
//! a model stores more than before: ARIMA's window, or a worker that `auto` has not needed before.

mod auto;
mod constant;
mod duration;
pub(crate) mod papers;
mod signal;
mod sizing;

use pilot_model::ScaleConfig;
use pilot_model::forecast::Forecaster;
use pilot_model::policy::Policy;

use self::papers::{adaptive_cusum, arima, cusum, histogram, reactive, smoothing_markov};

/// The forecaster of `policy`, limited to `scale.max`; `None` for `demand`, which has no forecast.
#[must_use]
pub fn forecaster(policy: &Policy, scale: &ScaleConfig) -> Option<Box<dyn Forecaster>> {
    Some(match policy {
        Policy::Demand => return None,
        Policy::Static(constants) => Box::new(constant::Constant::new(*constants, scale)),
        Policy::Reactive(constants) => Box::new(reactive::Reactive::new(*constants, scale)),
        Policy::Cusum(constants) => Box::new(cusum::Cusum::new(*constants, scale)),
        Policy::AdaptiveCusum(constants) => {
            Box::new(adaptive_cusum::AdaptiveCusum::new(*constants, scale))
        }
        Policy::Arima(constants) => Box::new(arima::Arima::new(*constants, scale)),
        Policy::SmoothingMarkov(constants) => {
            Box::new(smoothing_markov::SmoothingMarkov::new(*constants, scale))
        }
        Policy::Histogram(constants) => Box::new(histogram::Histogram::new(*constants, scale)),
        Policy::Auto(constants) => Box::new(auto::Auto::new(*constants, scale)),
    })
}

#[cfg(test)]
mod tests;
