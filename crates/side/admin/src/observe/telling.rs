//! The daemon's own log about invocations that failed: timeouts, crashes, out of memory, starts that failed; at level debug also the
//! starts and ends of workers. What a function prints is never in it.
//!
//! A function can fail thousands of times a second. Per function, and for all functions together, some messages are logged per
//! interval; the others are counted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pilot_model::log_line::visible;
use pilot_model::{Event, FunctionName, InvocationRecord, Outcome, Seldom};

/// The messages.
#[derive(Debug)]
pub(super) struct Telling {
    /// Functions with a message in the current interval, or with messages that were left out.
    functions: HashMap<FunctionName, Limits>,
    all: Seldom,
}

#[derive(Debug)]
struct Limits {
    failures: Seldom,
    workers: Seldom,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            failures: Seldom::new(FAILURES_MAX),
            workers: Seldom::new(WORKERS_MAX),
        }
    }
}

impl Default for Telling {
    fn default() -> Self {
        Self {
            functions: HashMap::new(),
            all: Seldom::new(ALL_MAX),
        }
    }
}

impl Telling {
    /// Logs what the events are about.
    pub(super) fn tell(&mut self, events: &[Event], now: Instant) {
        for event in events {
            match event {
                Event::Invoked(record) => self.invoked(record, now),
                Event::WorkerStarted { version, took, .. }
                    if tracing::enabled!(tracing::Level::DEBUG) =>
                {
                    let name = &version.config.name;
                    if let Some(left_out) = self.limits(name).workers.admit(now) {
                        tracing::debug!(function = %name, version = version.number, ?took, left_out, "a worker is ready");
                    }
                }
                Event::WorkerEnded(record) if tracing::enabled!(tracing::Level::DEBUG) => {
                    let name = &record.version.config.name;
                    if let Some(left_out) = self.limits(name).workers.admit(now) {
                        let (version, lived) = (record.version.number, record.lived);
                        let reason = record.reason.as_str();
                        tracing::debug!(function = %name, version, reason, ?lived, left_out, "a worker has ended");
                    }
                }
                _ => {}
            }
        }
        self.functions.retain(|name, limits| {
            let Some(left_out) = limits.failures.over(now) else {
                return true;
            };
            if left_out > 0 {
                tracing::warn!(function = %name, left_out, "more invocations failed than are logged");
            }
            // The counts of workers are for level debug only; those that nobody waits for are not logged.
            false
        });
    }

    /// When to call [`Telling::tell`] again, even if there are no events. `None`: nothing is left to be logged.
    pub(super) fn wake_after(&self) -> Option<Duration> {
        (!self.functions.is_empty()).then_some(Seldom::INTERVAL)
    }

    fn limits(&mut self, name: &FunctionName) -> &Limits {
        if !self.functions.contains_key(name) {
            self.functions.insert(name.clone(), Limits::default());
        }
        &self.functions[name]
    }

    fn invoked(&mut self, record: &InvocationRecord, now: Instant) {
        let what = match record.outcome {
            Outcome::Timeout => "an invocation timed out",
            Outcome::Crash => "a worker crashed during an invocation",
            Outcome::OutOfMemory => "a worker was killed because memory was short",
            Outcome::InputError => "an input could not be fetched",
            Outcome::InitError => "no worker came up for an invocation",
            // Errors of the handler are for the function's log. A client that hangs up, and a limit of the function, are usual.
            Outcome::Ok | Outcome::FunctionError | Outcome::Throttled | Outcome::Cancelled => {
                return;
            }
        };
        let name = &record.version.config.name;
        let Some(left_out) = self.limits(name).failures.admit(now) else {
            return;
        };
        if self.all.admit(now).is_none() {
            self.limits(name).failures.leave_out();
            return;
        }
        let timeline = &record.timeline;
        let ms = |took: Option<Duration>| took.map(|took| took.as_millis());
        tracing::warn!(
            function = %name,
            version = record.version.number,
            request_id = %record.id,
            outcome = record.outcome.as_str(),
            handler_ms = ms(timeline.handler()),
            total_ms = ms(timeline.total()),
            left_out,
            why = why(record),
            "{what}"
        );
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        for (name, limits) in &self.functions {
            let left_out = limits.failures.left_out();
            if left_out > 0 {
                tracing::warn!(function = %name, left_out, "more invocations failed than are logged");
            }
        }
    }
}

/// The first line of what Pilotlight says about the end: `RequestId: ID Error: WHY`, or `TIME ID WHY`.
fn why(record: &InvocationRecord) -> Option<String> {
    let said = record.output.get(record.output_printed..)?;
    let line = said.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let id = record.id.as_str();
    let (_, why) = line.split_once(id)?;
    let why = why.trim_start().trim_start_matches("Error: ");
    let short: String = why.chars().take(WHY_CHARS_MAX).collect();
    (!short.is_empty()).then(|| visible(&short))
}

/// Failed invocations of a function that are logged per interval.
const FAILURES_MAX: u32 = 5;
/// Starts and ends of workers of a function that are logged per interval, at level debug.
const WORKERS_MAX: u32 = 50;
/// Failed invocations of all functions that are logged per interval.
const ALL_MAX: u32 = 100;
/// A problem may quote what a worker sent.
const WHY_CHARS_MAX: usize = 300;
