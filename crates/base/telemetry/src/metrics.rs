//! The metrics of `table.rs`. [`Metrics`] holds the families. [`FunctionMetrics`] holds one function's series, so that counting an
//! invocation needs no hash look-ups.
//!
//! Invariant: the number of series is bounded by the number of deployed functions. [`Metrics::forget`] removes a function's series.
//! The series with the label `faas_trigger` exist for `http` from the beginning, and for each other trigger once an invocation came
//! from it.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pilot_model::asynchronous::AsyncCounts;
use pilot_model::initscript::{ScriptEnd, ScriptRun};
use pilot_model::ports::TemplateMemory;
use pilot_model::status::{PoolStatus, RuntimeCounts};
use pilot_model::trigger::{FaasTrigger, TriggerInfo};
use pilot_model::{
    EndReason, Event, FunctionName, InvocationRecord, Outcome, RuntimeOrigin, StartKind,
    WorkerRecord,
};
use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::table::{self, Row};

type Labels = Vec<(&'static str, Cow<'static, str>)>;
type Counters = Family<Labels, Counter>;
type Level = Gauge<u64, AtomicU64>;
type Levels = Family<Labels, Level>;
type Seconds = Counter<f64, AtomicU64>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

macro_rules! families {
    ($($field:ident: $kind:ty = $row:ident $(with $make:expr)?,)*) => {
        /// The families of the table. Clones share their series.
        #[derive(Debug, Clone)]
        struct Families {
            $($field: $kind,)*
        }

        impl Families {
            /// New ones, each registered under its row's name.
            fn register(registry: &mut Registry) -> Self {
                let families = Self {
                    $($field: families!(@new $($make)?),)*
                };
                $(register(registry, &table::$row, families.$field.clone());)*
                families
            }
        }
    };
    (@new) => { Default::default() };
    (@new $make:expr) => { Family::new_with_constructor($make) };
}

families! {
    invocations: Counters = INVOCATIONS,
    coldstarts: Counters = COLDSTARTS,
    errors: Counters = ERRORS,
    timeouts: Counters = TIMEOUTS,
    invoke_duration: Histograms = INVOKE_DURATION with durations,
    init_duration: Histograms = INIT_DURATION with durations,
    mem_usage: Histograms = MEM_USAGE with sizes,
    cpu_usage: Histograms = CPU_USAGE with durations,
    mem_allocated: Levels = MEM_ALLOCATED,
    throttled: Family<Labels, Seconds> = THROTTLED,
    script_runs: Counters = SCRIPT_RUNS,
    script_duration: Histograms = SCRIPT_DURATION with durations,
    request_bytes: Counters = REQUEST_BYTES,
    response_bytes: Counters = RESPONSE_BYTES,
    phase_duration: Histograms = PHASE_DURATION with durations,
    worker_wait: Histograms = WORKER_WAIT with durations,
    worker_starts: Counters = WORKER_STARTS,
    worker_start_duration: Histograms = WORKER_START_DURATION with durations,
    worker_ends: Counters = WORKER_ENDS,
    worker_lifetime: Family<Labels, Seconds> = WORKER_LIFETIME,
    worker_cpu: Family<Labels, Seconds> = WORKER_CPU,
    worker_memory_peak: Histograms = WORKER_MEMORY_PEAK with sizes,
    workers: Levels = WORKERS,
    queue_length: Levels = QUEUE_LENGTH,
    worker_memory: Levels = WORKER_MEMORY,
    template_memory: Levels = TEMPLATE_MEMORY,
    templates: Levels = TEMPLATES,
    runtimes: Levels = RUNTIMES,
    runtime_uses: Counters = RUNTIME_USES,
    runtime_duration: Histograms = RUNTIME_DURATION with durations,
    certificate_ends: Levels = CERTIFICATE_ENDS,
    busy_poll: Seconds = BUSY_POLL,
    handover_buffers: Level = HANDOVER_BUFFERS,
    handover_bytes: Level = HANDOVER_BYTES,
    async_invocations: Levels = ASYNC_INVOCATIONS,
    async_bytes: Level = ASYNC_BYTES,
    async_oldest: Level = ASYNC_OLDEST,
    async_events: Counters = ASYNC_EVENTS,
    trigger_lag: Levels = TRIGGER_LAG,
    trigger_waiting: Levels = TRIGGER_WAITING,
    trigger_received: Counters = TRIGGER_RECEIVED,
    trigger_errors: Counters = TRIGGER_ERRORS,
    connections_refused: Counters = CONNECTIONS_REFUSED,
    events_dropped: Counters = EVENTS_DROPPED,
    trace_spans: Counters = TRACE_SPANS,
    log_errors: Counter = LOG_ERRORS,
    usage_lost: Counter = USAGE_LOST,
}

