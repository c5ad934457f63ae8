//! The inputs of a simulation: the daemon's settings, its costs, and its load.

use std::time::Duration;

use pilot_model::forecast::Forecaster;
use pilot_model::{Reuse, ScaleConfig, StartRule};

use super::times::Times;

/// The properties of a function that matter in a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Function {
    /// Memory of one of its workers, if the load says it.
    pub worker_bytes: Option<u64>,
}

/// The load of the simulated daemon.
#[derive(Debug, Clone)]
pub struct Load<I> {
    /// The functions.
    pub functions: Vec<Function>,
    /// Duration of the load, including the silence after the last arrival.
    pub span: Duration,
    /// Ordered by time.
    pub arrivals: I,
}

/// Durations and memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// From the decision to start a worker until it is ready.
    pub start: Times,
    /// Service time of an invocation if the load does not say it.
    pub service: Times,
    /// Memory of a worker if the load does not say it.
    pub worker_bytes: u64,
    /// Whether these two replace the values of the load.
    pub insist: bool,
    /// Memory of a function's template, which is always held.
    pub template_bytes: u64,
    /// CPU time of starts and invocations; `None`: nothing ever waits for a CPU.
    pub cpus: Option<CpuCosts>,
}

/// CPUs that starts and invocations share evenly. Each one first computes, and then takes the rest of its time without a CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuCosts {
    /// Number of CPUs.
    pub cores: f64,
    /// CPU time of a start.
    pub start: Duration,
    /// CPU time of an invocation.
    pub service: Duration,
}

impl CpuCosts {
    /// The number of CPUs that a daemon would count: a part of one is one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from one to a million"
    )]
    pub(super) fn whole(self) -> usize {
        self.cores.ceil().clamp(1.0, 1e6) as usize
    }
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
    /// Maximum number of waiting requests of one function.
    pub queue_max: usize,
    /// When another worker is started for requests that wait.
    pub start_rule: StartRule,
    /// Durations and memory.
    pub costs: Costs,
    /// Time between the deployment of the functions and the beginning of the load. The cost of the workers in that time is not
    /// counted.
    pub lead: Duration,
    /// Seed of the random durations.
    pub seed: u64,
}

/// Makes a function's forecaster; `None`: it has none.
pub type MakeForecaster<'a> = dyn Fn(&ScaleConfig) -> Option<Box<dyn Forecaster>> + 'a;

impl Default for Costs {
    /// A fork of a Python template. If the load does not say otherwise: 5 ms of work, and 12 MiB of unshared memory per worker.
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
    /// The default settings of a function.
    fn default() -> Self {
        Self {
            scale: ScaleConfig {
                min: 0,
                max: 64,
                spare: 0,
                idle: Duration::from_secs(60),
                policy: pilot_model::policy::Policy::default(),
                max_wait: None,
                reserved: 0,
            },
            concurrency: 1,
            reuse: Reuse::Always,
            queue_max: 1_000,
            start_rule: StartRule::default(),
            costs: Costs::default(),
            lead: Duration::ZERO,
            seed: 1,
        }
    }
}
