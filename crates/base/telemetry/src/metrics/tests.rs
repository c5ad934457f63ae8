use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use pilot_model::trigger::TriggerState;
use pilot_model::{
    CpuTime, Environment, EnvironmentId, FunctionSpec, Instant, InvocationId, Python, Timeline,
    Version, VersionId, WorkerId, WorkerOrigin,
};

use super::*;
use crate::table::{MetricKind, TABLE};

fn name(text: &str) -> FunctionName {
    text.parse().unwrap()
}

pub(crate) fn record(function: &str, start: StartKind, outcome: Outcome) -> InvocationRecord {
    let config = FunctionSpec::default().check(&name(function)).unwrap();
    let at = |ms: u64| Some(Instant(ms * 1_000_000));
    InvocationRecord {
        id: InvocationId::new("r1"),
        version: Arc::new(Version {
            id: VersionId::from_hex("00"),
            number: 1,
            config,
            code_dir: PathBuf::new(),
            layers: None,
            environment: Environment {
                id: EnvironmentId::from_hex("00"),
                python: Some(Python {
                    executable: PathBuf::new(),
                    prefix: PathBuf::new(),
                    packages_dir: None,
                    imports: Vec::new(),
                }),
                node: None,
            },
            own_imports: None,
            modules: Vec::new(),
        }),
        trigger: FaasTrigger::Http,
        worker: None,
        start,
        outcome,
        timeline: Timeline {
            origin: WorkerOrigin::Fork,
            received: Instant(0),
            admitted: at(1),
            leased: at(2),
            thawed: None,
            forked: at(3),
            sandboxed: at(4),
            initialised: at(5),
            inputs_ready: None,
            started: at(6),
            first_byte: at(16),
            returned: at(16),
            finished: at(17),
        },
        memory_bytes_max: Some(20 << 20),
        cpu: Some(CpuTime::default()),
        throttled: Some(Duration::from_millis(2)),
        pss_bytes: None,
        shared: None,
        transfers: Vec::new(),
        scripts: vec![ScriptRun {
            end: ScriptEnd::Ok,
            took: Duration::from_millis(2),
        }],
        bytes_in: 0,
        bytes_out: 0,
        output: Bytes::new(),
        output_printed: 0,
        output_published: None,
        trace: None,
    }
}

/// Updates every metric of the table.
fn exercise(metrics: &Metrics, function: &str) {
    let series = metrics.function(&name(function));
    for outcome in ERROR_OUTCOMES {
        series.invoked(&record(function, StartKind::Cold, outcome));
    }
    for trigger in FaasTrigger::ALL {
        series.invoked(&InvocationRecord {
            trigger,
            ..record(function, StartKind::Warm, Outcome::Timeout)
        });
        series.invoked(&InvocationRecord {
            trigger,
            ..record(function, StartKind::Warm, Outcome::Crash)
        });
    }
    series.worker_started(Duration::from_millis(2));
    for (_, reason) in EndReason::ALL {
        series.worker_ended(&WorkerRecord {
            worker: WorkerId(1),
            version: record(function, StartKind::Warm, Outcome::Ok).version,
            reason: *reason,
            lived: Duration::from_secs(1),
            cpu: Some(CpuTime::default()),
            memory_bytes_max: Some(20 << 20),
        });
    }
    for (_, origin) in RuntimeOrigin::ALL {
        series.runtime_given(*origin, Duration::from_millis(2));
    }
    metrics.set_runtimes(&RuntimeCounts::default());
    metrics.set_pool(&name(function), &PoolStatus::default());
    metrics.set_templates(&[]);
    metrics.set_certificates(&[("tls_certificate", 1)]);
    metrics.set_async(&AsyncCounts::default());
    metrics.set_triggers(&[a_trigger()]);
    metrics.set_handed((1, 2));
    metrics.set_refused_connections(&[("too_slow", 1)]);
    metrics.trace_spans("exported").inc();
    metrics.events_dropped("metrics");
}

fn a_trigger() -> TriggerInfo {
    TriggerInfo {
        function: name("invert"),
        kind: "folder".to_owned(),
        source: "/srv/in".to_owned(),
        state: TriggerState::Active,
        lag_s: Some(1.0),
        waiting: Some(2),
        received: 3,
        errors: 4,
        last_run_unix_ms: None,
        next_run_unix_ms: None,
        last_error: None,
        last_error_unix_ms: None,
    }
}

/// Scraped samples without values: metric name and label names.
fn scraped(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| metric.strip_suffix(suffix))
            .unwrap_or(metric);
        let entry = found.entry(base.to_owned()).or_default();
        for label in labels.trim_end_matches('}').split(',') {
            if let Some((key, _)) = label.split_once('=')
                && key != "le"
            {
                entry.insert(key.to_owned());
            }
        }
    }
    found
}

#[test]
fn what_is_scraped_is_the_table_names_and_labels() {
    let metrics = Metrics::default();
    exercise(&metrics, "invert");
    let expected: BTreeMap<String, BTreeSet<String>> = TABLE
        .iter()
        .map(|row| {
            let labels = row.labels.iter().map(|label| (*label).to_owned());
            (row.name.to_owned(), labels.collect())
        })
        .collect();
    assert_eq!(scraped(&metrics.text()), expected);
}