/// Every metric of the daemon.
pub struct Metrics {
    registry: Registry,
    families: Families,
    phases: Phases,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        Self {
            phases: Phases::new(&families.phase_duration),
            registry,
            families,
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// The content type of [`Metrics::text`].
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// One function's series. The first call creates them with the value zero.
    #[must_use]
    pub fn function(&self, name: &FunctionName) -> FunctionMetrics {
        let all = &self.families;
        let named = &name_label(name);
        let wait = |start| {
            let labels = with(named, "start", start);
            all.worker_wait.get_or_create_owned(&labels)
        };
        FunctionMetrics {
            by_trigger: Arc::new(FaasTrigger::ALL.map(|trigger| match trigger {
                FaasTrigger::Http => OnceLock::from(TriggerMetrics::new(all, name, trigger)),
                _ => OnceLock::new(),
            })),
            mem_allocated: all.mem_allocated.get_or_create_owned(named),
            throttled: all.throttled.get_or_create_owned(named),
            wait_cold: wait(START_COLD),
            wait_warm: wait(START_WARM),
            worker_starts: all.worker_starts.get_or_create_owned(named),
            worker_start_duration: all.worker_start_duration.get_or_create_owned(named),
            phases: self.phases.clone(),
            all: all.clone(),
            name: name.clone(),
        }
    }

    /// Removes a function's series.
    pub fn forget(&self, name: &FunctionName) {
        let all = &self.families;
        let named = &name_label(name);
        all.mem_allocated.remove(named);
        all.throttled.remove(named);
        for trigger in FaasTrigger::ALL {
            TriggerMetrics::forget(all, name, trigger);
        }
        for end in ScriptEnd::ALL {
            all.script_runs.remove(&with(named, "end", end.as_str()));
        }
        all.script_duration.remove(named);
        for start in [START_COLD, START_WARM] {
            all.worker_wait.remove(&with(named, "start", start));
        }
        all.worker_starts.remove(named);
        all.worker_start_duration.remove(named);
        for (reason, _) in EndReason::ALL {
            all.worker_ends.remove(&with(named, "reason", reason));
        }
        all.worker_lifetime.remove(named);
        for mode in ["user", "system"] {
            all.worker_cpu.remove(&with(named, "mode", mode));
        }
        all.worker_memory_peak.remove(named);
        for (how, _) in RuntimeOrigin::ALL {
            all.runtime_uses.remove(&with(named, "how", how));
        }
        for (state, _) in states(&PoolStatus::default()) {
            all.workers.remove(&with(named, "state", state));
        }
        all.queue_length.remove(named);
        all.worker_memory.remove(named);
    }

    /// Sets the gauges of one function's pool.
    pub fn set_pool(&self, name: &FunctionName, status: &PoolStatus) {
        let named = &name_label(name);
        for (state, count) in states(status) {
            self.families
                .workers
                .get_or_create(&with(named, "state", state))
                .set(u64::from(count));
        }
        self.families
            .queue_length
            .get_or_create(named)
            .set(u64::from(status.waiting));
        self.families
            .worker_memory
            .get_or_create(named)
            .set(status.memory_bytes);
    }

    /// Sets when certificates end, seconds since 1970-01-01, by the configuration's key that names them.
    pub fn set_certificates(&self, ends: &[(&'static str, u64)]) {
        for (key, unix_s) in ends {
            let labels = vec![("key", Cow::Borrowed(*key))];
            self.families
                .certificate_ends
                .get_or_create(&labels)
                .set(*unix_s);
        }
    }

    /// Sets the counts of connections that were turned away, by reason.
    pub fn set_refused_connections(&self, counts: &[(&'static str, u64)]) {
        for (reason, count) in counts {
            let labels = vec![("reason", Cow::Borrowed(*reason))];
            self.families
                .connections_refused
                .get_or_create(&labels)
                .inner()
                .store(*count, Ordering::Relaxed);
        }
    }

    /// Sets the gauges and counters of asynchronous invocations.
    pub fn set_async(&self, counts: &AsyncCounts) {
        let all = &self.families;
        for (state, count) in [
            ("waiting", counts.waiting),
            ("running", counts.running),
            ("dead", counts.dead),
        ] {
            let labels = vec![("state", Cow::Borrowed(state))];
            all.async_invocations.get_or_create(&labels).set(count);
        }
        all.async_bytes.set(counts.bytes);
        all.async_oldest.set(counts.oldest_age_s);
        for (event, count) in [
            ("accepted", counts.accepted),
            ("refused", counts.refused),
            ("retried", counts.retries),
            ("dead", counts.dead_total),
            ("dropped", counts.dropped),
        ] {
            let labels = vec![("event", Cow::Borrowed(event))];
            let counter = all.async_events.get_or_create(&labels);
            counter.inner().store(count, Ordering::Relaxed);
        }
    }

    /// Sets the gauges and counters of triggers. Those that are not listed lose their series.
    pub fn set_triggers(&self, triggers: &[TriggerInfo]) {
        let all = &self.families;
        all.trigger_lag.clear();
        all.trigger_waiting.clear();
        all.trigger_received.clear();
        all.trigger_errors.clear();
        for trigger in triggers {
            let labels = vec![
                ("function", Cow::Owned(trigger.function.to_string())),
                ("type", Cow::Owned(trigger.kind.clone())),
                ("source", Cow::Owned(trigger.source.clone())),
            ];
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a lag is positive and far below 2^53 seconds"
            )]
            if let Some(lag_s) = trigger.lag_s {
                let gauge = all.trigger_lag.get_or_create(&labels);
                gauge.set(lag_s.round() as u64);
            }
            if let Some(waiting) = trigger.waiting {
                all.trigger_waiting.get_or_create(&labels).set(waiting);
            }
            for (family, count) in [
                (&all.trigger_received, trigger.received),
                (&all.trigger_errors, trigger.errors),
            ] {
                let counter = family.get_or_create(&labels);
                counter.inner().store(count, Ordering::Relaxed);
            }
        }
    }

    /// Sets the time for which threads of the daemon polled.
    pub fn set_busy_poll(&self, time: Duration) {
        let bits = time.as_secs_f64().to_bits();
        self.families
            .busy_poll
            .inner()
            .store(bits, Ordering::Relaxed);
    }

    /// Sets the gauges of what functions hand to each other: buffers, and their bytes.
    pub fn set_handed(&self, (buffers, bytes): (u64, u64)) {
        self.families.handover_buffers.set(buffers);
        self.families.handover_bytes.set(bytes);
    }

    /// Sets the gauges of the templates, added up by level.
    pub fn set_templates(&self, templates: &[TemplateMemory]) {
        for level in TEMPLATE_LEVELS {
            let labels = vec![("level", Cow::Borrowed(level))];
            let of_level = templates.iter().filter(|template| template.level == level);
            let (mut count, mut bytes) = (0, 0);
            for template in of_level {
                count += 1;
                bytes += template.memory_bytes;
            }
            self.families.templates.get_or_create(&labels).set(count);
            self.families
                .template_memory
                .get_or_create(&labels)
                .set(bytes);
        }
    }

    /// Sets the gauges of the runtimes that do not fork.
    pub fn set_runtimes(&self, counts: &RuntimeCounts) {
        for (state, count) in [
            ("starting", counts.starting),
            ("available", counts.available),
            ("adapting", counts.adapting),
            ("leased", counts.leased),
            ("cleaning", counts.cleaning),
        ] {
            let labels = vec![("state", Cow::Borrowed(state))];
            self.families
                .runtimes
                .get_or_create(&labels)
                .set(u64::from(count));
        }
    }

    /// Counts the events that this subscriber lost.
    pub(crate) fn events_dropped(&self, subscriber: &'static str) -> Counter {
        let labels = vec![("subscriber", Cow::Borrowed(subscriber))];
        self.families.events_dropped.get_or_create_owned(&labels)
    }

    /// Counts spans of traces that ended in this way.
    #[must_use]
    pub fn trace_spans(&self, outcome: &'static str) -> Counter {
        let labels = vec![("outcome", Cow::Borrowed(outcome))];
        self.families.trace_spans.get_or_create_owned(&labels)
    }

    /// Counts failed writes to log files.
    #[must_use]
    pub fn log_errors(&self) -> &Counter {
        &self.families.log_errors
    }

    /// Counts usage records of invocations that could not be written.
    #[must_use]
    pub fn usage_lost(&self) -> &Counter {
        &self.families.usage_lost
    }

    /// All metrics, in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail, and our labels and values are plain.
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!(%error, "the metrics could not be written as text");
        }
        text
    }
}

/// One function's series. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FunctionMetrics {
    name: FunctionName,
    /// In the order of [`FaasTrigger::ALL`].
    by_trigger: Arc<[OnceLock<TriggerMetrics>; FaasTrigger::ALL.len()]>,
    mem_allocated: Level,
    throttled: Seconds,
    wait_cold: Histogram,
    wait_warm: Histogram,
    worker_starts: Counter,
    worker_start_duration: Histogram,
    phases: Phases,
    /// For what is rare, or has further labels.
    all: Families,
}

