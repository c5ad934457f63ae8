//! How long an idle worker was not needed: a life table over ages. It gives the probability that the worker is needed within the
//! next moment, if it has been idle for a known time.
//!
//! The edges of the bins of age are a third of an octave apart, from 0.1 s to an hour. A gap that ended in a bin counts as one
//! end there, and as time at risk in every bin that it passed. The hazard of a bin is ends over time at risk, as in any life
//! table. A gap that has not ended counts only as time at risk. Few gaps leave most bins without an end, so each bin is
//! shrunk towards the hazard of the whole table, which is what requests without memory have.

use std::sync::LazyLock;

/// Bins of age.
const BINS: usize = 48;

/// The beginning of each bin, seconds; the last one has no end.
static EDGES: LazyLock<[f64; BINS]> = LazyLock::new(|| {
    let mut edges = [0.0; BINS];
    let mut edge = 0.1;
    for at in edges.iter_mut().skip(1) {
        *at = edge;
        edge *= 2_f64.cbrt();
    }
    edges
});

/// The bin of this age.
pub(super) fn bin_of(age_s: f64) -> usize {
    EDGES
        .partition_point(|edge| *edge <= age_s)
        .saturating_sub(1)
}

/// The beginning of bin `bin`, seconds; infinite after the last bin.
pub(super) fn edge(bin: usize) -> f64 {
    EDGES.get(bin).copied().unwrap_or(f64::INFINITY)
}

/// The width of bin `bin`, seconds. The last one counts as wide as its beginning.
pub(super) fn width(bin: usize) -> f64 {
    (edge(bin + 1) - edge(bin)).min(edge(bin).max(0.1))
}

/// The observed gaps of one worker. Older gaps count less.
#[derive(Debug, Clone)]
pub(super) struct Gaps {
    ends: [f32; BINS],
    at_risk_s: [f32; BINS],
    /// The sums over all bins.
    ends_sum: f64,
    at_risk_sum_s: f64,
    /// Gaps that ended.
    pub(super) count: u32,
}

impl Gaps {
    /// The weight of the earlier gaps when another gap ends: the table remembers about fifty ends.
    const KEPT: f32 = 0.98;
    /// The ends that are assumed before any observation.
    const PRIOR: f64 = 0.3;
    /// The weight of the whole table's hazard in a bin: as if half a gap had passed it.
    const SHRUNK: f64 = 0.5;

    pub(super) fn new() -> Self {
        Self {
            ends: [0.0; BINS],
            at_risk_s: [0.0; BINS],
            ends_sum: 0.0,
            at_risk_sum_s: 0.0,
            count: 0,
        }
    }

    /// A gap of this length ended.
    pub(super) fn add(&mut self, gap_s: f64) {
        for bin in 0..BINS {
            self.ends[bin] *= Self::KEPT;
            self.at_risk_s[bin] *= Self::KEPT;
        }
        let end = bin_of(gap_s);
        for bin in 0..=end {
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are plenty")]
            let passed = (edge(bin + 1).min(gap_s) - edge(bin)) as f32;
            self.at_risk_s[bin] += passed.clamp(0.0, 1e9);
        }
        self.ends[end] += 1.0;
        let sum = |of: &[f32; BINS]| of.iter().map(|value| f64::from(*value)).sum();
        self.ends_sum = sum(&self.ends);
        self.at_risk_sum_s = sum(&self.at_risk_s);
        self.count = self.count.saturating_add(1);
    }

    /// Ends per second at this age. The neighbouring bins have half the weight: a gap that ended after 45 s once may end after 50 s
    /// next time. `here_s`: how long the current gap has been in the bin of this age.
    pub(super) fn hazard(&self, age_s: f64, here_s: f64) -> f64 {
        let bin = bin_of(age_s);
        let whole = (self.ends_sum + Self::PRIOR) / (self.at_risk_sum_s + age_s + 1.0);
        let seen = |of: &[f32; BINS]| {
            let beside = |bin: Option<usize>| bin.and_then(|bin| of.get(bin)).map_or(0.0, half);
            f64::from(of[bin.min(BINS - 1)]) + beside(Some(bin + 1)) + beside(bin.checked_sub(1))
        };
        let weight_s = width(bin) * Self::SHRUNK;
        (seen(&self.ends) + whole * weight_s) / (seen(&self.at_risk_s) + here_s + weight_s)
    }
}

fn half(count: &f32) -> f64 {
    0.5 * f64::from(*count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_age_lies_in_its_bin() {
        for age_s in [0.0, 0.05, 0.1, 1.0, 47.3, 3_600.0, 1e9] {
            let bin = bin_of(age_s);
            assert!(edge(bin) <= age_s && age_s < edge(bin + 1), "{age_s}");
        }
        assert_eq!(bin_of(f64::NAN), 0);
    }

    #[test]
    fn what_comes_every_forty_eight_seconds_is_expected_then_and_not_before() {
        let mut gaps = Gaps::new();
        (0..12).for_each(|_| gaps.add(48.0));
        let hazard = |age_s| gaps.hazard(age_s, 0.0);
        assert!(hazard(48.0) > 0.03, "{}", hazard(48.0));
        for age_s in [0.0, 1.0, 10.0, 30.0] {
            assert!(hazard(age_s) < hazard(48.0) / 10.0, "at {age_s} s");
        }
    }

    #[test]
    fn a_life_table_is_ends_over_time_at_risk() {
        let mut gaps = Gaps::new();
        gaps.add(0.04);
        // One end in the first bin after 0.04 s there; the whole table's hazard counts as another twentieth of a second.
        let whole = 1.3 / 1.04;
        let hazard = gaps.hazard(0.0, 0.0);
        assert!(
            (hazard - (1.0 + whole * 0.05) / (0.04 + 0.05)).abs() < 1e-6,
            "{hazard}"
        );
    }

    #[test]
    fn a_bin_in_which_no_gap_ended_is_not_believed_to_be_safe() {
        let mut gaps = Gaps::new();
        (0..4).for_each(|number| gaps.add(f64::from(20 + 60 * number)));
        assert!(gaps.hazard(40.0, 0.0) > 0.0003);
    }

    #[test]
    fn the_longer_a_gap_lasts_in_a_bin_the_less_is_expected() {
        let gaps = Gaps::new();
        assert!(gaps.hazard(110.0, 10.0) < gaps.hazard(110.0, 0.0));
    }
}
