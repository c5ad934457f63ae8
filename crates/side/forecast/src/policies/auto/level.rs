//! The k-th worker (beyond the sixteenth, several workers together): when it was needed, and whether holding it pays now.

use std::time::Duration;

use pilot_model::Instant;

use super::cost::Cost;
use super::gaps::{Gaps, bin_of, edge, width};
use super::overload::Overload;

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
    overload: Overload,
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

/// What a decision about holding depends on, for all levels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stake {
    pub(super) cost: Cost,
    /// The time until a worker that is ordered now is ready.
    pub(super) lead_s: f64,
    pub(super) service_s: f64,
}

impl Level {
    /// The assumption about a worker that was never needed: u seconds after the first request, new records are set with the rate
    /// `UNSEEN / (u + 1)` per second. The longer nothing has come, the longer nothing will come.
    const UNSEEN: f64 = 0.3;
    /// A worker is held through a period in which holding does not pay, if it pays again within this number of leads.
    const BRIDGE: f64 = 1.5;
    /// The maximum of that period in bins of age, three octaves, counted from `BRIDGED_FROM_S` if the worker is younger.
    const BRIDGED_MAX: usize = 9;
    const BRIDGED_FROM_S: f64 = 1.0;
    /// While a worker is held, its memory counts with this factor. Otherwise estimates that change a little from tick to tick would
    /// start and end workers.
    const HELD: f64 = 0.7;

    /// The level after `before`: a single worker up to the sixteenth, then about an eighth of the number before it.
    pub(super) fn after(before: u32, born: Instant) -> Self {
        Self {
            from: before + 1,
            to: before + 1 + before / 16 * 2,
            needed: false,
            since: born,
            gaps: None,
            overload: Overload::new(),
            pays: false,
            until: Instant(0),
        }
    }

    /// The number of its gaps that have ended.
    pub(super) fn gaps(&self) -> u32 {
        self.gaps.as_ref().map_or(0, |gaps| gaps.count)
    }

