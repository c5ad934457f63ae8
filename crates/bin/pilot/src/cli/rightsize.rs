//! `pilot rightsize`: which size a function should have, here and on other platforms.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use flate2::read::GzDecoder;
use pilot_meter::rightsize::{Calls, CallsError, Machine, Setting, Sized, settings};
use pilot_meter::trace::TraceError;
use pilot_model::FunctionName;
use pilot_model::ports::UsageRecords;
use serde::Serialize;

use super::client::Client;
use super::cost;
use super::failure::Failure;
use super::logs;
use super::output::{self, Align, DIM, GOOD, STRONG, Table, WARN};

mod picture;

/// The arguments of `pilot rightsize`.
#[derive(Debug, Args)]
pub(super) struct RightsizeArgs {
    /// Which function
    #[arg(required_unless_present = "trace")]
    name: Option<FunctionName>,
    /// Only invocations from this time on: a duration like 5m or 2h30m, or a time like 2026-11-22T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = logs::since, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Take the calls of a file instead: `pilot cost export` of one function, CSV or Parquet, or - for CSV on standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "since"])]
    trace: Option<PathBuf>,
    /// Prices of your own for AWS Lambda (aws-lambda-x86) and Cloud Run (gcp-request), in the form of `pilot cost platforms`
    #[arg(long, value_name = "FILE")]
    billing: Option<PathBuf>,
    /// Period of this machine's CPU quota, microseconds
    #[arg(long, value_name = "US", default_value_t = 100_000)]
    period: u64,
    /// Ticks of this machine's scheduler per second; by default as its kernel was configured, otherwise 250
    #[arg(long, value_name = "HZ")]
    tick_hz: Option<u64>,
    /// Draw durations and bills by size into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print all sizes as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    calls: u64,
    calls_left_out: u64,
    memory_mb: u64,
    cpu_milli: u64,
    memory_used_mb_max: Option<u64>,
    notes: Vec<String>,
    settings: Vec<Setting>,
}

/// Prints the sizes that make a difference.
pub(super) fn run(
    client: impl Fn() -> anyhow::Result<Client>,
    args: &RightsizeArgs,
) -> anyhow::Result<()> {
    let billing = args.billing.as_deref().map(cost::read_billing);
    let billing = billing.transpose()?;
    let calls = match &args.trace {
        Some(path) => {
            let rows = cost::trace::source(path)?;
            Calls::read(rows).map_err(|error| Failure::usage(named(path, &error)))?
        }
        None => {
            let records =
                client()?.usage(args.name.as_ref(), args.since, UsageRecords::Invocations)?;
            Calls::read(records)?
        }
    };
    let machine = Machine {
        period_us: args.period,
        tick_hz: args.tick_hz.or_else(configured_tick_hz).unwrap_or(250),
    };
    let table = pilot_meter::Table::with(billing.as_deref()).map_err(Failure::usage)?;
    let settings = settings(&calls, &table, machine).map_err(Failure::usage)?;
    if let Some(path) = &args.svg {
        fs::write(path, picture::draw(&settings))
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
    }
    let report = Report {
        calls: calls.counted,
        calls_left_out: calls.left_out,
        memory_mb: calls.own.memory_bytes >> 20,
        cpu_milli: calls.own.cpu_milli,
        memory_used_mb_max: calls.memory_max.map(|bytes| bytes >> 20),
        notes: notes(&calls, args.trace.as_deref()),
        settings,
    };
    if args.json {
        return output::print_json(&report);
    }
    output::print(&render(&report))
}

fn named(path: &Path, error: &CallsError) -> String {
    let shown = path.display();
    match error {
        CallsError::Trace(TraceError::Malformed { line, problem }) => {
            format!("{shown}:{line}: {problem}")
        }
        error => format!("{shown}: {error}"),
    }
}

fn notes(calls: &Calls, trace: Option<&Path>) -> Vec<String> {
    let unended = trace.zip(calls.unended);
    let unended = unended.map(|(path, line)| cost::trace::note_of_unended(path, line));
    let mut notes: Vec<String> = unended.into_iter().collect();
    if calls.parallel > 0 {
        notes.push(format!(
            "{} used more than one CPU at once, for which the model does not hold",
            output::count(calls.parallel, "call")
        ));
    }
    if calls.several_sizes {
        notes.push("the calls had several sizes: each is judged by its own".to_owned());
    }
    if calls.memory_max.is_none() {
        notes.push(
            "nothing is known of the memory that calls used, so no less than memory_mb is proposed"
                .to_owned(),
        );
    }
    if calls.counted < CALLS_FEW {
        notes.push(format!(
            "there are only {}: others may need more CPU time or memory",
            output::count(calls.counted, "call")
        ));
    }
    notes
}

