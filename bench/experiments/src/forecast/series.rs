//! What HotC's predictor forecasts for a series, sample by sample (the paper's Fig. 10): the arithmetic of the policy
//! `smoothing-markov`, without a pool and without time.

use pilot_forecast::predictor::{Beginning, Expected, Predictor};
use pilot_model::policy::SmoothingMarkovPolicy;
use serde::Serialize;

/// A sample and its forecasts. `None`: there were no earlier samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Foreseen {
    /// The sample.
    pub(super) observed: f64,
    /// The forecast by smoothing alone, Eq. 1.
    pub(super) smoothed: Option<f64>,
    /// The forecast with the chain's correction, Eq. 2; by smoothing alone as long as there is no chain.
    pub(super) forecast: Option<f64>,
}

/// Forecasts every sample of the series from the samples before it.
pub(super) fn foresee(
    constants: &SmoothingMarkovPolicy,
    beginning: Beginning,
    series: &[f64],
) -> Vec<Foreseen> {
    let mut predictor = Predictor::new(*constants, beginning);
    let mut expected = match beginning {
        Beginning::Mean => None,
        Beginning::Value(value) => Some(Expected {
            smoothed: value,
            step: None,
        }),
    };
    series
        .iter()
        .map(|&observed| {
            let foreseen = Foreseen {
                observed,
                smoothed: expected.map(|expected| expected.smoothed),
                forecast: expected.map(|expected| expected.corrected()),
            };
            expected = Some(predictor.observe(observed));
            foreseen
        })
        .collect()
}

/// The relative error: the sum of the absolute errors divided by the sum of the samples. Samples without a forecast do not count.
/// `None`: all samples are 0.
pub(super) fn relative_error(
    foreseen: &[Foreseen],
    of: impl Fn(&Foreseen) -> Option<f64>,
) -> Option<f64> {
    let (off, came) = foreseen
        .iter()
        .filter_map(|sample| Some((sample.observed, of(sample)?)))
        .fold((0.0, 0.0), |(off, came), (observed, forecast)| {
            (off + f64::abs(forecast - observed), came + observed.abs())
        });
    (came > 0.0).then(|| off / came)
}

#[cfg(test)]
mod tests {
    use pilot_model::policy::Reading;

    use super::*;

    /// §V-C: "as the real request number of container jumps from 8 to 19".
    fn jump() -> Vec<f64> {
        [[8.0; 7], [19.0; 7]].concat()
    }

    /// Relative errors at the jump and at the three samples after it.
    fn errors(constants: &SmoothingMarkovPolicy) -> Vec<f64> {
        let foreseen = foresee(constants, Beginning::Mean, &jump());
        foreseen[7..=10]
            .iter()
            .map(|sample| f64::abs(sample.forecast.unwrap() - sample.observed) / sample.observed)
            .collect()
    }

    #[test]
    fn a_sample_is_foreseen_from_those_before_it() {
        let foreseen = foresee(&SmoothingMarkovPolicy::default(), Beginning::Mean, &jump());
        assert_eq!(foreseen.len(), 14);
        assert_eq!(foreseen[0].forecast, None);
        assert_eq!(foreseen[7].forecast, Some(8.0));
        // 0.8 × 19, and the remaining weight of the 8s and of e_0, the mean of seven 8s and a 19.
        let beginning = f64::powi(0.2, 8) * (7.0 * 8.0 + 19.0) / 8.0;
        let left = (0.2 - f64::powi(0.2, 8)) * 8.0;
        let smoothed = foreseen[8].smoothed.unwrap();
        assert!(
            (smoothed - (0.8 * 19.0 + left + beginning)).abs() < 1e-9,
            "{smoothed}"
        );
    }

    #[test]
    fn the_papers_jump_is_known_to_a_tenth_by_the_third_sample_behind_it() {
        let errors = errors(&SmoothingMarkovPolicy::default());
        assert!(errors[0] > 0.5, "nobody knew of it: {errors:?}");
        assert!(errors[3] <= 0.10, "{errors:?}");
    }

    #[test]
    fn read_literally_it_is_not() {
        let errors = errors(&SmoothingMarkovPolicy {
            reading: Reading::Literal,
            ..SmoothingMarkovPolicy::default()
        });
        assert!(errors[3] > 0.5, "{errors:?}");
    }

    #[test]
    fn a_number_to_begin_with_is_the_first_forecast_and_is_forgotten() {
        let constants = SmoothingMarkovPolicy::default();
        let series = [6.0; 40];
        let told = foresee(&constants, Beginning::Value(60.0), &series);
        assert_eq!(told[0].forecast, Some(60.0));
        let mean = foresee(&constants, Beginning::Mean, &series);
        assert!((told[2].smoothed.unwrap() - (0.96 * 6.0 + 0.04 * 60.0)).abs() < 1e-9);
        assert!((mean[2].smoothed.unwrap() - 6.0).abs() < 1e-9);
        assert!((told[39].smoothed.unwrap() - 6.0).abs() < 1e-9);
    }

    #[test]
    fn the_error_is_a_share_of_what_came() {
        let sample = |observed, forecast| Foreseen {
            observed,
            smoothed: None,
            forecast,
        };
        let samples = [
            sample(100.0, None),
            sample(8.0, Some(10.0)),
            sample(2.0, Some(1.0)),
        ];
        let error = relative_error(&samples, |sample| sample.forecast).unwrap();
        assert!((error - 0.3).abs() < 1e-12, "{error}");
        assert_eq!(relative_error(&samples, |sample| sample.smoothed), None);
    }
}
