//! A discrete-event simulator: arrivals go through the daemon's own pool rules and forecasters, in virtual time.
//!
//! What it takes for given: how long a start takes, how long an invocation takes, how much memory a worker has. What comes
//! out: who had to wait for a start and for how long, and what the workers cost in memory. Memory of the simulator itself
//! grows with the number of functions and of workers, never with the length of the trace.
//!
//! ```
//! use std::time::Duration;
//! use pilot_forecast::simulate::{Arrival, Function, Load, Simulation};
//!
//! let simulation = Simulation::default();
//! let arrivals = (0..100).map(|n| Arrival {
//!     at: Duration::from_secs(n),
//!     function: 0,
//!     service: Some(Duration::from_millis(5)),
//! });
//! let load = Load { functions: vec![Function::default()], span: Duration::from_secs(100), arrivals };
//! let outcome = simulation.run(load, &|_| None);
//! assert_eq!((outcome.invocations, outcome.cold), (100, 1));
//! ```

mod compare;
mod count;
mod cpu;
mod events;
mod outcome;
mod pool;
mod random;
#[cfg(test)]
mod tests;
mod times;
mod world;

use std::time::Duration;

use pilot_model::forecast::Forecaster;
use pilot_model::{Reuse, ScaleConfig};
use pilot_workload::Profile;

pub use compare::{Cell, Comparison, Standing, WEIGHTS};
pub use outcome::{Outcome, Waits};
pub use pilot_workload::Arrival;
pub use times::{Times, TimesError};

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

impl Simulation {
    /// Lets the load happen to a daemon whose functions have forecasters made by `forecaster`.
    ///
    /// The same load, settings and seed give the same outcome. Arrivals that are not in the order of their times are taken
    /// as if they came with the one before; those of a function that is not there are left out.
    pub fn run<I>(&self, load: Load<I>, forecaster: &MakeForecaster<'_>) -> Outcome
    where
        I: IntoIterator<Item = Arrival>,
    {
        world::run(self, load, forecaster)
    }

    /// Lets a profile's load happen.
    #[must_use]
    pub fn run_profile(&self, profile: &Profile, forecaster: &MakeForecaster<'_>) -> Outcome {
        let functions = profile.functions().iter();
        let load = Load {
            functions: functions
                .map(|function| Function {
                    worker_bytes: function.memory_bytes,
                })
                .collect(),
            span: profile.duration(),
            arrivals: profile.arrivals(),
        };
        self.run(load, forecaster)
    }
}
