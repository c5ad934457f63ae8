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

/// Daemons of one start of the machine.
fn daemon(number: u64) -> Entry {
    Entry::Daemon(run(number))
}

fn run(number: u64) -> Daemon {
    Daemon {
        began_unix_ms: number,
        boot: 1,
        began_ms: number,
    }
}

fn clock(at_ms: u64, unix_ms: u64) -> Entry {
    Entry::Clock(Clock { at_ms, unix_ms })
}

fn started(function: u32, unix_ms: u64) -> Entry {
    numbered(function, unix_ms, None)
}

fn numbered(function: u32, unix_ms: u64, worker: Option<u64>) -> Entry {
    Entry::WorkerStarted {
        function,
        unix_ms,
        worker,
    }
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

/// The report of the first daemon, whose wall clock and monotonic clock show the same.
fn report(wanted: Wanted, entries: &[Entry], now_ms: u64) -> CostReport {
    let written = [&[daemon(1), clock(0, 0)], entries].concat();
    let now = Clock {
        at_ms: now_ms,
        unix_ms: now_ms,
    };
    report_of(wanted, &written, 1, now)
}

fn report_of(wanted: Wanted, entries: &[Entry], number: u64, now: Clock) -> CostReport {
    let table = Table::shipped().unwrap();
    let mut metered = Metered::new(&table, wanted);
    for entry in entries {
        metered.add(entry);
    }
    metered.report(Now {
        daemon: run(number),
        clock: now,
    })
}

#[test]
fn workers_are_counted_to_their_end_or_to_now() {
    let entries = [
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
    let first = [function(0, "f", 1), started(0, 2_000), call(0, 4_000, None)];
    let second = [function(0, "g", 1), started(0, 900_000)];
    let begins = [daemon(2), clock(900_000, 900_000)];
    let entries = [&[daemon(1), clock(0, 0)], &first[..], &begins, &second].concat();
    let now = Clock {
        at_ms: 901_000,
        unix_ms: 901_000,
    };
    let newer = report_of(Wanted::default(), &entries, 2, now);
    assert_eq!(newer.used.instances_ms, 2_023 + 1_000);
    // Older versions wrote dates alone.
    let begins = [Entry::Began { unix_ms: 900_000 }];
    let entries = [&first[..], &begins, &second[..1]].concat();
    let older = report_of(Wanted::default(), &entries, 2, now);
    assert_eq!((older.used.calls, older.used.instances_ms), (1, 2_023));
    // The daemon that reports could not write its begin: the disk is full.
    let entries = [&[daemon(1), clock(0, 0)], &first[..]].concat();
    let unsaid = report_of(Wanted::default(), &entries, 2, now);
    assert_eq!(unsaid.used.instances_ms, 2_023);
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

/// A daemon writes at these moments of the monotonic clock, milliseconds, and the wall clock shows something else each time.
fn with_steps(wall_ms: impl Fn(u64) -> u64) -> CostReport {
    let mut entries = vec![daemon(1), clock(1_000, wall_ms(1_000)), function(0, "f", 1)];
    let mut batch = |at: u64, made: &[(u64, &dyn Fn(u64) -> Entry)]| {
        entries.push(clock(at, wall_ms(at)));
        for (ago, made) in made {
            entries.push(made(wall_ms(at) - ago));
        }
    };
    let worker = |number: u64| move |unix_ms| numbered(0, unix_ms, Some(number));
    let end = |unix_ms| {
        let Entry::WorkerEnded(end) = ended(0, unix_ms, 20_000) else {
            panic!("no end");
        };
        let worker = Some(1);
        Entry::WorkerEnded(WorkerEnd { worker, ..end })
    };
    batch(11_000, &[(1_000, &worker(1)), (900, &worker(2))]);
    batch(12_000, &[(100, &|unix_ms| call(0, unix_ms, None))]);
    batch(21_000, &[(50, &|unix_ms| call(0, unix_ms, None))]);
    batch(30_000, &[(0, &end)]);
    batch(
        40_000,
        &[(400, &worker(3)), (90, &|unix_ms| call(0, unix_ms, None))],
    );
    let now = Clock {
        at_ms: 60_000,
        unix_ms: wall_ms(60_000),
    };
    report_of(Wanted::default(), &entries, 1, now)
}

/// The wall clock is set forward and back: the report is the same as without, but for its dates.
#[test]
fn steps_of_the_wall_clock_change_nothing_but_dates() {
    const DAY: u64 = 86_400_000;
    const IN_1983: u64 = 410_000_000_000;
    const IN_2026: u64 = 1_790_000_000_000;
    let right = with_steps(|at| IN_2026 + at);
    assert_eq!(right.used.instances, 3);
    assert_eq!(right.used.instances_ms, 20_000 + 49_900 + 20_400);
    let a_day = |at: u64| {
        if (12_000..30_000).contains(&at) {
            DAY
        } else {
            0
        }
    };
    for stepped in [
        // Forward by a day and back.
        with_steps(|at| IN_2026 + at + a_day(at)),
        // Back by a day and forward.
        with_steps(|at| IN_2026 + at - a_day(at)),
        // A machine without a clock of its own, until it hears of the time.
        with_steps(|at| if at < 21_000 { IN_1983 } else { IN_2026 } + at),
        with_steps(|at| if at < 60_000 { IN_1983 } else { IN_2026 } + at),
        // Another date each time.
        with_steps(|at| IN_2026 + at * 7_919 % 1_000_003),
    ] {
        assert!(stepped.since_unix_ms <= stepped.until_unix_ms);
        let same_dates = CostReport {
            since_unix_ms: right.since_unix_ms,
            until_unix_ms: right.until_unix_ms,
            ..stepped
        };
        assert_eq!(same_dates, right);
    }
}

/// Earlier segments were removed: the newest ones say which workers live, and since when.
#[test]
fn a_segment_says_which_workers_lived_when_it_began() {
    let lives = || numbered(0, 9_000, Some(4));
    let segment = |at: u64| [daemon(1), clock(at, at), function(0, "f", 1), lives()];
    let end = Entry::WorkerEnded(WorkerEnd {
        function: 0,
        unix_ms: 90_000,
        lived_ns: 81_000_000_000,
        cpu_ns: None,
        memory_max: None,
        reason: "idle".to_owned(),
        worker: Some(4),
    });
    let calls = [call(0, 50_000, None), numbered(0, 59_000, Some(5))];
    let mut entries = [&segment(40_000)[..], &calls, &segment(60_000)].concat();
    let now = Clock {
        at_ms: 100_000,
        unix_ms: 100_000,
    };
    let living = report_of(Wanted::default(), &entries, 1, now);
    assert_eq!(living.used.instances, 2);
    assert_eq!(living.used.instances_ms, 91_000 + 41_000);
    entries.push(end);
    let ended = report_of(Wanted::default(), &entries, 1, now);
    assert_eq!(ended.used.instances_ms, 81_000 + 41_000);
}
