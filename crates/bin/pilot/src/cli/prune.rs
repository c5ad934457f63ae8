//! `pilot prune`: removes files that nothing uses, and if asked for, versions that are not live.

use std::time::Duration;

use clap::Args;
use pilot_model::api::{PruneReport, PruneRequest};
use pilot_model::size::Size;

use super::client::Client;
use super::output::{self, Align, GOOD, Table};

/// The arguments of `pilot prune`.
#[derive(Debug, Args)]
pub(super) struct PruneArgs {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Also remove versions that are not live; then there is nothing to roll back to
    #[arg(long)]
    versions: bool,
    /// With --versions: only those that were deployed longer ago than this, for example 30d
    #[arg(long, value_name = "AGE", value_parser = check_age, requires = "versions")]
    older_than: Option<Duration>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

fn check_age(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "must be a duration like 12h or 30d")
}

/// Prunes, and prints what was removed.
pub(super) fn run(client: &Client, args: &PruneArgs) -> anyhow::Result<()> {
    let request = PruneRequest {
        dry_run: args.dry_run,
        versions: args.versions,
        older_than_s: args.older_than.map(|age| age.as_secs()),
    };
    let report: PruneReport = client.post("/_pilot/v1/prune", &request)?;
    if args.json {
        return output::print_json(&report);
    }
    output::print(&told(&report))
}

fn told(report: &PruneReport) -> String {
    let mut text = String::new();
    if !report.removed.is_empty() {
        let mut table = Table::new(&[
            ("WHAT", Align::Left),
            ("NAME", Align::Left),
            ("ON DISK", Align::Right),
        ]);
        for one in &report.removed {
            let size = match one.bytes {
                0 => String::new(),
                bytes => Size(bytes).to_string(),
            };
            table.row(vec![one.kind.clone(), one.name.clone(), size]);
        }
        text.push_str(&table.render());
    }
    for name in &report.busy {
        text.push_str(&format!(
            "{name} is being deployed or rolled back: its versions stay\n"
        ));
    }
    let (freed, have) = if report.dry_run {
        ("would be freed", "would have")
    } else {
        ("freed", "now have")
    };
    text.push_str(&format!(
        "{GOOD}✓{GOOD:#} {} {freed}; code, environments and layers {have} {}\n",
        Size(report.bytes),
        Size(report.kept_bytes)
    ));
    text
}
