//! The subscriber of the path's events: metrics, what `list` and `describe` say of invocations, and log files.
//!
//! Publishing is a push into a bounded vector. It wakes another thread at most once per interval, since waking a sleeping core
//! costs more than the push; what does not fit is dropped and counted. Whoever reads works off what has gathered first, so
//! that reads see everything published before them.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use pilot_model::invocation::InvocationSummary;
use pilot_model::ports::{Clock, EventSink, Observation, Observed};
use pilot_model::status::Totals;
use pilot_model::{
    Event, FunctionName, InvocationId, InvocationRecord, Outcome, StartKind, Timeline,
};
use pilot_telemetry::{FunctionMetrics, Metrics};

use crate::logs::LogStore;

/// How events are observed.
#[derive(Debug, Clone)]
pub struct ObserverConfig {
    /// Where functions' logs go.
    pub logs_dir: PathBuf,
    /// Size of one log file, bytes; each function has two.
    pub log_file_bytes_max: u64,
    /// Most events that may wait.
    pub events_max: usize,
    /// Most output, bytes, that waiting events may hold.
    pub output_bytes_max: usize,
    /// How long events gather before they are worked off.
    pub interval: Duration,
}

impl ObserverConfig {
    /// The defaults, for a folder of logs.
    #[must_use]
    pub fn new(logs_dir: PathBuf) -> Self {
        Self {
            logs_dir,
            log_file_bytes_max: 8 << 20,
            events_max: 16 * 1024,
            output_bytes_max: 16 << 20,
            interval: Duration::from_millis(25),
        }
    }
}

/// Starts and wires the subscriber.
#[derive(Debug)]
pub struct Observer;

impl Observer {
    /// Starts the subscriber's thread. Events go into the first, what was made of them comes out of the second.
    ///
    /// # Errors
    /// The log folder cannot be made, or the thread not started.
    pub fn start(
        config: ObserverConfig,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<(Arc<dyn EventSink>, Arc<Observations>)> {
        let logs = Arc::new(LogStore::open(config.logs_dir, config.log_file_bytes_max)?);
        let shared = Arc::new(ObserverState {
            queue: Mutex::default(),
            filled: Condvar::new(),
            ledger: Mutex::default(),
            events_max: config.events_max,
            output_bytes_max: config.output_bytes_max,
            metrics,
            logs,
            clock,
        });
        let subscriber = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("pilot-events".to_owned())
            .spawn(move || subscriber.run(config.interval))?;
        let observations = Arc::new(Observations {
            shared: Arc::clone(&shared),
            thread: Mutex::new(Some(thread)),
        });
        Ok((Arc::new(Sink(shared)), observations))
    }
}

/// What was made of the events. Dropping it stops the subscriber.
#[derive(Debug)]
pub struct Observations {
    shared: Arc<ObserverState>,
    /// Guards the handle alone.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Observations {
    /// The functions' logs, everything published so far written.
    #[must_use]
    pub fn logs(&self) -> &Arc<LogStore> {
        self.shared.work_off();
        &self.shared.logs
    }

    /// Works off what has gathered, for readers of the metrics.
    pub fn catch_up(&self) {
        self.shared.work_off();
    }

    /// Forgets every function but these: an invocation that outlived its function's removal brings its series back.
    pub fn retain(&self, names: &HashSet<FunctionName>) {
        let gone: Vec<FunctionName> = {
            let ledger = self.shared.ledger.lock();
            let known = ledger.functions.keys();
            known
                .filter(|name| !names.contains(name))
                .cloned()
                .collect()
        };
        for name in gone {
            self.forget(&name);
        }
    }

    /// Removes logs of functions that are none of these: they were removed while nobody looked.
    pub fn retain_logs(&self, names: &HashSet<FunctionName>) {
        match self.shared.logs.names() {
            Ok(logged) => {
                for name in logged.iter().filter(|name| !names.contains(name)) {
                    self.shared.forget_log(name);
                }
            }
            Err(error) => tracing::warn!(%error, "the logs cannot be listed"),
        }
    }

    /// Works off what has gathered, ends the subscriber and whoever follows a log. Events published later are dropped.
    pub fn stop(&self) {
        self.shared.queue.lock().stopped = true;
        self.shared.filled.notify_all();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the events' subscriber had panicked");
        }
        self.shared.logs.close();
    }
}

