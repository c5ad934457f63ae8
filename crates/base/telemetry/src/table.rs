//! The table of metrics: name, kind, labels, meaning. `metrics.rs` registers only metrics of this table, and a test compares it
//! with `docs/metrics.md`.
//!
//! Names that start with `faas_` are OpenTelemetry's FaaS metrics in Prometheus's spelling. Our own start with `pilot_`.

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Counts by bucket.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name in the scraped text.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

macro_rules! table {
    ($($id:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal,)*) => {
        $(pub(crate) const $id: Row = Row {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All metrics.
        pub const TABLE: &[Row] = &[$($id),*];
    };
}

table! {
    INVOCATIONS: Counter "faas_invocations_total" ["faas_name", "faas_trigger"]
        "Finished invocations, with any outcome.",
    COLDSTARTS: Counter "faas_coldstarts_total" ["faas_name", "faas_trigger", "cause"]
        "Invocations that waited for a worker to start; cause is own (a start for this invocation) or shared (a start that something else caused).",
    ERRORS: Counter "faas_errors_total" ["faas_name", "faas_trigger", "outcome"]
        "Invocations that failed, except timeouts; outcome is function_error, crash, out_of_memory, init_error, throttled or cancelled.",
    TIMEOUTS: Counter "faas_timeouts_total" ["faas_name", "faas_trigger"]
        "Invocations that took longer than timeout_s.",
    INVOKE_DURATION: Histogram "faas_invoke_duration_seconds" ["faas_name", "faas_trigger"]
        "Time in the handler, also of invocations that did not return: timeouts, crashes, out of memory.",
    INIT_DURATION: Histogram "faas_init_duration_seconds" ["faas_name", "faas_trigger"]
        "Time that a cold invocation waited until its worker was initialised.",
    MEM_USAGE: Histogram "faas_mem_usage_bytes" ["faas_name", "faas_trigger"]
        "Peak memory of the invocation's worker so far, if it was measured.",
    CPU_USAGE: Histogram "faas_cpu_usage_seconds" ["faas_name", "faas_trigger"]
        "CPU time that an invocation's worker used for it, where it can be measured. The first invocation of a worker includes its start.",
    MEM_ALLOCATED: Gauge "pilot_memory_allocated_bytes" ["faas_name"]
        "memory_mb of the function's newest version that was invoked.",
    THROTTLED: Counter "pilot_throttled_seconds_total" ["faas_name"]
        "Time for which invocations waited for the next period of the function's CPU limit, added up over the CPUs, where it can be measured.",
    SCRIPT_RUNS: Counter "pilot_initscript_runs_total" ["faas_name", "end"]
        "Runs of initscripts; end is ok, exit (a status other than 0), trap, limit (it computed or called for too long), timeout, message (a reply that it handed over failed) or left_out (there was no room, or the module was not compiled in time).",
    SCRIPT_DURATION: Histogram "pilot_initscript_duration_seconds" ["faas_name"]
        "Time of a run of an initscript, with the replies that it handed over.",
    REQUEST_BYTES: Counter "pilot_request_bytes_total" ["faas_name", "faas_trigger"]
        "Bytes of the bodies of requests, also of those that failed. For a function that gets events: of the event, as JSON. A request to the URL of such a function counts with its headers, and with a binary body in base64.",
    RESPONSE_BYTES: Counter "pilot_response_bytes_total" ["faas_name", "faas_trigger"]
        "Bytes of the bodies of responses. For a function that gets events: of the result, as JSON.",
    PHASE_DURATION: Histogram "pilot_phase_duration_seconds" ["phase", "start"]
        "Time of each phase of an invocation; start is cold or warm. The phases add up to the total time.",
    WORKER_WAIT: Histogram "pilot_worker_wait_seconds" ["faas_name", "start"]
        "Time that an invocation waited for a worker, for a start or for a busy one; start is cold or warm. Unlike faas_init_duration_seconds, it includes waiting behind the start of another worker.",
    WORKER_STARTS: Counter "pilot_worker_starts_total" ["faas_name"]
        "Workers that became ready.",
    WORKER_START_DURATION: Histogram "pilot_worker_start_duration_seconds" ["faas_name"]
        "Time from the decision to start a worker until it is ready.",
    WORKER_ENDS: Counter "pilot_worker_ends_total" ["faas_name", "reason"]
        "Workers that ended; reason is idle, scaled, crash, timeout, once, retired, pressure or cancelled.",
    WORKER_LIFETIME: Counter "pilot_worker_lifetime_seconds_total" ["faas_name"]
        "Lifetimes of the workers that ended, added up.",
    WORKER_CPU: Counter "pilot_worker_cpu_seconds_total" ["faas_name", "mode"]
        "CPU time of the workers that ended, with the processes that they started; mode is user or system.",
    WORKER_MEMORY_PEAK: Histogram "pilot_worker_memory_peak_bytes" ["faas_name"]
        "Most memory that a worker was seen to use before it ended.",
    WORKERS: Gauge "pilot_workers" ["faas_name", "state"]
        "Workers by state: starting, idle, frozen (or throttled), busy.",
    QUEUE_LENGTH: Gauge "pilot_queue_length" ["faas_name"]
        "Requests that wait for a worker.",
    WORKER_MEMORY: Gauge "pilot_worker_memory_bytes" ["faas_name"]
        "Proportional set size of the function's workers at the last sample.",
    TEMPLATE_MEMORY: Gauge "pilot_template_memory_bytes" ["level"]
        "Proportional set size of the templates by level: interpreter, environment, function; prewarmed is the memory of kept runtimes that do not fork.",
    TEMPLATES: Gauge "pilot_templates" ["level"]
        "Running templates, by level.",
    RUNTIMES: Gauge "pilot_runtimes" ["state"]
        "Runtimes that do not fork, by state: starting, available (clean and kept), adapting, leased (a worker has it), cleaning.",
    RUNTIME_USES: Counter "pilot_runtime_uses_total" ["faas_name", "how"]
        "Workers that got a runtime; how is reused, adapted (from a runtime with another key) or started.",
    RUNTIME_DURATION: Histogram "pilot_runtime_duration_seconds" ["how"]
        "Time to get a runtime, without the start of the function itself.",
    CERTIFICATE_ENDS: Gauge "pilot_tls_certificate_expiry_timestamp_seconds" ["key"]
        "When the certificate of a listener ends, in seconds since 1970-01-01 (the earliest end in its chain); key is the configuration's key that names its file.",
    BUSY_POLL: Counter "pilot_busy_poll_seconds_total" []
        "Time for which threads of the daemon polled for events before they slept.",
    HANDOVER_BUFFERS: Gauge "pilot_handover_buffers" []
        "Buffers that functions fill for other functions or have handed to them.",
    HANDOVER_BYTES: Gauge "pilot_handover_bytes" []
        "Bytes of these buffers; a buffer that several functions get counts once.",
    ASYNC_INVOCATIONS: Gauge "pilot_async_invocations" ["state"]
        "Asynchronous invocations in the store, by state: waiting, running, dead (dead letters).",
    ASYNC_BYTES: Gauge "pilot_async_bytes" []
        "Bytes that they take of the store's limits.",
    ASYNC_OLDEST: Gauge "pilot_async_oldest_age_seconds" []
        "Age of the oldest asynchronous invocation that waits or runs; 0: there is none.",
    ASYNC_EVENTS: Counter "pilot_async_events_total" ["event"]
        "What happened to asynchronous invocations; event is accepted, refused (no room), retried, dead (became a dead letter) or dropped (failed and not kept, or removed beyond the limit of dead letters).",
    TRIGGER_LAG: Gauge "pilot_trigger_lag_seconds" ["function", "type", "source"]
        "How far a trigger is behind: a run of a schedule that is overdue, or the age of what waits at the source. Left out where the source does not say.",
    TRIGGER_WAITING: Gauge "pilot_trigger_waiting" ["function", "type", "source"]
        "Messages, entries or files that wait at the source of a trigger. Left out where the source does not say.",
    TRIGGER_RECEIVED: Counter "pilot_trigger_received_total" ["function", "type", "source"]
        "Runs, files, messages or entries that a trigger received.",
    TRIGGER_ERRORS: Counter "pilot_trigger_errors_total" ["function", "type", "source"]
        "Failures of a trigger: of its source, of batches and of single items.",
    CONNECTIONS_REFUSED: Counter "pilot_connections_refused_total" ["reason"]
        "Connections that were turned away; reason is listener_full, address_full, too_slow (the request did not arrive in time) or too_many_resets (HTTP/2).",
    EVENTS_DROPPED: Counter "pilot_events_dropped_total" ["subscriber"]
        "Events that a subscriber lost because it was too slow; subscriber is metrics, logs, summaries, meter or traces.",
    TRACE_SPANS: Counter "pilot_trace_spans_total" ["outcome"]
        "Spans of traces; outcome is exported (the collector has them), rejected (it did not want them), failed (it could not be reached for too long) or queue_full.",
    LOG_ERRORS: Counter "pilot_log_write_errors_total" []
        "Failed writes to functions' log files.",
    USAGE_LOST: Counter "pilot_usage_records_lost_total" []
        "Usage records of invocations that could not be written.",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as Markdown, for `docs/metrics.md`.
    fn markdown() -> String {
        let mut text = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
        for row in TABLE {
            let kind = match row.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let labels: Vec<String> = row
                .labels
                .iter()
                .map(|label| format!("`{label}`"))
                .collect();
            text.push_str(&format!(
                "| `{}` | {kind} | {} | {} |\n",
                row.name,
                labels.join(", "),
                row.help
            ));
        }
        text
    }

    #[test]
    fn docs_hold_exactly_this_table() {
        let docs = include_str!("../../../../docs/metrics.md");
        let start = docs
            .find("| metric |")
            .expect("docs/metrics.md has the table");
        let table: String = docs[start..]
            .lines()
            .take_while(|line| line.starts_with('|'))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(
            table,
            markdown(),
            "copy the right side into docs/metrics.md"
        );
    }

    /// Each metric that an expression of the dashboard names, with the text behind the name.
    fn named(expression: &str) -> Vec<(String, &str)> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut found = Vec::new();
        for beginning in ["faas_", "pilot_"] {
            for (at, _) in expression.match_indices(beginning) {
                // Not the end of another word, and no label.
                let before = expression[..at].chars().next_back();
                let rest = &expression[at..];
                let len = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
                let (name, behind) = rest.split_at(len);
                if !before.is_some_and(is_of_name) && !["faas_name", "faas_trigger"].contains(&name)
                {
                    found.push((name.to_owned(), behind));
                }
            }
        }
        found
    }

    #[test]
    fn the_dashboard_shows_every_metric_and_no_other() {
        let dashboard = include_str!("../../../../docs/grafana/pilotlight.json");
        let expressions: Vec<&str> = dashboard
            .lines()
            .filter(|line| line.contains("\"expr\"") || line.contains("\"definition\""))
            .collect();
        assert!(expressions.len() > 30, "it has {}", expressions.len());
        let mut shown = Vec::new();
        for expression in &expressions {
            for (name, behind) in named(expression) {
                let row = TABLE.iter().find(|row| match row.kind {
                    MetricKind::Histogram => ["_bucket", "_sum", "_count"]
                        .iter()
                        .any(|end| name.strip_suffix(end) == Some(row.name)),
                    MetricKind::Counter | MetricKind::Gauge => row.name == name,
                });
                let row = row.unwrap_or_else(|| panic!("there is no {name}: {expression}"));
                let selector = behind
                    .strip_prefix('{')
                    .and_then(|rest| rest.split('}').next());
                for label in selector.into_iter().flat_map(|text| text.split(',')) {
                    let label = label.split('=').next().unwrap_or_default();
                    assert!(row.labels.contains(&label), "{name} has no label {label}");
                }
                shown.push(row.name);
            }
            if let Some((_, by)) = expression.split_once("by (") {
                let names = by.split(')').next().unwrap_or_default().split(", ");
                let of: Vec<_> = shown.last().into_iter().collect();
                let row = TABLE.iter().find(|row| of.contains(&&row.name)).unwrap();
                for label in names.filter(|label| *label != "le") {
                    assert!(row.labels.contains(&label), "{} has no {label}", row.name);
                }
            }
        }
        let missing: Vec<_> = TABLE
            .iter()
            .filter(|row| !shown.contains(&row.name))
            .map(|row| row.name)
            .collect();
        assert_eq!(missing, [""; 0], "add panels for them");
    }
}
