//! HotC's predictor: exponential smoothing of a series (Eq. 1), and a Markov chain over regions that predicts the region of the
//! next value (Eq. 2). It works on any numbers.
//!
//! Where the paper is ambiguous, it is interpreted as follows:
//! - e_t is the sum over the whole history in line 8 of Algorithm 3, with e_0 the mean of that history.
//! - The regions divide the range of the values in the history into 4 equal parts. The history is 40 ticks: ten observations per
//!   row of the chain, and 80 s, which is more than one cycle of Edge FaaS's workload.
//! - The next region is the most likely one in the current region's row (k = 1). Of two equally likely ones it is the higher one,
//!   because a surplus worker costs less than a wait. If the current region was never left, it is the next one.
//! - "e + (R1+R2)/2", taken literally, adds the middle of a region *of the observations* to the smoothed observation, which
//!   doubles steady traffic. Taken as a correction, which is its purpose in the text ("compensate for limitations", "revise"), the
//!   regions are those of the smoothing's error, e + error. Both are implemented; the correction is the default.
//! - The regions of errors are an odd number around zero, so that the middle of one of them is no correction. With regions between the
//!   smallest and the largest error, steady use after a jump is corrected by the middle of a region that only contains zero.

use std::collections::VecDeque;

use pilot_model::policy::{Reading, SmoothingMarkovPolicy};

use crate::policies::signal::Window;

/// e_0 of Eq. 1, "the selection of initial values" in §V-C.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Beginning {
    /// The mean of the history, as in §IV-C.
    Mean,
    /// This value, independent of the observations.
    Value(f64),
}

/// The expected next value, and its parts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expected {
    /// e_t.
    pub smoothed: f64,
    /// `None`: too few values for a chain.
    pub step: Option<Step>,
}

impl Expected {
    /// `e + (R1+R2)/2`, or 0 if that is negative.
    #[must_use]
    pub fn corrected(&self) -> f64 {
        let correction = self.step.map_or(0.0, |step| step.middle);
        (self.smoothed + correction).max(0.0)
    }
}

/// See the module. Each value costs one pass over the history.
#[derive(Debug)]
pub struct Predictor {
    constants: SmoothingMarkovPolicy,
    beginning: Beginning,
    /// The observed values, oldest first.
    history: Window,
    /// The difference of each next value and its smoothed value, oldest first.
    errors: Window,
    smoothed: Option<f64>,
}

impl Predictor {
    /// A predictor without observations.
    #[must_use]
    pub fn new(constants: SmoothingMarkovPolicy, beginning: Beginning) -> Self {
        Self {
            constants,
            beginning,
            history: Window::new(constants.history),
            errors: Window::new(constants.history),
            smoothed: match beginning {
                Beginning::Mean => None,
                Beginning::Value(value) => Some(value),
            },
        }
    }

    /// Adds `value` and returns the expected next value.
    pub fn observe(&mut self, value: f64) -> Expected {
        if let Some(smoothed) = self.smoothed {
            self.errors.push(value - smoothed);
        }
        self.history.push(value);
        let smoothed = smooth(self.constants.alpha, self.history.values(), self.beginning);
        self.smoothed = Some(smoothed);
        let regions = self.constants.regions as usize;
        let chain = match self.constants.reading {
            Reading::Literal => Chain::of(self.history.values(), regions),
            Reading::Correction => Chain::of_errors(self.errors.values(), regions),
        };
        Expected {
            smoothed,
            step: chain.map(|chain| chain.step()),
        }
    }
}

/// e_t of Algorithm 3, line 8.
fn smooth(alpha: f64, history: &VecDeque<f64>, beginning: Beginning) -> f64 {
    let mut sum = 0.0;
    let mut total = 0.0;
    let mut count = 0.0;
    // The remaining weight, for older values.
    let mut left = 1.0;
    for value in history.iter().rev() {
        sum += alpha * left * value;
        left *= 1.0 - alpha;
        total += value;
        count += 1.0;
    }
    let beginning = match beginning {
        Beginning::Value(value) => value,
        Beginning::Mean if count > 0.0 => total / count,
        // There are no observations.
        Beginning::Mean => 0.0,
    };
    sum + left * beginning
}

/// Transitions between the regions of a series.
#[derive(Debug)]
struct Chain {
    regions: usize,
    least: f64,
    width: f64,
    /// T_ij: from row to column.
    counts: [[u32; REGIONS_MAX]; REGIONS_MAX],
    /// The newest value's region.
    current: usize,
}

