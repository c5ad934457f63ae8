//! Arrival models with their sizing rules, and the simulator that judges them. Pure arithmetic: time comes in as an
//! argument, and the daemon and the simulator run the same objects. Nothing here reads a clock.

mod policies;
pub mod simulate;

pub use policies::forecaster;
pub use policies::papers::smoothing_markov::predictor;
