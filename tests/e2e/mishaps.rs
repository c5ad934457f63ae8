//! Handlers that fail. The caller gets a clear error, and the next invocation succeeds; every test ends with one.

use std::time::{Duration, Instant};

use pilot_harness::{
    Daemon, DaemonOptions, Machine, descendants, eventually, needs_root, open_descriptors, skip,
};
use serde_json::{Value, json};

use crate::{answer, daemon, daemon_with, failure, lab};

/// Does what the event says; `good` succeeds.
const CODE: &str = r#"
import ctypes, os, signal, sys, threading, time

def handler(event, context):
    if event == "good":
        return "good"
    if isinstance(event, list):
        time.sleep(event[0])
        return "slept"
    return globals()[event]()

def leave():
    sys.exit(3)

def leave_quietly():
    os._exit(0)

def kill_group():
    os.kill(0, signal.SIGKILL)

def segfault():
    ctypes.string_at(0)

def abort():
    os.abort()

def hog():
    kept = []
    while True:
        kept.append(bytearray(8 << 20))

def bomb():
    for children in range(4096):
        try:
            if os.fork() == 0:
                time.sleep(3600)
        except OSError as error:
            return [children, type(error).__name__]
    return [4096, None]

def thread_bomb():
    started = 0
    try:
        for _ in range(100_000):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    return started

def recursive_bomb():
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            os.fork()
        except OSError:
            pass
    os._exit(1)

def close_everything():
    os.closerange(0, 4096)
    return "closed"

def babble():
    for fd in sorted(map(int, os.listdir("/proc/self/fd")))[3:]:
        try:
            os.write(fd, b"\xff" * 4096)
        except OSError:
            pass
    return "babbled"

def flood():
    line = "x" * 1023 + "\n"
    for _ in range(64 * 1024):
        sys.stdout.write(line)
    return "flooded"

def die_before_a_child():
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(3)

def leave_a_child():
    if os.fork() == 0:
        time.sleep(3600)
    return "left"

def stack():
    def down(n):
        return down(n + 1) + 1
    sys.setrecursionlimit(1 << 30)
    return down(0)
"#;

fn keys() -> Value {
    json!({"timeout_s": 5, "memory_mb": 128})
}

#[track_caller]
fn broken() -> Daemon {
    lab(CODE, keys())
}

/// The event must end the worker with an error that contains one of the words, and the next invocation must succeed.
#[track_caller]
fn ends_clearly(event: &str, words: &[&str]) -> Value {
    let daemon = broken();
    let error = failure(&daemon, "lab", json!(event));
    let text = error["errorMessage"].as_str().unwrap_or("").to_lowercase();
    assert!(
        words.iter().any(|word| text.contains(word)),
        "{event}: none of {words:?} in {error}"
    );
    assert!(
        error["errorType"]
            .as_str()
            .is_some_and(|kind| !kind.is_empty()),
        "{error}"
    );
    next_works(&daemon);
    error
}

#[track_caller]
fn next_works(daemon: &Daemon) {
    for _ in 0..3 {
        assert_eq!(answer(daemon, "lab", json!("good")), "good");
    }
    eventually("nobody is busy any more", || {
        let status = daemon.describe("lab");
        (status["workers"]["busy"] == 0 && status["workers"]["waiting"] == 0).then_some(())
    });
}

#[test]
fn sys_exit_names_the_status() {
    ends_clearly(
        "leave",
        &["exit status 3", "status 3", "systemexit", "exit"],
    );
}

#[test]
fn a_worker_that_leaves_without_a_word() {
    ends_clearly("leave_quietly", &["exit"]);
}

#[test]
fn a_segmentation_fault_names_the_signal() {
    ends_clearly("segfault", &["segmentation", "signal 11", "sigsegv"]);
}

#[test]
fn an_abort_names_the_signal() {
    ends_clearly("abort", &["abort", "signal 6", "sigabrt"]);
}

