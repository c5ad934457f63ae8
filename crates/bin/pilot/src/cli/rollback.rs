//! `pilot rollback`: makes an earlier version of a function the live one again.

use clap::Args;
use pilot_model::FunctionName;
use pilot_model::api::RollbackRequest;
use pilot_model::deployment::RollbackReport;

use super::client::Client;
use super::output::{self, DIM, GOOD, STRONG};

/// The arguments of `pilot rollback`.
#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    /// Which function
    name: FunctionName,
    /// The number of a kept version; `pilot describe` lists them [default: the newest before the live one]
    #[arg(value_parser = |text: &str| text.parse::<u32>().map_err(|_| "must be the number of a version"))]
    version: Option<u32>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Rolls back, and prints which version is live now.
pub(super) fn run(client: &Client, args: &RollbackArgs) -> anyhow::Result<()> {
    let request = RollbackRequest {
        version: args.version,
    };
    let report: RollbackReport = client.post_function(&args.name, "/rollback", &request)?;
    if args.json {
        return output::print_json(&report);
    }
    output::print(&told(&report))
}

fn told(report: &RollbackReport) -> String {
    let RollbackReport {
        name,
        version,
        number,
        replaced,
        changed,
    } = report;
    let head = format!("{STRONG}{name}{STRONG:#}  version {number} {DIM}({version}){DIM:#}");
    if *changed {
        format!("{GOOD}✓{GOOD:#} {head} is live again, in place of version {replaced}\n")
    } else {
        format!("{GOOD}✓{GOOD:#} {head} was live already\n")
    }
}
