//! `pilot cost --trace`: the bill of a trace. No daemon is asked.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pilot_meter::trace::{self, Strictness, TraceError, TraceOptions};
use pilot_meter::{Match, Size, parquet};

use super::super::failure::Failure;
use super::super::output;
use super::CostArgs;
use super::table::render;

/// Bills the trace and prints the report.
pub(super) fn run(args: &CostArgs, path: &Path, billing: Option<&str>) -> anyhow::Result<()> {
    let shown = path.display();
    let source: Box<dyn Read + Send> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        open(path)?
    };
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
    let billed = trace::bill(source, &table, &options).map_err(|error| {
        let place = match error {
            TraceError::Malformed { line, problem } => format!("{shown}:{line}: {problem}"),
            error => format!("{shown}: {error}"),
        };
        Failure::usage(place)
    })?;
    let mut report = billed.report;
    if billed.malformed > 0 {
        report
            .notes
            .push(format!("{} malformed rows were left out", billed.malformed));
    }
    for (line, problem) in &billed.first_malformed {
        report.notes.push(format!("{shown}:{line}: {problem}"));
    }
    if args.json {
        return output::print_json(&report);
    }
    output::print(&render(&report))
}

/// The rows of a file as CSV, whatever form it has.
pub(in super::super) fn open(path: &Path) -> Result<Box<dyn Read + Send>, Failure> {
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
