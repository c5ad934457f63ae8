//! A discrete-event simulator: it passes arrivals through the daemon's own pool rules and forecasters, in virtual time.
//!
//! Inputs: how long a start takes, how long an invocation takes, how much memory a worker has. Results: which requests waited for
//! a start and for how long, and the memory of the workers. The simulator's own memory grows with the number of functions and
//! workers, but not with the length of the trace.
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
    /// Simulates the load on a daemon whose functions have forecasters made by `forecaster`.
    ///
    /// The same load, settings and seed give the same outcome. An arrival that is older than its predecessor gets the
    /// predecessor's time. Arrivals of unknown functions are ignored.
    pub fn run<I>(&self, load: Load<I>, forecaster: &MakeForecaster<'_>) -> Outcome
    where
        I: IntoIterator<Item = Arrival>,
    {
        world::run(self, load, forecaster)
    }

    /// Simulates a profile's load.
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
