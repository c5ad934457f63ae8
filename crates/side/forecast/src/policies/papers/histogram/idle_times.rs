//! The histogram of idle times: fixed bins, a count of values beyond them, two percentiles and a coefficient of variation. Each
//! new entry updates them, so nothing is summed over the bins.

use pilot_model::policy::HistogramPolicy;

use crate::policies::signal::exact;

/// Idle times, counted.
#[derive(Debug)]
pub(super) struct IdleTimes {
    bin_s: f64,
    bins: Box<[u32]>,
    within: u64,
    out_of_bounds: u64,
    /// Sum of the squares of the bins' counts.
    squares: f64,
    head: Percentile,
    tail: Percentile,
}

/// The lowest bin up to which at least a share of the entries lies. Each entry moves it by the change.
#[derive(Debug)]
struct Percentile {
    share: f64,
    bin: usize,
    /// Entries in the bins below.
    below: u64,
}

impl IdleTimes {
    pub(super) fn new(constants: &HistogramPolicy) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded on the same line"
        )]
        let count = (constants.range_s / constants.bin_s)
            .ceil()
            .clamp(1.0, 14_400.0) as usize;
        Self {
            bin_s: constants.bin_s,
            bins: vec![0; count].into_boxed_slice(),
            within: 0,
            out_of_bounds: 0,
            squares: 0.0,
            head: Percentile::new(constants.head_percentile),
            tail: Percentile::new(constants.tail_percentile),
        }
    }

    /// Adds `idle_s`, `times` times.
    pub(super) fn add(&mut self, idle_s: f64, times: u64) {
        if times == 0 {
            return;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates"
        )]
        let bin = (idle_s / self.bin_s) as usize;
        if bin >= self.bins.len() {
            self.out_of_bounds = self.out_of_bounds.saturating_add(times);
            return;
        }
        let times = u32::try_from(times).unwrap_or(u32::MAX).min(u32::MAX / 2);
        if self.bins[bin] > u32::MAX / 2 {
            self.halve();
        }
        let before = f64::from(self.bins[bin]);
        self.bins[bin] += times;
        let after = f64::from(self.bins[bin]);
        self.squares += after * after - before * before;
        self.within += u64::from(times);
        for percentile in [&mut self.head, &mut self.tail] {
            if bin < percentile.bin {
                percentile.below += u64::from(times);
            }
            percentile.settle(&self.bins, self.within);
        }
    }

    /// Memory of the bins.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.bins)
    }

    /// Number of entries in the bins.
    pub(super) fn within(&self) -> u64 {
        self.within
    }

    /// Number of entries beyond them.
    pub(super) fn out_of_bounds(&self) -> u64 {
        self.out_of_bounds
    }

    /// Coefficient of variation of the bins' counts: 0 if all are equal, highest if one bin has all.
    pub(super) fn variation(&self) -> f64 {
        let bins = exact(self.bins.len() as u64);
        let mean = exact(self.within) / bins;
        if mean <= 0.0 {
            return 0.0;
        }
        (self.squares / bins - mean * mean).max(0.0).sqrt() / mean
    }

    /// The head percentile, rounded down to its bin's beginning, seconds.
    pub(super) fn head_s(&self) -> f64 {
        exact(self.head.bin as u64) * self.bin_s
    }

    /// The tail percentile, rounded up to its bin's end, seconds.
    pub(super) fn tail_s(&self) -> f64 {
        exact(self.tail.bin as u64 + 1) * self.bin_s
    }

    /// Makes room: halves every count, which keeps the shares. This happens once in two thousand million entries.
    fn halve(&mut self) {
        self.within = 0;
        self.squares = 0.0;
        for bin in &mut self.bins {
            *bin /= 2;
            self.within += u64::from(*bin);
            self.squares += f64::from(*bin) * f64::from(*bin);
        }
        for percentile in [&mut self.head, &mut self.tail] {
            percentile.below = self.bins[..percentile.bin]
                .iter()
                .copied()
                .map(u64::from)
                .sum();
            percentile.settle(&self.bins, self.within);
        }
    }
}

