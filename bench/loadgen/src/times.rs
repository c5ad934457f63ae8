//! Times in a histogram of bounded size with three significant digits, and their summary in microseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// A collection of times.
#[derive(Debug, Clone)]
pub struct Times {
    histogram: Histogram<u64>,
}

/// The summary of many times, µs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Their number.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The shortest.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are no longer.
    pub p90: f64,
    /// 99 % are no longer.
    pub p99: f64,
    /// 99.9 % are no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Times {
    /// An empty collection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            // It resizes itself, so many histograms stay small.
            histogram: Histogram::new(3).expect("three significant digits are allowed"),
        }
    }

    /// Adds one time. A time of more than ten minutes counts as ten minutes.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Cannot fail: it grows as needed, and the values are bounded.
        let _ = self.histogram.record(nanos.min(NANOS_MAX));
    }

    /// Adds another collection.
    pub fn add(&mut self, other: &Self) {
        // Cannot fail: it grows as needed.
        let _ = self.histogram.add(&other.histogram);
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The time that this share (0 to 1) of the times does not exceed.
    #[must_use]
    pub fn at(&self, share: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(share))
    }

    /// Mean, extremes and percentiles.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let at = |share: f64| micros(self.histogram.value_at_quantile(share));
        Summary {
            count: self.histogram.len(),
            mean: self.histogram.mean() / 1e3,
            min: micros(self.histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(self.histogram.max()),
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// Longest recorded time: ten minutes.
const NANOS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_to_three_digits() {
        let mut times = Times::new();
        for ms in 1..=100 {
            times.record(Duration::from_millis(ms));
        }
        let mut all = Times::new();
        all.add(&times);
        let summary = all.summary();
        assert_eq!(summary.count, 100);
        assert!((summary.p50 / 50_000.0 - 1.0).abs() < 0.002, "{summary:?}");
        assert!((summary.max / 100_000.0 - 1.0).abs() < 0.002, "{summary:?}");
    }

    #[test]
    fn nothing_and_ages_are_times_too() {
        let mut times = Times::new();
        assert_eq!(times.summary().p99, 0.0);
        times.record(Duration::ZERO);
        times.record(Duration::MAX);
        assert_eq!(times.count(), 2);
        assert!((times.summary().max / 6e8 - 1.0).abs() < 0.002);
    }
}
