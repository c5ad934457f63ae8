//! The simulator against a scenario calculated by hand, and properties that hold for every load.

use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::{Reuse, ScaleConfig};
use proptest::prelude::*;

use super::*;

/// Always requires the same number of workers.
#[derive(Debug)]
struct Hold(u32);

impl Forecaster for Hold {
    fn interval(&self) -> Duration {
        Duration::from_millis(250)
    }

    fn tick(&mut self, _: &Tick) -> Target {
        Target {
            workers: self.0,
            idle: None,
        }
    }

    fn reason(&self) -> String {
        String::new()
    }
}

fn hold(workers: u32) -> impl Fn(&ScaleConfig) -> Option<Box<dyn Forecaster>> {
    move |_| Some(Box::new(Hold(workers)))
}

fn demand(_: &ScaleConfig) -> Option<Box<dyn Forecaster>> {
    None
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Requests (at, service) of one function, in milliseconds.
fn load(requests: &[(u64, u64)], span: u64) -> Load<impl Iterator<Item = Arrival> + use<>> {
    let mut requests = requests.to_vec();
    requests.sort_unstable();
    Load {
        functions: vec![Function {
            worker_bytes: Some(1 << 30),
        }],
        span: ms(span),
        arrivals: requests.into_iter().map(|(at, service)| Arrival {
            at: ms(at),
            function: 0,
            service: Some(ms(service)),
        }),
    }
}

fn with_start(start: u64) -> Simulation {
    let mut simulation = Simulation::default();
    simulation.costs.start = Times::constant(ms(start));
    simulation
}

#[track_caller]
fn assert_near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
}

/// A start takes 100 ms, idle workers are reaped after 1 s.
///
/// | ms   | what                                                                  |
/// |------|-----------------------------------------------------------------------|
/// |    0 | A arrives (10 ms of work): a start for it, worker 1                   |
/// |   50 | B arrives (60 ms): the service time is unknown, B expects worker 1    |
/// |  100 | worker 1 is ready; A is cold, waited 100 ms                           |
/// |  110 | A ends; B is served: shared, waited 60 ms                             |
/// |  170 | B ends                                                                |
/// |  500 | C arrives (10 ms): warm                                               |
/// |  510 | C ends; worker 1 is idle from now on                                  |
/// | 1510 | worker 1 is reaped                                                    |
/// | 2000 | D arrives (10 ms): a start for it, worker 2                           |
/// | 2100 | worker 2 is ready; D is cold, waited 100 ms; ends at 2110             |
/// | 3000 | the load ends; worker 2 is still idle                                 |
#[test]
fn a_scenario_worked_out_by_hand_comes_out_to_the_millisecond() {
    let mut simulation = with_start(100);
    simulation.scale.idle = ms(1_000);
    let requests = [(0, 10), (50, 60), (500, 10), (2_000, 10)];
    let outcome = simulation.run(load(&requests, 3_000), &demand);
    assert_eq!(outcome.invocations, 4);
    assert_eq!(
        (outcome.cold, outcome.cold_shared, outcome.queued),
        (2, 1, 0)
    );
    assert_near(outcome.cold_wait_s, 0.260);
    assert_eq!((outcome.forks, outcome.workers_max), (2, 1));
    assert_near(outcome.worker_s, 1.510 + 1.000);
    assert_near(outcome.gb_s, 2.510);
    assert_near(outcome.busy_s, 0.090);
    assert_near(outcome.span_s, 3.0);
    assert_near(outcome.wait.max_ms, 100.0);
    assert_eq!(outcome.memory_max_bytes, 1 << 30);
}

/// At most one worker, a start takes 100 ms: A (0, 50 ms) is cold. B (120, 10 ms) arrives while A runs, waits for it until 150,
/// and is warm. C (130, 10 ms) waits until 160.
#[test]
fn who_waits_for_a_busy_worker_is_queued_and_not_cold() {
    let mut simulation = with_start(100);
    simulation.scale.max = 1;
    let outcome = simulation.run(load(&[(0, 50), (120, 10), (130, 10)], 1_000), &demand);
    assert_eq!(
        (outcome.cold, outcome.cold_shared, outcome.queued),
        (1, 0, 2)
    );
    assert_near(outcome.queue_wait_s, 0.060);
    assert_near(outcome.cold_wait_s, 0.100);
}

/// A tick at 0 ms orders two workers, which are ready at 100 ms. A request at 40 ms waits 60 ms for one of them: shared, because
/// no request caused that start. Both are kept to the end.
#[test]
fn who_waits_for_a_start_of_the_forecast_is_cold_by_another_and_the_forecasts_workers_stay() {
    let mut simulation = with_start(100);
    simulation.scale.idle = ms(10);
    let outcome = simulation.run(load(&[(40, 5)], 2_000), &hold(2));
    assert_eq!((outcome.cold, outcome.cold_shared), (0, 1));
    assert_near(outcome.cold_wait_s, 0.060);
    assert_eq!(outcome.forks, 2);
    assert_near(outcome.worker_s, 4.0);
    assert_eq!(outcome.ticks, 9);
}

