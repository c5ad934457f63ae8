//! The rules of starts in the simulator: on the Edge FaaS paper's ramp and step, and on other shapes.

#![expect(
    clippy::unwrap_used,
    reason = "tests: clippy knows #[test] functions as such, but not what they share"
)]

use std::path::PathBuf;
use std::time::Duration;

use pilot_forecast::simulate::{Outcome, Simulation, Times};
use pilot_model::{Policy, StartRule};
use pilot_workload::{Overrides, Profile};

const POLICIES: [&str; 4] = ["demand", "reactive", "cusum", "adaptive-cusum"];
const SHAPES: [&str; 4] = ["square", "two-ramps", "on-off", "random-walk"];

fn run(workload: &str, policy: &str, start_ms: u64, rule: StartRule) -> Outcome {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../bench/edge-faas/profiles");
    let path = folder.join(format!("{workload}.toml"));
    let profile = Profile::read_with(&path, &Overrides::default()).unwrap();
    let mut simulation = Simulation::default();
    simulation.scale.policy = policy.parse::<Policy>().unwrap();
    simulation.scale.idle = Duration::from_secs(6);
    simulation.costs.start = Times::constant(Duration::from_millis(start_ms));
    simulation.costs.service = Times::constant(Duration::from_millis(501));
    simulation.costs.worker_bytes = 5 << 20;
    simulation.lead = Duration::from_secs(2);
    simulation.start_rule = rule;
    simulation.run_profile(&profile, &|scale| {
        pilot_forecast::forecaster(&scale.policy, scale)
    })
}

/// Seconds that requests waited, for starts or for busy workers.
fn waited(outcome: &Outcome) -> f64 {
    outcome.cold_wait_s + outcome.queue_wait_s
}

/// Waiting and worker-seconds with one rule, divided by those with another.
fn ratios(workload: &str, policy: &str, start_ms: u64, rules: [StartRule; 2]) -> (f64, f64) {
    let [one, other] = rules.map(|rule| run(workload, policy, start_ms, rule));
    (waited(&one) / waited(&other), one.worker_s / other.worker_s)
}

#[test]
fn at_900_ms_no_queue_stays_on_the_papers_ramp_and_step() {
    let rules = [StartRule::Expected, StartRule::Sooner];
    for (workload, waiting_max, workers_max) in [("bursty-ramp", 0.1, 1.05), ("step", 0.35, 1.42)] {
        for policy in POLICIES {
            let (waiting, workers) = ratios(workload, policy, 900, rules);
            assert!(
                waiting <= waiting_max && workers <= workers_max,
                "{workload}, {policy}: {waiting:.3} of the waiting, {workers:.3} of the worker-seconds"
            );
        }
    }
}

#[test]
fn on_other_shapes_it_waits_less_than_sooner_and_starts_less_than_each() {
    for workload in SHAPES {
        for policy in ["demand", "adaptive-cusum"] {
            for start_ms in [100, 900, 3000] {
                let of = |other| ratios(workload, policy, start_ms, [StartRule::Expected, other]);
                let ((waiting, _), (more, workers)) = (of(StartRule::Sooner), of(StartRule::Each));
                assert!(
                    waiting <= 0.85 && more <= 1.25 && workers <= 1.01,
                    "{workload}, {policy}, {start_ms} ms: {waiting:.3} of sooner's waiting, {more:.3} of each's, {workers:.3} of its worker-seconds"
                );
            }
        }
    }
}

#[test]
fn a_start_of_20_ms_or_less_is_ordered_by_the_same_rule_whatever_its_name() {
    for workload in SHAPES {
        for start_ms in [2, 20] {
            let [sooner, each, expected] =
                StartRule::ALL.map(|rule| run(workload, "demand", start_ms, rule));
            assert_eq!(sooner, each, "{workload}, {start_ms} ms");
            assert_eq!(sooner, expected, "{workload}, {start_ms} ms");
        }
    }
}
