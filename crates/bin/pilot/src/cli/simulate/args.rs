//! The options of `pilot simulate`, as they are typed. `resolve` says what they mean.

use std::path::PathBuf;

use clap::Args;

/// What `pilot simulate` takes.
#[derive(Debug, Args)]
pub(in crate::cli) struct SimulateArgs {
    /// Workloads: profiles of `pilot bench load`. Values of one alone are replaced with @KEY=VALUE behind it
    #[arg(required = true, value_name = "PROFILE[@KEY=VALUE…]")]
    pub(super) profiles: Vec<String>,
    /// Policies to compare, as in a manifest: `auto`, `static:4`, `cusum:h=6`. May be repeated; without: every policy but
    /// arima, whose ticks cost a thousand times those of the others
    #[arg(long = "policy", value_name = "POLICY")]
    pub(super) policies: Vec<String>,
    /// What a start takes, milliseconds; several make several columns: 2,100,900. Without: 2
    #[arg(long, value_name = "MS,…", value_delimiter = ',')]
    pub(super) start_ms: Vec<f64>,
    /// What a start takes, as measured: a JSON file with `samples_ms` or `percentiles_ms`, or what `pilot bench cold --json
    /// --samples` wrote. May be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) start_file: Vec<PathBuf>,
    /// What an invocation takes of which the trace says nothing, milliseconds. Without: 5
    #[arg(long, value_name = "MS", conflicts_with = "service_file")]
    pub(super) service_ms: Option<f64>,
    /// The same as measured: a file like that of `--start-file`
    #[arg(long, value_name = "FILE")]
    pub(super) service_file: Option<PathBuf>,
    /// Memory of a worker of which the trace says nothing, MB
    #[arg(long, value_name = "MB", default_value_t = 12.0)]
    pub(super) worker_mb: f64,
    /// These two hold for traces that say otherwise, too
    #[arg(long)]
    pub(super) insist: bool,
    /// Memory of each function's template, MB; held all the time
    #[arg(long, value_name = "MB", default_value_t = 0.0)]
    pub(super) template_mb: f64,
    #[command(flatten)]
    pub(super) cpu: CpuOptions,
    #[command(flatten)]
    pub(super) scale: ScaleOptions,
    /// Of the times that are drawn
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// The functions are deployed so long before the load begins, seconds
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub(super) lead_s: f64,
    /// Each cell so many times, with other drawn times and the forecasters' ticks at other moments of the load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) trials: u32,
    /// A value of all profiles to replace: seed=2, time_scale=2, trace.minutes=10. May be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// The folder that traces are relative to, in place of the profile's own
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Simulations at the same time. Without: one per CPU
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<usize>,
    /// Print as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// What waits for a CPU; without `--cores` nothing does.
#[derive(Debug, Args)]
#[command(next_help_heading = "CPUs that starts and invocations share")]
pub(super) struct CpuOptions {
    /// How many there are. Without: nothing waits for a CPU
    #[arg(long, value_name = "N")]
    pub(super) cores: Option<f64>,
    /// What of a start is computing, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "cores")]
    pub(super) start_cpu: f64,
    /// What of an invocation is computing, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "cores")]
    pub(super) service_cpu: f64,
}

/// The `scale` table of every function, and `concurrency` and `reuse` beside it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings of the functions, as in a manifest")]
pub(super) struct ScaleOptions {
    /// Workers kept whatever happens
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) min: u32,
    /// Most workers of a function at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) max: u32,
    /// Idle workers kept ready beyond the busy ones while the function is hot
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) parked: u32,
    /// Idle workers are reaped after this, seconds
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub(super) idle_s: f64,
    /// Invocations that one worker serves at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) concurrency: u32,
    /// A worker serves one invocation in its life
    #[arg(long, conflicts_with = "concurrency")]
    pub(super) once: bool,
    /// Most requests of a function that wait
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) queue: usize,
}