/// One step along a chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The current region, counted from 1.
    pub from: usize,
    /// The next one, counted from 1.
    pub to: usize,
    /// (R1 + R2) / 2 of the next one.
    pub middle: f64,
}

impl Chain {
    /// Regions between the smallest and the largest value. `None` for a series without a transition.
    fn of(series: &VecDeque<f64>, regions: usize) -> Option<Self> {
        let (least, most) = series.iter().fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(least, most), value| (least.min(*value), most.max(*value)),
        );
        Self::between(least, most, series, regions.clamp(1, REGIONS_MAX))
    }

    /// Regions around zero, one more if their number is even.
    fn of_errors(series: &VecDeque<f64>, regions: usize) -> Option<Self> {
        let most = series
            .iter()
            .fold(0.0_f64, |most, value| most.max(value.abs()));
        Self::between(-most, most, series, (regions | 1).clamp(1, REGIONS_MAX))
    }

    fn between(least: f64, most: f64, series: &VecDeque<f64>, regions: usize) -> Option<Self> {
        if series.len() < 2 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "at most REGIONS_MAX")]
        let width = (most - least) / regions as f64;
        let mut chain = Self {
            regions,
            least,
            width,
            counts: [[0; REGIONS_MAX]; REGIONS_MAX],
            current: 0,
        };
        let mut places = series
            .iter()
            .map(|value| region(*value, least, width, regions));
        chain.current = places.next()?;
        for to in places {
            chain.counts[chain.current][to] += 1;
            chain.current = to;
        }
        Some(chain)
    }

    /// P_ij of Eq. 2 for one i.
    fn row(&self, from: usize) -> [f64; REGIONS_MAX] {
        let counts = &self.counts[from];
        let total: u32 = counts.iter().sum();
        let mut row = [0.0; REGIONS_MAX];
        if total == 0 {
            row[from] = 1.0;
            return row;
        }
        for (share, count) in row.iter_mut().zip(counts) {
            *share = f64::from(*count) / f64::from(total);
        }
        row
    }

    fn step(&self) -> Step {
        let row = self.row(self.current);
        // The last of equal ones.
        let to = (0..self.regions)
            .max_by(|a, b| row[*a].total_cmp(&row[*b]))
            .unwrap_or(self.current);
        #[expect(clippy::cast_precision_loss, reason = "at most REGIONS_MAX")]
        let middle = self.least + self.width * (to as f64 + 0.5);
        Step {
            from: self.current + 1,
            to: to + 1,
            middle,
        }
    }
}

/// The region in which a value lies, counted from 0; the highest value belongs to the highest one.
fn region(value: f64, least: f64, width: f64, regions: usize) -> usize {
    if width <= 0.0 {
        return 0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "value is at least `least`, and `as` saturates"
    )]
    let place = ((value - least) / width) as usize;
    place.min(regions - 1)
}

