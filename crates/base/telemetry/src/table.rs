//! The one table of metrics: name, kind, labels, meaning. `metrics.rs` registers nothing that is not here, and a test
//! compares this table with `docs/metrics.md`.
//!
//! Names starting with `faas_` are OpenTelemetry's FaaS metrics in Prometheus's spelling; ours start with `pilot_`.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts per bucket.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// As it is scraped.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

macro_rules! table {
    ($($id:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal,)*) => {
        $(pub(crate) const $id: Row = Row {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every metric there is.
        pub const TABLE: &[Row] = &[$($id),*];
    };
}

table! {
    INVOCATIONS: Counter "faas_invocations_total" ["faas_name", "faas_trigger"]
        "Invocations that ended, however they ended.",
    COLDSTARTS: Counter "faas_coldstarts_total" ["faas_name", "faas_trigger", "cause"]
        "Invocations that waited for a worker to start; cause is own (started for it) or shared (a start that someone else caused).",
    ERRORS: Counter "faas_errors_total" ["faas_name", "faas_trigger", "outcome"]
        "Invocations that ended in an error, timeouts left out; outcome is function_error, crash, out_of_memory, init_error, throttled or cancelled.",
    TIMEOUTS: Counter "faas_timeouts_total" ["faas_name", "faas_trigger"]
        "Invocations that took longer than timeout_s.",
    INVOKE_DURATION: Histogram "faas_invoke_duration_seconds" ["faas_name", "faas_trigger"]
        "The handler's own time.",
    INIT_DURATION: Histogram "faas_init_duration_seconds" ["faas_name", "faas_trigger"]
        "What a cold invocation waited until its worker was initialised.",
    MEM_USAGE: Histogram "faas_mem_usage_bytes" ["faas_name", "faas_trigger"]
        "Most memory that the invocation's worker has used so far, where it was measured.",
    PHASE_DURATION: Histogram "pilot_phase_duration_seconds" ["phase", "start"]
        "Each phase of an invocation's timeline; start is cold or warm. The phases add up to the whole.",
    WORKER_STARTS: Counter "pilot_worker_starts_total" ["faas_name"]
        "Workers that came up.",
    WORKER_START_DURATION: Histogram "pilot_worker_start_duration_seconds" ["faas_name"]
        "From the decision to start a worker to its being ready.",
    WORKER_ENDS: Counter "pilot_worker_ends_total" ["faas_name", "reason"]
        "Workers that went; reason is idle, scaled, crash, timeout, once, retired, pressure or cancelled.",
    WORKERS: Gauge "pilot_workers" ["faas_name", "state"]
        "Workers by state: starting, idle, busy.",
    QUEUE_LENGTH: Gauge "pilot_queue_length" ["faas_name"]
        "Requests that wait for a worker.",
    WORKER_MEMORY: Gauge "pilot_worker_memory_bytes" ["faas_name"]
        "Proportional set size of the function's workers, as last sampled.",
    TEMPLATE_MEMORY: Gauge "pilot_template_memory_bytes" ["level"]
        "Proportional set size of the templates by level: interpreter, environment, function; prewarmed is what is kept of runtimes that do not fork.",
    TEMPLATES: Gauge "pilot_templates" ["level"]
        "Templates that are up, by level.",
    RUNTIMES: Gauge "pilot_runtimes" ["state"]
        "Runtimes that do not fork, by state: starting, available (clean and kept), adapting, leased (a worker has it), cleaning.",
    RUNTIME_USES: Counter "pilot_runtime_uses_total" ["faas_name", "how"]
        "Workers that got a runtime; how is reused, adapted (from one of another key) or started.",
    RUNTIME_DURATION: Histogram "pilot_runtime_duration_seconds" ["how"]
        "From asking for a runtime to having it, without what the function itself takes to come up in it.",
    EVENTS_DROPPED: Counter "pilot_events_dropped_total" []
        "Events that nobody counted because the subscriber was behind.",
    LOG_ERRORS: Counter "pilot_log_write_errors_total" []
        "Writes to functions' log files that failed.",
}

/// The table as Markdown, for `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for row in TABLE {
        let kind = match row.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
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

#[cfg(test)]
mod tests {
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
            super::markdown(),
            "copy the right side into docs/metrics.md"
        );
    }
}
