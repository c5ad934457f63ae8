//! `pilot cost --trace`: the bill of a trace. No daemon is asked.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pilot_meter::trace::{
    self, Amounted, Analysis, Distribution, Starts, Strictness, TraceError, TraceOptions, Workers,
};
use pilot_meter::{Match, Size, parquet};
use pilot_model::cost::CostReport;
use pilot_model::log_line::visible;
use serde::Serialize;

use super::super::failure::Failure;
use super::super::output::{self, Align, Table};
use super::CostArgs;
use super::table::render;

/// The report of a trace as JSON.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    report: CostReport,
    analysis: Analysis,
}

/// Bills the trace and prints the report.
pub(super) fn run(args: &CostArgs, path: &Path, billing: Option<&str>) -> anyhow::Result<()> {
    let source = source(path)?;
    let table = pilot_meter::Table::with(billing).map_err(Failure::usage)?;
    let options = TraceOptions {
        strictness: if args.strict {
            Strictness::Refuse
        } else {
            Strictness::Skip
        },
        // As the paper does: a trace says how much CPU was allocated.
        matched: Match::MemoryAndCpu,
        default_size: Size {
            cpu_milli: args.memory_mb * 1000 / MB_PER_VCPU,
            memory_bytes: args.memory_mb << 20,
        },
        threads: None,
    };
    let workers = match &args.starts {
        None => Workers::default(),
        Some(starts) => Workers::of_starts(open(starts)?, options.strictness)
            .map_err(|error| failed(starts, error))?,
    };
    let billed = trace::bill_with_starts(source, &table, &options, &workers)
        .map_err(|error| failed(path, error))?;
    let (mut report, analysis) = (billed.report, billed.analysis);
    let (malformed, first) = workers.malformed();
    let of_starts = (malformed, first, workers.unended());
    let of_trace = (
        billed.malformed,
        billed.first_malformed.as_slice(),
        billed.unended,
    );
    for (path, (malformed, first, unended)) in [
        (args.starts.as_deref().unwrap_or(path), of_starts),
        (path, of_trace),
    ] {
        let shown = path.display();
        if malformed > 0 {
            let note = format!("{malformed} malformed rows of {shown} were left out");
            report.notes.push(note);
        }
        for (line, problem) in first {
            report.notes.push(format!("{shown}:{line}: {problem}"));
        }
        report
            .notes
            .extend(unended.map(|line| note_of_unended(path, line)));
    }
    if args.json {
        return output::print_json(&Report { report, analysis });
    }
    output::print(&format!("{}{}", render(&report), used(&analysis)))
}

fn failed(path: &Path, error: TraceError) -> Failure {
    let shown = path.display();
    Failure::usage(match error {
        TraceError::Malformed { line, problem } => format!("{shown}:{line}: {problem}"),
        error => format!("{shown}: {error}"),
    })
}

/// How much of their allocation the requests used, and what is rounded up.
fn used(analysis: &Analysis) -> String {
    let mut text = analysis
        .distribution
        .as_ref()
        .map_or_else(String::new, per_request);
    if let (Some(cpu), Some(memory)) = (&analysis.cpu, &analysis.memory) {
        let percent = |thousandths: u64| format!("{:.1} %", thousandths as f64 / 10.0);
        let _ = write!(
            text,
            "{} of the requests used less than half of their CPU, {} less than half of their memory ({} whose usage is known",
            percent(cpu.below_half_thousandths),
            percent(memory.below_half_thousandths),
            analysis.known
        );
        if let (Some(pearson), Some(spearman)) = (analysis.pearson, analysis.spearman) {
            let _ = write!(
                text,
                "; correlation {pearson:.3} by Pearson, {spearman:.3} by Spearman"
            );
        }
        text.push_str(").\n");
    }
    for rounding in &analysis.rounding {
        let _ = writeln!(
            text,
            "In steps of {} ms and at least {} ms, a request is {:.3} ms longer on average.",
            rounding.step_ms,
            rounding.min_ms,
            rounding.mean_us as f64 / 1000.0
        );
    }
    if let Some(starts) = &analysis.starts {
        text.push_str(&compared(starts));
    }
    text
}

/// What is billed per request, beside what was used.
fn per_request(distribution: &Distribution) -> String {
    let mut table = Table::new(&[
        ("BILLED PER REQUEST", Align::Left),
        ("MB-s P5", Align::Right),
        ("P50", Align::Right),
        ("P95", Align::Right),
        ("CPU-ms P5", Align::Right),
        ("P50", Align::Right),
        ("P95", Align::Right),
    ]);
    let at = |percent| distribution.percents.iter().position(|is| *is == percent);
    let shown = [5, 50, 95].map(at);
    let fields = |amounts: Option<&[u64]>, unit: f64| {
        shown.map(|at| {
            let amount = amounts.zip(at).and_then(|(amounts, at)| amounts.get(at));
            amount.map_or_else(String::new, |amount| {
                format!("{:.3}", *amount as f64 / unit)
            })
        })
    };
    let mut is_empty = true;
    let mut row = |name: &str, amounted: &Amounted| {
        let memory = amounted.memory_kb_ms.as_ref().map(<[u64; _]>::as_slice);
        let cpu = amounted.cpu_ns.as_ref().map(<[u64; _]>::as_slice);
        if memory.is_some() || cpu.is_some() {
            let mut cells = vec![visible(name).to_string()];
            cells.extend(fields(memory, 1024.0 * 1000.0));
            cells.extend(fields(cpu, 1e6));
            table.row(cells);
            is_empty = false;
        }
    };
    row("(used)", &distribution.used);
    for platform in &distribution.platforms {
        row(&platform.name, &platform.billed);
    }
    if is_empty {
        return String::new();
    }
    table.render()
}

/// Starts of workers beside the requests after them.
fn compared(starts: &Starts) -> String {
    let mut text = format!(
        "{:.1} % of {} starts of workers took at least as long as all requests of the worker together",
        starts.not_positive_thousandths as f64 / 10.0,
        starts.known
    );
    let [.., median, _, _] = starts.difference_us;
    let _ = writeln!(
        text,
        "; the median difference is {:.3} s.",
        median as f64 / 1e6
    );
    for (count, what) in [
        (
            starts.without_requests,
            "starts have no request in the trace",
        ),
        (
            starts.left_out,
            "rows are of more workers than can be remembered",
        ),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{count} {what}: they are left out.");
        }
    }
    text
}

/// What is said of a last row that has no line end.
pub(in super::super) fn note_of_unended(path: &Path, line: u64) -> String {
    let shown = path.display();
    format!("{shown}:{line}: the last row has no line end: if it is cut off, its figures are wrong")
}

/// The rows of a trace as CSV; `-` is standard input.
pub(in super::super) fn source(path: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    open(path)
}

/// The rows of a file as CSV, whatever form it has.
fn open(path: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    let unreadable =
        |error: io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let mut file = File::open(path).map_err(unreadable)?;
    let packed = file.metadata().is_ok_and(|found| found.is_file());
    if packed && parquet::is_parquet(&mut file).map_err(unreadable)? {
        return Ok(Box::new(parquet::Rows::open(file).map_err(unreadable)?));
    }
    Ok(Box::new(file))
}

/// Where CPU follows memory, this is a whole vCPU.
const MB_PER_VCPU: u64 = 1769;
