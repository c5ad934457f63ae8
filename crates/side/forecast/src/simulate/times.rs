//! Durations in a simulation: constant, or drawn from a distribution that is given by its percentiles.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::random::Random;

/// A distribution of durations. Between two percentiles the inverse distribution function is a straight line.
#[derive(Debug, Clone, PartialEq)]
pub struct Times(Shape);

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    /// Nanoseconds.
    Constant(u64),
    /// (probability, nanoseconds), both rising; the first at probability 0, the last at 1.
    Percentiles(Vec<(f64, f64)>),
}

/// Why a file of measured times cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TimesError {
    /// Not JSON, or not of this form.
    #[error(
        "{problem}: must be {{\"samples_ms\": [1.9, 2.3, …]}} or {{\"percentiles_ms\": {{\"0\": 1.2, \"50\": 2, \"100\": 9}}}}, or come from `pilot bench cold --json --samples`"
    )]
    Form {
        /// What is wrong.
        problem: String,
    },
    /// There are no samples.
    #[error("no times: `samples_ms` or `percentiles_ms` must hold at least one")]
    Empty,
    /// An invalid time.
    #[error("{ms} ms is out of range: must be from 0 to 86400000")]
    OutOfRange {
        /// The value.
        ms: f64,
    },
    /// An invalid percentile.
    #[error("\"{percentile}\" is not a percentile: must be a number from 0 to 100")]
    Percentile {
        /// As written.
        percentile: String,
    },
}

/// The file's form.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Measured {
    Samples {
        samples_ms: Vec<f64>,
    },
    Percentiles {
        percentiles_ms: BTreeMap<String, f64>,
    },
    Bench {
        samples: BenchSamples,
    },
}

/// What `pilot bench cold --json --samples` writes.
#[derive(Debug, Deserialize)]
struct BenchSamples {
    first_byte_us: Vec<f64>,
}

impl Times {
    /// A constant time.
    #[must_use]
    pub fn constant(time: Duration) -> Self {
        Self(Shape::Constant(
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        ))
    }

    /// A constant number of milliseconds.
    ///
    /// # Errors
    /// An invalid duration, or one longer than a day.
    pub fn constant_ms(ms: f64) -> Result<Self, TimesError> {
        let seconds = checked(ms)? / 1e3;
        Ok(Self::constant(Duration::from_secs_f64(seconds)))
    }

    /// From samples in milliseconds, in any order. 1,001 quantiles are kept, independent of the number of samples.
    ///
    /// # Errors
    /// No samples, or an invalid one.
    pub fn from_samples_ms(samples: &[f64]) -> Result<Self, TimesError> {
        let mut sorted = samples
            .iter()
            .map(|ms| checked(*ms))
            .collect::<Result<Vec<f64>, _>>()?;
        if sorted.is_empty() {
            return Err(TimesError::Empty);
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len() - 1;
        let steps = last.clamp(1, QUANTILES_MAX);
        let point = |step: usize| {
            (
                step as f64 / steps as f64,
                sorted[step * last / steps] * 1e6,
            )
        };
        Ok(Self(Shape::Percentiles((0..=steps).map(point).collect())))
    }

    /// From percentiles (0 to 100) in milliseconds, in rising order of percentile. A time that is shorter than the previous one
    /// is raised to it. Below the first and above the last percentile, the time is constant.
    ///
    /// # Errors
    /// No percentiles, or an invalid one.
    pub fn from_percentiles_ms(points: &[(f64, f64)]) -> Result<Self, TimesError> {
        let mut most = 0.0_f64;
        let mut known = Vec::with_capacity(points.len() + 2);
        for (percentile, ms) in points {
            if !(0.0..=100.0).contains(percentile) {
                return Err(TimesError::Percentile {
                    percentile: percentile.to_string(),
                });
            }
            most = most.max(checked(*ms)?);
            known.push((percentile / 100.0, most * 1e6));
        }
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(first), Some(last)) = (known.first().copied(), known.last().copied()) else {
            return Err(TimesError::Empty);
        };
        if first.0 > 0.0 {
            known.insert(0, (0.0, first.1));
        }
        if last.0 < 1.0 {
            known.push((1.0, last.1));
        }
        Ok(Self(Shape::Percentiles(known)))
    }

