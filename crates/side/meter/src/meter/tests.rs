//! From an event to a report.

use bytes::Bytes;
use pilot_model::ports::EventSink;
use pilot_model::trigger::FaasTrigger;
use pilot_model::{
    CpuTime, EndReason, Instant as At, InvocationId, InvocationRecord, Outcome, StartKind,
    Timeline, WorkerId, WorkerRecord,
};
use pilot_telemetry::BusConfig;
use pilot_testkit::ManualClock;

use super::*;

struct Bench {
    folder: tempfile::TempDir,
    bus: Bus,
    meter: Meter,
    metrics: Arc<Metrics>,
}

impl Bench {
    fn new(folder: tempfile::TempDir, has_room: bool) -> Self {
        let metrics = Arc::new(Metrics::default());
        let bus = Bus::start(BusConfig::default(), Arc::clone(&metrics)).unwrap();
        let config = MeterConfig {
            folder: folder.path().join("usage"),
            bytes_max: 1 << 20,
            room: Box::new(move || match has_room {
                true => Ok(()),
                false => Err(io::ErrorKind::StorageFull.into()),
            }),
        };
        let clock = Arc::new(ManualClock::at(10_000_000_000));
        let meter = Meter::subscribe(&bus, config, Arc::clone(&metrics), clock).unwrap();
        Self {
            folder,
            bus,
            meter,
            metrics,
        }
    }

    fn cost(&self) -> CostReport {
        self.meter.cost(None, &CostRequest::default()).unwrap()
    }

    fn csv(&self) -> String {
        self.export(None, UsageRecords::Invocations)
    }

    fn export(&self, since_unix_ms: Option<u64>, records: UsageRecords) -> String {
        let pieces = self.meter.usage(None, since_unix_ms, records).unwrap();
        let bytes: Vec<u8> = pieces.flat_map(Result::unwrap).collect();
        String::from_utf8(bytes).unwrap()
    }
}

/// A cold call: 100 ms of initialisation, 50 ms of execution, 30 ms of CPU time.
fn invoked(name: &str, number: u32) -> Event {
    let at = |ms: u64| Some(At(9_000_000_000 + ms * 1_000_000));
    Event::Invoked(Arc::new(InvocationRecord {
        id: InvocationId::new("a"),
        version: pilot_testkit::version(name, number),
        trigger: FaasTrigger::Http,
        worker: Some(WorkerId(7)),
        start: StartKind::Cold,
        outcome: Outcome::Ok,
        timeline: Timeline {
            admitted: at(1),
            leased: at(10),
            forked: at(20),
            sandboxed: at(30),
            initialised: at(110),
            thawed: at(15),
            started: at(111),
            returned: at(161),
            finished: at(165),
            ..Timeline::new(At(9_000_000_000))
        },
        memory_bytes_max: Some(40 << 20),
        cpu: Some(CpuTime {
            user: Duration::from_millis(20),
            system: Duration::from_millis(10),
        }),
        throttled: Some(Duration::from_millis(2)),
        pss_bytes: Some(3),
        shared: None,
        transfers: Vec::new(),
        scripts: Vec::new(),
        bytes_in: 3,
        bytes_out: 5,
        output: Bytes::new(),
        output_printed: 0,
        output_published: None,
        trace: None,
    }))
}

