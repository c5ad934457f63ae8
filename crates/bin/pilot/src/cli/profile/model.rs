//! `pilot profile model` and `durations`: what the model says, without a measurement.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pilot_meter::quota::{Limit, Scheduler, Ticks, fit};
use serde::Serialize;

use super::super::failure::Failure;
use super::super::output::{self, Align, Table};
use super::{LimitArgs, Log, SECONDS_MAX};

/// The arguments of `pilot profile model`.
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    #[command(flatten)]
    limit: LimitArgs,
    /// Ticks of the scheduler per second (CONFIG_HZ)
    #[arg(long, value_name = "HZ", default_value_t = 250)]
    tick_hz: u64,
    /// From a refill of the quota to the next tick, microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    offset: u64,
    /// Length of the log, seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints the model's log.
pub(super) fn run(args: &ModelArgs) -> anyhow::Result<()> {
    let limit = args.limit.check()?;
    let offset_ns = args.offset.saturating_mul(1000);
    let ticks = Ticks::of_rate(args.tick_hz, offset_ns).map_err(Failure::usage)?;
    Log::of(&fit::modelled(limit, ticks, args.seconds)).write(args.output.as_ref())
}

/// The arguments of `pilot profile durations`.
#[derive(Debug, Args)]
pub(super) struct DurationsArgs {
    /// The CPU time of the task, milliseconds
    #[arg(long, value_name = "MS")]
    cpu_ms: f64,
    /// The period, microseconds
    #[arg(long, value_name = "US", default_value_t = 100_000)]
    period: u64,
    /// Ticks of the scheduler per second (CONFIG_HZ)
    #[arg(long, value_name = "HZ", default_value_t = 250)]
    tick_hz: u64,
    /// Refills are at ticks, as in kernels with CFS; otherwise anywhere between them, as with EEVDF
    #[arg(long)]
    cfs: bool,
    /// From one share of a CPU to the next, thousandths
    #[arg(long, value_name = "MILLI", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1000))]
    step: u64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A share of a CPU, and how long the task takes with it.
#[derive(Debug, Serialize)]
struct Row {
    cpu_milli: u64,
    ideal_ns: u64,
    equation_2_ns: u64,
    model_mean_ns: u64,
    model_least_ns: u64,
    model_most_ns: u64,
}

/// Prints the durations at all shares of a CPU.
pub(super) fn durations(args: &DurationsArgs) -> anyhow::Result<()> {
    let cpu = Duration::try_from_secs_f64(args.cpu_ms / 1e3).ok();
    let cpu = cpu.filter(|cpu| !cpu.is_zero() && *cpu <= CPU_MAX);
    let cpu_ns = cpu.and_then(|cpu| u64::try_from(cpu.as_nanos()).ok());
    let cpu_ns = cpu_ns.ok_or_else(|| {
        Failure::usage(format!(
            "--cpu-ms {} is not above 0 and at most {} (15 minutes)",
            args.cpu_ms,
            CPU_MAX.as_millis()
        ))
    })?;
    let tick_ns = Ticks::of_rate(args.tick_hz, 0)
        .map_err(Failure::usage)?
        .every_ns();
    let scheduler = if args.cfs {
        Scheduler::Cfs
    } else {
        Scheduler::Eevdf
    };
    let mut shares: Vec<u64> = (1..=1000 / args.step).map(|n| n * args.step).collect();
    if shares.last() != Some(&1000) {
        shares.push(1000);
    }
    let rows = shares.into_iter().map(|cpu_milli| {
        let limit = Limit::of_share(args.period, cpu_milli).map_err(Failure::usage)?;
        let spread = limit.spread_ns(cpu_ns, tick_ns, scheduler);
        Ok(Row {
            cpu_milli,
            ideal_ns: limit.ideal_ns(cpu_ns),
            equation_2_ns: limit.duration_ns(cpu_ns),
            model_mean_ns: spread.mean_ns,
            model_least_ns: spread.least_ns,
            model_most_ns: spread.most_ns,
        })
    });
    let rows: Vec<Row> = rows.collect::<Result<_, Failure>>()?;
    if args.json {
        return output::print_json(&rows);
    }
    let mut table = Table::new(&[
        ("CPU", Align::Right),
        ("IDEAL", Align::Right),
        ("EQUATION 2", Align::Right),
        ("MODEL", Align::Right),
        ("LEAST", Align::Right),
        ("MOST", Align::Right),
    ]);
    for row in &rows {
        let time = |ns| output::duration(Duration::from_nanos(ns));
        table.row(vec![
            format!("{}.{:03}", row.cpu_milli / 1000, row.cpu_milli % 1000),
            time(row.ideal_ns),
            time(row.equation_2_ns),
            time(row.model_mean_ns),
            time(row.model_least_ns),
            time(row.model_most_ns),
        ]);
    }
    output::print(&table.render())
}

/// The longest task.
const CPU_MAX: Duration = Duration::from_secs(15 * 60);
