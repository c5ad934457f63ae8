//! `pilot profile sched`: Algorithm 1 in a group with a quota.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use pilot_meter::infer::Throttle;

use super::super::failure::Failure;
use super::super::output;
use super::group::Group;
use super::{LimitArgs, Log, SECONDS_MAX, infer};

/// The arguments of `pilot profile sched`.
#[derive(Debug, Args)]
pub(super) struct SchedArgs {
    #[command(flatten)]
    limit: LimitArgs,
    /// How long the loop runs, seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Write the log to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Measures, writes the log, and says on standard error what is in it.
pub(super) fn run(args: &SchedArgs) -> anyhow::Result<()> {
    let LimitArgs { quota, period } = args.limit;
    if !PERIOD_US.contains(&period) || quota < QUOTA_US_MIN {
        let problem = format!(
            "the kernel takes periods of {} to {} us and quotas from {QUOTA_US_MIN} us on",
            PERIOD_US.start(),
            PERIOD_US.end()
        );
        return Err(Failure::usage(problem).into());
    }
    let group = Group::make(period, quota).map_err(Failure::usage)?;
    let mut spinning = Spinning::start(args.seconds)?;
    group
        .add(spinning.0.id())
        .map_err(|problem| anyhow::anyhow!(problem))?;
    let log = spinning.measure()?;
    let throttled = group.throttled();
    log.write(args.output.as_ref())?;
    output::note(&summary(&log, args.seconds, throttled));
    Ok(())
}

/// The process with the loop. It ends with this value.
struct Spinning(Child);

impl Spinning {
    fn start(seconds: u64) -> anyhow::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args(["profile", "spin", "--seconds", &seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        child.map(Self).context("cannot start the loop")
    }

    fn measure(&mut self) -> anyhow::Result<Log> {
        let stdin = self.0.stdin.take();
        let mut stdin = stdin.context("the loop has no standard input")?;
        stdin.write_all(b"\n").context("the loop has ended")?;
        let mut text = Vec::new();
        let stdout = self.0.stdout.take().context("the loop has no output")?;
        stdout
            .take(LOG_BYTES_MAX)
            .read_to_end(&mut text)
            .context("the loop's log cannot be read")?;
        let status = self.0.wait()?;
        if !status.success() {
            bail!("the loop ended with {status}");
        }
        serde_json::from_slice(&text).context("the loop's log is not whole")
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        // It has usually ended; then both do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn summary(log: &Log, seconds: u64, throttled: Option<u64>) -> String {
    let without: u64 = log.data.iter().map(|(_, lasted)| lasted).sum();
    let ran_ns = (seconds * 1_000_000_000).saturating_sub(without);
    let probe_ns = ran_ns / log.probes.max(1);
    let kernel =
        throttled.map_or_else(String::new, |times| format!("; the kernel counted {times}"));
    let share = ran_ns / (seconds * 1_000_000);
    let head = format!(
        "{} times without CPU in {seconds} s{kernel}; {}.{:03} CPU; a reading of the clock took {probe_ns} ns",
        log.data.len(),
        share / 1000,
        share % 1000,
    );
    let throttles = log.data.iter().map(|(noticed_ns, lasted_ns)| Throttle {
        noticed_ns: *noticed_ns,
        lasted_ns: *lasted_ns,
    });
    match infer::summary(&vec![throttles.collect()]) {
        Ok(found) => format!("{head}\n{}", found.trim_end()),
        Err(problem) => format!("{head}\n{problem}"),
    }
}

/// What the kernel accepts (tg_set_cfs_bandwidth() in kernel/sched/core.c).
const PERIOD_US: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
const QUOTA_US_MIN: u64 = 1_000;
/// Longest log of the loop: a number of 12 digits and one of 7 for each throttle.
const LOG_BYTES_MAX: u64 = 64 << 20;
