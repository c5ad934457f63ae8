//! `sweep`: simulates every combination of workload, start cost, policy, `idle_s` and rule of starts. `pilot simulate` compares
//! policies with the same settings; this gives each policy every setting, so that it can be compared at its best one.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use pilot_forecast::simulate::{Outcome, Simulation, Times};
use pilot_model::policy::Policy;
use pilot_model::{ScaleConfig, StartRule};
use pilot_workload::{Overrides, Profile};
use serde::Serialize;

/// The options of `sweep`.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Workloads: profiles as for `pilot bench load`. @KEY=VALUE replaces a value in one of them
    #[arg(required = true, value_name = "PROFILE[@KEY=VALUE…]")]
    profiles: Vec<String>,
    /// The folder of the traces
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A policy, as in a manifest; may be repeated
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    policies: Vec<Policy>,
    /// Times of a start, milliseconds
    #[arg(long, value_name = "MS,…", value_delimiter = ',', default_value = "2")]
    start_ms: Vec<f64>,
    /// Idle workers end after these times, seconds
    #[arg(long, value_name = "S,…", value_delimiter = ',', default_value = "60")]
    idle_s: Vec<f64>,
    /// When another worker is started for requests that wait; may be repeated
    #[arg(long = "start-rule", value_name = "RULE", default_value = "expected")]
    start_rules: Vec<StartRule>,
    /// Time of an invocation if the trace has none, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5.0)]
    service_ms: f64,
    /// Memory of a worker if the trace has none, MB
    #[arg(long, value_name = "MB", default_value_t = 12)]
    worker_mb: u64,
    /// Time between the deployment of the functions and the beginning of the load, seconds
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    lead_s: f64,
    /// Number of simulations at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
}

/// One simulation's settings and its result.
#[derive(Debug, Serialize)]
struct Row {
    profile: String,
    start_ms: f64,
    policy: String,
    idle_s: f64,
    start_rule: StartRule,
    #[serde(flatten)]
    outcome: Outcome,
}

/// One simulation.
struct Run<'a> {
    name: &'a str,
    profile: &'a Profile,
    start_ms: f64,
    idle_s: f64,
    simulation: Simulation,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    rows: Vec<Row>,
}

/// Runs all of them, in the order of their loops.
pub(crate) fn run(args: &SweepArgs) -> anyhow::Result<Document> {
    let profiles: Vec<(String, Profile)> = args
        .profiles
        .iter()
        .map(|word| read(word, args.data.as_deref()))
        .collect::<Result<_, _>>()?;
    let mut runs = Vec::new();
    for (name, profile) in &profiles {
        for start_ms in &args.start_ms {
            for policy in &args.policies {
                for idle_s in &args.idle_s {
                    for rule in &args.start_rules {
                        runs.push(Run {
                            name,
                            profile,
                            start_ms: *start_ms,
                            idle_s: *idle_s,
                            simulation: simulation(args, *start_ms, *idle_s, *policy, *rule)?,
                        });
                    }
                }
            }
        }
    }
    Ok(Document {
        rows: simulate(&runs, args.jobs.clamp(1, runs.len().max(1))),
    })
}

/// Reads `a.toml@seed=2@repeat=1`.
fn read(word: &str, data: Option<&Path>) -> anyhow::Result<(String, Profile)> {
    let (path, set) = word.split_once('@').map_or((word, ""), |cut| cut);
    let overrides = Overrides {
        data: data.map(Path::to_path_buf),
        set: set
            .split('@')
            .filter(|set| !set.is_empty())
            .map(str::to_owned)
            .collect(),
    };
    let profile = Profile::read_with(Path::new(path), &overrides)?;
    let name = match set {
        "" => profile.name().to_owned(),
        set => format!("{}@{set}", profile.name()),
    };
    Ok((name, profile))
}

fn simulation(
    args: &SweepArgs,
    start_ms: f64,
    idle_s: f64,
    policy: Policy,
    rule: StartRule,
) -> anyhow::Result<Simulation> {
    let seconds = |what: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds).with_context(|| format!("{what}: {seconds}"))
    };
    ensure!(args.worker_mb >= 1, "--worker-mb must be 1 or more");
    let mut simulation = Simulation {
        start_rule: rule,
        lead: seconds("--lead-s", args.lead_s)?,
        ..Simulation::default()
    };
    simulation.scale.policy = policy;
    simulation.scale.idle = seconds("--idle-s", idle_s)?;
    simulation.costs.start = Times::constant_ms(start_ms)?;
    simulation.costs.service = Times::constant_ms(args.service_ms)?;
    simulation.costs.worker_bytes = args.worker_mb << 20;
    Ok(simulation)
}

fn simulate(runs: &[Run<'_>], jobs: usize) -> Vec<Row> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(runs.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(run) = runs.get(at)
                {
                    let make =
                        |scale: &ScaleConfig| pilot_forecast::forecaster(&scale.policy, scale);
                    let row = Row {
                        profile: run.name.to_owned(),
                        start_ms: run.start_ms,
                        policy: run.simulation.scale.policy.to_string(),
                        idle_s: run.idle_s,
                        start_rule: run.simulation.start_rule,
                        outcome: run.simulation.run_profile(run.profile, &make),
                    };
                    let mut done = done
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((at, row));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, row)| row).collect()
}
