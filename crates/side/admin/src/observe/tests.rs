use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pilot_model::ports::EventSink;
use pilot_model::status::{RuntimeCounts, Totals};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{
    CpuTime, EndReason, Event, Instant, InvocationId, InvocationRecord, Outcome, RuntimeOrigin,
    StartKind, Timeline, WorkerId, WorkerRecord,
};
use pilot_telemetry::BusConfig;
use pilot_testkit::ManualClock;

use super::logging::LINES_MAX;
use super::*;
use crate::logs::LogsWanted;
use crate::long_reads::LongReads;

struct Bench {
    folder: tempfile::TempDir,
    metrics: Arc<Metrics>,
    sink: Bus,
    observations: Observations,
}

impl Bench {
    fn new() -> Self {
        // Nothing happens by itself within a test's time.
        Self::with(Duration::from_secs(3600))
    }

    fn with(interval: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let logs = LogStore::open(folder.path().join("logs"), LogStore::FILE_BYTES_MAX).unwrap();
        let config = BusConfig {
            interval,
            ..BusConfig::default()
        };
        let metrics = Arc::new(Metrics::default());
        let clock = Arc::new(ManualClock::at(10_000_000_000));
        let sink = Bus::start(config, Arc::clone(&metrics)).unwrap();
        let observations = Observations::subscribe(&sink, logs, &metrics, clock).unwrap();
        Self {
            folder,
            metrics,
            sink,
            observations,
        }
    }

    fn log(&self, name: &str) -> String {
        let wanted = LogsWanted {
            lines: 1000,
            ..LogsWanted::default()
        };
        let mut reader = self
            .observations
            .logs()
            .read(&name.parse().unwrap(), wanted)
            .unwrap();
        String::from_utf8(reader.read().unwrap()).unwrap()
    }
}

fn record(name: &str, id: &str, start: StartKind, outcome: Outcome, output: &'static str) -> Event {
    let at = |ms: u64| Some(Instant(9_000_000_000 + ms * 1_000_000));
    Event::Invoked(Arc::new(InvocationRecord {
        id: InvocationId::new(id),
        version: pilot_testkit::version(name, 7),
        trigger: FaasTrigger::Http,
        worker: Some(WorkerId(1)),
        start,
        outcome,
        timeline: Timeline {
            admitted: at(1),
            started: at(2),
            returned: at(4),
            finished: at(5),
            ..Timeline::new(Instant(9_000_000_000))
        },
        memory_bytes_max: None,
        cpu: None,
        throttled: None,
        pss_bytes: None,
        shared: None,
        transfers: Vec::new(),
        scripts: Vec::new(),
        bytes_in: 0,
        bytes_out: 0,
        output: Bytes::from_static(output.as_bytes()),
        output_printed: output.find("PLATFORM").unwrap_or(output.len()),
        output_published: None,
        trace: None,
    }))
}

fn name(text: &str) -> FunctionName {
    text.parse().unwrap()
}

#[test]
fn reads_see_everything_published_before_them() {
    let bench = Bench::new();
    bench
        .sink
        .publish(record("f", "a", StartKind::Cold, Outcome::Ok, ""));
    bench.sink.publish(record(
        "f",
        "b",
        StartKind::ColdShared,
        Outcome::Timeout,
        "",
    ));
    bench.sink.publish(record(
        "f",
        "c",
        StartKind::Warm,
        Outcome::FunctionError,
        "",
    ));
    let seen = bench.observations.observation(&name("f"));
    let totals = Totals {
        invocations: 3,
        cold: 2,
        errors: 2,
    };
    assert_eq!(seen.totals, totals);
    assert_eq!(seen.last.unwrap().id, "c");
    assert_eq!(seen.last_cold.unwrap().id, "b");
    assert_eq!(
        bench.observations.observation(&name("g")),
        Observation::default()
    );
}

#[test]
fn an_invocation_is_placed_in_wall_clock_time() {
    let bench = Bench::new();
    let before = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis();
    bench
        .sink
        .publish(record("f", "a", StartKind::Warm, Outcome::Ok, ""));
    let last = bench.observations.observation(&name("f")).last.unwrap();
    let ago = before.abs_diff(u128::from(last.received_unix_ms) + 1000);
    assert!(
        ago < 1000,
        "received one second before the clock's now, off by {ago} ms"
    );
}

#[test]
fn the_log_has_lambdas_look() {
    let bench = Bench::new();
    bench.sink.publish(record(
        "f",
        "id-1",
        StartKind::Warm,
        Outcome::Ok,
        "hello\nno line break",
    ));
    bench.sink.publish(record(
        "f",
        "id-2",
        StartKind::Warm,
        Outcome::Timeout,
        "REPORT RequestId: id-2\tDuration: 0.01 ms\nPLATFORM Task timed out\n\n",
    ));
    let log = bench.log("f");
    let lines: Vec<&str> = log.lines().map(|line| &line[25..]).collect();
    assert_eq!(
        lines[..4],
        [
            "platform START RequestId: id-1 Version: 7",
            "function hello",
            "function no line break",
            "platform END RequestId: id-1"
        ]
    );
    assert!(
        lines[4].starts_with("platform REPORT RequestId: id-1\tDuration: 2.00 ms"),
        "{log}"
    );
    assert_eq!(
        lines[6],
        "function REPORT RequestId: id-2\tDuration: 0.01 ms"
    );
    assert_eq!(lines[7], "platform PLATFORM Task timed out");
    assert_eq!(lines[8], "platform END RequestId: id-2");
    assert!(lines[9].ends_with("Status: timeout"), "{log}");
    assert_eq!(lines.len(), 10, "{log}");
    let times: Vec<&str> = log.lines().map(|line| &line[..24]).collect();
    assert!(times[0] < times[1], "it began before it ended: {log}");
}