#[test]
fn an_invocation_is_in_the_report_and_in_the_export() {
    let bench = Bench::new(tempfile::tempdir().unwrap(), true);
    bench.bus.publish(invoked("f", 7));
    let used = bench.cost().used;
    assert_eq!((used.calls, used.cold), (1, 1));
    assert_eq!(
        (used.execution_us, used.init_us, used.cpu_us),
        (50_000, 100_000, 30_000)
    );
    assert_eq!(
        (used.memory_kb_ms, used.bytes_in, used.bytes_out),
        (2_000 << 10, 3, 5)
    );
    let csv = bench.csv();
    let rows: Vec<&str> = csv.lines().collect();
    assert!(
        rows[0].starts_with("unix_ms,function,version,start,outcome,"),
        "{csv}"
    );
    assert!(
        rows[0].ends_with(
            ",finished_ns,throttled_ns,pss_bytes,thawed_ns,worker,elapsed_ms,memory_before_bytes"
        ),
        "{csv}"
    );
    let fields: Vec<&str> = rows[1].split(',').collect();
    assert_eq!(fields.len(), rows[0].split(',').count());
    assert_eq!(
        fields[1..14],
        [
            "f",
            "7",
            "cold",
            "ok",
            "256",
            "1000",
            "50000000",
            "100000000",
            "20000000",
            "10000000",
            "41943040",
            "3",
            "5"
        ]
    );
    assert_eq!(fields[24..27], ["2000000", "3", "15000000"], "{csv}");
    let (daemon_ms, worker) = fields[27].split_once('-').unwrap();
    assert!(daemon_ms.parse::<u64>().unwrap() > 0, "{csv}");
    assert_eq!(worker, "7");
    // It was received a second before the daemon's clock showed 10 s.
    assert_eq!(fields[28..], ["9000", ""], "{csv}");
}

/// What is exported can be billed as a trace, to the same bill.
#[test]
fn the_export_costs_as_a_trace_what_the_records_cost() {
    let bench = Bench::new(tempfile::tempdir().unwrap(), true);
    for number in 0..50 {
        let Event::Invoked(record) = invoked("f", number % 3) else {
            panic!("no call");
        };
        let mut record = InvocationRecord::clone(&record);
        // The memory of many is not measured. Some wait for a worker that another started and has made ready meanwhile.
        record.memory_bytes_max = (number % 4 == 1).then_some(300 << 20 >> (number % 5));
        if number % 7 == 0 {
            record.timeline.initialised = record.timeline.leased;
        }
        bench.bus.publish(Event::Invoked(Arc::new(record)));
    }
    let table = Table::shipped().unwrap();
    let options = crate::trace::TraceOptions {
        strictness: crate::trace::Strictness::Refuse,
        matched: crate::Match::Memory,
        default_size: crate::Size::default(),
        threads: None,
    };
    let csv = bench.csv();
    let traced = crate::trace::bill(csv.as_bytes(), &table, &options)
        .unwrap()
        .report;
    let metered = bench.cost();
    assert!(metered.used.memory_unknown > 0, "{:?}", metered.used);
    assert_eq!(traced.used, metered.used);
    let bill = |report: &CostReport, id: &str| {
        let found = report.platforms.iter().find(|platform| platform.id == id);
        found.unwrap().bill.clone()
    };
    for id in [
        "aws-lambda-x86",
        "gcp-request",
        "azure-consumption",
        "cloudflare",
        "vercel",
    ] {
        assert_eq!(bill(&traced, id), bill(&metered, id), "{id}");
    }
}

#[test]
fn records_outlive_the_daemon_and_the_end_of_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder, true);
    for number in 0..3_000 {
        bench.bus.publish(invoked("f", number % 2));
    }
    let at = bench.cost().used.calls;
    assert!(
        bench.meter.folder().read_dir().unwrap().count() > 1,
        "several segments"
    );
    let Bench {
        folder, bus, meter, ..
    } = bench;
    bus.stop();
    drop((bus, meter));
    let bench = Bench::new(folder, true);
    bench.bus.publish(invoked("g", 1));
    assert_eq!((at, bench.cost().used.calls), (3_000, 3_001));
}