impl Drop for Observations {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Observed for Observations {
    fn observation(&self, name: &FunctionName) -> Observation {
        self.shared.work_off();
        let ledger = self.shared.ledger.lock();
        ledger
            .functions
            .get(name)
            .map_or_else(Observation::default, Account::observation)
    }

    fn forget(&self, name: &FunctionName) {
        self.shared.work_off();
        self.shared.ledger.lock().functions.remove(name);
        self.shared.metrics.forget(name);
        self.shared.forget_log(name);
    }
}

/// Where the path's events go in.
#[derive(Debug)]
struct Sink(Arc<ObserverState>);

impl EventSink for Sink {
    fn publish(&self, event: Event) {
        self.0.publish(event);
    }
}

#[derive(Debug)]
struct ObserverState {
    /// What has gathered. Held for a push or a swap.
    queue: Mutex<Queue>,
    /// Signalled when the queue gets its first event, and at the end.
    filled: Condvar,
    /// What was made of the events. Held while a batch is worked off; taken before `queue`, never after it.
    ledger: Mutex<Ledger>,
    events_max: usize,
    output_bytes_max: usize,
    metrics: Arc<Metrics>,
    logs: Arc<LogStore>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Queue {
    events: Vec<Event>,
    output_bytes: usize,
    stopped: bool,
}

#[derive(Debug, Default)]
struct Ledger {
    functions: HashMap<FunctionName, Account>,
    /// The vector that the queue does not use.
    spare: Vec<Event>,
}

/// What is known of one function.
#[derive(Debug)]
struct Account {
    metrics: FunctionMetrics,
    totals: Totals,
    last: Option<Seen>,
    last_cold: Option<Seen>,
    /// Lines to be written at the end of the batch.
    lines: Vec<u8>,
}

/// An invocation, as far as it is remembered.
#[derive(Debug)]
struct Seen {
    id: InvocationId,
    start: StartKind,
    outcome: Outcome,
    timeline: Timeline,
    received_unix_ms: u64,
}

impl ObserverState {
    fn publish(&self, event: Event) {
        let output_bytes = output_bytes(&event);
        let mut queue = self.queue.lock();
        let full = queue.events.len() >= self.events_max
            || queue.output_bytes + output_bytes > self.output_bytes_max;
        if full || queue.stopped {
            drop(queue);
            self.metrics.events_dropped().inc();
            return;
        }
        let first = queue.events.is_empty();
        queue.output_bytes += output_bytes;
        queue.events.push(event);
        drop(queue);
        if first {
            self.filled.notify_one();
        }
    }

    fn run(&self, interval: Duration) {
        loop {
            let stopped = self.wait(interval);
            self.work_off();
            if stopped {
                return;
            }
        }
    }

    /// Waits for a first event, and then for more to gather. True: it is time to stop.
    fn wait(&self, interval: Duration) -> bool {
        let mut queue = self.queue.lock();
        self.filled.wait_while(&mut queue, |queue| {
            queue.events.is_empty() && !queue.stopped
        });
        self.filled
            .wait_while_for(&mut queue, |queue| !queue.stopped, interval);
        queue.stopped
    }

    fn work_off(&self) {
        let mut ledger = self.ledger.lock();
        let mut events = std::mem::take(&mut ledger.spare);
        {
            let mut queue = self.queue.lock();
            std::mem::swap(&mut queue.events, &mut events);
            queue.output_bytes = 0;
        }
        if events.is_empty() {
            ledger.spare = events;
            return;
        }
        let now = Now::read(&*self.clock);
        for event in events.drain(..) {
            self.count(&mut ledger, &event, &now);
        }
        events.shrink_to(SPARE_EVENTS_MAX);
        ledger.spare = events;
        for (name, account) in &mut ledger.functions {
            self.write_lines(name, account);
        }
        drop(ledger);
        self.logs.wake_followers();
    }