#[test]
fn running_out_of_memory_says_so() {
    needs_root!();
    let error = ends_clearly("hog", &["memory"]);
    assert!(
        error.to_string().contains("128") || error.to_string().contains("134217728"),
        "names the limit: {error}"
    );
}

#[test]
fn a_fork_bomb_meets_its_limit_and_nobody_else_notices() {
    needs_root!();
    // Each child copies about half a megabyte when it runs. With less memory, one of the processes would reach the memory limit
    // first, during the fork bomb or after its response.
    let daemon = lab(CODE, json!({"timeout_s": 60, "memory_mb": 1024}));
    daemon.upload_code("other", &keys(), CODE);
    let (bombed, others) = std::thread::scope(|scope| {
        let bomb = scope.spawn(|| answer(&daemon, "lab", json!("bomb")));
        let mut others = 0;
        while !bomb.is_finished() || others == 0 {
            assert_eq!(answer(&daemon, "other", json!("good")), "good");
            others += 1;
        }
        (bomb.join().unwrap(), others)
    });
    assert_eq!(
        bombed[1], "BlockingIOError",
        "{bombed} beside {others} others"
    );
    let children = bombed[0].as_u64().unwrap();
    assert!(children < 2048, "{children} children");
    assert_eq!(answer(&daemon, "other", json!("good")), "good");
    next_works(&daemon);
}

#[test]
fn a_fork_bomb_of_the_recursive_kind_is_cleaned_away() {
    needs_root!();
    let daemon = broken();
    let begun = Instant::now();
    failure(&daemon, "lab", json!("recursive_bomb"));
    // Its timeout of 5 s applies although its processes wait for memory, and so does a process that reads their memory use.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(9), "{took:?}");
    next_works(&daemon);
    daemon.scale("lab", 0);
    eventually("the bomb's processes are gone", || {
        (descendants(daemon.pid()).len() < 20).then_some(())
    });
}

#[test]
fn too_many_threads_meet_their_limit() {
    needs_root!();
    let daemon = broken();
    let response = daemon.invoke("lab", &json!("thread_bomb"));
    if let Some(started) = response.json().as_u64() {
        assert!(started < 4096, "{started} threads");
    }
    next_works(&daemon);
}

#[test]
fn a_handler_that_closes_every_descriptor() {
    let daemon = broken();
    failure(&daemon, "lab", json!("close_everything"));
    next_works(&daemon);
}

#[test]
fn a_handler_that_writes_rubbish_into_every_descriptor() {
    let daemon = broken();
    let failed = failure(&daemon, "lab", json!("babble"));
    assert_eq!(failed["errorType"], "Runtime.ProtocolError", "{failed}");
    next_works(&daemon);
}

#[test]
fn a_handler_that_prints_without_end_is_bounded() {
    // On a busy machine, it takes longer than the five seconds of the others.
    let daemon = lab(CODE, json!({"timeout_s": 60, "memory_mb": 128}));
    assert_eq!(answer(&daemon, "lab", json!("flood")), "flooded");
    next_works(&daemon);
    let kept = size_of(&daemon.data_dir());
    assert!(
        kept < 48 << 20,
        "{kept} bytes of logs are kept of 64 MiB printed"
    );
}

#[test]
fn a_worker_that_dies_before_its_child_is_noticed_at_once() {
    let daemon = broken();
    let response = daemon.invoke("lab", &json!("die_before_a_child"));
    let text = response.text();
    assert!(text.contains("exit"), "{text}");
    assert!(
        response.head_after < Duration::from_secs(4),
        "noticed after {:?}",
        response.head_after
    );
    next_works(&daemon);
}

