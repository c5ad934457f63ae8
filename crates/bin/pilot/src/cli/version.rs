//! `pilot version`: this binary's version and the daemon's, if there is one.

use clap::Args;
use serde::Serialize;

use super::client::Client;
use super::failure::Failure;
use super::output;

/// The arguments of `pilot version`.
#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Versions {
    pilot: &'static str,
    /// `None`: no daemon answers.
    daemon: Option<String>,
    endpoint: String,
}

/// Prints the versions. A missing daemon is not an error.
pub(super) fn run(client: &Client, args: &VersionArgs) -> anyhow::Result<()> {
    let daemon = match client.fetch::<serde_json::Value>("/_pilot/v1/version") {
        Ok(answer) => answer
            .get("version")
            .and_then(|version| version.as_str())
            .map(str::to_owned),
        Err(error) => match error.downcast_ref() {
            Some(Failure::Unreachable { .. }) => None,
            _ => return Err(error),
        },
    };
    let versions = Versions {
        pilot: env!("CARGO_PKG_VERSION"),
        daemon,
        endpoint: client.endpoint().to_owned(),
    };
    if args.json {
        return output::print_json(&versions);
    }
    let daemon = versions.daemon.as_deref().unwrap_or("none");
    output::print(&format!(
        "pilot   {}\ndaemon  {daemon} at {}\n",
        versions.pilot, versions.endpoint
    ))
}
