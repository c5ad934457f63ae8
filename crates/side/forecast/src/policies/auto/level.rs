//! The k-th worker (beyond the sixteenth, several workers together): when it was needed, and whether holding it pays now.

use std::time::Duration;

use pilot_model::Instant;

use super::cost::Cost;
use super::gaps::{Gaps, bin_of, edge, width};

/// Workers `from..=to` of a function, as one level.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) from: u32,
    pub(super) to: u32,
    /// At least `from` invocations run or wait.
    needed: bool,
    /// When it was last needed.
    since: Instant,
    /// `None`: it has never been needed.
    gaps: Option<Box<Gaps>>,
    pays: bool,
    /// Until this time, the decision stays the same unless the worker is needed.
    until: Instant,
}

/// The assumptions about a level before any observation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Belief {
    /// Maximum number of workers needed at once so far.
    pub(super) record: u32,
    /// How often half of the record was needed. The more often this happened without a new record, the less likely is a new
    /// record.
    pub(super) chances: u32,
}

impl Level {
    /// The assumption before any observation: a worker that has been idle for u seconds is needed with the rate `PRIOR / (u + 1)`
    /// per second. The longer nothing has come, the longer nothing will come.
    const PRIOR: f64 = 0.03;
    /// A worker is held through a period in which holding does not pay, if it pays again within this number of leads.
    const BRIDGE: f64 = 6.0;
    /// The maximum of that period in bins of age: three octaves.
    const BRIDGED_MAX: usize = 9;

    /// The level after `before`: a single worker up to the sixteenth, then about an eighth of the number before it.
    pub(super) fn after(before: u32, born: Instant) -> Self {
        Self {
            from: before + 1,
            to: before + 1 + before / 16 * 2,
            needed: false,
            since: born,
            gaps: None,
            pays: false,
            until: Instant(0),
        }
    }

    /// The number of its gaps that have ended.
    pub(super) fn gaps(&self) -> u32 {
        self.gaps.as_ref().map_or(0, |gaps| gaps.count)
    }

    /// A tick that ends now. `peak` workers were needed at once during the tick, `demand` are needed now.
    pub(super) fn see(&mut self, now: Instant, span: Duration, peak: u32, demand: u32) {
        if self.from <= peak {
            if !self.needed {
                // The time before it was needed first is not a gap.
                let gap = now.since(self.since).as_secs_f64() - span.as_secs_f64() / 2.0;
                match &mut self.gaps {
                    Some(gaps) => gaps.add(gap.max(0.0)),
                    None => self.gaps = Some(Box::new(Gaps::new())),
                }
            }
            self.needed = true;
        }
        if self.needed {
            self.since = now;
            self.until = Instant(0);
            self.needed = self.from <= demand;
        }
    }

    /// The number of workers, counted from the first level, that this level requires now. `lead` is the time until a worker that
    /// is ordered now is ready.
    pub(super) fn held(
        &mut self,
        now: Instant,
        demand: u32,
        lead: Duration,
        cost: Cost,
        belief: Belief,
    ) -> u32 {
        if self.needed {
            return self.to.min(demand);
        }
        if now >= self.until {
            self.decide(now, lead.as_secs_f64(), cost, belief);
        }
        if self.pays { self.to } else { 0 }
    }

    /// When [`Level::held`] may change, if no request arrives.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The clock was set back to `now`.
    pub(super) fn forget_times(&mut self, now: Instant) {
        self.since = now;
        self.until = Instant(0);
    }