#[test]
fn what_comes_before_the_load_costs_nothing_and_makes_it_warm() {
    let mut simulation = with_start(100);
    simulation.lead = ms(500);
    let outcome = simulation.run(load(&[(0, 5)], 1_000), &hold(1));
    assert_eq!(outcome.cold + outcome.cold_shared, 0);
    assert_near(outcome.worker_s, 1.0);
    assert_near(outcome.span_s, 1.0);
}

#[test]
fn a_start_that_is_under_way_at_the_end_is_counted_until_then() {
    let outcome = with_start(10_000).run(load(&[], 3_000), &hold(1));
    assert_near(outcome.worker_s, 3.0);
    assert_eq!(outcome.forks, 1);
}

/// One CPU. A start computes 40 ms of its 100, an invocation 20 ms of its 50. Two workers are held. A request at 0 ends at
/// 50. Two at 500 share the CPU: each computes for 40 ms, and ends at 500 + 40 + 30.
#[test]
fn who_shares_a_cpu_takes_longer_and_that_is_beyond_service() {
    let mut simulation = with_start(100);
    simulation.lead = ms(1_000);
    simulation.costs.cpus = Some(CpuCosts {
        cores: 1.0,
        start: ms(40),
        service: ms(20),
    });
    let outcome = simulation.run(load(&[(0, 50), (500, 50), (500, 50)], 1_000), &hold(2));
    assert_eq!(outcome.cold + outcome.cold_shared + outcome.queued, 0);
    assert_near(outcome.beyond_service.max_ms, 20.0);
    assert_near(outcome.wait.max_ms, 0.0);
    assert_near(outcome.busy_s, 0.050 + 0.070 + 0.070);
    // Two starts that are ordered at once: each computes for 80 ms, and takes 60 ms more.
    simulation.lead = ms(0);
    let outcome = simulation.run(load(&[(0, 50)], 1_000), &hold(2));
    assert_eq!((outcome.cold, outcome.cold_shared), (0, 1));
    assert_near(outcome.cold_wait_s, 0.140);
}

#[test]
fn what_the_load_says_goes_before_the_costs_unless_they_insist() {
    let mut simulation = with_start(0);
    simulation.costs.service = Times::constant(ms(70));
    simulation.costs.worker_bytes = 1 << 29;
    let run = |simulation: &Simulation| simulation.run(load(&[(0, 50)], 1_000), &hold(1));
    let outcome = run(&simulation);
    assert_near(outcome.busy_s, 0.050);
    assert_near(outcome.gb_s, 1.0);
    simulation.costs.insist = true;
    let outcome = run(&simulation);
    assert_near(outcome.busy_s, 0.070);
    assert_near(outcome.gb_s, 0.5);
}

#[test]
fn a_full_queue_refuses() {
    let mut simulation = with_start(100);
    simulation.queue_max = 2;
    simulation.scale.max = 1;
    let outcome = simulation.run(load(&[(0, 1); 5], 1_000), &demand);
    assert_eq!((outcome.invocations, outcome.refused), (2, 3));
}

#[test]
fn templates_cost_their_memory_all_the_time() {
    let mut simulation = with_start(1);
    simulation.costs.template_bytes = 1 << 29;
    let outcome = simulation.run(load(&[], 4_000), &demand);
    assert_near(outcome.template_gb_s, 2.0);
    assert_near(outcome.gb_s, 2.0);
}

/// The limit applies to a release build; a debug build only shows that it runs.
#[test]
fn a_million_invocations_take_less_than_a_second() {
    let number = if cfg!(debug_assertions) {
        50_000
    } else {
        1_000_000
    };
    let arrivals = (0..number).map(|number| Arrival {
        at: Duration::from_micros(number * 250),
        function: 0,
        service: Some(ms(5)),
    });
    let load = Load {
        functions: vec![Function::default()],
        span: Duration::from_micros(number * 250),
        arrivals,
    };
    let begun = std::time::Instant::now();
    let outcome = Simulation::default().run(load, &hold(25));
    let took = begun.elapsed();
    assert_eq!(outcome.invocations, number);
    assert!(
        cfg!(debug_assertions) || took < Duration::from_secs(1),
        "{took:?}"
    );
}

#[test]
fn nobody_to_ask_and_nobody_who_asks_is_no_trouble() {
    let nothing = Load {
        functions: Vec::new(),
        span: Duration::ZERO,
        arrivals: Vec::new(),
    };
    assert_eq!(Simulation::default().run(nothing, &demand).invocations, 0);
    let to_nobody = Load {
        functions: Vec::new(),
        span: Duration::ZERO,
        arrivals: load(&[(0, 1)], 0).arrivals,
    };
    assert_eq!(Simulation::default().run(to_nobody, &demand).invocations, 0);
}

