//! How far a worker is ahead of its CPU share, and what follows from it. Pure arithmetic on nanoseconds.
//!
//! A worker with the share s that has used u of CPU time since its invocation began should have run for u ÷ s. What that is more than
//! the time that has passed, it *owes*. It is stopped once it owes half a step, until it has half a step of credit. So an invocation
//! that ends anywhere in between deviates by at most half a step, and on average by nothing. Time in which it uses nothing is credit, too,
//! but little: enough for the moments until a worker that may run is given a CPU, and so little that a worker that sleeps does not save
//! CPU time for later.

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Budget {
    cpu_milli: i64,
    /// When the counters below were read.
    at_ns: u64,
    used_ns: u64,
    /// CPU time since the beginning.
    total_ns: i64,
    /// Negative: credit.
    owed_ns: i64,
    /// Pause until the next look at a worker that waits.
    look_ns: u64,
}

/// What to do with a worker, and when to look again, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Run(u64),
    Stop(u64),
}

impl Budget {
    /// An invocation begins now; the worker's counter of CPU time is `used_ns`.
    pub(super) fn new(cpu_milli: u32, now_ns: u64, used_ns: u64) -> Self {
        Self {
            cpu_milli: i64::from(cpu_milli.max(1)),
            at_ns: now_ns,
            used_ns,
            total_ns: 0,
            owed_ns: 0,
            look_ns: LOOK_NS_MIN,
        }
    }

    /// The counter has been read.
    pub(super) fn account(&mut self, now_ns: u64, used_ns: u64) {
        let passed = signed(now_ns.saturating_sub(self.at_ns));
        let used = signed(used_ns.saturating_sub(self.used_ns));
        self.at_ns = self.at_ns.max(now_ns);
        self.used_ns = self.used_ns.max(used_ns);
        self.total_ns = self.total_ns.saturating_add(used);
        let owed = self.owed_ns.saturating_add(self.ideal(used));
        self.owed_ns = owed.saturating_sub(passed).max(-CREDIT_NS_MAX);
        self.look_ns = match used {
            0 => (self.look_ns * 2).min(LOOK_NS_MAX),
            _ => LOOK_NS_MIN,
        };
    }

    pub(super) fn next(&self) -> Next {
        let half = self.step() / 2;
        let ahead = self.ideal(1_000_000) - 1_000_000;
        if self.owed_ns >= half {
            return Next::Stop(unsigned(self.owed_ns.saturating_add(half)));
        }
        // It owes this much more with each millisecond in which it computes on one CPU.
        if ahead <= 0 {
            return Next::Run(LOOK_NS_MAX);
        }
        let left = i128::from(half - self.owed_ns) * 1_000_000 / i128::from(ahead);
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        Next::Run(left.max(self.look_ns).min(LOOK_NS_LONGEST))
    }

    /// Time that using this much takes at the share.
    fn ideal(&self, used_ns: i64) -> i64 {
        let ideal = i128::from(used_ns) * 1000 / i128::from(self.cpu_milli);
        i64::try_from(ideal).unwrap_or(i64::MAX)
    }

