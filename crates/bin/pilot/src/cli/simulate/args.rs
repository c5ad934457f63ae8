//! The options of `pilot simulate`, as typed. `resolve` resolves them.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use pilot_model::StartRule;

/// The arguments of `pilot simulate`.
#[derive(Debug, Args)]
pub(in crate::cli) struct SimulateArgs {
    /// Workloads: profiles as for `pilot bench load`. @KEY=VALUE replaces a value in one of them
    #[arg(required = true, value_name = "PROFILE[@KEY=VALUE…]")]
    pub(super) profiles: Vec<String>,
    /// A policy to compare, as in pilot.toml: auto, static:4, cusum:h=6; may be repeated [default: every policy except
    /// arima, whose ticks take a thousand times as long]
    #[arg(long = "policy", value_name = "POLICY")]
    pub(super) policies: Vec<String>,
    /// Time of a start, milliseconds; a list such as 2,100,900 gives a column each [default: 2]
    #[arg(long, value_name = "MS,…", value_delimiter = ',')]
    pub(super) start_ms: Vec<f64>,
    /// Measured times of starts: a JSON file with `samples_ms` or `percentiles_ms`, or the output of `pilot bench cold --json
    /// --samples`; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) start_file: Vec<PathBuf>,
    /// Time of an invocation if the trace has none, milliseconds [default: 5]
    #[arg(long, value_name = "MS", conflicts_with = "service_file")]
    pub(super) service_ms: Option<f64>,
    /// Measured times of invocations: a file as for `--start-file`
    #[arg(long, value_name = "FILE")]
    pub(super) service_file: Option<PathBuf>,
    /// Memory of a worker if the trace has none, MB
    #[arg(long, value_name = "MB", default_value_t = 12.0)]
    pub(super) worker_mb: f64,
    /// Use the service time and the memory given here even if the trace has its own
    #[arg(long)]
    pub(super) insist: bool,
    /// Memory of each function's template, MB, which is held all the time
    #[arg(long, value_name = "MB", default_value_t = 0.0)]
    pub(super) template_mb: f64,
    /// Seed of the random times
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Time between the deployment of the functions and the beginning of the load, seconds
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub(super) lead_s: f64,
    /// Number of trials per cell, each with other random times and other tick times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) trials: u32,
    /// Replace a value in all profiles: seed=2, time_scale=2, trace.minutes=10; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// The folder of the traces, instead of the profile's own folder
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Number of simulations at the same time [default: one per CPU]
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// Print as JSON
    #[arg(long)]
    pub(super) json: bool,
    // These begin groups of the help, so no option of this struct may follow them.
    #[command(flatten)]
    pub(super) cpu: CpuOptions,
    #[command(flatten)]
    pub(super) scale: ScaleOptions,
}

/// The model of CPU time. Without `--cores` there are enough CPUs for everything.
#[derive(Debug, Args)]
#[command(next_help_heading = "CPUs that starts and invocations share")]
pub(super) struct CpuOptions {
    /// Number of CPUs [default: unlimited]
    #[arg(long, value_name = "N")]
    pub(super) cores: Option<f64>,
    /// CPU time of a start, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "cores")]
    pub(super) start_cpu: f64,
    /// CPU time of an invocation, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "cores")]
    pub(super) service_cpu: f64,
}

/// The `scale` table of every function, and `concurrency` and `reuse`.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Settings of the functions (pilot.toml) and of the daemon (pilotd.toml)"
)]
pub(super) struct ScaleOptions {
    /// Lowest number of workers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) min: u32,
    /// Highest number of workers of a function
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) max: u32,
    /// Idle workers kept ready in addition to the busy ones, while the function is in use
    #[arg(long, alias = "parked", value_name = "N", default_value_t = 0)]
    pub(super) spare: u32,
    /// Idle workers end after this time, seconds
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub(super) idle_s: f64,
    /// Highest number of simultaneous invocations of a worker
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) concurrency: u32,
    /// Each worker serves only one invocation
    #[arg(long, conflicts_with = "concurrency")]
    pub(super) once: bool,
    /// Highest number of waiting requests of a function: limits.queue of the daemon
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) queue: usize,
    /// When another worker is started for requests that wait: pool.start_rule of the daemon
    #[arg(long, value_name = "RULE", default_value_t = StartRule::default())]
    pub(super) start_rule: StartRule,
}
