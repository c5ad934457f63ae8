//! Equation (2), and what the model with ticks must do under every limit.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn limit(period_us: u64, quota_us: u64) -> Limit {
    Limit::new(period_us, quota_us).unwrap()
}

/// The examples of the paper, and the borders of both cases.
#[test]
fn equation_two_has_its_golden_values() {
    for (cpu_ms, period_ms, quota_ms, expected_ms) in [
        // 10 ms of CPU time in a 10 ms quota of a 20 ms period: all of the CPU (section 4.2).
        (10, 20, 10, 10),
        (11, 20, 10, 21),
        (20, 20, 10, 30),
        (25, 20, 10, 45),
        (5, 20, 10, 5),
        (0, 20, 10, 0),
        (160, 20, 20, 160),
        (50, 100, 50, 50),
        (51, 100, 50, 101),
    ] {
        let took = limit(period_ms * 1000, quota_ms * 1000).duration_ns(cpu_ms * MS);
        assert_eq!(took, expected_ms * MS, "{cpu_ms} {period_ms} {quota_ms}");
    }
}

#[test]
fn impossible_limits_are_refused() {
    for (period, quota, part) in [
        (99, 10, "100 us"),
        (1_000_001, 10, "1 s"),
        (20_000, 0, "quota of 0"),
    ] {
        let told = Limit::new(period, quota).unwrap_err();
        assert!(told.contains(part), "{told}");
    }
    assert!(Ticks::of_rate(0, 0).is_err());
    assert!(Ticks::of_rate(1_001, 0).is_err());
}

/// The example of section 4.2: 1.45 ms in 20 ms, ticks of 4 ms. It runs 4 ms, waits 36, runs 4 ms, waits 56, and so on.
#[test]
fn a_small_quota_alternates_as_the_paper_says() {
    let ticks = Ticks::of_rate(250, 0).unwrap();
    let group = Group::fresh(limit(20_000, 1_450), ticks, 0);
    let stretches: Vec<(u64, u64)> = group
        .take(6)
        .map(|it| {
            let ran = it.stopped_ns - it.began_ns;
            (ran / MS, (it.resumed_ns - it.stopped_ns) / MS)
        })
        .collect();
    assert_eq!(
        stretches,
        [(4, 36), (4, 56), (4, 56), (4, 56), (4, 36), (4, 56)]
    );
}

/// On AWS Lambda (20 ms, 250 Hz), a short call is as fast above 1,415 MB as with a whole vCPU (section 4.1): each tick before the refill
/// finds something left.
#[test]
fn above_four_fifths_of_a_cpu_a_short_task_does_not_wait() {
    let ticks = Ticks::of_rate(250, 0).unwrap();
    assert_eq!(
        Group::fresh(limit(20_000, 20_000), ticks, 0).run(160 * MS),
        160 * MS
    );
    assert!(
        Group::fresh(limit(20_000, 20_000), ticks, 0)
            .next()
            .is_none()
    );
    // In the first period, 16 ms are over at a tick before they are used up only if the quota is larger.
    let took = |quota_us| Group::fresh(limit(20_000, quota_us), ticks, 0).run(20 * MS);
    assert_eq!(took(16_100), 20 * MS);
    assert_eq!(took(15_900), 24 * MS);
}

/// A slice that is not used up outlasts a refill, but the rest of the pool does not.
#[test]
fn a_refill_does_not_add_to_the_pool() {
    let ticks = Ticks::new(MS, 0);
    // Until 90 ms nothing runs; then a task finds 50 ms, and 50 ms more at 100 ms, but not the 40 ms that it did not use.
    let mut group = Group::fresh(limit(100_000, 50_000), ticks, 90 * MS);
    let first = group.next().unwrap();
    let ran = first.stopped_ns - first.began_ns;
    // 10 ms, then a new quota, and at most a slice that was taken before.
    assert!((60 * MS..=66 * MS).contains(&ran), "{ran}");
}

fn limits() -> impl Strategy<Value = Limit> {
    (1_000..100_000_u64).prop_flat_map(|period| {
        (Just(period), 100..=period).prop_map(|(period, quota)| limit(period, quota))
    })
}

