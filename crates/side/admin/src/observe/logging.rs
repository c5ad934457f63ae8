//! The subscriber `logs`: writes what functions print, and Lambda's lines around it, to the functions' log files. `telling` writes what
//! the daemon's own log says about invocations, on the same thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pilot_model::log_line::LogSource;
use pilot_model::ports::Clock;
use pilot_model::{Event, FunctionName, InvocationId, InvocationRecord, Version};
use pilot_telemetry::{Metrics, Subscriber};

use super::telling::Telling;
use super::wall_clock::WallClock;
use crate::logs::{LogStore, Stored};

/// Writes log files.
#[derive(Debug)]
pub(super) struct Logging {
    pub(super) logs: Arc<LogStore>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) telling: Telling,
    /// When a log was last not written.
    pub(super) failed: Option<Instant>,
}

impl Subscriber for Logging {
    fn batch(&mut self, events: &[Event]) {
        self.telling.tell(events, Instant::now());
        if events.is_empty() {
            return;
        }
        let now = WallClock::read(&*self.clock);
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
                Event::Began { id, version, at } => {
                    Lines::platform(lines, now.of(*at), id).start(version);
                }
                Event::Printed { output, at, .. } => {
                    Lines::of_nobody(lines, now.of(*at)).write(output);
                }
                Event::Invoked(record) => write_invocation(lines, record, &now),
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

    fn wake_after(&self) -> Option<Duration> {
        self.telling.wake_after()
    }
}

impl Logging {
    fn write(&mut self, name: &FunctionName, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.logs.append(name, lines) {
            // For example because the disk is full. The log says it once per failure of any length; the metric counts.
            self.metrics.log_errors().inc();
            let now = Instant::now();
            let failed = self.failed.replace(now);
            if failed.is_none_or(|at| now.duration_since(at) > WORKS_AGAIN_AFTER) {
                tracing::warn!(%error, function = %name, "a function's log was not written");
            }
        }
    }
}

/// A log that is not written after this time without an error is told again.
const WORKS_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// An invocation as Lambda logs it: START, what was printed, why it failed, END, REPORT. Of an HTTP server, the first two are events
/// of their own.
fn write_invocation(lines: &mut Vec<u8>, record: &InvocationRecord, now: &WallClock) {
    let (id, timeline) = (&record.id, &record.timeline);
    let ended = now.of(timeline.finished.unwrap_or(timeline.received));
    let began = record.worker.is_some() || !record.output.is_empty();
    let printed = record.output_printed.min(record.output.len());
    let published = record.output_published.unwrap_or(0).min(printed);
    if began && record.output_published.is_none() {
        Lines::platform(lines, now.of(timeline.received), id).start(&record.version);
    }
    Lines::function(lines, ended, id).write(&record.output[published..printed]);
    let mut platform = Lines::platform(lines, ended, id);
    platform.write(&record.output[printed..]);
    if began {
        platform.line(format!("END RequestId: {id}").as_bytes());
    }
    platform.line(record.report_line().as_bytes());
}

/// Lines with the same time, source and request.
struct Lines<'a> {
    into: &'a mut Vec<u8>,
    unix_ms: u64,
    source: LogSource,
    request: Option<&'a InvocationId>,
}

impl<'a> Lines<'a> {
    fn platform(into: &'a mut Vec<u8>, unix_ms: u64, id: &'a InvocationId) -> Self {
        Self {
            into,
            unix_ms,
            source: LogSource::Platform,
            request: Some(id),
        }
    }

    fn function(into: &'a mut Vec<u8>, unix_ms: u64, id: &'a InvocationId) -> Self {
        Self {
            source: LogSource::Function,
            ..Self::platform(into, unix_ms, id)
        }
    }

    /// What an HTTP server prints belongs to no request.
    fn of_nobody(into: &'a mut Vec<u8>, unix_ms: u64) -> Self {
        Self {
            into,
            unix_ms,
            source: LogSource::Function,
            request: None,
        }
    }

    fn start(&mut self, version: &Version) {
        let id = self.request.map_or("", InvocationId::as_str);
        let line = format!("START RequestId: {id} Version: {}", version.number);
        self.line(line.as_bytes());
    }

    fn line(&mut self, text: &[u8]) {
        let line = Stored {
            unix_ms: Some(self.unix_ms),
            source: self.source,
            request: self.request.map(InvocationId::as_str),
            text,
        };
        line.write(self.into);
    }

    /// Writes text of several lines. The prefix of a line is longer than most short lines, so their number is bounded.
    fn write(&mut self, text: &[u8]) {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        if text.is_empty() {
            return;
        }
        let mut lines = text.split(|byte| *byte == b'\n');
        for line in lines.by_ref().take(LINES_MAX) {
            // The platform's texts end with empty lines for the tail of a log.
            if !line.is_empty() || self.source == LogSource::Function {
                self.line(line);
            }
        }
        let left_out = lines.count();
        if left_out > 0 {
            self.source = LogSource::Platform;
            let told = format!(
                "{left_out} further lines were not kept: at most {LINES_MAX} are kept at once"
            );
            self.line(told.as_bytes());
        }
    }
}

/// Most lines of an invocation that are kept, or of an HTTP server's output at once.
pub(super) const LINES_MAX: usize = 16 * 1024;
/// Beyond this the lines of a function are written in the middle of a batch.
const LINES_BYTES_MAX: usize = 256 * 1024;