impl FunctionMetrics {
    /// Counts an event of the function.
    pub fn count(&self, event: &Event) {
        match event {
            Event::Invoked(record) => self.invoked(record),
            Event::WorkerStarted { took, .. } => self.worker_started(*took),
            Event::WorkerEnded(record) => self.worker_ended(record),
            Event::RuntimeGiven { origin, took, .. } => self.runtime_given(*origin, *took),
            Event::Began { .. }
            | Event::Printed { .. }
            | Event::RuntimesCounted(_)
            | Event::Hopped(_) => {}
        }
    }

    fn invoked(&self, record: &InvocationRecord) {
        if let Some(series) = self.by_trigger.get(record.trigger.index()) {
            series
                .get_or_init(|| TriggerMetrics::new(&self.all, &self.name, record.trigger))
                .invoked(record, &self.all, &self.name);
        }
        if let Some(waited) = record.timeline.worker_wait() {
            let histogram = match record.start {
                StartKind::Warm => &self.wait_warm,
                StartKind::Cold | StartKind::ColdShared => &self.wait_cold,
            };
            histogram.observe(waited.as_secs_f64());
        }
        if let Some(throttled) = record.throttled {
            self.throttled.inc_by(throttled.as_secs_f64());
        }
        self.mem_allocated.set(record.version.config.memory_bytes);
        for run in &record.scripts {
            self.script_ended(*run);
        }
        self.phases.observe(record);
    }

