//! `pilot cost`: what the invocations that the daemon has metered, or those of a trace, would have cost on other platforms.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use pilot_model::FunctionName;
use pilot_model::cost::{CostReport, CostRequest};
use pilot_model::ports::UsageRecords;

use self::table::render;
use super::client::Client;
use super::failure::Failure;
use super::{logs, output};

mod table;
pub(super) mod trace;

/// The arguments of `pilot cost`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct CostArgs {
    #[command(subcommand)]
    verb: Option<CostVerb>,
    /// Which function; without it, all functions
    name: Option<FunctionName>,
    /// Only invocations from this time on: a duration like 5m or 2h30m, or a time like 2026-11-22T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = logs::since, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Platforms of your own, in the form of `pilot cost platforms`: they replace or extend the table
    #[arg(long, value_name = "FILE")]
    billing: Option<PathBuf>,
    /// Where CPU follows memory, take a size with at least the function's CPU
    #[arg(long)]
    match_cpu: bool,
    /// Bill a trace instead: a Parquet or CSV file, the latter also compressed with gzip, or - for CSV on standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "since"])]
    trace: Option<PathBuf>,
    /// With --trace of Huawei's request tables: the table of cold starts, to compare starts with the requests after them
    #[arg(long, value_name = "FILE", requires = "trace")]
    starts: Option<PathBuf>,
    /// With --trace: a malformed row is an error
    #[arg(long, requires = "trace")]
    strict: bool,
    /// With --trace: the memory of requests whose row does not say it, MB
    #[arg(long, value_name = "MB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    memory_mb: u64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum CostVerb {
    /// Print the records of invocations as CSV, or write them as Parquet
    Export(ExportArgs),
    /// Print the table of platforms: prices, granularities, sources
    Platforms,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// Which function; without it, all functions
    name: Option<FunctionName>,
    /// Only invocations, or ends of workers, from this time on, as for `pilot cost`
    #[arg(long, value_name = "TIME", value_parser = logs::since, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write Parquet instead of CSV
    #[arg(long, requires = "output")]
    parquet: bool,
    /// The records of workers that have ended, instead of those of invocations
    #[arg(long)]
    workers: bool,
}

/// Prints the report.
pub(super) fn run(
    client: &impl Fn() -> anyhow::Result<Client>,
    args: &CostArgs,
) -> anyhow::Result<()> {
    match &args.verb {
        Some(CostVerb::Export(args)) => return export(&client()?, args),
        Some(CostVerb::Platforms) => return output::print(pilot_meter::table::SHIPPED),
        None => {}
    }
    let billing = args.billing.as_deref().map(read_billing).transpose()?;
    if let Some(path) = &args.trace {
        return trace::run(args, path, billing.as_deref());
    }
    let request = CostRequest {
        since_unix_ms: args.since,
        billing,
        match_cpu: args.match_cpu,
    };
    let client = client()?;
    let report: CostReport = match &args.name {
        Some(name) => client.post_function(name, "/cost", &request)?,
        None => client.post("/_pilot/v1/cost", &request)?,
    };
    if args.json {
        return output::print_json(&report);
    }
    if report.used.calls == 0 {
        output::note("no invocation was metered in this time: `pilot invoke NAME` makes one");
        return Ok(());
    }
    output::print(&render(&report))
}

/// Reads a user's table, and checks it before anything is sent.
pub(super) fn read_billing(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(BILLING_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    if text.len() as u64 > BILLING_BYTES_MAX {
        let problem = format!("{shown} is longer than {BILLING_BYTES_MAX} bytes");
        return Err(Failure::usage(problem).into());
    }
    pilot_meter::Table::with(Some(&text))
        .map_err(|problem| Failure::usage(format!("{shown}: {problem}")))?;
    Ok(text)
}

fn export(client: &Client, args: &ExportArgs) -> anyhow::Result<()> {
    let which = if args.workers {
        UsageRecords::Workers
    } else {
        UsageRecords::Invocations
    };
    let mut records = client.usage(args.name.as_ref(), args.since, which)?;
    let path = args.output.as_ref();
    let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
        if args.parquet {
            return Err(Failure::usage("--parquet needs a file: name it with --output").into());
        }
        let mut piece = vec![0; 64 << 10];
        loop {
            let length = records
                .read(&mut piece)
                .context("the records were interrupted")?;
            if length == 0 {
                return Ok(());
            }
            output::print_bytes(piece.get(..length).unwrap_or_default())?;
        }
    };
    let shown = path.display();
    let mut file = fs::File::create(path)
        .map_err(|error| Failure::usage(format!("cannot write {shown}: {error}")))?;
    let written = if args.parquet {
        pilot_meter::parquet::write(records, &mut file)
    } else {
        std::io::copy(&mut records, &mut file)
    };
    written
        .and_then(|_| file.flush())
        .with_context(|| format!("the records could not be copied to {shown}"))
}

/// Longest table of a user: it must fit into a request.
const BILLING_BYTES_MAX: u64 = 48 << 10;