const REGIONS_MAX: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(reading: Reading) -> SmoothingMarkovPolicy {
        SmoothingMarkovPolicy {
            reading,
            ..SmoothingMarkovPolicy::default()
        }
    }

    fn series(values: &[f64]) -> VecDeque<f64> {
        values.iter().copied().collect()
    }

    #[test]
    fn smoothing_is_equation_1_with_the_mean_for_a_beginning() {
        // 0.8 × 8 + 0.16 × 4 + 0.032 × 3 + 0.008 × mean(3, 4, 8)
        let expected = 6.4 + 0.64 + 0.096 + 0.008 * 5.0;
        assert!((smooth(0.8, &series(&[3.0, 4.0, 8.0]), Beginning::Mean) - expected).abs() < 1e-12);
        assert_eq!(smooth(0.8, &series(&[7.0]), Beginning::Mean), 7.0);
        assert_eq!(smooth(0.8, &series(&[]), Beginning::Mean), 0.0);
    }

    #[test]
    fn smoothing_can_begin_with_any_number() {
        let expected = 0.2 * 6.0 + 0.16 * 4.0 + 0.64 * 100.0;
        assert!(
            (smooth(0.2, &series(&[4.0, 6.0]), Beginning::Value(100.0)) - expected).abs() < 1e-12
        );
    }

    #[test]
    fn the_chain_is_equation_2() {
        // Regions of 0 to 8 in fours: 0 is in 1, 2 and 3 in 2, 5 in 3, 8 in 4. From 1 twice to 2; from 2 to 1 and to 4;
        // from 4 to 3; from 3 to 1.
        let chain = Chain::of(&series(&[0.0, 2.0, 8.0, 5.0, 0.0, 3.0, 0.0]), 4).unwrap();
        assert_eq!(chain.row(0)[..4], [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(chain.row(1)[..4], [0.5, 0.0, 0.0, 0.5]);
        assert_eq!(chain.row(2)[..4], [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(chain.row(3)[..4], [0.0, 0.0, 1.0, 0.0]);
        // The newest is in 1, the next in 2: 2 to 4, whose middle is 3.
        assert_eq!(
            chain.step(),
            Step {
                from: 1,
                to: 2,
                middle: 3.0
            }
        );
    }

    #[test]
    fn of_equally_likely_regions_the_higher_is_taken() {
        let chain = Chain::of(&series(&[0.0, 2.0, 8.0, 5.0, 0.0, 3.0, 0.0, 3.0]), 4).unwrap();
        assert_eq!(chain.step().to, 4);
    }

    #[test]
    fn read_as_a_correction_steady_use_is_forecast_as_it_is() {
        let mut steady = Predictor::new(policy(Reading::Correction), Beginning::Mean);
        let last = (0..50).map(|_| steady.observe(6.0).corrected()).last();
        assert!((last.unwrap() - 6.0).abs() < 1e-9);
    }

    #[test]
    fn read_literally_steady_use_is_forecast_twice() {
        let mut steady = Predictor::new(policy(Reading::Literal), Beginning::Mean);
        let last = (0..50).map(|_| steady.observe(6.0).corrected()).last();
        assert!((last.unwrap() - 12.0).abs() < 1e-9);
    }

    #[test]
    fn after_a_jump_steady_use_is_soon_forecast_as_it_is() {
        // From 8 to 19, as in HotC's figure 10.
        let mut predictor = Predictor::new(policy(Reading::Correction), Beginning::Mean);
        (0..40).for_each(|_| _ = predictor.observe(8.0));
        let after: Vec<f64> = (0..35)
            .map(|_| predictor.observe(19.0).corrected())
            .collect();
        for (tick, forecast) in after.iter().enumerate().skip(4) {
            assert!((forecast - 19.0).abs() < 0.2, "{forecast} in tick {tick}");
        }
    }

    #[test]
    fn an_alternation_that_smoothing_lags_behind_is_corrected() {
        let mut errors = [0.0; 2];
        for (error, regions) in errors.iter_mut().zip([4, 1]) {
            let constants = SmoothingMarkovPolicy {
                // With a single region, the correction is the middle of the errors, which is no information.
                regions,
                ..policy(Reading::Correction)
            };
            let mut predictor = Predictor::new(constants, Beginning::Mean);
            let mut predicted = 0.0;
            for number in 0..200 {
                let used = if number % 2 == 0 { 2.0 } else { 12.0 };
                if number > 100 {
                    *error += f64::abs(predicted - used);
                }
                predicted = predictor.observe(used).corrected();
            }
        }
        assert!(errors[0] <= errors[1] / 3.9, "{errors:?}");
    }

    proptest! {
        #[test]
        fn rows_sum_to_one(
            values in proptest::collection::vec(-1e9..1e9_f64, 2..60), regions in 1..=16_usize,
        ) {
            let chain = Chain::of(&series(&values), regions).unwrap();
            for from in 0..regions {
                let row = chain.row(from);
                prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                prop_assert!(row.iter().all(|share| (0.0..=1.0).contains(share)));
            }
        }

        #[test]
        fn the_next_middle_lies_within_what_was_seen(
            values in proptest::collection::vec(-1e9..1e9_f64, 2..60), regions in 1..=16_usize,
        ) {
            let step = Chain::of(&series(&values), regions).unwrap().step();
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(l, m), v| (l.min(*v), m.max(*v)));
            prop_assert!(step.middle >= least - 1e-3 && step.middle <= most + 1e-3);
        }

        #[test]
        fn a_history_is_as_long_as_it_was_asked_to_be(length in 4..100_u32, ticks in 0..300_usize) {
            let constants = SmoothingMarkovPolicy { history: length, ..policy(Reading::Correction) };
            let mut predictor = Predictor::new(constants, Beginning::Mean);
            for _ in 0..ticks {
                predictor.observe(1.0);
            }
            prop_assert_eq!(predictor.history.values().len(), ticks.min(length as usize));
        }
    }
}
