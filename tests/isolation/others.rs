//! Other functions and the host's processes are invisible and unreachable. There is no network unless configured.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::ground::Ground;
use crate::hostile::code_with;
use crate::{Attempt, Verdict};

/// For how long another function is called, at least, while functions send sockets.
const SOCKETS_ARE_SENT: Duration = Duration::from_secs(2);
/// A close that lingers takes 20 s.
const ANSWER_MAX: Duration = Duration::from_secs(8);

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in ["hostile", "spawned"] {
        attempts.push(Attempt::new(
            format!("{worker}: sees no process but its own"),
            move |ground| {
                // Its own processes, and at most the init of its namespace with its supervisor.
                ground.holds(worker, "processes", json!([4]))
            },
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot read or trace another process"),
            move |ground| ground.holds(worker, "memory_of_others", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: sees no command line of the daemon"),
            move |ground| {
                let words = ["serve", "--data-dir", "--listen"];
                ground.holds(worker, "command_lines", json!([words]))
            },
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot signal the daemon or its templates"),
            move |ground| {
                let mut pids = pilot_harness::descendants(ground.daemon.pid());
                pids.push(ground.daemon.pid());
                pids.push(i32::try_from(std::process::id()).unwrap());
                ground.holds(worker, "signal", json!([pids]))
            },
        ));
        attempts.push(Attempt::new(
            format!("{worker}: network none has no route and no device"),
            move |ground| ground.holds(worker, "network", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: network none does not reach the daemon"),
            move |ground| {
                ground.holds(
                    worker,
                    "connect",
                    json!(["127.0.0.1", ground.daemon.address().port()]),
                )
            },
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot reach another's abstract socket"),
            move |ground| ground.holds(worker, "connect_abstract", json!(["victim"])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot open another's shared memory"),
            move |ground| ground.holds(worker, "open_shm", json!([7_177_177])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: does not see another's /tmp"),
            move |ground| {
                ground.daemon.scale(worker, 0);
                ground.holds(worker, "tmp_list", json!([]))
            },
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot keep the daemon waiting for a close"),
            move |ground| others_are_served_while_sockets_are_sent(ground, worker),
        ));
    }
    attempts.extend(handed_over());
    attempts.extend(between_workers());
    attempts
}

/// Where the kernel cannot refuse descriptors (before Linux 6.16), it closes those that a function sends when the daemon reads. A
/// close that waits would hold one of the daemon's threads, so there are more attempts at the same time than it has threads.
fn others_are_served_while_sockets_are_sent(ground: &Ground, worker: &'static str) -> Verdict {
    let longest = thread::scope(|scope| {
        let sending: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| ground.raw(worker, "send_lingering", json!([]))))
            .collect();
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        while began.elapsed() < SOCKETS_ARE_SENT || sending.iter().any(|one| !one.is_finished()) {
            let asked = Instant::now();
            ground.victim_count();
            longest = longest.max(asked.elapsed());
            thread::sleep(Duration::from_millis(50));
        }
        longest
    });
    let seen = format!("the longest answer to another took {longest:.1?}");
    if longest < ANSWER_MAX {
        Verdict::Pass(seen)
    } else {
        Verdict::Fail(seen)
    }
}

fn handed_over() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in ["hostile", "spawned"] {
        attempts.push(Attempt::new(
            format!("{worker}: cannot write to a buffer after its hand-over"),
            move |ground| ground.holds(worker, "write_after_handover", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot name a buffer of another invocation"),
            move |ground| {
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| ground.ask(worker, "hold_buffer", json!([2.0])));
                    pilot_harness::eventually("the other one has a buffer", || {
                        let metrics = ground.daemon.get("/metrics").text();
                        metrics.contains("pilot_handover_buffers 1").then_some(())
                    });
                    let verdict = ground.holds(worker, "buffer_of_another", json!([]));
                    other.join().unwrap();
                    verdict
                })
            },
        ));
    }
    attempts
}

fn between_workers() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in ["hostile", "once"] {
        attempts.push(Attempt::new(
            format!("{worker}: two workers of one function do not share /tmp or processes"),
            move |ground| {
                std::thread::scope(|scope| {
                    let busy = scope.spawn(|| ground.ask(worker, "cpu", json!([1.0, 1])));
                    pilot_harness::eventually("the first is busy", || {
                        (ground.daemon.workers(worker, "busy") >= 1).then_some(())
                    });
                    let verdict = ground.holds(worker, "processes", json!([4]));
                    busy.join().unwrap();
                    verdict
                })
            },
        ));
    }
    attempts.push(Attempt::new(
        "killing everybody hurts nobody else",
        |ground| {
            let before = ground.victim_count();
            for _ in 0..3 {
                ground.raw("hostile", "kill_everybody", json!([]));
                ground.raw("hostile", "kill_parent", json!([]));
                ground.raw("spawned", "kill_parent", json!([]));
            }
            let after = ground.victim_count();
            let works = ground.ask("hostile", "count", json!([]));
            if after == before + 1 {
                Verdict::Pass(works.to_string())
            } else {
                Verdict::Fail(format!("the victim's count went from {before} to {after}"))
            }
        },
    ));
    attempts.push(Attempt::new(
        "network outbound does not reach this host",
        |ground| {
            let spec = json!({"network": "outbound", "timeout_s": 20});
            let (_, event) = ground.daemon.upload("outward", &spec, &code_with(""));
            if event["event"] != "done" {
                return Verdict::Skip(format!("this machine does not offer it: {event}"));
            }
            for address in host_addresses() {
                let (reached, seen) = ground.attempt(
                    "outward",
                    "connect",
                    json!([address, ground.daemon.address().port()]),
                );
                if reached {
                    return Verdict::Fail(seen.to_string());
                }
            }
            Verdict::Pass(String::new())
        },
    ));
    attempts
}

/// Addresses of this host: loopback, those of its interfaces, and the first address of each private network.
fn host_addresses() -> Vec<String> {
    let mut addresses = vec!["127.0.0.1".to_owned()];
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut last = "";
    for line in table.lines() {
        let line = line.trim();
        if line.contains("/32 host LOCAL") && !last.is_empty() {
            addresses.push(last.to_owned());
        }
        last = line.rsplit(' ').next().unwrap_or("");
    }
    addresses.sort();
    addresses.dedup();
    addresses
}
