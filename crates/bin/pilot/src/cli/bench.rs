//! `pilot bench`: measures a function or any other HTTP server. `bench/loadgen` measures; this module parses arguments and prints
//! tables and JSON.

use clap::{Args, Subcommand};

use super::client::Client;
use super::connection::Connection;

mod closed;
mod load;
mod target;
mod watched;

/// The arguments of `pilot bench`.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure cold starts: idle workers are retired before each request
    Cold(closed::ColdArgs),
    /// Measure warm requests, one after another on each connection
    Warm(closed::WarmArgs),
    /// Measure bursts: many requests at once, to a function without workers
    Burst(closed::BurstArgs),
    /// Send requests at the times of a profile, however slow the responses are
    Load(load::LoadArgs),
}

/// Measures, and prints the result.
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
