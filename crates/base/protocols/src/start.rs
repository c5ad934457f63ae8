//! The inputs of a worker's start, and the error messages of a failed one.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::{StartError, StartStamps};
use pilot_model::{Instant, Version, WorkerId};

use crate::life::Life;
use crate::{End, FunctionBudget};

/// The start of a worker whose process already runs.
#[derive(Debug, Clone)]
pub struct Start {
    /// The worker's id.
    pub id: WorkerId,
    /// The version it serves.
    pub version: Arc<Version>,
    /// When the start was decided.
    pub asked: Instant,
    /// When its process started.
    pub forked: Instant,
    /// When its sandbox was ready.
    pub sandboxed: Instant,
    /// Longest time from here until it is ready.
    pub ready_max: Duration,
    /// Holds its answers.
    pub answers: FunctionBudget,
}

impl Start {
    pub(crate) fn stamps(&self, initialised: Instant) -> StartStamps {
        StartStamps {
            asked: self.asked,
            template: self.asked,
            forked: self.forked,
            sandboxed: self.sandboxed,
            initialised,
        }
    }

    /// The error of a worker that ended before it was ready. `became` says what it had to do, `hint` what to check.
    pub(crate) fn ended(&self, end: End, became: &str, hint: &str, life: &Life) -> StartError {
        let what = self.version.config.runtime.process();
        let problem = match end {
            End::OutOfMemory(shortage) => shortage.of_start("starting"),
            End::Exited(code @ (126 | 127)) => format!(
                "{what} exited with status {code} before it {became}: can its program be found and executed? {hint}"
            ),
            End::Exited(code) => {
                format!("{what} exited with status {code} before it {became}. {hint}")
            }
            End::Signalled(signal) => {
                format!("{what} was ended by signal {signal} before it {became}")
            }
            End::Unknown => format!("{what} ended before it {became}, for an unknown reason"),
        };
        failed(problem, life)
    }

    /// The error of a worker that took too long. `missing` says what it did not do.
    pub(crate) fn too_slow(&self, missing: &str, hint: &str, life: &Life) -> StartError {
        let what = self.version.config.runtime.process();
        let seconds = self.ready_max.as_secs_f64();
        failed(format!("{what} {missing} within {seconds} s. {hint}"), life)
    }
}

fn failed(problem: String, life: &Life) -> StartError {
    StartError::Runtime {
        problem,
        output: output_text(life),
    }
}

/// What the worker has printed so far.
pub(crate) fn output_text(life: &Life) -> String {
    String::from_utf8_lossy(&life.take_output()).into_owned()
}
