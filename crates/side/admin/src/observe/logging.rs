//! The subscriber `logs`: writes what functions print, and Lambda's lines around it, to the functions' log files.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use pilot_model::{Event, FunctionName, InvocationId, InvocationRecord, Outcome, Version};
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
            let version = match event {
                Event::Began { version, .. } | Event::Printed { version, .. } => version,
                Event::Invoked(record) => &record.version,
                _ => continue,
            };
            let name = &version.config.name;
            let lines = functions.entry(name).or_default();
            match event {
                Event::Began { id, version } => write_start(lines, id, version),
                Event::Printed { output, .. } => write_output(lines, output),
                Event::Invoked(record) => write_invocation(lines, record),
                _ => {}
            }
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

/// An invocation as Lambda logs it: START, what was printed, END, REPORT. Of an HTTP server, the first two are events of their own.
fn write_invocation(lines: &mut Vec<u8>, record: &InvocationRecord) {
    let mut text = String::new();
    let began = record.worker.is_some() || !record.output.is_empty();
    match record.output_published {
        Some(published) => write_output(lines, record.output.get(published..).unwrap_or_default()),
        None if began => {
            write_start(lines, &record.id, &record.version);
            write_output(lines, &record.output);
        }
        None => {}
    }
    // Writing to a String cannot fail.
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

fn write_start(lines: &mut Vec<u8>, id: &InvocationId, version: &Version) {
    let line = format!("START RequestId: {id} Version: {}\n", version.number);
    lines.extend_from_slice(line.as_bytes());
}

fn write_output(lines: &mut Vec<u8>, output: &[u8]) {
    lines.extend_from_slice(output);
    if output.last().is_some_and(|byte| *byte != b'\n') {
        lines.push(b'\n');
    }
}

/// Beyond this the lines of a function are written in the middle of a batch.
const LINES_BYTES_MAX: usize = 256 * 1024;
