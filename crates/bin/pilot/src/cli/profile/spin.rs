//! Algorithm 1 of the paper: a loop that reads the clock. A jump of the clock means that it had no CPU.
//!
//! It is a process of its own, so that it can be put into a group; it begins when it is told to on standard input, and ends with the
//! process that started it.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::{Log, SECONDS_MAX};

/// The arguments of the loop.
#[derive(Debug, Args)]
pub(super) struct SpinArgs {
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
}

/// Waits for a byte, runs the loop and prints its log.
pub(super) fn run(args: &SpinArgs) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Some(Signal::SIGKILL)).context("prctl(PR_SET_PDEATHSIG)")?;
    let mut told = [0];
    std::io::stdin()
        .read_exact(&mut told)
        .context("this command is internal: use `pilot profile sched`")?;
    let log = profile(Duration::from_secs(args.seconds));
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &log)?;
    out.flush()?;
    Ok(())
}

fn profile(total: Duration) -> Log {
    // Room for one in each millisecond, so that the loop hardly ever allocates.
    let mut data = Vec::with_capacity(usize::try_from(total.as_millis()).unwrap_or(0));
    let mut probes = 0_u64;
    let began = Instant::now();
    let mut last = began;
    loop {
        let now = Instant::now();
        probes += 1;
        let gap = now.duration_since(last);
        if gap >= GAP_MIN {
            data.push((nanos(now.duration_since(began)), nanos(gap)));
        }
        last = now;
        if now.duration_since(began) >= total {
            return Log { probes, data };
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A shorter jump of the clock is no throttle: the kernel lets a task run for at least 750 us.
const GAP_MIN: Duration = Duration::from_micros(500);