proptest! {
    #[test]
    fn equation_two_is_monotone_and_never_below_the_cpu_time(limit in limits(), cpu in 1..500 * MS, more in 0..50 * MS) {
        let took = limit.duration_ns(cpu);
        prop_assert!(took >= cpu);
        prop_assert!(limit.duration_ns(cpu + more) >= took);
        // It gets too much in the last period at most, so it is never slower than the reciprocal.
        prop_assert!(took <= limit.ideal_ns(cpu) + 1);
        prop_assert!(took + limit.period_ns() >= limit.ideal_ns(cpu));
    }

    #[test]
    fn equation_two_falls_with_the_quota(period in 1_000..100_000_u64, share in (1..1000_u64, 0..1000_u64), cpu in 1..500 * MS) {
        let quota = |milli: u64| (period * milli / 1000).max(1);
        let (small, large) = (quota(share.0), quota((share.0 + share.1).min(1000)));
        prop_assert!(limit(period, large).duration_ns(cpu) <= limit(period, small).duration_ns(cpu));
    }

    /// With ticks that come all the time, the model is Equation (2).
    #[test]
    fn with_fine_ticks_the_model_is_equation_two(period_ms in 1..50_u64, quota in 1..50_u64, cpu_us in 1..60_000_u64) {
        let limit = limit(period_ms * 1000, quota.min(period_ms) * 1000);
        let ticks = Ticks::new(1000, 0);
        let took = Group::fresh(limit, ticks, 0).run(cpu_us * 1000);
        prop_assert_eq!(took, limit.duration_ns(cpu_us * 1000));
    }

    /// However coarse the ticks are, in the long run a task gets its quota: never more than a tick and a slice ahead of it.
    #[test]
    fn what_is_overrun_is_paid_back(limit in limits(), tick_us in 1_000..10_000_u64, offset in 0..10 * MS, begin in 0..100 * MS) {
        let ticks = Ticks::new(tick_us * 1000, offset);
        let (mut ran, mut end) = (0, begin);
        for stretch in Group::fresh(limit, ticks, begin).take(60) {
            prop_assert!(stretch.began_ns < stretch.stopped_ns);
            prop_assert!(stretch.stopped_ns < stretch.resumed_ns);
            prop_assert_eq!(stretch.began_ns, end);
            prop_assert_eq!(stretch.resumed_ns % limit.period_ns(), 0);
            prop_assert_eq!(ticks.after(stretch.stopped_ns) - stretch.stopped_ns, ticks.every_ns());
            ran += stretch.stopped_ns - stretch.began_ns;
            end = stretch.resumed_ns;
            // The refills since the one before the beginning, and what it had then.
            let refills = end / limit.period_ns() - begin / limit.period_ns();
            prop_assert!(ran <= refills * limit.quota_ns() + limit.quota_ns() + ticks.every_ns());
        }
    }

    /// A spread is around the reciprocal: at most some periods and ticks beside it, however long the task is.
    #[test]
    fn a_spread_follows_the_reciprocal(limit in limits(), cpu in 1..20_000 * MS, cfs in any::<bool>()) {
        let tick = 4 * MS;
        let scheduler = if cfs { Scheduler::Cfs } else { Scheduler::Eevdf };
        let spread = limit.spread_ns(cpu, tick, scheduler);
        prop_assert!(spread.least_ns <= spread.mean_ns && spread.mean_ns <= spread.most_ns);
        prop_assert!(spread.least_ns >= cpu);
        // A quota near the period, or a tick as long, wastes refills.
        prop_assume!(limit.quota_ns() + tick < limit.period_ns());
        let ideal = limit.ideal_ns(cpu);
        let overrun = limit.ideal_ns(2 * tick + SLICE_NS) + 2 * limit.period_ns();
        prop_assert!(spread.least_ns + overrun >= ideal, "{:?} {}", spread, ideal);
        prop_assert!(spread.most_ns <= ideal + overrun, "{:?} {}", spread, ideal);
    }
}