    /// The time of one stop.
    fn step(&self) -> i64 {
        // So short that what runs between two stops is SLICE_NS_MIN.
        let first = self.ideal(SLICE_NS_MIN).saturating_sub(SLICE_NS_MIN);
        let grown = self.ideal(self.total_ns) / 1000 * STEP_PER_MILLE;
        first.max(grown).clamp(STEP_NS_MIN, STEP_NS_MAX)
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn unsigned(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}

/// Most credit.
const CREDIT_NS_MAX: i64 = 5_000_000;
/// Shortest time that a worker computes between two stops. A stop costs the machine about 0.1 ms.
const SLICE_NS_MIN: i64 = 100_000;
const STEP_NS_MIN: i64 = 200_000;
/// Also the most that an invocation deviates because of the steps, twice.
const STEP_NS_MAX: i64 = 10_000_000;
/// Steps grow with the time that the invocation should have taken: to this part of it.
const STEP_PER_MILLE: i64 = 40;
/// A worker that waits is looked at after this time, and then less and less often.
const LOOK_NS_MIN: u64 = 50_000;
const LOOK_NS_MAX: u64 = 1_000_000;
/// Several threads use their share faster.
const LOOK_NS_LONGEST: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// How long an invocation takes that computes for `work_ns` without a pause. Each stop and each look is late by `late_ns`.
    fn duration(cpu_milli: u32, work_ns: u64, late_ns: u64) -> u64 {
        let mut budget = Budget::new(cpu_milli, 0, 0);
        let (mut now, mut used) = (0, 0);
        loop {
            budget.account(now, used);
            match budget.next() {
                Next::Run(ns) => {
                    let ran = (ns + late_ns).min(work_ns - used);
                    (now, used) = (now + ran, used + ran);
                    if used == work_ns {
                        return now;
                    }
                }
                Next::Stop(ns) => now += ns + late_ns,
            }
        }
    }

    #[test]
    fn durations_follow_the_reciprocal() {
        let (mut sum, mut worst, mut count) = (0.0, 0.0_f64, 0.0);
        for cpu_milli in (50..=1000).step_by(50) {
            for work_ms in [5, 20, 50, 150] {
                let ideal = (work_ms * MS * 1000 / u64::from(cpu_milli)) as f64;
                let took = duration(cpu_milli, work_ms * MS, 60_000) as f64;
                let deviation = (took / ideal - 1.0).abs();
                worst = worst.max(deviation);
                sum += deviation;
                count += 1.0;
            }
        }
        assert!(sum / count < 0.03, "{}", sum / count);
        assert!(worst < 0.08, "{worst}");
    }

    #[test]
    fn a_worker_that_is_given_a_cpu_late_loses_nothing() {
        // As above, but each time that it may run again it waits for a CPU.
        let (work, late) = (20 * MS, MS);
        let mut budget = Budget::new(500, 0, 0);
        let (mut now, mut used) = (0, 0);
        while used < work {
            budget.account(now, used);
            match budget.next() {
                Next::Run(ns) => {
                    let ran = ns.min(work - used);
                    (now, used) = (now + ran, used + ran);
                }
                Next::Stop(ns) => now += ns + late,
            }
        }
        let ideal = 2.0 * work as f64;
        let deviation = (now as f64 / ideal - 1.0).abs();
        assert!(deviation < 0.05, "{deviation}");
    }

    #[test]
    fn a_worker_that_waits_saves_no_cpu_time_and_is_looked_at_seldom() {
        let mut budget = Budget::new(100, 0, 0);
        let mut now = 0;
        for _ in 0..20 {
            budget.account(now, 0);
            let Next::Run(ns) = budget.next() else {
                panic!("it used nothing")
            };
            now += ns;
        }
        assert_eq!(budget.look_ns, LOOK_NS_MAX);
        now += 60_000 * MS;
        budget.account(now, 0);
        budget.account(now + MS, MS);
        // 10 ms of its share, less 1 ms that has passed and 5 ms of credit.
        assert!(
            matches!(budget.next(), Next::Stop(ns) if ns > 4 * MS),
            "{budget:?}"
        );
    }

    #[test]
    fn a_whole_cpu_is_never_stopped_for_one_thread() {
        let mut budget = Budget::new(1000, 0, 0);
        for turn in 1..1000 {
            budget.account(turn * MS, turn * MS);
            assert!(matches!(budget.next(), Next::Run(_)));
        }
    }

    #[test]
    fn a_worker_that_owes_more_than_can_be_counted_is_stopped() {
        let mut budget = Budget::new(1, 0, 0);
        budget.account(MS, u64::MAX);
        assert!(matches!(budget.next(), Next::Stop(ns) if ns > u64::MAX / 4));
    }

    proptest! {
        #[test]
        fn no_counter_makes_it_overflow_or_look_at_once(
            cpu_milli in 0_u32..2_000_000,
            readings in prop::collection::vec((any::<u64>(), any::<u64>()), 1..20),
        ) {
            let mut budget = Budget::new(cpu_milli, 0, 0);
            for (now, used) in readings {
                budget.account(now, used);
                let (Next::Run(ns) | Next::Stop(ns)) = budget.next();
                prop_assert!(ns >= LOOK_NS_MIN, "{ns}");
            }
        }
    }
}
