//! `forecast`: the forecasts of HotC's predictor (`smoothing-markov`) for a series, and those of smoothing alone. It uses the policy's
//! own arithmetic, without a pool (`series`).
//!
//! A series is text: numbers, one or more per line, separated by blanks or commas; `#` begins a comment.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use pilot_forecast::predictor::Beginning;
use pilot_model::policy::{Policy, SmoothingMarkovPolicy};
use serde::Serialize;

use self::series::{Foreseen, foresee, relative_error};

mod series;

/// The options of `forecast`.
#[derive(Debug, Args)]
pub(crate) struct ForecastArgs {
    /// A file with how many were in use, sample by sample; - reads standard input
    #[arg(value_name = "FILE")]
    series: PathBuf,
    /// The predictor with its constants, as in a manifest: smoothing-markov:alpha=0.2,reading=literal; may be repeated
    #[arg(long, value_name = "POLICY", default_value = "smoothing-markov")]
    policy: Vec<Policy>,
    /// Begin the smoothing with this number instead of the history's mean
    #[arg(long, value_name = "N", value_parser = check_number)]
    initial: Option<f64>,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    kind: &'static str,
    initial: Option<f64>,
    policies: Vec<PredictorResult>,
}

/// The forecasts of one predictor.
#[derive(Debug, Serialize)]
struct PredictorResult {
    policy: String,
    /// Relative error of smoothing alone; absent where all samples are 0.
    smoothed_error: Option<f64>,
    /// Relative error with the chain.
    forecast_error: Option<f64>,
    samples: Vec<Foreseen>,
}

/// Forecasts every sample from those before it.
pub(crate) fn run(args: &ForecastArgs) -> anyhow::Result<Document> {
    let series = read(&args.series).with_context(|| args.series.display().to_string())?;
    let beginning = args.initial.map_or(Beginning::Mean, Beginning::Value);
    let policies = args
        .policy
        .iter()
        .map(|policy| {
            let samples = foresee(&constants(policy)?, beginning, &series);
            Ok(PredictorResult {
                policy: policy.to_string(),
                smoothed_error: relative_error(&samples, |sample| sample.smoothed),
                forecast_error: relative_error(&samples, |sample| sample.forecast),
                samples,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(Document {
        kind: "forecast",
        initial: args.initial,
        policies,
    })
}

fn constants(policy: &Policy) -> anyhow::Result<SmoothingMarkovPolicy> {
    match policy {
        Policy::SmoothingMarkov(constants) => Ok(*constants),
        other => bail!(
            "--policy {}: only smoothing-markov forecasts a series; `pilot simulate` compares policies on workloads",
            other.name()
        ),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<f64>> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    } else {
        let file = fs::File::open(path)?;
        let length = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)? as u64;
        ensure!(
            length <= FILE_BYTES_MAX,
            "is larger than {FILE_BYTES_MAX} bytes"
        );
    }
    parse(&text).map_err(anyhow::Error::msg)
}

/// The numbers of a text. `Err`: `line LINE: what is wrong`.
fn parse(text: &str) -> Result<Vec<f64>, String> {
    let mut series = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        let words = content.split(|letter: char| letter == ',' || letter.is_ascii_whitespace());
        for word in words.filter(|word| !word.is_empty()) {
            let number = check_number(word);
            series.push(number.map_err(|problem| format!("line {line}: {word} {problem}"))?);
        }
    }
    match series.is_empty() {
        true => Err("line 1: there is no number in it".to_owned()),
        false => Ok(series),
    }
}

fn check_number(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=NUMBER_MAX).contains(&number) => Ok(number),
        _ => Err(format!("must be a number from 0 to {NUMBER_MAX}")),
    }
}

const FILE_BYTES_MAX: u64 = 64 << 20;
/// More than any number of workers.
const NUMBER_MAX: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_numbers_however_they_are_written() {
        let series = parse("8 8,8\n# a jump\n19, 19 # and more\n\n2.5").unwrap();
        assert_eq!(series, [8.0, 8.0, 8.0, 19.0, 19.0, 2.5]);
        for (text, problem) in [
            ("1\nx", "line 2: x must"),
            ("-1", "line 1: -1 must"),
            ("nan", "line 1: nan"),
            ("#1", "line 1: there"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{text:?}: {error}");
        }
    }

    #[test]
    fn only_hotcs_predictor_forecasts_a_series() {
        let policy: Policy = "smoothing-markov:alpha=0.2".parse().unwrap();
        assert!((constants(&policy).unwrap().alpha - 0.2).abs() < 1e-9);
        let refused = constants(&"auto".parse().unwrap()).unwrap_err().to_string();
        assert!(
            refused.contains("auto") && refused.contains("smoothing-markov"),
            "{refused}"
        );
    }
}
