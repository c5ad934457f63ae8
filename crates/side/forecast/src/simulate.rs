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
mod settings;
#[cfg(test)]
mod tests;
mod times;
mod world;

use pilot_workload::Profile;

pub use compare::{Cell, Comparison, Standing, WEIGHTS};
pub use outcome::{Outcome, Waits};
pub use pilot_workload::Arrival;
pub use settings::{Costs, CpuCosts, Function, Load, MakeForecaster, Simulation};
pub use times::{Times, TimesError};

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