prop_compose! {
    fn any_simulation()(
        start in 0_u64..1_500,
        max in 1_u32..8,
        min in 0_u32..3,
        spare in 0_u32..3,
        idle in 0_u64..3_000,
        concurrency in 1_u32..4,
        once in any::<bool>(),
        queue_max in 1_usize..30,
        lead in 0_u64..2_000,
        cpus in prop::option::of((1_u32..4, 0_u64..300, 0_u64..300)),
    ) -> Simulation {
        let mut simulation = with_start(start);
        simulation.scale.max = max;
        simulation.scale.min = min.min(max);
        simulation.scale.spare = spare.min(max);
        simulation.scale.idle = ms(idle);
        simulation.concurrency = if once { 1 } else { concurrency };
        simulation.reuse = if once { Reuse::Once } else { Reuse::Always };
        simulation.queue_max = queue_max;
        simulation.lead = ms(lead);
        simulation.costs.cpus = cpus.map(|(cores, start, service)| CpuCosts {
            cores: f64::from(cores),
            start: ms(start),
            service: ms(service),
        });
        simulation
    }
}

fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0_u64..20_000, 0_u64..2_000), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_served_or_refused_once_and_the_sums_agree(
        simulation in any_simulation(),
        requests in requests(),
        held in prop::option::of(0_u32..6),
    ) {
        let outcome = match held {
            Some(workers) => simulation.run(load(&requests, 20_000), &hold(workers)),
            None => simulation.run(load(&requests, 20_000), &demand),
        };
        prop_assert_eq!(outcome.invocations + outcome.refused, requests.len() as u64);
        prop_assert!(outcome.cold + outcome.cold_shared + outcome.queued <= outcome.invocations);
        prop_assert!(outcome.workers_max <= u64::from(simulation.scale.max));
        let slots = f64::from(simulation.concurrency);
        prop_assert!(outcome.worker_s * slots >= outcome.busy_s - 1e-6, "{:?}", outcome);
        prop_assert!((outcome.gb_s - outcome.worker_s).abs() < 1e-6);
        let waited_ms = outcome.wait.mean_ms * outcome.invocations as f64;
        let sums = (outcome.cold_wait_s + outcome.queue_wait_s) * 1e3;
        prop_assert!((waited_ms - sums).abs() < 1e-3, "{} {}", waited_ms, sums);
        prop_assert!(outcome.wait.p50_ms <= outcome.wait.p99_ms);
        prop_assert!(outcome.wait.mean_ms <= outcome.beyond_service.mean_ms + 1e-6);
        prop_assert!(outcome.wait.p99_ms <= outcome.wait.max_ms);
        let most = simulation.scale.max as f64 * outcome.span_s;
        prop_assert!(outcome.worker_s <= most + 1e-6);
    }

    #[test]
    fn the_same_again_gives_the_same(simulation in any_simulation(), requests in requests()) {
        let mut simulation = simulation;
        let times = Times::from_percentiles_ms(&[(0.0, 1.0), (50.0, 20.0), (100.0, 900.0)]);
        simulation.costs.start = times.unwrap();
        let first = simulation.run(load(&requests, 20_000), &hold(2));
        let again = simulation.run(load(&requests, 20_000), &hold(2));
        prop_assert_eq!(&first, &again);
    }

    #[test]
    fn with_as_many_workers_as_requests_at_once_nobody_is_cold_after_the_first_start(
        start in 0_u64..1_500,
        requests in requests(),
        idle in 0_u64..3_000,
    ) {
        let mut simulation = with_start(start);
        simulation.scale.max = 1_000;
        simulation.scale.idle = ms(idle);
        // At most, all of them run at the same time.
        let peak = u32::try_from(requests.len()).unwrap();
        simulation.lead = ms(start);
        let outcome = simulation.run(load(&requests, 20_000), &hold(peak));
        prop_assert_eq!(outcome.cold + outcome.cold_shared + outcome.queued, 0);
        prop_assert_eq!(outcome.forks, u64::from(peak));
    }

    #[test]
    fn keeping_idle_workers_longer_takes_more_memory_where_nobody_ever_waits_for_another(
        gaps in prop::collection::vec(100_u64..8_000, 1..40),
        start in 1_u64..50,
        idle in 0_u64..4_000,
        more in 0_u64..4_000,
    ) {
        // Each request ends before the next one arrives: only the idle time differs.
        let mut at = 0;
        let requests: Vec<(u64, u64)> = gaps.iter().map(|gap| { at += gap; (at, 20) }).collect();
        let run = |idle| {
            let mut simulation = with_start(start);
            simulation.scale.idle = ms(idle);
            simulation.run(load(&requests, at + 10_000), &demand)
        };
        let (short, long) = (run(idle), run(idle + more));
        prop_assert!(long.cold <= short.cold);
        // A saved start can cost more than the idle time that saves it, so this much may be missing.
        let saved = (short.forks - long.forks) as f64 * start as f64 / 1e3;
        prop_assert!(long.gb_s >= short.gb_s - saved - 1e-6, "{} {}", short.gb_s, long.gb_s);
    }
}