impl Percentile {
    fn new(percent: f64) -> Self {
        Self {
            share: (percent / 100.0).clamp(0.0, 1.0),
            bin: 0,
            below: 0,
        }
    }

    /// Moves to its bin, for `total` entries in `bins`.
    fn settle(&mut self, bins: &[u32], total: u64) {
        // At least the smallest entry, even if the share is 0.
        let wanted = (self.share * exact(total)).max(1.0);
        while self.bin > 0 && exact(self.below) >= wanted {
            self.bin -= 1;
            self.below -= u64::from(bins[self.bin]);
        }
        while self.bin + 1 < bins.len() && exact(self.below + u64::from(bins[self.bin])) < wanted {
            self.below += u64::from(bins[self.bin]);
            self.bin += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn idle_times(constants: HistogramPolicy) -> IdleTimes {
        IdleTimes::new(&constants)
    }

    #[test]
    fn four_hours_are_240_bins_of_a_minute() {
        let times = idle_times(HistogramPolicy::default());
        assert_eq!(times.bins.len(), 240);
    }

    #[test]
    fn percentiles_are_those_of_a_sum_by_hand() {
        let mut times = idle_times(HistogramPolicy::default());
        // 100 entries: 4 in minute 2, 90 in minute 10, 6 in minute 30. The 5th is in minute 10, the 99th in minute 30.
        times.add(150.0, 4);
        times.add(620.0, 90);
        times.add(1801.0, 6);
        assert_eq!(times.head_s(), 600.0);
        assert_eq!(times.tail_s(), 1860.0);
    }

    #[test]
    fn what_is_beyond_the_range_is_counted_apart() {
        let mut times = idle_times(HistogramPolicy::default());
        times.add(14_400.0, 3);
        times.add(f64::INFINITY, 1);
        times.add(14_399.0, 1);
        assert_eq!((times.within(), times.out_of_bounds()), (1, 4));
    }

    #[test]
    fn the_variation_is_nothing_when_all_bins_are_alike_and_most_when_one_has_all() {
        let mut even = idle_times(HistogramPolicy::default());
        for minute in 0..240 {
            even.add(f64::from(minute) * 60.0, 7);
        }
        assert!(even.variation() < 1e-9);
        let mut one = idle_times(HistogramPolicy::default());
        one.add(600.0, 7);
        assert!((one.variation() - 239.0_f64.sqrt()).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn percentiles_that_follow_are_those_that_are_summed_up(
            entries in proptest::collection::vec((0.0..16_000.0_f64, prop_oneof![1..50_u64, Just(u64::MAX)]), 1..60),
            head in 0.0..50.0_f64, tail in 50.0..=100.0_f64,
        ) {
            let mut times = idle_times(HistogramPolicy {
                head_percentile: head, tail_percentile: tail, ..HistogramPolicy::default()
            });
            for (idle_s, count) in entries {
                times.add(idle_s, count);
                let total: u64 = times.bins.iter().copied().map(u64::from).sum();
                prop_assert_eq!(total, times.within());
                if total == 0 {
                    continue;
                }
                for percentile in [&times.head, &times.tail] {
                    let wanted = (percentile.share * exact(total)).max(1.0);
                    let mut sum = 0;
                    let summed = times.bins.iter().position(|bin| {
                        sum += u64::from(*bin);
                        exact(sum) >= wanted
                    });
                    prop_assert_eq!(Some(percentile.bin), summed);
                }
                let mean = exact(total) / 240.0;
                let variance = times.bins.iter().map(|bin| (f64::from(*bin) - mean).powi(2)).sum::<f64>() / 240.0;
                prop_assert!((times.variation() - variance.sqrt() / mean).abs() < 1e-6);
            }
        }
    }
}
