//! `pilot bench forecast`: what HotC's predictor (`smoothing-markov`) would have said of a series, beside smoothing alone. Needs no
//! daemon: it is the policy's own arithmetic, without a pool around it (`pilot_forecast::series`).
//!
//! A series is text: numbers, one or more a line, with blanks or commas between them; what follows a # is passed over.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use pilot_forecast::series::{Beginning, Foreseen, foresee, relative_error};
use pilot_model::policy::{Policy, SmoothingMarkovPolicy};
use serde::Serialize;

use super::super::failure::Failure;
use super::super::output::{self, Align, Table};

/// What `pilot bench forecast` takes.
#[derive(Debug, Args)]
pub(super) struct ForecastArgs {
    /// A file with how many were in use, sample by sample; - reads the standard input
    #[arg(value_name = "FILE")]
    series: PathBuf,
    /// The predictor with its constants, as in a manifest: smoothing-markov:alpha=0.2,reading=literal; may be repeated
    #[arg(long, value_name = "POLICY", default_value = "smoothing-markov")]
    policy: Vec<Policy>,
    /// Begin the smoothing with this number, in place of the history's mean
    #[arg(long, value_name = "N", value_parser = check_number)]
    initial: Option<f64>,
    /// Show every sample
    #[arg(long)]
    samples: bool,
    /// Print as JSON, every sample with it
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Document {
    kind: &'static str,
    initial: Option<f64>,
    policies: Vec<Told>,
}

/// One predictor's way through the series.
#[derive(Debug, Serialize)]
struct Told {
    policy: String,
    /// Of smoothing alone; absent where nothing came.
    smoothed_error: Option<f64>,
    /// With the chain.
    forecast_error: Option<f64>,
    samples: Vec<Foreseen>,
}

/// Forecasts, and prints how it went.
pub(super) fn run(args: &ForecastArgs) -> anyhow::Result<()> {
    let series = read(&args.series)?;
    let beginning = args.initial.map_or(Beginning::Mean, Beginning::Value);
    let policies = args
        .policy
        .iter()
        .map(|policy| Ok(told(policy, &constants(policy)?, beginning, &series)))
        .collect::<anyhow::Result<_>>()?;
    let document = Document {
        kind: "forecast",
        initial: args.initial,
        policies,
    };
    if args.json {
        return output::print_json(&document);
    }
    if args.samples {
        output::print(&samples_table(&document.policies))?;
        output::print("\n")?;
    }
    output::print(&table(&document.policies))
}

fn told(
    policy: &Policy,
    constants: &SmoothingMarkovPolicy,
    beginning: Beginning,
    series: &[f64],
) -> Told {
    let samples = foresee(constants, beginning, series);
    Told {
        policy: policy.to_string(),
        smoothed_error: relative_error(&samples, |sample| sample.smoothed),
        forecast_error: relative_error(&samples, |sample| sample.forecast),
        samples,
    }
}

fn constants(policy: &Policy) -> Result<SmoothingMarkovPolicy, Failure> {
    match policy {
        Policy::SmoothingMarkov(constants) => Ok(*constants),
        other => Err(Failure::usage(format!(
            "--policy {}: only smoothing-markov forecasts a series; `pilot simulate` compares policies on workloads",
            other.name()
        ))),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<f64>> {
    let wrong = |error: io::Error| Failure::usage(format!("{}: {error}", path.display()));
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin()
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(wrong)?;
        text
    } else {
        if fs::metadata(path).map_err(wrong)?.len() > FILE_BYTES_MAX {
            let problem = format!("{}: is larger than {FILE_BYTES_MAX} bytes", path.display());
            return Err(Failure::usage(problem).into());
        }
        fs::read_to_string(path).map_err(wrong)?
    };
    let parsed = parse(&text);
    Ok(parsed.map_err(|problem| Failure::usage(format!("{}:{problem}", path.display())))?)
}

/// The numbers of a text. `Err`: `LINE: what is wrong`.
fn parse(text: &str) -> Result<Vec<f64>, String> {
    let mut series = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        let words = content.split(|letter: char| letter == ',' || letter.is_ascii_whitespace());
        for word in words.filter(|word| !word.is_empty()) {
            series.push(check_number(word).map_err(|problem| format!("{line}: {word} {problem}"))?);
        }
    }
    match series.is_empty() {
        true => Err("1: there is no number in it".to_owned()),
        false => Ok(series),
    }
}

fn check_number(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=NUMBER_MAX).contains(&number) => Ok(number),
        _ => Err(format!("must be a number from 0 to {NUMBER_MAX}")),
    }
}

fn table(policies: &[Told]) -> String {
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("SAMPLES", Align::Right),
        ("SMOOTHING ALONE", Align::Right),
        ("WITH THE CHAIN", Align::Right),
    ]);
    for told in policies {
        table.row(vec![
            told.policy.clone(),
            told.samples.len().to_string(),
            percent(told.smoothed_error),
            percent(told.forecast_error),
        ]);
    }
    let text = table.render();
    format!("{text}off by so much, of all that came\n")
}

fn samples_table(policies: &[Told]) -> String {
    let mut columns = vec![("SAMPLE", Align::Right), ("CAME", Align::Right)];
    for _ in policies {
        columns.extend([("SMOOTHED", Align::Right), ("FORECAST", Align::Right)]);
    }
    let mut table = Table::new(&columns);
    let count = policies.first().map_or(0, |told| told.samples.len());
    for at in 0..count {
        let each = policies.iter().flat_map(|told| {
            let sample = &told.samples[at];
            [number(sample.smoothed), number(sample.forecast)]
        });
        let came = number(Some(policies[0].samples[at].observed));
        table.row(
            [(at + 1).to_string(), came]
                .into_iter()
                .chain(each)
                .collect(),
        );
    }
    table.render()
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.1}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.1} %", share * 100.0))
}

const FILE_BYTES_MAX: u64 = 64 << 20;
/// More than that are no workers.
const NUMBER_MAX: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_numbers_however_they_are_written() {
        let series = parse("8 8,8\n# a jump\n19, 19 # and more\n\n2.5").unwrap();
        assert_eq!(series, [8.0, 8.0, 8.0, 19.0, 19.0, 2.5]);
        for (text, problem) in [
            ("1\nx", "2: x must"),
            ("-1", "1: -1 must"),
            ("nan", "1: nan"),
            ("#1", "1: there"),
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

    #[test]
    fn the_tables_have_a_row_for_each_policy_and_each_sample() {
        let policy: Policy = "smoothing-markov".parse().unwrap();
        let told = [told(
            &policy,
            &constants(&policy).unwrap(),
            Beginning::Mean,
            &[8.0, 8.0, 19.0],
        )];
        let text = anstream::adapter::strip_str(&table(&told)).to_string();
        assert!(
            text.contains("smoothing-markov        3           40.7 %"),
            "{text}"
        );
        let text = anstream::adapter::strip_str(&samples_table(&told)).to_string();
        assert!(text.contains("     3  19.0       8.0       8.0"), "{text}");
    }
}
