//! `pilot profile infer`: names the parameters in a log, and says how far the model is from it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::read::MultiGzDecoder;
use pilot_meter::infer::{self, Inferred, Runs};
use pilot_meter::quota::fit::{self, Distances, Fit};
use serde::Serialize;

use super::super::failure::Failure;
use super::super::output;

/// The arguments of `pilot profile infer`.
#[derive(Debug, Args)]
pub(super) struct InferArgs {
    /// JSON, or JSON compressed with gzip: [[NOTICED_NS, LASTED_NS], …]
    log: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    found: Inferred,
    /// Distances of the model from the log.
    model: Option<Fit>,
}

/// Prints what is in the log.
pub(super) fn run(args: &InferArgs) -> anyhow::Result<()> {
    let named = |problem: String| Failure::usage(format!("{}: {problem}", args.log.display()));
    let text = read(&args.log).map_err(|error| named(error.to_string()))?;
    let runs = infer::read(&text).map_err(named)?;
    let found = infer::infer(&runs).map_err(named)?;
    let model = fit::fit(&runs, &found).ok();
    if args.json {
        return output::print_json(&Answer { found, model });
    }
    output::print(&text_of(&found, model.as_ref()))
}

/// What was found, for people.
pub(super) fn text_of(found: &Inferred, model: Option<&Fit>) -> String {
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
    let mut text = format!(
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
    );
    if let Some(model) = model {
        let Distances {
            intervals,
            lengths,
            obtained,
        } = model.with_latencies;
        text.push_str(&format!(
            "model   Kolmogorov-Smirnov distance {intervals:.3} (intervals), {lengths:.3} (lengths), {obtained:.3} (obtained CPU)\n"
        ));
    }
    text
}

/// Reads a log of the user's, and unpacks it.
pub(super) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = whole(File::open(path)?)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return whole(MultiGzDecoder::new(bytes.as_slice()));
    }
    Ok(bytes)
}

fn whole(log: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    log.take(LOG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LOG_BYTES_MAX {
        let problem = "it has more than 32 MiB: take a part of it";
        return Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            problem,
        ));
    }
    Ok(bytes)
}

/// What the parameters of throttles are, as lines.
pub(super) fn summary(runs: &Runs) -> Result<String, String> {
    let found = infer::infer(runs)?;
    let model = fit::fit(runs, &found).ok();
    Ok(text_of(&found, model.as_ref()))
}

/// Longest log that is read. Its numbers take about thirty times as much memory.
const LOG_BYTES_MAX: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_end_is_refused_before_its_numbers_are_read() {
        let error = whole(std::io::repeat(b'[')).unwrap_err();
        assert!(error.to_string().contains("32 MiB"), "{error}");
        assert_eq!(whole(&b"[]"[..]).unwrap(), b"[]");
    }
}
