//! What is simulated: the daemon with its settings, its costs, and its load.

use std::time::Duration;

use pilot_model::forecast::Forecaster;
use pilot_model::{Reuse, ScaleConfig};

use super::times::Times;

/// A function, as far as it matters here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Function {
    /// Memory of one of its workers, where the load says it.
    pub worker_bytes: Option<u64>,
}

/// What the simulated daemon is asked.
#[derive(Debug, Clone)]
pub struct Load<I> {
    /// Who can be asked.
    pub functions: Vec<Function>,
    /// How long the load lasts; silence after the last arrival is part of it.
    pub span: Duration,
    /// In the order of their times.
    pub arrivals: I,
}

/// What things cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// From the decision to start a worker to its readiness.
    pub start: Times,
    /// Of an invocation of which the load says nothing.
    pub service: Times,
    /// Memory of a worker of which the load says nothing.
    pub worker_bytes: u64,
    /// Whether these two hold where the load says something, too.
    pub insist: bool,
    /// Memory of a function's template, held all the time.
    pub template_bytes: u64,
    /// What of this is computing; `None`: nothing ever waits for a CPU.
    pub cpus: Option<CpuCosts>,
}

/// CPUs that starts and invocations share evenly. Each computes first and then takes what is left of its time without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuCosts {
    /// How many.
    pub cores: f64,
    /// What a start computes.
    pub start: Duration,
    /// What an invocation computes.
    pub service: Duration,
}

/// A daemon with its settings. Every function has the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// `min`, `max`, `spare`, `idle`, `policy`.
    pub scale: ScaleConfig,
    /// Invocations that one worker serves at the same time; at least 1.
    pub concurrency: u32,
    /// Whether a worker serves more than one invocation.
    pub reuse: Reuse,
    /// Most requests of one function that wait.
    pub queue_max: usize,
    /// What things cost.
    pub costs: Costs,
    /// The functions are deployed so long before the load begins. What their workers cost in that time is not counted.
    pub lead: Duration,
    /// Of the times that are drawn.
    pub seed: u64,
}

/// Makes a function's forecaster; `None`: it has none.
pub type MakeForecaster<'a> = dyn Fn(&ScaleConfig) -> Option<Box<dyn Forecaster>> + 'a;

impl Default for Costs {
    /// A fork of a Python template; where the load says nothing 5 ms of work and 12 MiB of a worker's own.
    fn default() -> Self {
        Self {
            start: Times::constant(Duration::from_millis(2)),
            service: Times::constant(Duration::from_millis(5)),
            worker_bytes: 12 << 20,
            insist: false,
            template_bytes: 0,
            cpus: None,
        }
    }
}

impl Default for Simulation {
    /// The settings of a function whose manifest says nothing.
    fn default() -> Self {
        Self {
            scale: ScaleConfig {
                min: 0,
                max: 64,
                spare: 0,
                idle: Duration::from_secs(60),
                policy: pilot_model::policy::Policy::default(),
            },
            concurrency: 1,
            reuse: Reuse::Always,
            queue_max: 1_000,
            costs: Costs::default(),
            lead: Duration::ZERO,
            seed: 1,
        }
    }
}