    fn script_ended(&self, run: ScriptRun) {
        let named = &name_label(&self.name);
        let labels = with(named, "end", run.end.as_str());
        self.all.script_runs.get_or_create(&labels).inc();
        if run.end != ScriptEnd::LeftOut {
            let durations = self.all.script_duration.get_or_create(named);
            durations.observe(run.took.as_secs_f64());
        }
    }

    fn worker_started(&self, took: Duration) {
        self.worker_starts.inc();
        self.worker_start_duration.observe(took.as_secs_f64());
    }

    fn worker_ended(&self, record: &WorkerRecord) {
        let named = &name_label(&self.name);
        let labels = with(named, "reason", record.reason.as_str());
        self.all.worker_ends.get_or_create(&labels).inc();
        let lived = record.lived.as_secs_f64();
        self.all.worker_lifetime.get_or_create(named).inc_by(lived);
        if let Some(cpu) = record.cpu {
            for (mode, time) in [("user", cpu.user), ("system", cpu.system)] {
                let labels = with(named, "mode", mode);
                let seconds = self.all.worker_cpu.get_or_create(&labels);
                seconds.inc_by(time.as_secs_f64());
            }
        }
        if let Some(bytes) = record.memory_bytes_max {
            let peaks = self.all.worker_memory_peak.get_or_create(named);
            peaks.observe(approximately(bytes));
        }
    }

