//! `pilot bench ticks`: how long a forecaster takes to decide, policy by policy. Needs no daemon: the very objects that a daemon
//! ticks are ticked here, on a mixture of traffic (`pilot_forecast::measure`). Wall time, so on a busy machine the longest are
//! those that were interrupted.

use std::fmt::Write as _;

use clap::Args;
use pilot_forecast::measure::{Runs, TickTimes, tick_times};
use pilot_model::policy::Policy;
use serde::Serialize;

use super::super::output::{self, Align, Table};
use super::time;

/// What `pilot bench ticks` takes.
#[derive(Debug, Args)]
pub(super) struct TicksArgs {
    /// Policies to measure, as in a manifest: auto, cusum:h=6; may be repeated. Without: all of them
    #[arg(long, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Ticks of one forecaster
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Forecasters that are ticked in turn, as a daemon with as many functions does; 100 of arima
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    functions: u32,
    /// How often all of them are
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Document {
    kind: &'static str,
    policies: Vec<TickTimes>,
}

/// Measures, one policy after another.
pub(super) fn run(args: &TicksArgs) -> anyhow::Result<()> {
    let policies = if args.policy.is_empty() {
        Policy::all().to_vec()
    } else {
        args.policy.clone()
    };
    let policies = policies
        .iter()
        .filter_map(|policy| tick_times(policy, runs(policy, args)))
        .collect();
    let document = Document {
        kind: "ticks",
        policies,
    };
    if args.json {
        return output::print_json(&document);
    }
    output::print(&table(&document.policies))
}

/// A tick of arima takes a thousand times as long as one of the others: fewer of them, or nobody waits for the end.
fn runs(policy: &Policy, args: &TicksArgs) -> Runs {
    let slow = matches!(policy, Policy::Arima(_));
    Runs {
        ticks: if slow {
            args.count.min(ARIMA_TICKS_MAX)
        } else {
            args.count
        },
        functions: if slow {
            args.functions.min(ARIMA_FUNCTIONS_MAX)
        } else {
            args.functions
        },
        rounds: args.rounds,
    }
}

fn table(policies: &[TickTimes]) -> String {
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("MAX", Align::Right),
        ("FUNCTIONS", Align::Right),
        ("ALL OF THEM", Align::Right),
        ("MAX", Align::Right),
    ]);
    for times in policies {
        table.row(vec![
            times.policy.clone(),
            nanos(times.tick_ns_p50),
            nanos(times.tick_ns_p99),
            nanos(times.tick_ns_max),
            times.functions.to_string(),
            time(times.round_ms_p50 * 1e3),
            time(times.round_ms_max * 1e3),
        ]);
    }
    let mut text = table.render();
    if let Some(times) = policies.first() {
        let clock = nanos(times.clock_ns);
        let _ = writeln!(text, "\n{clock} of each tick is the clock");
    }
    text
}

/// Nanoseconds in the unit that fits: below a microsecond they are told as they are.
fn nanos(ns: u64) -> String {
    if ns < 1_000 {
        return format!("{ns} ns");
    }
    let us = u32::try_from(ns / 100).map_or(f64::MAX, |tenths| f64::from(tenths) / 10.0);
    time(us)
}

const ARIMA_TICKS_MAX: u32 = 1_000;
const ARIMA_FUNCTIONS_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_told_in_the_unit_that_fits() {
        let told = [0, 74, 999, 1_000, 431_000, 72_427_000].map(nanos);
        assert_eq!(
            told,
            ["0 ns", "74 ns", "999 ns", "1.0 µs", "431 µs", "72.4 ms"]
        );
    }

    #[test]
    fn every_policy_that_ticks_has_a_row() {
        let runs = Runs {
            ticks: 10,
            functions: 2,
            rounds: 1,
        };
        let times: Vec<TickTimes> = Policy::all()
            .iter()
            .filter_map(|policy| tick_times(policy, runs))
            .collect();
        let text = table(&times);
        for policy in ["static", "reactive", "cusum", "arima", "auto"] {
            assert!(text.contains(policy), "{text}");
        }
        assert!(!text.contains("demand"), "{text}");
    }
}
