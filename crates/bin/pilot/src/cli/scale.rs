//! `pilot scale`: retires a function's idle workers down to a number, at once.

use clap::Args;
use pilot_model::FunctionName;
use pilot_model::api::{PoolStatus, ScaleRequest};

use super::client::Client;
use super::output;

/// What `pilot scale` takes.
#[derive(Debug, Args)]
pub(super) struct ScaleArgs {
    /// Which function
    name: FunctionName,
    /// Idle workers beyond this are retired
    #[arg(value_name = "N")]
    workers: u32,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Scales, and prints what workers there are then.
pub(super) fn run(client: &Client, args: &ScaleArgs) -> anyhow::Result<()> {
    let request = ScaleRequest {
        workers: args.workers,
    };
    let status: PoolStatus = client.post_function(&args.name, "/scale", &request)?;
    if args.json {
        return output::print_json(&status);
    }
    output::print(&format!(
        "{}: {} idle, {} busy, {} starting\n",
        args.name, status.idle, status.busy, status.starting
    ))
}