    /// Reads `{"samples_ms": […]}`, `{"percentiles_ms": {"50": 2.0, …}}`, or the output of `pilot bench cold --json --samples`
    /// (times to the first byte). Other keys are ignored, so that a file can name its source.
    ///
    /// # Errors
    /// Another form, or invalid times.
    pub fn from_json(text: &str) -> Result<Self, TimesError> {
        let measured = serde_json::from_str(text).map_err(|error| TimesError::Form {
            problem: error.to_string(),
        })?;
        match measured {
            Measured::Samples { samples_ms } => Self::from_samples_ms(&samples_ms),
            Measured::Bench { samples } => {
                let samples = samples.first_byte_us.into_iter().map(|us| us / 1e3);
                Self::from_samples_ms(&samples.collect::<Vec<f64>>())
            }
            Measured::Percentiles { percentiles_ms } => {
                let mut points = percentiles_ms
                    .into_iter()
                    .map(|(percentile, ms)| match percentile.parse() {
                        Ok(number) => Ok((number, ms)),
                        Err(_) => Err(TimesError::Percentile { percentile }),
                    })
                    .collect::<Result<Vec<(f64, f64)>, _>>()?;
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                Self::from_percentiles_ms(&points)
            }
        }
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match &self.0 {
            Shape::Constant(nanos) => Duration::from_nanos(*nanos),
            Shape::Percentiles(points) => {
                let areas = points.windows(2);
                let nanos: f64 = areas
                    .map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0)
                    .sum();
                Duration::from_secs_f64(nanos / 1e9)
            }
        }
    }

    /// Draws a time, nanoseconds.
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let points = match &self.0 {
            Shape::Constant(nanos) => return *nanos,
            Shape::Percentiles(points) => points,
        };
        let wanted = random.unit();
        let at = points.partition_point(|(known, _)| *known < wanted).max(1);
        let (Some((low, from)), Some((high, to))) = (points.get(at - 1), points.get(at)) else {
            return points.last().map_or(0, |(_, nanos)| whole(*nanos));
        };
        let share = if high > low {
            (wanted - low) / (high - low)
        } else {
            1.0
        };
        whole(from + (to - from) * share)
    }
}

fn checked(ms: f64) -> Result<f64, TimesError> {
    if (0.0..=DAY_MS).contains(&ms) {
        Ok(ms)
    } else {
        Err(TimesError::OutOfRange { ms })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "every time was checked to lie between nothing and a day"
)]
fn whole(nanos: f64) -> u64 {
    nanos.round() as u64
}

const DAY_MS: f64 = 86_400_000.0;
const QUANTILES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mean_of_draws(times: &Times) -> f64 {
        let mut random = Random::new(1, 2);
        let draws = 100_000;
        let sum: u64 = (0..draws).map(|_| times.draw(&mut random)).sum();
        sum as f64 / f64::from(draws) / 1e6
    }

    #[test]
    fn drawn_times_have_the_mean_that_the_percentiles_say() {
        let times =
            Times::from_json(r#"{"percentiles_ms": {"0": 0, "90": 1, "100": 30}}"#).unwrap();
        let mean = times.mean().as_secs_f64() * 1e3;
        assert!((mean - 2.0).abs() < 1e-6, "{mean}");
        assert!((mean_of_draws(&times) / mean - 1.0).abs() < 0.02);
    }

    #[test]
    fn samples_are_drawn_as_they_were_measured() {
        let times = Times::from_json(r#"{"samples_ms": [3, 1, 2], "from": "a machine"}"#).unwrap();
        assert!((mean_of_draws(&times) - 2.0).abs() < 0.01);
        let bench =
            r#"{"kind": "cold", "samples": {"first_byte_us": [1500.0], "complete_us": [9000.0]}}"#;
        let times = Times::from_json(bench).unwrap();
        assert_eq!(times.draw(&mut Random::new(1, 1)), 1_500_000);
        let one = Times::from_samples_ms(&[7.5]).unwrap();
        assert_eq!(one.draw(&mut Random::new(1, 1)), 7_500_000);
    }

    #[test]
    fn a_lone_percentile_stands_for_all() {
        let times = Times::from_percentiles_ms(&[(50.0, 4.0)]).unwrap();
        assert!((mean_of_draws(&times) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_distribution_says_what_would_do() {
        for (text, said) in [
            ("[1]", "samples_ms"),
            (r#"{"samples_ms": []}"#, "at least one"),
            (r#"{"samples_ms": [-1]}"#, "-1 ms is out of range"),
            (
                r#"{"percentiles_ms": {"half": 1}}"#,
                "\"half\" is not a percentile",
            ),
            (
                r#"{"percentiles_ms": {"101": 1}}"#,
                "\"101\" is not a percentile",
            ),
        ] {
            let error = Times::from_json(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(Times::constant_ms(f64::NAN).is_err());
    }

    proptest! {
        #[test]
        fn a_drawn_time_lies_between_the_shortest_and_the_longest_sample(
            samples in prop::collection::vec(0.0..1e5_f64, 1..50),
            seed in any::<u64>(),
        ) {
            let times = Times::from_samples_ms(&samples).unwrap();
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(0.0, f64::max);
            let mut random = Random::new(seed, 0);
            for _ in 0..100 {
                let ms = times.draw(&mut random) as f64 / 1e6;
                prop_assert!(ms >= least - 1e-5 && ms <= most + 1e-5, "{ms}");
            }
        }
    }
}
