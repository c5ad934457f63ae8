//! The output of `pilot simulate --json`.

use std::time::Duration;

use pilot_forecast::simulate::{Cell, Comparison, Simulation};
use pilot_model::{Reuse, StartRule};
use serde::Serialize;

/// The output of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) settings: Settings,
    pub(super) weights: [f64; 3],
    #[serde(flatten)]
    pub(super) comparison: Comparison,
    pub(super) speed: Speed,
}

/// The settings of all runs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Settings {
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) spare: u32,
    pub(super) idle_s: f64,
    pub(super) concurrency: u32,
    pub(super) once: bool,
    pub(super) queue: usize,
    pub(super) start_rule: StartRule,
    pub(super) lead_s: f64,
    pub(super) seed: u64,
    pub(super) cores: Option<f64>,
}

/// The speed of the simulation: the only part of a report that differs from run to run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Speed {
    /// Of all runs.
    pub(super) invocations: u64,
    /// Of all runs.
    pub(super) ticks: u64,
    /// Sum over all runs, also of those that ran in parallel.
    pub(super) core_s: f64,
    /// `invocations` divided by `core_s`.
    pub(super) invocations_per_s: f64,
}

impl Settings {
    pub(super) fn of(simulation: &Simulation) -> Self {
        let scale = &simulation.scale;
        Self {
            min: scale.min,
            max: scale.max,
            spare: scale.spare,
            idle_s: scale.idle.as_secs_f64(),
            concurrency: simulation.concurrency,
            once: simulation.reuse == Reuse::Once,
            queue: simulation.queue_max,
            start_rule: simulation.start_rule,
            lead_s: simulation.lead.as_secs_f64(),
            seed: simulation.seed,
            cores: simulation.costs.cpus.map(|cpus| cpus.cores),
        }
    }
}

impl Speed {
    /// `took`: the sum over all runs.
    pub(super) fn of(cells: &[Cell], took: Duration) -> Self {
        let invocations = cells.iter().map(|cell| cell.outcome.invocations).sum();
        let core_s = took.as_secs_f64();
        Self {
            invocations,
            ticks: cells.iter().map(|cell| cell.outcome.ticks).sum(),
            core_s,
            invocations_per_s: invocations as f64 / core_s.max(1e-9),
        }
    }
}