fn render(report: &Report) -> String {
    let used = report
        .memory_used_mb_max
        .map_or_else(String::new, |mb| format!(", at most {mb} MB used"));
    let mut text = format!(
        "{STRONG}{}{STRONG:#}, now with {} MB and {} CPU{used}\n",
        output::count(report.calls, "warm call"),
        report.memory_mb,
        cpu(report.cpu_milli)
    );
    for setting in &report.settings {
        text.push_str(&format!(
            "\n{STRONG}{}{STRONG:#} {DIM}(period {} us, {} Hz){DIM:#}\n",
            setting.name, setting.period_us, setting.tick_hz
        ));
        if setting.sizes.is_empty() {
            text.push_str("it has no size with as much memory as the calls used\n");
            continue;
        }
        text.push_str(&sizes(setting));
    }
    text.push_str(&format!(
        "{DIM}Sizes at which calls become a tenth shorter. Each row covers the sizes up to TO; within a row, a larger size\n\
         saves less than a tenth. IDEAL: with exactly that share of a CPU at every instant. US dollars for a million warm calls.{DIM:#}\n"
    ));
    for note in &report.notes {
        text.push_str(&format!("{WARN}{note}{WARN:#}\n"));
    }
    text
}

fn sizes(setting: &Setting) -> String {
    let mut table = Table::new(&[
        ("MEMORY", Align::Right),
        ("CPU", Align::Right),
        ("TO", Align::Right),
        ("DURATION", Align::Right),
        ("IDEAL", Align::Right),
        ("PER MILLION", Align::Right),
        ("", Align::Left),
    ]);
    let by_memory = setting
        .sizes
        .first()
        .zip(setting.sizes.last())
        .is_some_and(|(first, last)| first.memory_mb != last.memory_mb);
    let shown: Vec<(usize, &Sized)> = setting
        .sizes
        .iter()
        .enumerate()
        .filter(|(_, size)| size.step || size.cheapest || size.enough)
        .collect();
    let nexts = shown
        .iter()
        .skip(1)
        .map(|(at, _)| *at)
        .chain([setting.sizes.len()]);
    for ((_, size), next) in shown.iter().zip(nexts) {
        let last = setting.sizes.get(next.saturating_sub(1)).unwrap_or(size);
        let to = match by_memory {
            true => format!("{} MB", last.memory_mb),
            false => cpu(last.cpu_milli),
        };
        let mark = match (size.cheapest, size.enough) {
            (true, true) => "cheapest, and as fast as it gets",
            (true, false) => "cheapest",
            (false, true) => "as fast as it gets",
            (false, false) => "",
        };
        let time = |us| output::duration(Duration::from_micros(us));
        table.row(vec![
            format!("{} MB", size.memory_mb),
            cpu(size.cpu_milli),
            to,
            time(size.duration_us),
            time(size.ideal_us),
            size.per_million
                .as_ref()
                .map_or_else(String::new, |amount| format!("${}", cents(amount))),
            format!("{GOOD}{mark}{GOOD:#}"),
        ]);
    }
    table.render()
}

fn cpu(milli: u64) -> String {
    format!("{}.{:03}", milli / 1000, milli % 1000)
}

/// An amount with three places.
fn cents(amount: &str) -> &str {
    let end = amount.find('.').map_or(amount.len(), |point| point + 4);
    amount.get(..end).unwrap_or(amount)
}

/// CONFIG_HZ of the running kernel, where it tells.
fn configured_tick_hz() -> Option<u64> {
    let mut text = String::new();
    let packed = File::open("/proc/config.gz").ok();
    let read = packed.and_then(|file| {
        let limited = GzDecoder::new(file).take(CONFIG_BYTES_MAX);
        { limited }.read_to_string(&mut text).ok()
    });
    if read.is_none() {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let file = File::open(format!("/boot/config-{}", release.trim())).ok()?;
        file.take(CONFIG_BYTES_MAX).read_to_string(&mut text).ok()?;
    }
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_HZ="))?;
    line.trim().parse().ok()
}

/// Longest configuration of a kernel that is read.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Fewer calls than these are said to be few.
const CALLS_FEW: u64 = 30;
