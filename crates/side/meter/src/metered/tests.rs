//! Workers and invocations of a log.

use pilot_model::Outcome;
use pilot_model::timeline::WorkerOrigin;

use super::*;

fn function(index: u32, name: &str, version: u32) -> Entry {
    Entry::Function(Function {
        index,
        name: name.to_owned(),
        owner: "team".to_owned(),
        version,
        memory_bytes: 256 << 20,
        cpu_milli: 1000,
    })
}

/// 20 ms of execution.
fn call(function: u32, unix_ms: u64, memory_used: Option<u64>) -> Entry {
    let ms = |ms: u64| Some(ms * 1_000_000);
    Entry::Call(Call {
        function,
        unix_ms,
        start: StartKind::Warm,
        outcome: Outcome::Ok,
        origin: WorkerOrigin::Fork,
        stamps: [
            ms(1),
            ms(1),
            None,
            None,
            None,
            None,
            ms(2),
            ms(22),
            ms(22),
            ms(23),
        ],
        cpu_ns: Some((4_000_000, 1_000_000)),
        memory_used,
        bytes_in: 10,
        bytes_out: 20,
        throttled_ns: None,
        pss_bytes: None,
        worker: None,
        thawed_ns: None,
    })
}

fn started(function: u32, unix_ms: u64) -> Entry {
    Entry::WorkerStarted { function, unix_ms }
}

fn ended(function: u32, unix_ms: u64, lived_ms: u64) -> Entry {
    Entry::WorkerEnded(WorkerEnd {
        function,
        unix_ms,
        lived_ns: lived_ms * 1_000_000,
        cpu_ns: None,
        memory_max: None,
        reason: "idle".to_owned(),
        worker: None,
    })
}

fn report(wanted: Wanted, entries: &[Entry], now_ms: u64) -> CostReport {
    let table = Table::shipped().unwrap();
    let mut metered = Metered::new(&table, wanted);
    for entry in entries {
        metered.add(entry);
    }
    metered.report(now_ms)
}

#[test]
fn workers_are_counted_to_their_end_or_to_now() {
    let entries = [
        Entry::Began { unix_ms: 1_000 },
        function(0, "f", 1),
        started(0, 2_000),
        started(0, 3_000),
        call(0, 4_000, None),
        ended(0, 5_000, 3_000),
    ];
    let report = report(Wanted::default(), &entries, 10_000);
    assert_eq!(report.used.instances, 2);
    assert_eq!(report.used.instances_ms, 3_000 + 7_000);
    assert_eq!(report.since_unix_ms, Some(4_000));
    assert_eq!(report.until_unix_ms, Some(10_000));
}

/// A daemon that was killed has written no ends: its workers are counted until the last that was seen of it.
#[test]
fn workers_of_a_killed_daemon_end_with_its_last_record() {
    let entries = [
        function(0, "f", 1),
        started(0, 2_000),
        call(0, 4_000, None),
        Entry::Began { unix_ms: 900_000 },
        function(0, "g", 1),
        started(0, 900_000),
    ];
    let report = report(Wanted::default(), &entries, 901_000);
    assert_eq!(report.used.instances_ms, 2_023 + 1_000);
}

#[test]
fn a_new_segment_changes_indices_and_not_workers() {
    let entries = [
        function(0, "f", 1),
        function(1, "g", 1),
        started(0, 1_000),
        started(1, 1_000),
        // The segment ends here.
        function(0, "g", 1),
        ended(0, 2_000, 1_000),
        function(1, "f", 1),
        call(1, 3_000, None),
        ended(1, 5_000, 4_000),
    ];
    let wanted = |name: &str| Wanted {
        function: Some(CostsOf {
            name: name.parse().unwrap(),
            owner: "team".to_owned(),
        }),
        ..Wanted::default()
    };
    let of_f = report(wanted("f"), &entries, 9_000);
    assert_eq!((of_f.used.calls, of_f.used.instances_ms), (1, 4_000));
    let of_g = report(wanted("g"), &entries, 9_000);
    assert_eq!((of_g.used.calls, of_g.used.instances_ms), (0, 1_000));
    assert_eq!(report(wanted("h"), &entries, 9_000).used.instances, 0);
    // Another owner's function of the same name.
    let mut of_others = wanted("f");
    of_others.function.as_mut().unwrap().owner = "others".to_owned();
    assert_eq!(report(of_others, &entries, 9_000).used.calls, 0);
}

#[test]
fn a_report_since_a_time_cuts_lives_and_leaves_out_calls() {
    let entries = [
        function(0, "f", 1),
        started(0, 1_000),
        call(0, 2_000, None),
        call(0, 6_000, None),
        ended(0, 4_000, 3_000),
        started(0, 1_500),
    ];
    let since = |at| Wanted {
        since_unix_ms: Some(at),
        ..Wanted::default()
    };
    let report = report(since(3_500), &entries, 8_000);
    assert_eq!(report.used.calls, 1);
    assert_eq!(report.used.instances_ms, 500 + 4_500);
    assert_eq!(report.since_unix_ms, Some(6_000));
}

#[test]
fn memory_that_was_not_measured_is_that_of_the_call_before() {
    let entries = [
        function(0, "f", 1),
        call(0, 1_000, None),
        call(0, 2_000, Some(30 << 20)),
        call(0, 3_000, None),
    ];
    let report = report(Wanted::default(), &entries, 8_000);
    assert_eq!(report.used.memory_unknown, 1);
    // 256 MB, 30 MB and 30 MB for 20 ms each.
    assert_eq!(report.used.memory_kb_ms, ((256 + 30 + 30) * 20) << 10);
    assert_eq!(report.used.cpu_us, 15_000);
    assert_eq!((report.used.bytes_in, report.used.bytes_out), (30, 60));
    assert!(
        report.notes[0].contains("1 of 3 calls"),
        "{:?}",
        report.notes
    );
}

/// The wall clock goes back and forward: lives and executions are of the monotonic clock, and nothing is negative.
#[test]
fn steps_of_the_wall_clock_make_nothing_negative() {
    let entries = [
        function(0, "f", 1),
        started(0, 5_000_000),
        call(0, 5_000_100, None),
        call(0, 1_000, None),
        ended(0, 2_000, 1_500),
        started(0, 9_000_000),
    ];
    let report = report(Wanted::default(), &entries, 3_000);
    assert_eq!(report.used.execution_us, 40_000);
    assert_eq!(report.used.instances_ms, 1_500);
    assert!(report.since_unix_ms <= report.until_unix_ms);
}