#[test]
fn a_child_that_is_left_behind_ends_with_its_worker() {
    needs_root!();
    let daemon = broken();
    let code = CODE.replace("time.sleep(3600)", "time.sleep(3601)");
    daemon.upload_code("lab", &keys(), &code);
    assert_eq!(answer(&daemon, "lab", json!("good")), "good");
    daemon.scale("lab", 0);
    at_rest(&daemon);
    let before = interpreters(&daemon);
    assert_eq!(answer(&daemon, "lab", json!("leave_a_child")), "left");
    daemon.scale("lab", 0);
    eventually("worker and child are gone", || {
        (interpreters(&daemon) <= before).then_some(())
    });
    next_works(&daemon);
}

/// Number of processes below the daemon that are not its own: functions' processes, and the inits of sandboxes. One clean sandbox is
/// kept for the next worker.
fn interpreters(daemon: &Daemon) -> usize {
    descendants(daemon.pid())
        .into_iter()
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() != "pilot")
        })
        .count()
}

#[test]
fn a_stack_that_overflows() {
    ends_clearly(
        "stack",
        &[
            "signal",
            "segmentation",
            "recursion",
            "memory",
            "exit",
            "timed out",
        ],
    );
}

#[test]
fn one_that_dies_takes_no_other_with_it() {
    let daemon = daemon();
    daemon.upload_code("lab", &keys(), CODE);
    daemon.upload_code("other", &keys(), CODE);
    std::thread::scope(|scope| {
        let same = scope.spawn(|| answer(&daemon, "lab", json!([1.5])));
        let other = scope.spawn(|| answer(&daemon, "other", json!([1.5])));
        for event in ["segfault", "leave", "abort"] {
            failure(&daemon, "lab", json!(event));
        }
        assert_eq!(same.join().unwrap(), "slept");
        assert_eq!(other.join().unwrap(), "slept");
    });
    next_works(&daemon);
}

#[test]
fn a_signal_to_the_process_group_ends_nothing_but_the_call() {
    for machine in [Machine::AsItIs, Machine::WithoutRoot] {
        if machine == Machine::WithoutRoot && !std::path::Path::new("/usr/bin/python3").exists() {
            skip("/usr/bin/python3, for a function without root");
            continue;
        }
        let daemon = daemon_with(DaemonOptions {
            machine,
            ..DaemonOptions::default()
        });
        for template in ["on", "off"] {
            let keys = json!({"timeout_s": 5, "memory_mb": 128, "template": template});
            daemon.upload_code("lab", &keys, CODE);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| answer(&daemon, "lab", json!([1.5])));
                eventually("the other call runs", || {
                    (daemon.workers("lab", "busy") == 1).then_some(())
                });
                failure(&daemon, "lab", json!("kill_group"));
                assert_eq!(
                    other.join().unwrap(),
                    "slept",
                    "{machine:?}, template {template}"
                );
            });
            next_works(&daemon);
        }
    }
}

#[test]
fn many_deaths_in_a_row_leave_nothing_behind() {
    let daemon = broken();
    // After its first workers, a function in use keeps sandboxes ready for the next ones.
    for _ in 0..3 {
        failure(&daemon, "lab", json!("segfault"));
    }
    next_works(&daemon);
    at_rest(&daemon);
    let descriptors = open_descriptors(daemon.pid());
    for _ in 0..30 {
        failure(&daemon, "lab", json!("segfault"));
    }
    next_works(&daemon);
    pilot_harness::eventually_within(
        Duration::from_secs(10),
        "the daemon's descriptors are closed again",
        || (open_descriptors(daemon.pid()) <= descriptors + 10).then_some(()),
    );
}

/// Number of the daemon's processes when it no longer changes.
fn at_rest(daemon: &Daemon) -> usize {
    let (mut last, mut times) = (0, 0);
    eventually("the number of processes stays the same", || {
        let now = descendants(daemon.pid()).len();
        times = if now == last { times + 1 } else { 0 };
        last = now;
        (times == 40).then_some(now)
    })
}

fn size_of(folder: &std::path::Path) -> u64 {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => size_of(&entry.path()),
            Ok(meta) if meta.is_file() => meta.len(),
            _ => 0,
        })
        .sum()
}
