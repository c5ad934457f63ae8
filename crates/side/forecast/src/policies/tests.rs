//! Common parts of the tests of all policies, and properties that hold for every policy with any input.

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
        spare: 0,
        idle: Duration::from_secs(6),
        policy: Policy::Demand,
        max_wait: None,
        reserved: 0,
    }
}

/// A tick without events and measurements.
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

/// A tick with these arrivals, span and service time.
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

/// Every policy with its defaults, and with constants at the ends of their ranges.
fn policies() -> Vec<Policy> {
    let extremes = [
        "static:10000,tick_s=0.05",
        "reactive:margin=1000,tick_s=3600",
        "cusum:alpha=1,k=0,h=0,overshoot=100",
        "cusum:alpha=0.000001,k=1000000,h=1000000",
        "adaptive-cusum:alpha=1,beta=0.000001,k=0,h=0,epsilon=0.000000001,overshoot=100",
        "arima:window=120,samples_min=6",
        "arima:window=8,samples_min=6",
        "smoothing-markov:regions=16,history=1000,alpha=1",
        "smoothing-markov:reading=literal,regions=2,history=4,alpha=0.000001",
        "histogram:bin_s=0.1,range_s=1440,samples_min=1,cv_min=0,keep_alive_s=0",
        "histogram:bin_s=3600,range_s=3600,out_of_bounds_share=0,head_percentile=98,margin_share=0.99",
        "auto:memory_weight=0",
        "auto:memory_weight=1000000",
    ];
    let extremes = extremes.iter().map(|line| line.parse().unwrap());
    Policy::all().into_iter().chain(extremes).collect()
}

/// A duration of zero, of a tick, of hours, or any other.
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

/// Usual ticks with a few arbitrary ones among them, so that arbitrary ticks meet the state that usual ticks leave.
fn any_day() -> impl Strategy<Value = Vec<Tick>> {
    proptest::collection::vec(
        prop_oneof![3 => (0..100_u64).prop_map(|arrivals| tick_of(arrivals, 2.0, 0.5)), 1 => any_tick()],
        1..80,
    )
}

proptest! {
    #[test]
    fn whatever_it_is_told_a_policy_stays_finite_and_within_max(
        which in 0..policies().len(), max in 1..=10_000_u32, day in any_day(),
    ) {
        let policy = policies()[which];
        if let Some(mut made) = forecaster(&policy, &scale(max)) {
            for tick in &day {
                let target = made.tick(tick);
                prop_assert!(target.workers <= max, "{policy}: {target:?}");
                let reason = made.reason();
                prop_assert!(!reason.contains("NaN") && !reason.contains("inf"), "{policy}: {reason}");
            }
        }
    }

    #[test]
    fn a_policy_that_was_told_anything_comes_to_its_senses(
        which in 0..Policy::all().len(), day in any_day(),
    ) {
        let policy = Policy::all()[which];
        if let Some(mut made) = forecaster(&policy, &scale(10_000)) {
            for tick in &day {
                made.tick(tick);
            }
            let quiet = (0..600_u64).map(|number| Tick {
                now: Instant(number * 2_000_000_000),
                ..tick_of(0, 2.0, 0.5)
            });
            let last = quiet.map(|tick| made.tick(&tick).workers).last();
            let rests = match policy {
                Policy::Static(constants) => constants.workers,
                _ => 2,
            };
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