    fn runtime_given(&self, origin: RuntimeOrigin, took: Duration) {
        let how = origin.as_str();
        let labels = with(&name_label(&self.name), "how", how);
        self.all.runtime_uses.get_or_create(&labels).inc();
        let labels = vec![("how", Cow::Borrowed(how))];
        self.all
            .runtime_duration
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

/// The series of one function's invocations that come from one trigger.
#[derive(Debug)]
struct TriggerMetrics {
    invocations: Counter,
    cold_own: Counter,
    cold_shared: Counter,
    timeouts: Counter,
    invoke_duration: Histogram,
    init_duration: Histogram,
    mem_usage: Histogram,
    cpu_usage: Histogram,
    request_bytes: Counter,
    response_bytes: Counter,
}

impl TriggerMetrics {
    fn new(all: &Families, name: &FunctionName, trigger: FaasTrigger) -> Self {
        let plain = &trigger_labels(name, trigger);
        let cold = |cause| {
            let labels = with(plain, "cause", cause);
            all.coldstarts.get_or_create_owned(&labels)
        };
        Self {
            invocations: all.invocations.get_or_create_owned(plain),
            cold_own: cold(CAUSE_OWN),
            cold_shared: cold(CAUSE_SHARED),
            timeouts: all.timeouts.get_or_create_owned(plain),
            invoke_duration: all.invoke_duration.get_or_create_owned(plain),
            init_duration: all.init_duration.get_or_create_owned(plain),
            mem_usage: all.mem_usage.get_or_create_owned(plain),
            cpu_usage: all.cpu_usage.get_or_create_owned(plain),
            request_bytes: all.request_bytes.get_or_create_owned(plain),
            response_bytes: all.response_bytes.get_or_create_owned(plain),
        }
    }

    fn forget(all: &Families, name: &FunctionName, trigger: FaasTrigger) {
        let plain = &trigger_labels(name, trigger);
        all.invocations.remove(plain);
        all.timeouts.remove(plain);
        all.invoke_duration.remove(plain);
        all.init_duration.remove(plain);
        all.mem_usage.remove(plain);
        all.cpu_usage.remove(plain);
        all.request_bytes.remove(plain);
        all.response_bytes.remove(plain);
        for cause in [CAUSE_OWN, CAUSE_SHARED] {
            all.coldstarts.remove(&with(plain, "cause", cause));
        }
        for outcome in ERROR_OUTCOMES {
            all.errors.remove(&with(plain, "outcome", outcome.as_str()));
        }
    }

    fn invoked(&self, record: &InvocationRecord, all: &Families, name: &FunctionName) {
        self.invocations.inc();
        let timeline = &record.timeline;
        match record.start {
            StartKind::Warm => {}
            StartKind::Cold => _ = self.cold_own.inc(),
            StartKind::ColdShared => _ = self.cold_shared.inc(),
        }
        if record.start != StartKind::Warm
            && let Some(at) = timeline.initialised
        {
            self.init_duration
                .observe(at.since(timeline.received).as_secs_f64());
        }
        match record.outcome {
            Outcome::Ok => {}
            Outcome::Timeout => _ = self.timeouts.inc(),
            outcome => {
                let plain = &trigger_labels(name, record.trigger);
                let labels = with(plain, "outcome", outcome.as_str());
                all.errors.get_or_create(&labels).inc();
            }
        }
        if let Some(took) = timeline.handler() {
            self.invoke_duration.observe(took.as_secs_f64());
        }
        if let Some(bytes) = record.memory_bytes_max {
            self.mem_usage.observe(approximately(bytes));
        }
        if let Some(cpu) = record.cpu {
            self.cpu_usage.observe(cpu.total().as_secs_f64());
        }
        self.request_bytes.inc_by(record.bytes_in);
        self.response_bytes.inc_by(record.bytes_out);
    }
}

/// The histograms of the phases, shared by all functions.
#[derive(Debug, Clone)]
struct Phases {
    by_name: Arc<[PhaseHistograms]>,
}

#[derive(Debug)]
struct PhaseHistograms {
    name: &'static str,
    cold: Histogram,
    warm: Histogram,
}

impl Phases {
    fn new(family: &Histograms) -> Self {
        let series = |phase, start| {
            let labels: Labels = vec![
                ("phase", Cow::Borrowed(phase)),
                ("start", Cow::Borrowed(start)),
            ];
            family.get_or_create_owned(&labels)
        };
        let by_name = PHASES.map(|name| PhaseHistograms {
            name,
            cold: series(name, START_COLD),
            warm: series(name, START_WARM),
        });
        Self {
            by_name: Arc::new(by_name),
        }
    }

    fn observe(&self, record: &InvocationRecord) {
        for (name, took) in record.timeline.phases() {
            let Some(phase) = self.by_name.iter().find(|phase| phase.name == name) else {
                continue;
            };
            let histogram = match record.start {
                StartKind::Warm => &phase.warm,
                StartKind::Cold | StartKind::ColdShared => &phase.cold,
            };
            histogram.observe(took.as_secs_f64());
        }
    }
}

fn trigger_labels(name: &FunctionName, trigger: FaasTrigger) -> Labels {
    with(&name_label(name), "faas_trigger", trigger.as_str())
}

fn name_label(name: &FunctionName) -> Labels {
    vec![("faas_name", Cow::Owned(name.to_string()))]
}

fn with(labels: &Labels, key: &'static str, value: &'static str) -> Labels {
    let mut labels = labels.clone();
    labels.push((key, Cow::Borrowed(value)));
    labels
}

fn states(status: &PoolStatus) -> [(&'static str, u32); 4] {
    [
        ("starting", status.starting),
        ("idle", status.idle.saturating_sub(status.frozen)),
        ("frozen", status.frozen),
        ("busy", status.busy),
    ]
}

/// Registers a metric under its name in the table. The encoder appends `_total` and the unit again.
fn register(registry: &mut Registry, row: &Row, metric: impl Metric) {
    let name = row.name.strip_suffix("_total").unwrap_or(row.name);
    let help = row.help.strip_suffix('.').unwrap_or(row.help);
    if let Some(name) = name.strip_suffix("_seconds") {
        registry.register_with_unit(name, help, Unit::Seconds, metric);
    } else if let Some(name) = name.strip_suffix("_bytes") {
        registry.register_with_unit(name, help, Unit::Bytes, metric);
    } else {
        registry.register(name, help, metric);
    }
}

fn durations() -> Histogram {
    Histogram::new(DURATION_BOUNDS_S)
}

fn sizes() -> Histogram {
    Histogram::new((4..14).map(|power| f64::from(1_u32 << power) * MIB))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a histogram of sizes needs no more than 53 bits"
)]
fn approximately(bytes: u64) -> f64 {
    bytes as f64
}

/// From 100 µs, less than a response of a spare worker takes, to Lambda's usual timeouts.
const DURATION_BOUNDS_S: [f64; 17] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];
const MIB: f64 = 1_048_576.0;
const START_COLD: &str = "cold";
const START_WARM: &str = "warm";
const CAUSE_OWN: &str = "own";
const CAUSE_SHARED: &str = "shared";
/// The names of [`pilot_model::Timeline::phases`].
const PHASES: [&str; 12] = [
    "admit", "inputs", "lease", "thaw", "fork", "exec", "runtime", "sandbox", "init", "start",
    "handler", "answer",
];
const TEMPLATE_LEVELS: [&str; 4] = ["interpreter", "environment", "function", "prewarmed"];
const ERROR_OUTCOMES: [Outcome; 7] = [
    Outcome::FunctionError,
    Outcome::Crash,
    Outcome::OutOfMemory,
    Outcome::InitError,
    Outcome::InputError,
    Outcome::Throttled,
    Outcome::Cancelled,
];

#[cfg(test)]
pub(crate) mod tests;
