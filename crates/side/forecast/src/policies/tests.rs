//! What the tests of all policies share, and what holds for every policy whatever it is told.

use std::time::Duration;

use pilot_model::forecast::Tick;
use pilot_model::policy::Policy;
use pilot_model::{Instant, ScaleConfig};
use proptest::prelude::*;

use super::forecaster;

pub(super) fn scale(max: u32) -> ScaleConfig {
    ScaleConfig {
        min: 0,
        max,
        parked: 0,
        idle: Duration::from_secs(6),
        policy: Policy::Demand,
    }
}

/// Nothing happened, and nothing is known.
pub(super) fn tick() -> Tick {
    Tick {
        now: Instant(0),
        span: Duration::ZERO,
        arrivals: 0,
        last_arrival: None,
        demand: 0,
        demand_max: 0,
        busy_max: 0,
        workers: 0,
        concurrency: 1,
        service: None,
        start: None,
        worker_bytes: None,
    }
}

/// So many arrivals in so many seconds, with that service time.
pub(super) fn tick_of(arrivals: u64, span_s: f64, service_s: f64) -> Tick {
    Tick {
        span: Duration::from_secs_f64(span_s),
        arrivals,
        service: Some(Duration::from_secs_f64(service_s)),
        ..tick()
    }
}

#[test]
fn demand_forecasts_nothing_and_every_other_policy_has_its_forecaster() {
    for policy in Policy::all() {
        let made = forecaster(&policy, &scale(64));
        assert_eq!(made.is_none(), policy == Policy::Demand, "{policy}");
    }
}

#[test]
fn a_forecaster_says_why_before_and_after_its_first_tick() {
    for policy in Policy::all() {
        if let Some(mut made) = forecaster(&policy, &scale(64)) {
            assert!(!made.reason().is_empty(), "{policy}");
            made.tick(&tick_of(10, 2.0, 0.5));
            assert!(!made.reason().contains('\n'), "{policy}");
            assert!(!made.reason().is_empty(), "{policy}");
        }
    }
}

/// A duration of nothing, of a tick, of hours, or of anything.
fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_secs(2)),
        Just(Duration::from_secs(12 * 3600)),
        Just(Duration::MAX),
        (0..10_000_000_000_u64).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_nanos),
    ]
}

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..100_u64, Just(2_000_000), any::<u64>()]
}

fn any_tick() -> impl Strategy<Value = Tick> {
    (
        (any::<u64>(), any_duration(), any_count()),
        proptest::option::of(any::<u64>()),
        (any_count(), any_count(), any::<u32>(), 0..20_u32),
        proptest::option::of(any_duration()),
        proptest::option::of(any_duration()),
        proptest::option::of(any::<u64>()),
    )
        .prop_map(
            |(
                (now, span, arrivals),
                last_arrival,
                (demand, demand_max, workers, concurrency),
                service,
                start,
                worker_bytes,
            )| Tick {
                now: Instant(now),
                span,
                arrivals,
                last_arrival: last_arrival.map(Instant),
                demand: u32::try_from(demand).unwrap_or(u32::MAX),
                demand_max: u32::try_from(demand_max).unwrap_or(u32::MAX),
                busy_max: u32::try_from(demand).unwrap_or(u32::MAX),
                workers,
                concurrency,
                service,
                start,
                worker_bytes,
            },
        )
}

/// Ticks as they come, one of which in a few is anything at all: the state that sane ticks leave meets insane ones.
fn any_day() -> impl Strategy<Value = Vec<Tick>> {
    proptest::collection::vec(
        prop_oneof![3 => (0..100_u64).prop_map(|arrivals| tick_of(arrivals, 2.0, 0.5)), 1 => any_tick()],
        1..80,
    )
}

proptest! {
    #[test]
    fn whatever_it_is_told_a_policy_stays_finite_and_within_max(
        which in 0..Policy::all().len(), max in 1..=10_000_u32, day in any_day(),
    ) {
        let policy = Policy::all()[which];
        if let Some(mut made) = forecaster(&policy, &scale(max)) {
            for tick in &day {
                let target = made.tick(tick);
                prop_assert!(target.workers <= max, "{policy}: {target:?}");
                let reason = made.reason();
                prop_assert!(!reason.contains("NaN") && !reason.contains("inf"), "{policy}: {reason}");
            }
            // And comes to its senses again: a day later it is not stuck at what it was told.
            let mut last = None;
            for second in 0..2000_u64 {
                let tick = Tick { now: Instant(second * 2_000_000_000), ..tick_of(0, 2.0, 0.5) };
                last = Some(made.tick(&tick).workers);
            }
            let rests = match policy { Policy::Static(constants) => constants.workers, _ => 2 };
            prop_assert!(last.is_some_and(|workers| workers <= rests), "{policy}: {last:?}, {}", made.reason());
        }
    }

    #[test]
    fn a_million_requests_a_second_are_within_max(which in 0..Policy::all().len()) {
        if let Some(mut made) = forecaster(&Policy::all()[which], &scale(64)) {
            for _ in 0..40 {
                prop_assert!(made.tick(&tick_of(2_000_000, 2.0, 0.5)).workers <= 64);
            }
        }
    }
}
