//! What `auto` promises against every other policy, on the Edge FaaS paper's workloads with three start costs, in the simulator.
//! The test of the traces needs the published data: `bench/edge-faas/run --only traces`.

#![expect(
    clippy::unwrap_used,
    reason = "tests: clippy knows #[test] functions as such, but not what they share"
)]

use std::path::PathBuf;
use std::time::Duration;

use pilot_forecast::simulate::{Cell, Comparison, Outcome, Simulation, Times};
use pilot_model::Policy;
use pilot_workload::{Overrides, Profile};

/// The policies of the paper's figure 4 that follow the load.
const ADAPTIVE: [&str; 4] = ["reactive", "cusum", "adaptive-cusum", "arima"];
const OTHERS: [&str; 5] = [
    "demand",
    "static:1",
    "static:15",
    "smoothing-markov",
    "histogram",
];

fn profile(file: &str, warm_up_s: Option<u32>) -> Profile {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../bench/edge-faas/profiles");
    let set = warm_up_s.map(|seconds| format!("warm-up.duration_s={seconds}"));
    let overrides = Overrides {
        set: set.into_iter().collect(),
        ..Overrides::default()
    };
    Profile::read_with(&folder.join(file), &overrides).unwrap()
}

fn workloads() -> Vec<(String, Profile)> {
    let intervals = [5, 10, 20, 35, 60, 120];
    let sweep = intervals.map(|w| {
        (
            format!("interval of {w} s"),
            profile("interval.toml", Some(w)),
        )
    });
    let mut all = Vec::from(sweep);
    all.push(("bursty ramp".to_owned(), profile("bursty-ramp.toml", None)));
    all.push(("step".to_owned(), profile("step.toml", None)));
    all
}

/// The paper's function: half a second, and the memory of our worker for it.
fn run(profile: &Profile, policy: &str, start_ms: u64) -> Outcome {
    let mut simulation = Simulation::default();
    simulation.scale.policy = policy.parse::<Policy>().unwrap();
    simulation.scale.idle = Duration::from_secs(6);
    simulation.costs.start = Times::constant(Duration::from_millis(start_ms));
    simulation.costs.service = Times::constant(Duration::from_millis(510));
    simulation.costs.worker_bytes = 3 << 20;
    simulation.run_profile(profile, &|scale| {
        pilot_forecast::forecaster(&scale.policy, scale)
    })
}

fn cells(start_ms: u64) -> Vec<Cell> {
    let policies = || std::iter::once("auto").chain(ADAPTIVE).chain(OTHERS);
    let mut cells = Vec::new();
    for (name, profile) in workloads() {
        for policy in policies() {
            let outcome = run(&profile, policy, start_ms);
            cells.push(Cell::new(&name, &start_ms.to_string(), policy, outcome));
        }
    }
    cells
}

#[test]
fn no_policy_but_a_pool_of_the_peaks_size_is_better_in_both_and_over_all_cells_none_costs_less() {
    let cells = [2, 100, 900].into_iter().flat_map(cells).collect();
    let comparison = Comparison::new(cells);
    for cell in comparison.cells.iter().filter(|cell| cell.policy == "auto") {
        // A pool that has exactly the step's workers before it comes knows what no forecast can know.
        let knows = |policy: &&String| *policy == "static:15" && cell.profile == "step";
        let better: Vec<_> = cell.dominated_by.iter().filter(|it| !knows(it)).collect();
        assert!(
            better.is_empty(),
            "{} at {} ms: {better:?} wait less and use less",
            cell.profile,
            cell.start,
        );
    }
    let auto = &comparison.standings[0];
    assert_eq!(auto.policy, "auto");
    // A static pool with exactly the peak's size is hard to beat if memory costs almost nothing, and only then.
    assert_eq!(auto.best[1..], [true, true], "{:?}", comparison.standings);
}

#[test]
fn at_a_start_of_900_ms_it_waits_less_than_those_of_the_papers_policies_that_adapt_and_use_no_more_memory()
 {
    let cells = cells(900);
    for auto in cells.iter().filter(|cell| cell.policy == "auto") {
        let rivals = cells.iter().filter(|cell| {
            cell.profile == auto.profile
                && ADAPTIVE.contains(&cell.policy.as_str())
                && cell.outcome.gb_s <= auto.outcome.gb_s
        });
        for rival in rivals {
            assert!(
                auto.outcome.cold_wait_s <= 0.6 * rival.outcome.cold_wait_s,
                "{}: {:.1} s, {} {:.1} s",
                auto.profile,
                auto.outcome.cold_wait_s,
                rival.policy,
                rival.outcome.cold_wait_s
            );
        }
    }
}

#[test]
fn at_a_start_of_100_ms_no_request_takes_more_than_700_ms() {
    for (name, profile) in workloads() {
        let outcome = run(&profile, "auto", 100);
        assert!(outcome.wait.max_ms < 190.0, "{name}: {:?}", outcome.wait);
    }
}
