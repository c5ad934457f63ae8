//! `pilot simulate`: what policies would have done to a workload, side by side. Needs no daemon.
//!
//! Every profile at every start cost is a cell; every policy is simulated in every cell. What is typed becomes a list of
//! runs here; `simulate/table.rs` prints them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use pilot_forecast::simulate::{Cell, Comparison, Costs, CpuCosts, Simulation, Times, WEIGHTS};
use pilot_model::policy::Policy;
use pilot_model::{Reuse, ScaleConfig};
use pilot_workload::{Overrides, Profile};
use serde::Serialize;

use super::failure::Failure;
use super::output;

mod table;

/// What `pilot simulate` takes.
#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// Workloads: profiles of `pilot bench load`
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
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
    /// What an invocation takes, milliseconds. Without: what the trace says, else 5
    #[arg(long, value_name = "MS", conflicts_with = "service_file")]
    service_ms: Option<f64>,
    /// What an invocation takes, as measured: a file like that of `--start-file`
    #[arg(long, value_name = "FILE")]
    service_file: Option<PathBuf>,
    /// Memory of a worker, MB. Without: what the trace says, else 12
    #[arg(long, value_name = "MB")]
    worker_mb: Option<f64>,
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
    /// A value of the profiles to replace: time_scale=2, trace.minutes=10. May be repeated
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
    let policies = policies(&args.policies)?;
    let starts = starts(args)?;
    let base = simulation(args)?;
    let profiles = profiles(args)?;
    let mut runs = Vec::new();
    for profile in &profiles {
        for (start, times) in &starts {
            for policy in &policies {
                let mut simulation = base.clone();
                simulation.scale.policy = *policy;
                simulation.costs.start = times.clone();
                runs.push((profile, start.as_str(), simulation));
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
fn simulate(runs: &[(&Profile, &str, Simulation)], jobs: usize) -> (Vec<Cell>, Duration) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(runs.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some((profile, start, simulation)) = runs.get(at)
                {
                    let begun = Instant::now();
                    let outcome = simulation.run_profile(profile, &|scale: &ScaleConfig| {
                        pilot_forecast::forecaster(&scale.policy, scale)
                    });
                    let took = begun.elapsed();
                    let policy = simulation.scale.policy.to_string();
                    let cell = Cell::new(profile.name(), start, &policy, outcome);
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

fn policies(words: &[String]) -> anyhow::Result<Vec<Policy>> {
    if words.is_empty() {
        let all = Policy::all().into_iter();
        return Ok(all
            .filter(|policy| !matches!(policy, Policy::Arima(_)))
            .collect());
    }
    let policy = |word: &String| {
        word.parse()
            .map_err(|error: pilot_model::policy::PolicyError| {
                Failure::usage(format!("--policy {word}: {}", error.problem)).into()
            })
    };
    words.iter().map(policy).collect()
}

/// The start costs, each with its name.
fn starts(args: &SimulateArgs) -> anyhow::Result<Vec<(String, Times)>> {
    let mut starts = Vec::new();
    for ms in &args.start_ms {
        starts.push((format!("{ms} ms"), constant("--start-ms", *ms)?));
    }
    for file in &args.start_file {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        starts.push((name.into_owned(), measured(file)?));
    }
    if starts.is_empty() {
        starts.push(("2 ms".to_owned(), constant("--start-ms", 2.0)?));
    }
    Ok(starts)
}

fn simulation(args: &SimulateArgs) -> anyhow::Result<Simulation> {
    let scale = &args.scale;
    let service = match (&args.service_file, args.service_ms) {
        (Some(file), _) => Some(measured(file)?),
        (None, Some(ms)) => Some(constant("--service-ms", ms)?),
        (None, None) => None,
    };
    if scale.max == 0 || scale.concurrency == 0 || scale.min.max(scale.parked) > scale.max {
        let problem =
            "--max and --concurrency must be 1 or more, --min and --parked no more than --max";
        return Err(Failure::usage(problem).into());
    }
    Ok(Simulation {
        scale: ScaleConfig {
            min: scale.min,
            max: scale.max,
            parked: scale.parked,
            idle: seconds("--idle-s", scale.idle_s)?,
            policy: Policy::default(),
        },
        concurrency: scale.concurrency,
        reuse: if scale.once {
            Reuse::Once
        } else {
            Reuse::Always
        },
        queue_max: scale.queue,
        costs: Costs {
            service,
            worker_bytes: args
                .worker_mb
                .map(|mb| bytes("--worker-mb", mb))
                .transpose()?,
            template_bytes: bytes("--template-mb", args.template_mb)?,
            cpus: cpus(&args.cpu)?,
            ..Costs::default()
        },
        lead: seconds("--lead-s", args.lead_s)?,
        seed: args.seed,
    })
}

fn cpus(args: &CpuOptions) -> anyhow::Result<Option<CpuCosts>> {
    let Some(cores) = args.cores else {
        return Ok(None);
    };
    if !(0.01..=1e6).contains(&cores) {
        let problem = format!("--cores: is {cores}, must be from 0.01 to 1000000");
        return Err(Failure::usage(problem).into());
    }
    Ok(Some(CpuCosts {
        cores,
        start: seconds("--start-cpu", args.start_cpu / 1e3)?,
        service: seconds("--service-cpu", args.service_cpu / 1e3)?,
    }))
}

fn profiles(args: &SimulateArgs) -> anyhow::Result<Vec<Profile>> {
    let overrides = Overrides {
        data: args.data.clone(),
        set: args.set.clone(),
    };
    let read = |path: &PathBuf| Ok(Profile::read_with(path, &overrides)?);
    args.profiles.iter().map(read).collect()
}

fn measured(file: &Path) -> anyhow::Result<Times> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("{shown}: cannot be read"))?;
    Times::from_json(&text).with_context(|| shown.to_string())
}

fn constant(option: &str, ms: f64) -> anyhow::Result<Times> {
    Times::constant_ms(ms).map_err(|error| Failure::usage(format!("{option}: {error}")).into())
}

fn seconds(option: &str, seconds: f64) -> anyhow::Result<Duration> {
    let day = Some(seconds).filter(|seconds| (0.0..=86_400.0).contains(seconds));
    day.map(Duration::from_secs_f64).ok_or_else(|| {
        Failure::usage(format!("{option}: is {seconds}, must be from 0 to 86400")).into()
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be no less than nothing and no more than 2^20 MB"
)]
fn bytes(option: &str, mb: f64) -> anyhow::Result<u64> {
    if (0.0..=1_048_576.0).contains(&mb) {
        Ok((mb * 1_048_576.0) as u64)
    } else {
        Err(Failure::usage(format!("{option}: is {mb}, must be from 0 to 1048576")).into())
    }
}