    /// A tick that ends now. `peak` workers were needed at once during the tick, `demand` are needed now.
    /// `start` is the time of a start.
    pub(super) fn see(
        &mut self,
        now: Instant,
        span: Duration,
        peak: u32,
        demand: u32,
        start: Duration,
    ) {
        let needed_now = self.from <= demand.min(peak);
        self.overload.see(now, span, needed_now, start);
        if self.from <= peak {
            if !self.needed {
                // The time before it was needed first is not a gap.
                let idle = now.since(self.since);
                self.overload.begin(now, idle, start);
                let gap = idle.as_secs_f64() - span.as_secs_f64() / 2.0;
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

    /// The number of workers, counted from the first level, that this level requires now: at most `needed` if it is needed now.
    pub(super) fn held(&mut self, now: Instant, needed: u32, stake: Stake, belief: Belief) -> u32 {
        if self.needed || now >= self.until {
            self.decide(now, stake, belief);
        }
        match (self.pays, self.needed) {
            (false, _) => 0,
            (true, true) => self.to.min(needed),
            (true, false) => self.to,
        }
    }

    /// When [`Level::held`] may change, if no request arrives.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The clock was set back to `now`.
    pub(super) fn forget_times(&mut self, now: Instant) {
        self.since = now;
        self.until = Instant(0);
        self.overload.forget_times();
    }

    fn decide(&mut self, now: Instant, stake: Stake, belief: Belief) {
        let Stake {
            cost,
            lead_s,
            service_s,
        } = stake;
        let miss = self.overload.miss(self.from - 1, cost.start_s, service_s);
        let cost = Cost {
            start_s: cost.start_s * miss,
            holding: cost.holding * if self.pays { Self::HELD } else { 1.0 },
        };
        let age_s = now.since(self.since).as_secs_f64();
        let bin = bin_of(age_s);
        // A worker that is released must be started again one lead before holding pays again. That is not worth it for a period
        // that is not much longer.
        let bridged_max = bin.max(bin_of(Self::BRIDGED_FROM_S)) + Self::BRIDGED_MAX;
        let bridged = bin_of(age_s + Self::BRIDGE * lead_s).min(bridged_max);
        self.pays = cost.pays(self.hazard(age_s, age_s - edge(bin), belief))
            || (bin + 1..=bridged).any(|ahead| cost.pays(self.hazard(edge(ahead), 0.0, belief)));
        let bins_s = edge(bin + 1) - age_s;
        let look_s = bins_s.min(age_s * 0.1).max(0.1);
        self.until = now.after(Duration::try_from_secs_f64(look_s).unwrap_or(Duration::MAX));
    }

    /// The rate per second at which it is needed at this age, `here_s` seconds into the age's bin.
    fn hazard(&self, age_s: f64, here_s: f64, belief: Belief) -> f64 {
        match &self.gaps {
            Some(gaps) => gaps.hazard(age_s, here_s),
            None => {
                // Maxima without a typical scale are Pareto distributed; the n-th chance sets a new record with probability 1/n.
                let share = (f64::from(belief.record) / f64::from(self.from)).min(1.0);
                let chance = share / f64::from(belief.chances.saturating_add(1));
                let prior = Self::UNSEEN / (age_s + 1.0) * chance;
                let width = width(bin_of(age_s));
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
    const SECOND: Duration = Duration::from_secs(1);

    fn stake(cost: Cost) -> Stake {
        Stake {
            cost,
            lead_s: 1.0,
            service_s: 0.5,
        }
    }

    fn second(at: u64) -> Instant {
        Instant(at * 1_000_000_000)
    }

    /// Needed at every hundredth second, twenty times.
    fn a_level_with_a_cadence() -> Level {
        let mut level = Level::after(0, second(0));
        for number in 1..=20 {
            level.see(second(number * 100), TICK, 1, 0, SECOND);
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
        let mut held = |at: u64| level.held(second(2_000 + at), 0, stake(cost), BELIEF);
        assert_eq!(held(20), 0);
        assert_eq!(held(60), 0);
        // Two seconds before; the cheap one for the width of the bin of 100 s, which is 26 s.
        let cheap = Cost {
            holding: 0.001,
            ..cost
        };
        assert_eq!(level.held(second(2_098), 0, stake(cheap), BELIEF), 1);
    }

    #[test]
    fn a_start_that_costs_nothing_holds_nothing_and_one_that_costs_much_holds_long() {
        let mut level = Level::after(0, second(0));
        level.see(second(1), TICK, 1, 0, SECOND);
        let cost = |start_s| Cost {
            start_s,
            holding: 0.003,
        };
        let mut held = |at: u64, start_s: f64| {
            level.until = Instant(0);
            level.held(second(at), 0, stake(cost(start_s)), BELIEF)
        };
        assert_eq!(held(2, 0.002), 0);
        assert_eq!(held(2, 0.9), 1);
        assert_eq!(held(1_000, 0.9), 0);
    }

    #[test]
    fn what_is_needed_is_held_after_its_use_only_if_that_pays() {
        let mut level = Level::after(0, second(0));
        level.see(second(1), TICK, 1, 1, SECOND);
        let cost = |holding| Cost {
            start_s: 1.0,
            holding,
        };
        assert_eq!(level.held(second(1), 1, stake(cost(1e9)), BELIEF), 0);
        assert_eq!(level.held(second(1), 1, stake(cost(1e-3)), BELIEF), 1);
    }

    #[test]
    fn a_worker_that_is_held_is_not_given_up_at_the_price_at_which_it_was_ordered() {
        let hold = |level: &mut Level, holding| {
            level.until = Instant(0);
            let cost = Cost {
                start_s: 1.0,
                holding,
            };
            level.held(second(3), 0, stake(cost), BELIEF) > 0
        };
        let mut level = Level::after(0, second(0));
        level.see(second(1), TICK, 1, 0, SECOND);
        // The highest price at which it is ordered, within 1 %.
        let mut prices = (0..2_000).map(|step| 1.01_f64.powi(-step));
        let price = prices.find(|price| hold(&mut level, *price)).unwrap();
        assert!(hold(&mut level, price * 1.3));
        assert!(!hold(&mut level, price * 1.5));
        assert!(!hold(&mut level, price * 1.3));
    }
}
