//! `pilot profile sched`: Algorithm 1 in a group with a quota.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use clap::Args;
use pilot_meter::infer::Throttle;

use super::super::failure::Failure;
use super::super::{interrupt, output};
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
    // First, so that no signal leaves the group behind. A group can be removed only when its processes have ended.
    let spinning = Spinning::default();
    let told = Arc::clone(&spinning.0);
    interrupt::on_end(move |code| lock(&told).end(code))?;
    let group = Group::make(period, quota).map_err(Failure::usage)?;
    let log = spinning.measured(&group, args.seconds);
    let told_to_end = lock(&spinning.0).told_to_end();
    drop(spinning);
    if let Some(failure) = told_to_end {
        return Err(failure.into());
    }
    let log = log?;
    let throttled = group.throttled();
    log.write(args.output.as_ref())?;
    output::note(&summary(&log, args.seconds, throttled));
    Ok(())
}

/// The process with the loop. It ends with this value, or when the command is told to end.
#[derive(Default)]
struct Spinning(Arc<Mutex<Running>>);

/// Held for a moment, and never while the loop runs.
#[derive(Default)]
struct Running {
    child: Option<Child>,
    /// The exit code of the signal that ended it.
    ended: Option<u8>,
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn end(&mut self, code: u8) {
        self.ended = Some(code);
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }

    fn told_to_end(&self) -> Option<Failure> {
        self.ended.map(|code| match code {
            interrupt::EXIT_CODE_TERMINATED => Failure::Terminated,
            _ => Failure::Interrupted,
        })
    }
}

impl Spinning {
    /// Starts the loop, and reads its log when it has ended.
    fn measured(&self, group: &Group, seconds: u64) -> anyhow::Result<Log> {
        let mut child = Command::new("/proc/self/exe")
            .args(["profile", "spin", "--seconds", &seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which ends the loop.
            .process_group(0)
            .spawn()
            .context("cannot start the loop")?;
        let (pid, stdin, stdout) = (child.id(), child.stdin.take(), child.stdout.take());
        {
            let mut running = lock(&self.0);
            running.child = Some(child);
            if let Some(code) = running.ended {
                running.end(code);
            }
        }
        group.add(pid).map_err(|problem| anyhow::anyhow!(problem))?;
        let mut stdin = stdin.context("the loop has no standard input")?;
        stdin.write_all(b"\n").context("the loop has ended")?;
        let mut text = Vec::new();
        let stdout = stdout.context("the loop has no output")?;
        stdout
            .take(LOG_BYTES_MAX)
            .read_to_end(&mut text)
            .context("the loop's log cannot be read")?;
        let status = lock(&self.0).child.as_mut().map(Child::wait);
        let status = status.context("the loop has no process")??;
        if !status.success() {
            bail!("the loop ended with {status}");
        }
        serde_json::from_slice(&text).context("the loop's log is not whole")
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        if let Some(child) = &mut lock(&self.0).child {
            // It has usually ended; then both do nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
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
