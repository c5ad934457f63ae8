//! `pilot simulate`: what policies would have done to a workload, side by side. Needs no daemon.
//!
//! Every profile at every start cost is a cell; every policy is simulated in every cell. What is typed becomes a list of
//! runs (`simulate/meant.rs`), which run here side by side; `simulate/table.rs` prints them.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use pilot_forecast::simulate::{Cell, Comparison, Simulation, WEIGHTS};
use pilot_model::{Reuse, ScaleConfig};
use pilot_workload::Profile;
use serde::Serialize;

use super::output;

mod meant;
mod table;

/// What `pilot simulate` takes.
#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// Workloads: profiles of `pilot bench load`. Values of one alone are replaced with @KEY=VALUE behind it
    #[arg(required = true, value_name = "PROFILE[@KEY=VALUE…]")]
    profiles: Vec<String>,
    /// Policies to compare, as in a manifest: `auto`, `static:4`, `cusum:h=6`. May be repeated; without: every policy but
    /// arima, whose ticks cost a thousand times those of the others
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// What a start takes, milliseconds; several make several columns: 2,100,900. Without: 2
    #[arg(long, value_name = "MS,…", value_delimiter = ',')]
    start_ms: Vec<f64>,
    /// What a start takes, as measured: a JSON file with `samples_ms` or `percentiles_ms`, or what `pilot bench cold --json
    /// --samples` wrote. May be repeated
    #[arg(long, value_name = "FILE")]
    start_file: Vec<PathBuf>,
    /// What an invocation takes of which the trace says nothing, milliseconds. Without: 5
    #[arg(long, value_name = "MS", conflicts_with = "service_file")]
    service_ms: Option<f64>,
    /// The same as measured: a file like that of `--start-file`
    #[arg(long, value_name = "FILE")]
    service_file: Option<PathBuf>,
    /// Memory of a worker of which the trace says nothing, MB
    #[arg(long, value_name = "MB", default_value_t = 12.0)]
    worker_mb: f64,
    /// These two hold for traces that say otherwise, too
    #[arg(long)]
    insist: bool,
    /// Memory of each function's template, MB; held all the time
    #[arg(long, value_name = "MB", default_value_t = 0.0)]
    template_mb: f64,
    #[command(flatten)]
    cpu: CpuOptions,
    #[command(flatten)]
    scale: ScaleOptions,
    /// Of the times that are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The functions are deployed so long before the load begins, seconds
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    lead_s: f64,
    /// Each cell so many times, with other drawn times and the forecasters' ticks at other moments of the load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    trials: u32,
    /// A value of all profiles to replace: seed=2, time_scale=2, trace.minutes=10. May be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The folder that traces are relative to, in place of the profile's own
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Simulations at the same time. Without: one per CPU
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What waits for a CPU; without `--cores` nothing does.
#[derive(Debug, Args)]
#[command(next_help_heading = "CPUs that starts and invocations share")]
struct CpuOptions {
    /// How many there are. Without: nothing waits for a CPU
    #[arg(long, value_name = "N")]
    cores: Option<f64>,
    /// What of a start is computing, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "cores")]
    start_cpu: f64,
    /// What of an invocation is computing, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "cores")]
    service_cpu: f64,
}

/// The `scale` table of every function, and `concurrency` and `reuse` beside it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings of the functions, as in a manifest")]
struct ScaleOptions {
    /// Workers kept whatever happens
    #[arg(long, value_name = "N", default_value_t = 0)]
    min: u32,
    /// Most workers of a function at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    max: u32,
    /// Idle workers kept ready beyond the busy ones while the function is hot
    #[arg(long, value_name = "N", default_value_t = 0)]
    parked: u32,
    /// Idle workers are reaped after this, seconds
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    idle_s: f64,
    /// Invocations that one worker serves at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    concurrency: u32,
    /// A worker serves one invocation in its life
    #[arg(long, conflicts_with = "concurrency")]
    once: bool,
    /// Most requests of a function that wait
    #[arg(long, value_name = "N", default_value_t = 1000)]
    queue: usize,
}

/// One policy in one cell.
#[derive(Debug)]
struct Run<'a> {
    profile: &'a Profile,
    name: &'a str,
    start: &'a str,
    simulation: Simulation,
}

/// What is printed with `--json`.
#[derive(Debug, Serialize)]
struct Report {
    settings: Settings,
    weights: [f64; 3],
    #[serde(flatten)]
    comparison: Comparison,
    speed: Speed,
}

