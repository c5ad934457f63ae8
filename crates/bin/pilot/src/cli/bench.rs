//! `pilot bench`: what a function, or any other HTTP server, does when it is measured. The measuring is `bench/loadgen`'s; here
//! are arguments, tables and JSON.

use clap::{Args, Subcommand};

use super::client::Client;
use super::connection::Connection;

mod closed;
mod load;
mod target;

/// What `pilot bench` takes.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Time requests that find no worker: idle ones are retired before each
    Cold(closed::ColdArgs),
    /// Time requests that follow one another, on one connection or many
    Warm(closed::WarmArgs),
    /// Time many requests at one instant that find no worker
    Burst(closed::BurstArgs),
    /// Send requests when a profile says, however slow the answers are
    Load(load::LoadArgs),
}

/// Measures, and prints what came of it.
pub(super) fn run(
    client: &Client,
    connection: &Connection,
    args: &BenchArgs,
) -> anyhow::Result<()> {
    match &args.what {
        What::Cold(args) => closed::cold(client, connection, args),
        What::Warm(args) => closed::warm(client, connection, args),
        What::Burst(args) => closed::burst(client, connection, args),
        What::Load(args) => load::run(client, connection, args),
    }
}
