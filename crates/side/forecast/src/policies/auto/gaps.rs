//! How long a worker that became idle was not needed: a life table over ages, from which follows how likely it is to be
//! needed within the next moment, given how long it has been idle.
//!
//! Ages lie in bins whose edges are a third of an octave apart, from 0.1 s to an hour. A gap that ended in a bin is one end
//! there, and was at risk in every bin that it passed; the hazard of a bin is ends over time at risk, as in any life table.
//! A gap that still lasts counts for what it is: time in which nothing happened.

use std::sync::LazyLock;

/// Bins of age.
const BINS: usize = 48;

/// Where each bin begins, seconds; the last one never ends.
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

/// Where bin `bin` begins, seconds; infinite after the last.
pub(super) fn edge(bin: usize) -> f64 {
    EDGES.get(bin).copied().unwrap_or(f64::INFINITY)
}

/// How long bin `bin` is, seconds. The last one counts as long as it is old.
pub(super) fn width(bin: usize) -> f64 {
    (edge(bin + 1) - edge(bin)).min(edge(bin).max(0.1))
}

/// What was seen of one worker's gaps. Older gaps count less.
#[derive(Debug, Clone)]
pub(super) struct Gaps {
    ends: [f32; BINS],
    at_risk_s: [f32; BINS],
    /// Gaps that ended.
    pub(super) count: u32,
}

impl Gaps {
    /// What the gaps before count when another ends: twenty ends are remembered, as it were.
    const KEPT: f32 = 0.95;

    pub(super) fn new() -> Self {
        Self {
            ends: [0.0; BINS],
            at_risk_s: [0.0; BINS],
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
        self.count = self.count.saturating_add(1);
    }

    /// Ends per second in this bin of age, when a gap that is not over has been in it for `here_s`. The bins beside it
    /// count half: what came after 45 s may come after 50 s. `prior` is the belief before anything was seen, ends per
    /// second; it weighs as much as one gap.
    pub(super) fn hazard(&self, bin: usize, here_s: f64, prior: f64) -> f64 {
        let seen = |of: &[f32; BINS]| {
            let beside = |bin: Option<usize>| bin.and_then(|bin| of.get(bin)).map_or(0.0, half);
            f64::from(of[bin.min(BINS - 1)]) + beside(Some(bin + 1)) + beside(bin.checked_sub(1))
        };
        let width = width(bin);
        (seen(&self.ends) + prior * width) / (seen(&self.at_risk_s) + here_s + width)
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
        let hazard = |age_s| gaps.hazard(bin_of(age_s), 0.0, 0.03 / (1.0 + age_s));
        assert!(hazard(48.0) > 0.03, "{}", hazard(48.0));
        for age_s in [0.0, 1.0, 10.0, 30.0] {
            assert!(hazard(age_s) < hazard(48.0) / 10.0, "at {age_s} s");
        }
    }

    #[test]
    fn a_life_table_is_ends_over_time_at_risk() {
        let mut gaps = Gaps::new();
        gaps.add(0.04);
        // One end in the first bin after 0.04 s there; the prior is worth another tenth of a second of it.
        let hazard = gaps.hazard(0, 0.0, 0.5);
        assert!(
            (hazard - (1.0 + 0.05) / (0.04 + 0.1)).abs() < 1e-6,
            "{hazard}"
        );
    }

    #[test]
    fn the_longer_a_gap_lasts_in_a_bin_the_less_is_expected() {
        let gaps = Gaps::new();
        let bin = bin_of(100.0);
        assert!(gaps.hazard(bin, 10.0, 0.1) < gaps.hazard(bin, 0.0, 0.1));
    }
}
