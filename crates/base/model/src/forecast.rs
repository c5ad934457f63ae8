//! The port of the arrival models: the input of a forecaster at each tick, and its output. It has no clock: time is an argument,
//! so that the daemon and the simulator run the same code.

use std::fmt::Debug;
use std::time::Duration;

use crate::scale::ScaleConfig;
use crate::timeline::Instant;

/// What one version's pool saw since the previous tick. Measured values are `None` before the first measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Now.
    pub now: Instant,
    /// Time since the previous tick; zero at the first one.
    pub span: Duration,
    /// Invocations admitted in `span`: counted when they arrive, not when they are answered.
    pub arrivals: u64,
    /// The newest arrival, also if it was before `span`.
    pub last_arrival: Option<Instant>,
    /// Invocations that run or wait now.
    pub demand: u32,
    /// Maximum of `demand` in `span`; at least `demand`.
    pub demand_max: u32,
    /// Maximum of concurrently running invocations in `span`, without those that waited.
    pub busy_max: u32,
    /// Workers that are ready or starting.
    pub workers: u32,
    /// Invocations that one worker serves at the same time; at least 1.
    pub concurrency: u32,
    /// Mean service time, exponentially weighted.
    pub service: Option<Duration>,
    /// From the decision to start a worker until it is ready, exponentially weighted.
    pub start: Option<Duration>,
    /// Memory of one worker, bytes (PSS in the daemon).
    pub worker_bytes: Option<u64>,
}

/// What a forecaster requires of the pool until its next tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Target {
    /// Workers, including the busy ones. Missing ones are started, and idle ones are reaped only beyond this number.
    pub workers: u32,
    /// An idle worker beyond `workers` is reaped after this; `None`: after the function's `idle_s`.
    pub idle: Option<Duration>,
}

/// An arrival model with its sizing rule; one per live version.
pub trait Forecaster: Send + Debug {
    /// How often [`Forecaster::tick`] is to be called.
    fn interval(&self) -> Duration;

    /// Takes the observation and returns the target. O(1), unless the model says otherwise. Never panics, whatever the values
    /// are, even if the clock jumps.
    fn tick(&mut self, tick: &Tick) -> Target;

    /// The reason for the newest target: one line for `pilot describe`.
    fn reason(&self) -> String;
}

/// Makes the forecaster that a function's configuration names; `None`: it names none.
pub type MakeForecaster = fn(&ScaleConfig) -> Option<Box<dyn Forecaster>>;