    fn decide(&mut self, now: Instant, lead_s: f64, cost: Cost, belief: Belief) {
        let age_s = now.since(self.since).as_secs_f64();
        let bin = bin_of(age_s);
        // A worker that is released must be started again one lead before holding pays again. That is not worth it for a period
        // that is not much longer.
        let bridged = bin_of(age_s + Self::BRIDGE * lead_s).min(bin + Self::BRIDGED_MAX);
        self.pays = cost.pays(self.hazard(age_s, age_s - edge(bin), belief))
            || (bin + 1..=bridged).any(|ahead| cost.pays(self.hazard(edge(ahead), 0.0, belief)));
        let bins_s = edge(bin + 1) - age_s;
        let look_s = bins_s.min(age_s * 0.1).max(0.1);
        self.until = now.after(Duration::try_from_secs_f64(look_s).unwrap_or(Duration::MAX));
    }

    /// The rate per second at which it is needed at this age, `here_s` seconds into the age's bin.
    fn hazard(&self, age_s: f64, here_s: f64, belief: Belief) -> f64 {
        let bin = bin_of(age_s);
        let prior = Self::PRIOR / (age_s + 1.0);
        match &self.gaps {
            Some(gaps) => gaps.hazard(bin, here_s, prior),
            None => {
                // Maxima without a typical scale are Pareto distributed; the n-th chance sets a new record with probability 1/n.
                let share = (f64::from(belief.record) / f64::from(self.from)).min(1.0);
                let prior = prior * share * share / f64::from(belief.chances.saturating_add(1));
                let width = width(bin);
                prior * width / (width + here_s)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELIEF: Belief = Belief {
        record: 1,
        chances: 0,
    };
    const TICK: Duration = Duration::from_millis(200);

    fn second(at: u64) -> Instant {
        Instant(at * 1_000_000_000)
    }

    /// Needed at every hundredth second, twenty times.
    fn a_level_with_a_cadence() -> Level {
        let mut level = Level::after(0, second(0));
        for number in 1..=20 {
            level.see(second(number * 100), TICK, 1, 0);
        }
        level
    }

    #[test]
    fn levels_follow_each_other_without_a_gap_and_are_few() {
        let (mut top, mut count) = (0, 0);
        while top < 10_000 {
            let level = Level::after(top, Instant(0));
            assert_eq!(level.from, top + 1);
            assert!(level.to >= level.from);
            (top, count) = (level.to, count + 1);
        }
        assert!(count < 80, "{count} levels");
    }

    #[test]
    fn what_is_needed_every_hundred_seconds_is_started_before_and_not_held_between() {
        let mut level = a_level_with_a_cadence();
        // A start takes one second; a worker of 100 MB is worth ten seconds of holding.
        let cost = Cost {
            start_s: 1.0,
            holding: 0.1,
        };
        let mut held =
            |at: u64| level.held(second(2_000 + at), 0, Duration::from_secs(1), cost, BELIEF);
        assert_eq!(held(20), 0);
        assert_eq!(held(60), 0);
        // Two seconds before; the cheap one for the width of the bin of 100 s, which is 26 s.
        let cheap = Cost {
            holding: 0.001,
            ..cost
        };
        assert_eq!(
            level.held(second(2_098), 0, Duration::from_secs(1), cheap, BELIEF),
            1
        );
    }

    #[test]
    fn a_start_that_costs_nothing_holds_nothing_and_one_that_costs_much_holds_long() {
        let mut level = Level::after(0, second(0));
        level.see(second(1), TICK, 1, 0);
        let cost = |start_s| Cost {
            start_s,
            holding: 0.003,
        };
        let mut held = |at: u64, start_s: f64| {
            level.until = Instant(0);
            level.held(second(at), 0, TICK, cost(start_s), BELIEF)
        };
        assert_eq!(held(2, 0.002), 0);
        assert_eq!(held(2, 0.9), 1);
        assert_eq!(held(1_000, 0.9), 0);
    }

    #[test]
    fn what_is_needed_is_held_whatever_it_costs() {
        let mut level = Level::after(0, second(0));
        level.see(second(1), TICK, 1, 1);
        let cost = Cost {
            start_s: 0.0,
            holding: 1e9,
        };
        assert_eq!(level.held(second(1), 1, TICK, cost, BELIEF), 1);
    }
}
