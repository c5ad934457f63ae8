//! `pilot profile`: what CPU bandwidth control does to a function, seen from inside and by the model.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use pilot_meter::infer::Throttle;
use pilot_meter::quota::Limit;

use super::failure::Failure;
use super::output;

mod group;
mod infer;
mod model;
mod sched;
mod spin;

/// The arguments of `pilot profile`.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    #[command(subcommand)]
    verb: ProfileVerb,
}

#[derive(Debug, Subcommand)]
enum ProfileVerb {
    /// Run a loop under a CPU quota, and write down when it had no CPU
    Sched(sched::SchedArgs),
    /// Infer period, quota and tick rate from a log of throttles
    Infer(infer::InferArgs),
    /// Print the log of throttles that the model of the scheduler computes for a quota
    Model(model::ModelArgs),
    /// Print how long a task takes with each share of a CPU: ideally, by Equation (2) and by the model
    Durations(model::DurationsArgs),
    /// The loop of `sched`, in the group that it was put into
    #[command(hide = true)]
    Spin(spin::SpinArgs),
}

/// Runs the command.
pub(super) fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    match &args.verb {
        ProfileVerb::Sched(args) => sched::run(args),
        ProfileVerb::Infer(args) => infer::run(args),
        ProfileVerb::Model(args) => model::run(args),
        ProfileVerb::Durations(args) => model::durations(args),
        ProfileVerb::Spin(args) => spin::run(args),
    }
}

/// Quota and period, as the kernel's files take them.
#[derive(Debug, Args)]
struct LimitArgs {
    /// CPU time in each period, microseconds
    #[arg(long, value_name = "US")]
    quota: u64,
    /// The period, microseconds
    #[arg(long, value_name = "US", default_value_t = 100_000)]
    period: u64,
}

impl LimitArgs {
    fn check(&self) -> Result<Limit, Failure> {
        Limit::new(self.period, self.quota).map_err(Failure::usage)
    }
}

/// A log in the form that `infer` reads.
#[derive(serde::Serialize, serde::Deserialize)]
struct Log {
    /// Readings of the clock; 0 if nothing was measured.
    #[serde(default)]
    probes: u64,
    /// When the task noticed that it runs again, nanoseconds since the beginning, and for how long it had not.
    data: Vec<(u64, u64)>,
}

impl Log {
    fn of(throttles: &[Throttle]) -> Self {
        Self {
            probes: 0,
            data: throttles
                .iter()
                .map(|throttle| (throttle.noticed_ns, throttle.lasted_ns))
                .collect(),
        }
    }

    /// Prints it, or writes it to a file.
    fn write(&self, to: Option<&PathBuf>) -> anyhow::Result<()> {
        let mut text = serde_json::to_string(self)?;
        text.push('\n');
        let Some(path) = to else {
            return output::print_bytes(text.as_bytes());
        };
        fs::write(path, text).map_err(|error| {
            Failure::usage(format!("cannot write {}: {error}", path.display())).into()
        })
    }
}

/// Longest run, seconds. A run of Algorithm 1 notes at most 2,000 throttles per second.
const SECONDS_MAX: u64 = 600;
