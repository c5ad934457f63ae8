//! One function's pool in the simulation: the rules' state machine, its forecaster, and its random numbers.

use std::time::Duration;

use pilot_model::forecast::Forecaster;
use pilot_rules::{PoolState, Settings, short_starts_max};

use super::random::Random;
use super::settings::{Function, MakeForecaster, Simulation};

/// A worker is identified by when it was ordered, which is the beginning of its life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    /// Nanoseconds.
    pub(super) asked: u64,
}

/// A waiting request.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingArrival {
    /// When it arrived, nanoseconds.
    pub(super) arrived: u64,
    /// How long it will run, nanoseconds.
    pub(super) service: u64,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) state: PoolState<Worker, WaitingArrival>,
    pub(super) forecaster: Option<Box<dyn Forecaster>>,
    /// The time of the earliest pending `What::Due` event; `u64::MAX`: there is none.
    pub(super) told: u64,
    pub(super) worker_bytes: u64,
    /// Sum of the life times of its ended workers, nanoseconds.
    pub(super) lived: u128,
    pub(super) starts: Random,
    pub(super) services: Random,
}

impl Pool {
    pub(super) fn new(
        simulation: &Simulation,
        function: Function,
        index: u32,
        forecaster: &MakeForecaster<'_>,
    ) -> Self {
        let (scale, costs) = (&simulation.scale, &simulation.costs);
        let settings = Settings {
            min: scale.min,
            max: scale.max,
            spare: scale.spare,
            reap_after: scale.idle,
            hot_for: scale.idle,
            concurrency: simulation.concurrency.max(1),
            reuse: simulation.reuse,
            queue_max: simulation.queue_max.max(1),
            // A simulated worker that rests differs in nothing that is counted.
            rest: None,
            start_rule: simulation.start_rule,
            // Without CPUs that they share, no start waits for another one.
            short_starts_max: costs
                .cpus
                .map_or(u32::MAX, |cpus| short_starts_max(cpus.whole())),
        };
        let stream = u64::from(index) * 2;
        Self {
            state: PoolState::new(settings),
            forecaster: forecaster(scale),
            told: u64::MAX,
            worker_bytes: function
                .worker_bytes
                .filter(|_| !costs.insist)
                .unwrap_or(costs.worker_bytes),
            lived: 0,
            starts: Random::new(simulation.seed, stream),
            services: Random::new(simulation.seed, stream + 1),
        }
    }

    /// The interval until the forecaster's next tick. Never zero, because then simulated time would not advance.
    pub(super) fn interval(&self) -> Option<u64> {
        let forecaster = self.forecaster.as_ref()?;
        let interval = forecaster.interval().max(INTERVAL_MIN);
        Some(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX))
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(1);