/// What every run had in common.
#[derive(Debug, Clone, Serialize)]
struct Settings {
    min: u32,
    max: u32,
    parked: u32,
    idle_s: f64,
    concurrency: u32,
    once: bool,
    queue: usize,
    lead_s: f64,
    seed: u64,
    cores: Option<f64>,
}

/// How fast it was simulated: the one part of a report that is not the same every time.
#[derive(Debug, Clone, Copy, Serialize)]
struct Speed {
    /// Of all runs.
    invocations: u64,
    /// Of all runs.
    ticks: u64,
    /// Sum over the runs, however many there were at the same time.
    core_s: f64,
    /// Invocations divided by that.
    invocations_per_s: f64,
}

/// Simulates, and prints what came of it.
pub(super) fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let policies = meant::policies(&args.policies)?;
    let starts = meant::starts(args)?;
    let base = meant::simulation(args)?;
    let profiles = meant::profiles(args)?;
    let trials: Vec<Simulation> = (0..args.trials).map(|trial| nth(&base, trial)).collect();
    let mut named: Vec<(String, &Profile, &Simulation)> = Vec::new();
    for (name, profile) in &profiles {
        for (number, trial) in (1..).zip(&trials) {
            let name = match number {
                1 => name.clone(),
                more => format!("{name}#{more}"),
            };
            named.push((name, profile, trial));
        }
    }
    let mut runs = Vec::new();
    for (name, profile, trial) in &named {
        for (start, times) in &starts {
            for policy in &policies {
                let mut simulation = (*trial).clone();
                simulation.scale.policy = *policy;
                simulation.costs.start = times.clone();
                runs.push(Run {
                    profile,
                    name,
                    start,
                    simulation,
                });
            }
        }
    }
    let jobs = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let (cells, took) = simulate(&runs, jobs.clamp(1, runs.len()));
    let speed = speed(&cells, took);
    let comparison = Comparison::new(cells);
    if args.json {
        return output::print_json(&Report {
            settings: Settings::of(&base),
            weights: WEIGHTS,
            comparison,
            speed,
        });
    }
    output::print(&table::render(&comparison, speed))
}

/// The same daemon in another trial: another seed, and deployed a little earlier. The moments are spread evenly over the longest
/// pause between two ticks that a policy has by default.
fn nth(base: &Simulation, trial: u32) -> Simulation {
    let share = (f64::from(trial) * GOLDEN).fract();
    Simulation {
        lead: base.lead + TICK_MAX.mul_f64(share),
        seed: base.seed.wrapping_add(u64::from(trial)),
        ..base.clone()
    }
}

const TICK_MAX: Duration = Duration::from_secs(2);
/// The golden ratio's fraction: its multiples fill an interval evenly, however many are taken.
const GOLDEN: f64 = 0.618_033_988_749_895;

impl Settings {
    fn of(simulation: &Simulation) -> Self {
        let scale = &simulation.scale;
        Self {
            min: scale.min,
            max: scale.max,
            parked: scale.parked,
            idle_s: scale.idle.as_secs_f64(),
            concurrency: simulation.concurrency,
            once: simulation.reuse == Reuse::Once,
            queue: simulation.queue_max,
            lead_s: simulation.lead.as_secs_f64(),
            seed: simulation.seed,
            cores: simulation.costs.cpus.map(|cpus| cpus.cores),
        }
    }
}

/// Runs all, `jobs` at the same time; in the order in which they were given, with the time they took together.
fn simulate(runs: &[Run<'_>], jobs: usize) -> (Vec<Cell>, Duration) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(runs.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(run) = runs.get(at)
                {
                    let begun = Instant::now();
                    let outcome = run
                        .simulation
                        .run_profile(run.profile, &|scale: &ScaleConfig| {
                            pilot_forecast::forecaster(&scale.policy, scale)
                        });
                    let took = begun.elapsed();
                    let policy = run.simulation.scale.policy.to_string();
                    let cell = Cell::new(run.name, run.start, &policy, outcome);
                    let mut done = done
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((at, cell, took));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, ..)| *at);
    let took = done.iter().map(|(_, _, took)| *took).sum();
    (done.into_iter().map(|(_, cell, _)| cell).collect(), took)
}

fn speed(cells: &[Cell], took: Duration) -> Speed {
    let invocations = cells.iter().map(|cell| cell.outcome.invocations).sum();
    let core_s = took.as_secs_f64();
    Speed {
        invocations,
        ticks: cells.iter().map(|cell| cell.outcome.ticks).sum(),
        core_s,
        invocations_per_s: invocations as f64 / core_s.max(1e-9),
    }
}
