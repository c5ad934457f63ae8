//! The subscriber `logs`: writes what functions print, and Lambda's lines around it, to the functions' log files.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use pilot_model::{Event, FunctionName, InvocationRecord, Outcome};
use pilot_telemetry::{Metrics, Subscriber};

use crate::logs::LogStore;

/// Writes log files.
#[derive(Debug)]
pub(super) struct Logging {
    pub(super) logs: Arc<LogStore>,
    pub(super) metrics: Arc<Metrics>,
}

impl Subscriber for Logging {
    fn batch(&mut self, events: &[Event]) {
        let mut functions: HashMap<&FunctionName, Vec<u8>> = HashMap::new();
        for event in events {
            let Event::Invoked(record) = event else {
                continue;
            };
            let name = &record.version.config.name;
            let lines = functions.entry(name).or_default();
            write_invocation(lines, record);
            if lines.len() > LINES_BYTES_MAX {
                self.write(name, lines);
                lines.clear();
            }
        }
        for (name, lines) in functions {
            self.write(name, &lines);
        }
        self.logs.wake_followers();
    }
}

impl Logging {
    fn write(&self, name: &FunctionName, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.logs.append(name, lines) {
            // For example because the disk is full. The log tells it once; the metric counts.
            if self.metrics.log_errors().inc() == 0 {
                tracing::warn!(%error, function = %name, "a function's log was not written");
            }
        }
    }
}

/// An invocation as Lambda logs it: START, what was printed, END, REPORT.
fn write_invocation(lines: &mut Vec<u8>, record: &InvocationRecord) {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let began = record.worker.is_some() || !record.output.is_empty();
    if began {
        let _ = writeln!(
            text,
            "START RequestId: {} Version: {}",
            record.id, record.version.number
        );
        lines.extend_from_slice(text.as_bytes());
        lines.extend_from_slice(&record.output);
        if record.output.last().is_some_and(|byte| *byte != b'\n') {
            lines.push(b'\n');
        }
        text.clear();
    }
    if record.outcome == Outcome::Timeout {
        let timeout_s = record.version.config.timeout.as_secs_f64();
        let _ = writeln!(
            text,
            "{} Task timed out after {timeout_s:.2} seconds",
            record.id
        );
    }
    if began {
        let _ = writeln!(text, "END RequestId: {}", record.id);
    }
    let _ = writeln!(text, "{}", record.report_line());
    lines.extend_from_slice(text.as_bytes());
}

/// Beyond this the lines of a function are written in the middle of a batch.
const LINES_BYTES_MAX: usize = 256 * 1024;
