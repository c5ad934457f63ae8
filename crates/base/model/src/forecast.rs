//! The port of the arrival models: what a forecaster is told at each tick and what it answers. Pure: time comes in as an
//! argument, so that the daemon and the simulator run the same objects.

use std::fmt::Debug;
use std::time::Duration;

use crate::config::ScaleConfig;
use crate::timeline::Instant;

/// What one version's pool saw since the tick before. Measured values are `None` until there was something to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Now.
    pub now: Instant,
    /// Since the tick before; zero at the first one.
    pub span: Duration,
    /// Invocations admitted in `span`: counted when they come, not when they are answered.
    pub arrivals: u64,
    /// The newest of them, or of those before.
    pub last_arrival: Option<Instant>,
    /// Invocations that run or wait now.
    pub demand: u32,
    /// The most of them at one instant of `span`; at least `demand`.
    pub demand_max: u32,
    /// The most that ran at one instant of `span`: without those that waited.
    pub busy_max: u32,
    /// Workers that are up or starting.
    pub workers: u32,
    /// Invocations that one worker serves at the same time; at least 1.
    pub concurrency: u32,
    /// Mean service time, exponentially weighted.
    pub service: Option<Duration>,
    /// From the decision to start a worker to its readiness, exponentially weighted.
    pub start: Option<Duration>,
    /// Memory of one worker, bytes (PSS in the daemon).
    pub worker_bytes: Option<u64>,
}

/// What a forecaster wants of the pool until its next tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Target {
    /// Workers, the busy ones among them: fewer are started up to it, and no idle one is reaped below it.
    pub workers: u32,
    /// An idle worker beyond `workers` is reaped after this; `None`: after the function's `idle_s`.
    pub idle: Option<Duration>,
}

/// An arrival model with its sizing rule; one per live version.
pub trait Forecaster: Send + Debug {
    /// How often [`Forecaster::tick`] is to be called.
    fn interval(&self) -> Duration;

    /// Takes what was seen and says what follows. O(1) unless the model says otherwise; never panics, whatever it is told,
    /// a clock that jumps included.
    fn tick(&mut self, tick: &Tick) -> Target;

    /// Why the newest target is what it is: one line for `pilot describe`.
    fn reason(&self) -> String;
}

/// Makes the forecaster that a function's configuration asks for; `None`: it asks for none.
pub type MakeForecaster = fn(&ScaleConfig) -> Option<Box<dyn Forecaster>>;