#[test]
fn lines_beyond_the_most_are_counted() {
    let bench = Bench::new();
    let many: &'static str = "x\n".repeat(LINES_MAX + 3).leak();
    bench
        .sink
        .publish(record("f", "a", StartKind::Warm, Outcome::Ok, many));
    let log = bench.log("f");
    assert!(
        log.contains("platform 3 further lines were not kept: at most 16384"),
        "{}",
        log.len()
    );
}

#[test]
fn metrics_and_worker_events_are_counted() {
    let bench = Bench::new();
    let version = pilot_testkit::version("f", 1);
    bench.sink.publish(Event::WorkerStarted {
        worker: WorkerId(1),
        version: Arc::clone(&version),
        forked: pilot_model::Instant(0),
        took: Duration::from_millis(2),
    });
    bench
        .sink
        .publish(Event::WorkerEnded(Arc::new(WorkerRecord {
            worker: WorkerId(1),
            version,
            reason: EndReason::Idle,
            lived: Duration::from_secs(2),
            cpu: Some(CpuTime {
                user: Duration::from_millis(500),
                system: Duration::from_millis(250),
            }),
            memory_bytes_max: None,
        })));
    bench.observations.catch_up();
    let text = bench.metrics.text();
    assert!(
        text.contains("pilot_worker_starts_total{faas_name=\"f\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("pilot_worker_ends_total{faas_name=\"f\",reason=\"idle\"} 1"),
        "{text}"
    );
    for line in [
        "pilot_worker_lifetime_seconds_total{faas_name=\"f\"} 2.0",
        "pilot_worker_cpu_seconds_total{faas_name=\"f\",mode=\"user\"} 0.5",
        "pilot_worker_cpu_seconds_total{faas_name=\"f\",mode=\"system\"} 0.25",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn what_is_told_of_runtimes_is_counted() {
    let bench = Bench::new();
    bench.sink.publish(Event::RuntimeGiven {
        version: pilot_testkit::version("f", 1),
        origin: RuntimeOrigin::Adapted,
        took: Duration::from_millis(2),
    });
    bench.sink.publish(Event::RuntimesCounted(RuntimeCounts {
        available: 3,
        ..RuntimeCounts::default()
    }));
    bench.observations.catch_up();
    let text = bench.metrics.text();
    for line in [
        "pilot_runtime_uses_total{faas_name=\"f\",how=\"adapted\"} 1",
        "pilot_runtime_duration_seconds_count{how=\"adapted\"} 1",
        "pilot_runtimes{state=\"available\"} 3",
        "pilot_runtimes{state=\"leased\"} 0",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn a_subscriber_nobody_asks_works_by_itself() {
    let bench = Bench::with(Duration::from_millis(1));
    let written = bench
        .observations
        .logs
        .follow(&name("f"), LogsWanted::default())
        .unwrap();
    bench
        .sink
        .publish(record("f", "a", StartKind::Warm, Outcome::Ok, "x"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (bytes, _follower) = written.next(&LongReads::default()).await.unwrap().unwrap();
        assert!(bytes[25..].starts_with(b"platform START"));
    });
}

#[test]
fn stopping_writes_what_has_gathered_and_takes_no_more() {
    let bench = Bench::new();
    bench
        .sink
        .publish(record("f", "a", StartKind::Warm, Outcome::Ok, ""));
    bench.sink.stop();
    let log = std::fs::read_to_string(bench.folder.path().join("logs/f/current.lines")).unwrap();
    assert!(log.contains("REPORT RequestId: a"));
    bench
        .sink
        .publish(record("f", "b", StartKind::Warm, Outcome::Ok, ""));
    bench.observations.catch_up();
    for subscriber in ["metrics", "logs", "summaries"] {
        let line = format!("pilot_events_dropped_total{{subscriber=\"{subscriber}\"}} 1");
        assert!(bench.metrics.text().contains(&line), "{subscriber}");
    }
}

#[test]
fn a_forgotten_function_leaves_nothing_even_when_it_still_ran() {
    let bench = Bench::new();
    bench
        .sink
        .publish(record("f", "a", StartKind::Warm, Outcome::Ok, ""));
    bench.observations.forget(&name("f"));
    assert_eq!(
        bench.observations.observation(&name("f")),
        Observation::default()
    );
    assert!(!bench.folder.path().join("logs/f").exists());
    // An invocation that outlived its function.
    bench
        .sink
        .publish(record("f", "b", StartKind::Warm, Outcome::Ok, ""));
    bench
        .sink
        .publish(record("kept", "c", StartKind::Warm, Outcome::Ok, ""));
    bench.observations.catch_up();
    bench.observations.retain(&HashSet::from([name("kept")]));
    let _written = bench.observations.logs();
    assert!(!bench.metrics.text().contains("\"f\""));
    assert!(!bench.folder.path().join("logs/f").exists());
    assert!(bench.folder.path().join("logs/kept").exists());
    bench.observations.retain_logs(&HashSet::new());
    assert!(!bench.folder.path().join("logs/kept").exists());
}

#[test]
fn a_full_disk_is_counted_and_not_fatal() {
    let bench = Bench::new();
    // A file where the function's folder would be.
    std::fs::write(bench.folder.path().join("logs/f"), "").unwrap();
    for id in ["a", "b"] {
        bench
            .sink
            .publish(record("f", id, StartKind::Warm, Outcome::Ok, ""));
        let _written = bench.observations.logs();
    }
    assert_eq!(bench.metrics.log_errors().get(), 2);
    assert_eq!(
        bench
            .observations
            .observation(&name("f"))
            .totals
            .invocations,
        2
    );
}