    fn count(&self, ledger: &mut Ledger, event: &Event, now: &Now) {
        match event {
            Event::Invoked(record) => {
                let name = &record.version.config.name;
                let account = self.account(ledger, name);
                account.invoked(record, now);
                if account.lines.len() > LINES_BYTES_MAX {
                    self.write_lines(name, account);
                }
            }
            Event::WorkerStarted { version, took, .. } => {
                let account = self.account(ledger, &version.config.name);
                account.metrics.worker_started(*took);
            }
            Event::WorkerEnded {
                version, reason, ..
            } => {
                let account = self.account(ledger, &version.config.name);
                account.metrics.worker_ended(*reason);
            }
            Event::RuntimeGiven {
                version,
                origin,
                took,
            } => {
                let account = self.account(ledger, &version.config.name);
                account.metrics.runtime_given(*origin, *took);
            }
            Event::RuntimesCounted(counts) => self.metrics.set_runtimes(counts),
        }
    }

    fn account<'a>(&self, ledger: &'a mut Ledger, name: &FunctionName) -> &'a mut Account {
        ledger
            .functions
            .entry(name.clone())
            .or_insert_with(|| Account {
                metrics: self.metrics.function(name),
                totals: Totals::default(),
                last: None,
                last_cold: None,
                lines: Vec::new(),
            })
    }

    fn write_lines(&self, name: &FunctionName, account: &mut Account) {
        if account.lines.is_empty() {
            return;
        }
        if let Err(error) = self.logs.append(name, &account.lines) {
            // A full disk, say. Once in the log is enough; the metric counts.
            if self.metrics.log_errors().inc() == 0 {
                tracing::warn!(%error, function = %name, "a function's log was not written");
            }
        }
        account.lines.clear();
        account.lines.shrink_to(LINES_BYTES_MAX);
    }

    fn forget_log(&self, name: &FunctionName) {
        if let Err(error) = self.logs.forget(name) {
            tracing::warn!(%error, function = %name, "a removed function's log is left");
        }
    }
}

impl Account {
    fn invoked(&mut self, record: &InvocationRecord, now: &Now) {
        self.metrics.invoked(record);
        self.totals.invocations += 1;
        self.totals.cold += u64::from(record.start != StartKind::Warm);
        self.totals.errors += u64::from(record.outcome != Outcome::Ok);
        let seen = || Seen {
            id: record.id.clone(),
            start: record.start,
            outcome: record.outcome,
            timeline: record.timeline,
            received_unix_ms: now.unix_ms(&record.timeline),
        };
        if record.start != StartKind::Warm {
            self.last_cold = Some(seen());
        }
        self.last = Some(seen());
        write_log(&mut self.lines, record);
    }

    fn observation(&self) -> Observation {
        Observation {
            totals: self.totals,
            last: self.last.as_ref().map(Seen::summary),
            last_cold: self.last_cold.as_ref().map(Seen::summary),
        }
    }
}

impl Seen {
    fn summary(&self) -> InvocationSummary {
        InvocationSummary {
            id: self.id.to_string(),
            start: self.start,
            outcome: self.outcome,
            timeline: self.timeline,
            received_unix_ms: self.received_unix_ms,
        }
    }
}

/// Both clocks at one instant.
struct Now {
    monotonic: pilot_model::Instant,
    unix: Duration,
}

impl Now {
    fn read(clock: &dyn Clock) -> Self {
        Self {
            monotonic: clock.now(),
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    fn unix_ms(&self, timeline: &Timeline) -> u64 {
        let ago = self.monotonic.since(timeline.received);
        u64::try_from(self.unix.saturating_sub(ago).as_millis()).unwrap_or(u64::MAX)
    }
}

/// An invocation as Lambda logs it: START, what was printed, END, REPORT.
fn write_log(lines: &mut Vec<u8>, record: &InvocationRecord) {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let began = record.timeline.started.is_some() || !record.output.is_empty();
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

fn output_bytes(event: &Event) -> usize {
    match event {
        Event::Invoked(record) => record.output.len(),
        Event::WorkerStarted { .. }
        | Event::WorkerEnded { .. }
        | Event::RuntimeGiven { .. }
        | Event::RuntimesCounted(_) => 0,
    }
}

/// Beyond this a function's lines are written in the middle of a batch.
const LINES_BYTES_MAX: usize = 256 * 1024;
const SPARE_EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
