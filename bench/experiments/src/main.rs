//! `pilot-experiments`: the papers' experiments that run the policies themselves, without a daemon. The benches in Python call it,
//! judge its figures and draw them, so it prints JSON and nothing else. It is not part of the product.

use std::io::Write as _;

use clap::{Parser, Subcommand};
use serde::Serialize;

mod forecast;
mod sweep;
mod ticks;

/// Runs the experiments of papers that need no daemon, and prints JSON.
#[derive(Debug, Parser)]
#[command(name = "pilot-experiments", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Measure how long the policies take to decide
    Ticks(ticks::TicksArgs),
    /// Forecast a series with HotC's predictor
    Forecast(forecast::ForecastArgs),
    /// Simulate every combination of workloads, start costs, policies and settings
    Sweep(sweep::SweepArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().experiment {
        Experiment::Ticks(args) => print(&ticks::run(&args)),
        Experiment::Forecast(args) => print(&forecast::run(&args)?),
        Experiment::Sweep(args) => print(&sweep::run(&args)?),
    }
}

fn print(document: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
