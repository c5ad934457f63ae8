//! `pilot simulate`: simulates scaling policies on workloads and compares them. Needs no daemon.
//!
//! A cell is one profile with one start cost. Every policy is simulated in every cell. `simulate/resolve.rs` turns the arguments
//! into a list of runs, this file runs them in parallel, and `simulate/table.rs` prints them.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use pilot_forecast::simulate::{Cell, Comparison, Simulation, WEIGHTS};
use pilot_model::ScaleConfig;
use pilot_workload::Profile;

use self::args::SimulateArgs;
use self::report::{Report, Settings, Speed};
use super::failure::Failure;
use super::output;

pub(super) mod args;
mod report;
mod resolve;
mod table;

/// One policy in one cell.
#[derive(Debug)]
struct Run<'a> {
    profile: &'a Profile,
    name: &'a str,
    start: &'a str,
    simulation: Simulation,
}

/// Simulates, and prints the result.
pub(super) fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let input = || {
        anyhow::Ok((
            resolve::policies(&args.policies)?,
            resolve::starts(args)?,
            resolve::simulation(args)?,
            resolve::profiles(args)?,
        ))
    };
    let (policies, starts, base, profiles) = input().map_err(|error| Failure::input(&error))?;
    let trials: Vec<Simulation> = (0..args.trials).map(|trial| nth(&base, trial)).collect();
    let mut named: Vec<(String, &Profile, &Simulation)> = Vec::new();
    for (name, profile) in &profiles {
        for (number, trial) in (1..).zip(&trials) {
            let name = match number {
                1 => name.clone(),
                more => format!("{name}#{more}"),
            };
            named.push((name, profile, trial));
        }
    }
    let mut runs = Vec::new();
    for (name, profile, trial) in &named {
        for (start, times) in &starts {
            for policy in &policies {
                let mut simulation = (*trial).clone();
                simulation.scale.policy = *policy;
                simulation.costs.start = times.clone();
                runs.push(Run {
                    profile,
                    name,
                    start,
                    simulation,
                });
            }
        }
    }
    let jobs = args.jobs.or_else(|| available_parallelism().ok());
    let jobs = jobs.map_or(1, NonZero::get).min(runs.len());
    let (cells, took) = simulate(&runs, jobs);
    let speed = Speed::of(&cells, took);
    let comparison = Comparison::new(cells);
    if args.json {
        return output::print_json(&Report {
            settings: Settings::of(&base),
            weights: WEIGHTS,
            comparison,
            speed,
        });
    }
    output::print(&table::render(&comparison, speed))
}

/// The settings of another trial: another seed, and functions deployed a little earlier. The deploy times are spread evenly over
/// the longest default time between two ticks.
fn nth(base: &Simulation, trial: u32) -> Simulation {
    let share = (f64::from(trial) * GOLDEN).fract();
    Simulation {
        lead: base.lead + TICK_MAX.mul_f64(share),
        seed: base.seed.wrapping_add(u64::from(trial)),
        ..base.clone()
    }
}

const TICK_MAX: Duration = Duration::from_secs(2);
/// The fractional part of the golden ratio. Its multiples fill an interval evenly, for any number of them.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Runs all of them, `jobs` at a time. Returns the cells in the given order and the sum of their run times.
fn simulate(runs: &[Run<'_>], jobs: usize) -> (Vec<Cell>, Duration) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(runs.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(run) = runs.get(at)
                {
                    let begun = Instant::now();
                    let outcome = run
                        .simulation
                        .run_profile(run.profile, &|scale: &ScaleConfig| {
                            pilot_forecast::forecaster(&scale.policy, scale)
                        });
                    let took = begun.elapsed();
                    let policy = run.simulation.scale.policy.to_string();
                    let cell = Cell::new(run.name, run.start, &policy, outcome);
                    let mut done = done
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((at, cell, took));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, ..)| *at);
    let took = done.iter().map(|(_, _, took)| *took).sum();
    (done.into_iter().map(|(_, cell, _)| cell).collect(), took)
}
