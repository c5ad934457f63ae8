//! Arrival models with their sizing rules, and the simulator that compares them. Pure arithmetic: time is an argument, nothing
//! here reads a clock, and the daemon and the simulator run the same code.

mod policies;
pub mod simulate;

pub use policies::forecaster;
pub use policies::papers::smoothing_markov::predictor;