#[test]
fn every_metric_is_of_the_kind_the_table_says() {
    let metrics = Metrics::default();
    exercise(&metrics, "invert");
    let text = metrics.text();
    for row in TABLE {
        let (name, kind) = match row.kind {
            MetricKind::Counter => (row.name.strip_suffix("_total").unwrap(), "counter"),
            MetricKind::Gauge => (row.name, "gauge"),
            MetricKind::Histogram => (row.name, "histogram"),
        };
        assert!(
            text.contains(&format!("# TYPE {name} {kind}\n")),
            "{name} in {text}"
        );
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn a_removed_function_leaves_no_series() {
    let metrics = Metrics::default();
    exercise(&metrics, "kept");
    let before = metrics.text().lines().count();
    exercise(&metrics, "gone");
    assert!(metrics.text().contains("\"gone\""));
    metrics.forget(&name("gone"));
    let text = metrics.text();
    assert!(!text.contains("\"gone\""), "{text}");
    assert_eq!(text.lines().count(), before);
}

#[test]
fn a_start_someone_else_caused_is_counted_apart() {
    let metrics = Metrics::default();
    let series = metrics.function(&name("f"));
    series.invoked(&record("f", StartKind::Cold, Outcome::Ok));
    series.invoked(&record("f", StartKind::ColdShared, Outcome::Ok));
    series.invoked(&record("f", StartKind::ColdShared, Outcome::Ok));
    series.invoked(&record("f", StartKind::Warm, Outcome::Ok));
    let text = metrics.text();
    let count = |cause: &str| {
        let series = format!(
            "faas_coldstarts_total{{faas_name=\"f\",faas_trigger=\"http\",cause=\"{cause}\"}} "
        );
        text.lines()
            .find_map(|line| line.strip_prefix(&series))
            .map(str::to_owned)
    };
    assert_eq!(count("own").as_deref(), Some("1"));
    assert_eq!(count("shared").as_deref(), Some("2"));
    assert!(
        text.contains(
            "faas_init_duration_seconds_count{faas_name=\"f\",faas_trigger=\"http\"} 3\n"
        )
    );
}

#[test]
fn every_phase_of_a_full_timeline_has_a_histogram() {
    let mut timeline = record("f", StartKind::Cold, Outcome::Ok).timeline;
    timeline.inputs_ready = timeline.leased;
    timeline.thawed = timeline.leased;
    let mut named = BTreeSet::new();
    for origin in [
        WorkerOrigin::Fork,
        WorkerOrigin::Exec,
        WorkerOrigin::Runtime,
    ] {
        timeline.origin = origin;
        named.extend(timeline.phases().map(|(phase, _)| phase));
    }
    assert_eq!(named, BTreeSet::from(PHASES));
}

#[test]
fn an_invocation_that_timed_out_counts_in_the_histogram_of_durations() {
    let metrics = Metrics::default();
    let series = metrics.function(&"f".parse().unwrap());
    for outcome in [Outcome::Timeout, Outcome::Crash, Outcome::OutOfMemory] {
        series.invoked(&record("f", StartKind::Warm, outcome));
    }
    let text = metrics.text();
    assert!(
        text.contains(
            "faas_invoke_duration_seconds_count{faas_name=\"f\",faas_trigger=\"http\"} 3\n"
        ),
        "{text}"
    );
}

#[test]
fn the_bytes_of_requests_and_responses_add_up() {
    let metrics = Metrics::default();
    let series = metrics.function(&"f".parse().unwrap());
    for (bytes_in, bytes_out) in [(10, 3), (7, 0)] {
        series.invoked(&InvocationRecord {
            bytes_in,
            bytes_out,
            ..record("f", StartKind::Warm, Outcome::Ok)
        });
    }
    let text = metrics.text();
    for line in [
        "pilot_request_bytes_total{faas_name=\"f\",faas_trigger=\"http\"} 17\n",
        "pilot_response_bytes_total{faas_name=\"f\",faas_trigger=\"http\"} 3\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn invocations_are_counted_by_what_they_come_from() {
    let metrics = Metrics::default();
    let series = metrics.function(&name("f"));
    let timed = |count| {
        format!("faas_invocations_total{{faas_name=\"f\",faas_trigger=\"timer\"}} {count}\n")
    };
    assert!(metrics.text().contains("faas_trigger=\"http\""));
    assert!(!metrics.text().contains("faas_trigger=\"timer\""));
    for _ in 0..2 {
        series.clone().invoked(&InvocationRecord {
            trigger: FaasTrigger::Timer,
            ..record("f", StartKind::Warm, Outcome::Ok)
        });
    }
    let text = metrics.text();
    assert!(text.contains(&timed(2)), "{text}");
    let http = "faas_invocations_total{faas_name=\"f\",faas_trigger=\"http\"} 0\n";
    assert!(text.contains(http), "{text}");
}

#[test]
fn the_tables_text_names_every_reason() {
    for (reason, _) in EndReason::ALL {
        assert!(crate::table::WORKER_ENDS.help.contains(reason), "{reason}");
    }
}

#[test]
fn templates_are_added_up_by_level() {
    let metrics = Metrics::default();
    let template = |bytes| TemplateMemory {
        level: "function".to_owned(),
        name: String::new(),
        memory_bytes: bytes,
    };
    metrics.set_templates(&[template(5), template(7)]);
    let text = metrics.text();
    assert!(
        text.contains("pilot_template_memory_bytes{level=\"function\"} 12\n"),
        "{text}"
    );
    assert!(
        text.contains("pilot_templates{level=\"function\"} 2\n"),
        "{text}"
    );
    metrics.set_templates(&[]);
    assert!(
        metrics
            .text()
            .contains("pilot_templates{level=\"function\"} 0\n")
    );
}
