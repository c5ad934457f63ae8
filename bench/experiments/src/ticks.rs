//! `ticks`: the duration of one decision of each policy. The forecasters are the daemon's own, with mixed traffic (`measure`). The
//! times are wall-clock times: on a busy machine the longest ticks are those that were interrupted.

use clap::Args;
use pilot_model::policy::Policy;
use serde::Serialize;

use self::measure::{Runs, TickTimes, tick_times};

mod measure;

/// The options of `ticks`.
#[derive(Debug, Args)]
pub(crate) struct TicksArgs {
    /// Policies to measure, as in a manifest: auto, cusum:h=6; may be repeated [default: all]
    #[arg(long, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Ticks of one forecaster
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Forecasters that are ticked in turn, as in a daemon with as many functions; at most 100 of arima
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    functions: u32,
    /// How often all of them are ticked
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    kind: &'static str,
    policies: Vec<TickTimes>,
}

/// Measures, one policy after another.
pub(crate) fn run(args: &TicksArgs) -> Document {
    let policies = if args.policy.is_empty() {
        Policy::all().to_vec()
    } else {
        args.policy.clone()
    };
    Document {
        kind: "ticks",
        policies: policies
            .iter()
            .filter_map(|policy| tick_times(policy, runs(policy, args)))
            .collect(),
    }
}

/// A tick of arima takes a thousand times as long as one of the others, so fewer of them are measured.
fn runs(policy: &Policy, args: &TicksArgs) -> Runs {
    let slow = matches!(policy, Policy::Arima(_));
    let limited = |number: u32, max: u32| if slow { number.min(max) } else { number };
    Runs {
        ticks: limited(args.count, ARIMA_TICKS_MAX),
        functions: limited(args.functions, ARIMA_FUNCTIONS_MAX),
        rounds: args.rounds,
    }
}

const ARIMA_TICKS_MAX: u32 = 1_000;
const ARIMA_FUNCTIONS_MAX: u32 = 100;
