//! What idle workers do: `[functions.NAME.keep_alive]`.

use std::fs;
use std::time::{Duration, Instant};

use pilot_harness::{Daemon, descendants, eventually, is_gone};
use serde_json::{Value, json};

use crate::{ECHO, answer, lab, plain};

/// A thread computes for ever, so a worker that may run does. Returns its worker.
const SPINS: &str = "import os, threading\nme = None\n\ndef spin():\n    while True:\n        pass\n\ndef handler(event, context):\n    global me\n    if me is None:\n        me = os.urandom(8).hex()\n        threading.Thread(target=spin, daemon=True).start()\n    return me\n";

/// CPU time of a process, nanoseconds (Documentation/scheduler/sched-stats.rst).
fn cpu_ns(pid: i32) -> u64 {
    let of_task = |task: &fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads(pid).iter().filter_map(of_task).sum()
}

fn threads(pid: i32) -> Vec<fs::DirEntry> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    threads.flatten().flatten().collect()
}

/// The worker: the only process below the daemon with a second thread.
fn spinner(daemon: &Daemon) -> i32 {
    let mut all = descendants(daemon.pid()).into_iter();
    all.find(|pid| threads(*pid).len() == 2).unwrap()
}

fn rests(daemon: &Daemon) {
    eventually("the worker rests", || {
        (daemon.workers("lab", "frozen") == 1).then_some(())
    });
}

/// A daemon whose worker of `lab` computes in the background, and rests now.
fn resting(behaviour: &Value) -> (Daemon, Value, i32) {
    let daemon = lab(SPINS, json!({"keep_alive": behaviour}));
    let worker = answer(&daemon, "lab", json!(null));
    rests(&daemon);
    let spinner = spinner(&daemon);
    (daemon, worker, spinner)
}

#[test]
fn a_frozen_worker_uses_no_cpu_time_and_wakes_for_the_next_invocation() {
    // Long enough that the worker computes before it is frozen.
    let (daemon, worker, spinner) = resting(&json!({"behaviour": "freeze", "after_s": 0.3}));
    daemon.upload_code("other", &plain(), ECHO);
    // The kernel freezes a process when it next enters the kernel.
    eventually("it stands still", || {
        let before = cpu_ns(spinner);
        // On a busy machine, it may wait for its turn for as long as some calls take.
        std::thread::sleep(Duration::from_millis(500));
        (cpu_ns(spinner) == before).then_some(())
    });
    let before = cpu_ns(spinner);
    for _ in 0..50 {
        answer(&daemon, "other", json!(1));
    }
    assert_eq!(cpu_ns(spinner), before, "a frozen worker has computed");
    let response = daemon.invoke("lab", &json!(null)).ok();
    assert_eq!(response.start_kind(), "warm");
    assert_eq!(response.json(), worker, "another worker");
    let timing = response.header("server-timing").unwrap_or_default();
    assert!(timing.contains("thaw;dur="), "{timing}");
    rests(&daemon);
    let described = daemon.cli_ok(&["describe", "lab"]);
    assert!(described.contains("frozen when idle"), "{described}");
    assert!(described.contains("1 idle (1 frozen)"), "{described}");
}

#[test]
fn a_throttled_worker_gets_a_hundredth_of_a_cpu() {
    let (daemon, worker, spinner) = resting(&json!({"behaviour": "throttle", "after_s": 0.3}));
    daemon.upload_code("other", &plain(), ECHO);
    let (before, began) = (cpu_ns(spinner), Instant::now());
    while began.elapsed() < Duration::from_secs(1) {
        answer(&daemon, "other", json!(1));
    }
    let share = Duration::from_nanos(cpu_ns(spinner) - before).as_secs_f64()
        / began.elapsed().as_secs_f64();
    // A tick of 4 ms can end a slice late.
    assert!(share < 0.1, "{share}");
    assert_eq!(answer(&daemon, "lab", json!(null)), worker);
}

#[test]
fn frozen_workers_end_when_they_are_told_to_and_with_their_daemon() {
    let freeze = json!({"behaviour": "freeze", "after_s": 0.1});
    let (mut daemon, _, spinner) = resting(&freeze);
    daemon.scale("lab", 0);
    eventually("it has ended", || is_gone(spinner).then_some(()));
    answer(&daemon, "lab", json!(null));
    rests(&daemon);
    let all = descendants(daemon.pid());
    daemon.kill();
    eventually("everything has ended with the daemon", || {
        all.iter().all(|pid| is_gone(*pid)).then_some(())
    });
    daemon.resume();
    answer(&daemon, "lab", json!(null));
    rests(&daemon);
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn with_the_behaviour_template_only_the_template_stays() {
    let daemon = lab(ECHO, json!({"keep_alive": {"behaviour": "template"}}));
    for _ in 0..3 {
        let response = daemon.invoke("lab", &json!(1)).ok();
        assert_eq!(response.start_kind(), "cold");
        let timing = response.header("server-timing").unwrap_or_default();
        assert!(timing.contains("fork;dur="), "{timing}");
        eventually("no worker stays", || {
            let workers = daemon.workers("lab", "idle") + daemon.workers("lab", "busy");
            (workers == 0).then_some(())
        });
    }
}
