//! How long a function's invocations take: a distribution given by its percentiles.

use std::time::Duration;

use crate::random::Random;

/// Percentiles of a service time; between two of them the inverse distribution function is a straight line.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceTimes {
    /// (probability, seconds), both rising, from probability 0 to 1.
    points: Vec<(f64, f64)>,
}

impl ServiceTimes {
    /// From (probability, seconds) with rising probabilities from 0 to 1. A time that is smaller than the previous one is raised
    /// to it. `None`: the points are not a distribution.
    #[must_use]
    pub fn from_percentiles(points: &[(f64, f64)]) -> Option<Self> {
        let ends = points.first()?.0 == 0.0 && points.last()?.0 == 1.0;
        let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let finite = points
            .iter()
            .all(|(_, seconds)| seconds.is_finite() && *seconds >= 0.0);
        if !(ends && rising && finite && points.len() >= 2) {
            return None;
        }
        let mut most: f64 = 0.0;
        let points = points.iter().map(|(probability, seconds)| {
            most = most.max(*seconds);
            (*probability, most)
        });
        Some(Self {
            points: points.collect(),
        })
    }

    /// Always the same time.
    #[must_use]
    pub fn constant(time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            points: vec![(0.0, seconds), (1.0, seconds)],
        }
    }

    /// The time that a share `probability` (clamped to 0..=1) of the invocations does not exceed.
    #[must_use]
    pub fn quantile(&self, probability: f64) -> Duration {
        let wanted = probability.clamp(0.0, 1.0);
        let at = self.points.partition_point(|(known, _)| *known < wanted);
        let seconds = match (
            at.checked_sub(1).and_then(|at| self.points.get(at)),
            self.points.get(at),
        ) {
            (Some((low, from)), Some((high, to))) => {
                from + (to - from) * (wanted - low) / (high - low)
            }
            (None, Some((_, seconds))) | (Some((_, seconds)), None) => *seconds,
            (None, None) => 0.0,
        };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let areas = self.points.windows(2);
        let seconds: f64 = areas
            .map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0)
            .sum();
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    pub(crate) fn sample(&self, random: &mut Random) -> Duration {
        self.quantile(random.unit())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::Purpose;

    #[test]
    fn between_two_percentiles_times_lie_on_a_line() {
        let times = ServiceTimes::from_percentiles(&[(0.0, 1.0), (0.5, 2.0), (1.0, 10.0)]).unwrap();
        for (probability, seconds) in [
            (0.0, 1.0),
            (0.25, 1.5),
            (0.5, 2.0),
            (0.75, 6.0),
            (1.0, 10.0),
            (2.0, 10.0),
        ] {
            let found = times.quantile(probability).as_secs_f64();
            assert!((found - seconds).abs() < 1e-9, "{probability}: {found}");
        }
        assert!((times.mean().as_secs_f64() - 3.75).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for points in [
            &[][..],
            &[(0.0, 1.0)],
            &[(0.1, 1.0), (1.0, 2.0)],
            &[(0.0, 1.0), (0.9, 2.0)],
            &[(0.0, 1.0), (0.5, 2.0), (0.5, 3.0), (1.0, 4.0)],
            &[(0.0, f64::NAN), (1.0, 2.0)],
            &[(0.0, -1.0), (1.0, 2.0)],
        ] {
            assert_eq!(ServiceTimes::from_percentiles(points), None, "{points:?}");
        }
    }

    #[test]
    fn drawn_times_have_the_mean_that_the_percentiles_say() {
        let times = ServiceTimes::from_percentiles(&[(0.0, 0.0), (0.9, 0.1), (1.0, 3.0)]).unwrap();
        let mut random = Random::new(3, "f", Purpose::Service);
        let count = 200_000_u32;
        let sum: f64 = (0..count)
            .map(|_| times.sample(&mut random).as_secs_f64())
            .sum();
        let mean = sum / f64::from(count);
        assert!(
            (mean / times.mean().as_secs_f64() - 1.0).abs() < 0.02,
            "{mean}"
        );
    }

    proptest! {
        #[test]
        fn a_higher_quantile_is_never_a_shorter_time(
            seconds in proptest::collection::vec(0.0..1e4_f64, 2..9),
            mut wanted in proptest::collection::vec(0.0..1.0_f64, 2..20),
        ) {
            let last = (seconds.len() - 1) as f64;
            let points: Vec<(f64, f64)> =
                seconds.iter().enumerate().map(|(at, seconds)| (at as f64 / last, *seconds)).collect();
            let times = ServiceTimes::from_percentiles(&points).unwrap();
            wanted.sort_by(f64::total_cmp);
            let found: Vec<Duration> = wanted.iter().map(|wanted| times.quantile(*wanted)).collect();
            prop_assert!(found.is_sorted());
        }
    }
}