#[test]
fn workers_are_metered_with_their_lives() {
    let bench = Bench::new(tempfile::tempdir().unwrap(), true);
    let version = pilot_testkit::version("f", 1);
    bench.bus.publish(Event::WorkerStarted {
        worker: WorkerId(7),
        version: Arc::clone(&version),
        forked: At(9_500_000_000),
        took: Duration::from_millis(5),
    });
    bench.bus.publish(Event::WorkerEnded(Arc::new(WorkerRecord {
        worker: WorkerId(7),
        version,
        reason: EndReason::Idle,
        lived: Duration::from_millis(1_300),
        cpu: None,
        memory_bytes_max: None,
    })));
    let used = bench.cost().used;
    assert_eq!((used.instances, used.instances_ms), (1, 1_300));
    bench.bus.publish(invoked("f", 1));
    let csv = bench.csv();
    let served_by = csv.lines().nth(1).unwrap().split(',').nth(27).unwrap();
    let workers = bench.export(None, UsageRecords::Workers);
    let rows: Vec<&str> = workers.lines().collect();
    let names = "unix_ms,worker,function,version,memory_mb,cpu_milli,lived_ns,cpu_user_ns,cpu_system_ns,memory_used_bytes,reason";
    assert_eq!((rows.len(), rows[0]), (2, names));
    let (ended_ms, rest) = rows[1].split_once(',').unwrap();
    let expected = format!("{served_by},f,1,256,1000,1300000000,,,,idle");
    assert_eq!(rest, expected);
    let later = ended_ms.parse::<u64>().unwrap() + 1;
    let none = bench.export(Some(later), UsageRecords::Workers);
    assert_eq!(none, format!("{names}\n"));
}

#[test]
fn a_full_disk_costs_the_records_and_nothing_else() {
    let bench = Bench::new(tempfile::tempdir().unwrap(), false);
    bench.bus.publish(invoked("f", 1));
    assert_eq!(bench.cost().used.calls, 0);
    let text = bench.metrics.text();
    assert!(text.contains("pilot_usage_records_lost_total 1"), "{text}");
    let wrong = CostRequest {
        billing: Some("[platforms.x]".to_owned()),
        ..CostRequest::default()
    };
    let error = bench.meter.cost(None, &wrong).unwrap_err();
    assert!(matches!(error, CostError::Billing(_)), "{error}");
    drop(bench.folder);
}

/// More calls than the log holds: the worker that has served them all still has its life, and a report needs nothing that was removed.
#[test]
fn a_worker_that_lives_longer_than_the_log_has_its_life() {
    let bench = Bench::new(tempfile::tempdir().unwrap(), true);
    for (worker, forked) in [(7, At(9_000_000_000)), (8, At(9_990_000_000))] {
        bench.bus.publish(Event::WorkerStarted {
            worker: WorkerId(worker),
            version: pilot_testkit::version("f", 1),
            forked,
            took: Duration::from_millis(5),
        });
    }
    let mut published = 0;
    while bench.cost().used.calls == published {
        for _ in 0..3_000 {
            bench.bus.publish(invoked("f", 1));
        }
        published += 3_000;
    }
    let oldest = log::segments(bench.meter.folder()).unwrap()[0];
    assert!(oldest > 1, "the first segment was removed");
    // It is 10 s.
    let used = bench.cost().used;
    assert_eq!((used.instances, used.instances_ms), (2, 1_000 + 10));
    let csv = bench.csv();
    let worker = csv.lines().nth(1).unwrap().split(',').nth(27).unwrap();
    assert!(!worker.starts_with("0-"), "{worker}");
    // A segment of many functions has room for records.
    for number in 0..2_000 {
        bench.bus.publish(Event::WorkerStarted {
            worker: WorkerId(100 + number),
            version: pilot_testkit::version(&format!("function-{number}"), 1),
            forked: At(9_990_000_000),
            took: Duration::from_millis(5),
        });
    }
    for _ in 0..3_000 {
        bench.bus.publish(invoked("f", 1));
    }
    let used = bench.cost().used;
    assert!(used.calls > 3_000, "{}", used.calls);
    assert!(used.instances >= 2, "{}", used.instances);
}
