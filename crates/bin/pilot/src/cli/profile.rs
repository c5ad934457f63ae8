//! `pilot profile`: what CPU bandwidth control does to a function, seen from inside.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flate2::read::MultiGzDecoder;
use pilot_meter::infer;

use super::failure::Failure;
use super::output;

/// The arguments of `pilot profile`.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    #[command(subcommand)]
    verb: ProfileVerb,
}

#[derive(Debug, Subcommand)]
enum ProfileVerb {
    /// Name period, quota and tick rate from a log of throttles
    Infer {
        /// JSON, or JSON compressed with gzip: [[NOTICED_NS, LASTED_NS], …]
        log: PathBuf,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(super) fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    let ProfileVerb::Infer { log, json } = &args.verb;
    let named = |problem: String| Failure::usage(format!("{}: {problem}", log.display()));
    let text = read(log).map_err(|error| named(error.to_string()))?;
    let runs = infer::read(&text).map_err(named)?;
    let found = infer::infer(&runs).map_err(named)?;
    if *json {
        return output::print_json(&found);
    }
    let also: Vec<String> = found
        .tick_hz_possible
        .iter()
        .map(ToString::to_string)
        .collect();
    let also = match also.as_slice() {
        [] => String::new(),
        also => format!(" (the log also fits {} Hz)", also.join(", ")),
    };
    let share = found.quota_us * 1000 / found.period_us.max(1);
    output::print(&format!(
        "period  {} us\nquota   {} us ({}.{:03} CPU; measured {} us)\ntick    {} Hz{also}\nfrom {} throttles; {}.{}% of the intervals fit the period\n",
        found.period_us,
        found.quota_us,
        share / 1000,
        share % 1000,
        found.quota_measured_us,
        found.tick_hz,
        found.throttles,
        found.fitting_thousandths / 10,
        found.fitting_thousandths % 10,
    ))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LOG_BYTES_MAX)
        .read_to_end(&mut bytes)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut text = Vec::new();
    MultiGzDecoder::new(bytes.as_slice())
        .take(LOG_BYTES_MAX)
        .read_to_end(&mut text)?;
    Ok(text)
}

/// Longest log that is read; a longer one is cut, so it is not JSON.
const LOG_BYTES_MAX: u64 = 256 << 20;
