//! Arrival models with their sizing rules, and the simulator that judges them. Pure arithmetic: time comes in as an
//! argument, nothing here reads a clock, and the daemon and the simulator run the same objects.

mod policies;
pub mod simulate;

pub use policies::forecaster;
