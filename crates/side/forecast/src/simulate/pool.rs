//! One function's pool in the simulation: the rules' state machine, its forecaster, and what it draws from.

use std::time::Duration;

use pilot_model::forecast::Forecaster;
use pilot_rules::{PoolState, Settings};

use super::random::Random;
use super::settings::{Function, MakeForecaster, Simulation};

/// A worker is known by when it was asked for: its life began then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    /// Nanoseconds.
    pub(super) asked: u64,
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingArrival {
    /// When it came, nanoseconds.
    pub(super) arrived: u64,
    /// How long it will run, nanoseconds.
    pub(super) service: u64,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) state: PoolState<Worker, WaitingArrival>,
    pub(super) forecaster: Option<Box<dyn Forecaster>>,
    /// The soonest event that will tell the state the time; `u64::MAX`: none is ordered.
    pub(super) told: u64,
    pub(super) worker_bytes: u64,
    /// Life times of its workers that ended, nanoseconds.
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

    /// How long until the forecaster ticks again. Never nothing, or time would stand still.
    pub(super) fn interval(&self) -> Option<u64> {
        let forecaster = self.forecaster.as_ref()?;
        let interval = forecaster.interval().max(INTERVAL_MIN);
        Some(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX))
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(1);
