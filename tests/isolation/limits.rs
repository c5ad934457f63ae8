//! Limits of memory, CPU and processes. Exceeding a limit ends or slows down only that worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use inotify::Inotify;
use pilot_harness::patience;
use serde_json::json;

use crate::ground::{Ground, MEMORY_MB, SLOW_CPU};
use crate::hostile::deploy_with;
use crate::{Attempt, Verdict};

/// `limits.pids` of the daemon, by default.
const PIDS: u64 = 256;

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = vec![
        Attempt::new("memory: a heap over the limit ends the worker", |ground| {
            ends_for_memory(ground, "hostile", "memory", json!([MEMORY_MB * 4]))
        }),
        Attempt::new("memory: so without a template", |ground| {
            ends_for_memory(ground, "spawned", "memory", json!([MEMORY_MB * 4]))
        }),
        Attempt::new("memory: memfd counts", |ground| {
            ends_for_memory(ground, "hostile", "memfd", json!([MEMORY_MB * 4]))
        }),
        Attempt::new("memory: children count together", |ground| {
            ends_for_memory(
                ground,
                "hostile",
                "memory_of_children",
                json!([8, MEMORY_MB / 2]),
            )
        }),
        Attempt::new("memory: what is below the limit is allowed", |ground| {
            let (_, held) = ground.attempt("hostile", "memory", json!([MEMORY_MB / 3]));
            if held.as_u64().unwrap_or(0) > 0 {
                Verdict::Pass(held.to_string())
            } else {
                Verdict::Fail(held.to_string())
            }
        }),
        Attempt::new("memory: a neighbour's worker outlives it", |ground| {
            let before = ground.victim_count();
            ground.raw("hostile", "memory", json!([MEMORY_MB * 4]));
            let after = ground.victim_count();
            if after == before + 1 {
                Verdict::Pass(String::new())
            } else {
                Verdict::Fail(format!("from {before} to {after}"))
            }
        }),
    ];
    for processes in [1, 4] {
        attempts.push(Attempt::new(
            format!("cpu: {processes} busy processes get the share of one function"),
            move |ground| {
                let said = ground.ask("slow", "cpu", json!([3.0, processes]));
                let (used, took) = (said[1][0].as_f64().unwrap(), said[1][1].as_f64().unwrap());
                let share = used / took;
                let seen = format!(
                    "{used:.2} CPU seconds in {took:.2} s: {share:.2} of a CPU, limit {SLOW_CPU}"
                );
                // A quota applies per period, and the last period may have begun.
                if share <= SLOW_CPU * 1.4 {
                    Verdict::Pass(seen)
                } else {
                    Verdict::Fail(seen)
                }
            },
        ));
    }
    attempts.push(Attempt::new(
        "cpu: a whole CPU is given where it is configured",
        |ground| {
            let (said, own) =
                beside_a_busy_thread(|| ground.ask("hostile", "cpu", json!([1.0, 1])));
            let (used, took) = (said[1][0].as_f64().unwrap(), said[1][1].as_f64().unwrap());
            let seen = format!(
                "{used:.2} CPU seconds in {took:.2} s, beside a thread that had {own:.2} of a CPU"
            );
            // On a busy machine, nobody gets a whole one.
            if used / took > (0.5 * own).min(0.4) {
                Verdict::Pass(seen)
            } else {
                Verdict::Fail(seen)
            }
        },
    ));
    attempts.extend(pids());
    attempts.extend(inotify());
    attempts.push(inotify_watches());
    attempts.extend(sockets());
    attempts.extend(descriptors());
    attempts.extend(left_behind());
    for worker in ["hostile", "spawned"] {
        attempts.push(Attempt::new(
            format!("memory: {worker} cannot make the kernel end others first"),
            move |ground| match has_sys_resource() {
                true => ground.holds(worker, "lower_oom_score", json!([])),
                false => Verdict::Skip("the daemon does not have CAP_SYS_RESOURCE".to_owned()),
            },
        ));
    }
    attempts
}

/// Whether this process, and so the daemon, has this capability (capabilities(7)). Root in a container often has not.
fn has_sys_resource() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask & (1 << 24) != 0
}

/// Memory of workers that have ended, which the function's other workers keep.
fn left_behind() -> Vec<Attempt> {
    vec![Attempt::new(
        "memory: what ended workers leave to others of their function counts",
        |ground| {
            let before = ground.victim_count();
            let is_over = AtomicBool::new(false);
            let seconds = 15 * patience();
            let response = thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    let response = ground.raw("once", "keep", json!([seconds]));
                    is_over.store(true, Ordering::Relaxed);
                    response
                });
                while !is_over.load(Ordering::Relaxed) {
                    // It is an error where the receiver's end is the end of all.
                    ground.raw("once", "send", json!([MEMORY_MB / 2, 5]));
                }
                receiver.join().unwrap()
            });
            let after = ground.victim_count();
            let ended = response.header("x-amz-function-error").is_some();
            let next = ground.ask("once", "count", json!([]));
            let says_why = response.text().contains("had left more memory");
            if ended && says_why && after == before + 1 {
                Verdict::Pass(format!("{} then {next}", response.text()))
            } else {
                Verdict::Fail(format!("{}; {before} to {after}", response.text()))
            }
        },
    )]
}

/// What `meanwhile` returns, and the share of a CPU that a busy thread of the test had at the same time.
fn beside_a_busy_thread<T>(meanwhile: impl FnOnce() -> T) -> (T, f64) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let began = Instant::now();
            // The call may panic.
            while !over.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
                std::hint::spin_loop();
            }
            let elapsed = began.elapsed();
            // What it has run, in nanoseconds (Documentation/scheduler/sched-stats.rst).
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            let ran = text.split(' ').next().unwrap().parse().unwrap();
            Duration::from_nanos(ran).as_secs_f64() / elapsed.as_secs_f64()
        });
        let said = meanwhile();
        over.store(true, Ordering::Relaxed);
        (said, busy.join().unwrap())
    })
}

/// Linux allows a user 128 instances of inotify by default. Those of a function must not be root's.
fn inotify() -> impl Iterator<Item = Attempt> {
    // What the workers of one template may have; without a template, the limit is that of all functions.
    [("roomy", 32), ("roomy-spawned", 128)]
        .map(|(worker, most)| {
            Attempt::new(
                format!("inotify: {worker} leaves the host's root its instances"),
                move |ground| {
                    let (escaped, seen) = ground.attempt(worker, "inotify", json!([200]));
                    let of_root = (0..8)
                        .map(|_| Inotify::init())
                        .collect::<Result<Vec<_>, _>>();
                    ground.ask(worker, "release", json!([]));
                    match of_root {
                        Ok(_) if !escaped && seen[0].as_u64() <= Some(most) => {
                            Verdict::Pass(seen.to_string())
                        }
                        of_root => Verdict::Fail(format!("{seen}; root's: {:?}", of_root.err())),
                    }
                },
            )
        })
        .into_iter()
}

/// Whatever Linux allows a user, one function does not use it up.
fn inotify_watches() -> Attempt {
    Attempt::new("inotify: the watches of a function are limited", |ground| {
        let (escaped, seen) = ground.attempt("roomy", "inotify_watches", json!([8192]));
        ground.ask("roomy", "release", json!([]));
        match escaped {
            true => Verdict::Fail(seen.to_string()),
            false if seen[1] == "ENOSPC" => Verdict::Pass(seen.to_string()),
            false => Verdict::Skip(format!("/usr is too small: {seen}")),
        }
    })
}

/// Memory of the kernel that no control group is charged for, and more sockets than it can list soon.
fn sockets() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (workers, what, with) in [
        (["hostile", "spawned"], "unaccepted", json!([15])),
        (["hostile", "spawned"], "kept_back", json!([15, 2500])),
        (["roomy", "roomy-spawned"], "many_sockets", json!([15, 6])),
    ] {
        for worker in workers {
            let with = with.clone();
            attempts.push(Attempt::new(
                format!("sockets: {worker} with {what} ends, and says why"),
                move |ground| {
                    let before = ground.victim_count();
                    let response = ground.raw(worker, what, with.clone());
                    let after = ground.victim_count();
                    let seen = format!("{} after {:?}", response.text(), response.head_after);
                    let ended = response.header("x-amz-function-error").is_some();
                    let next = ground.ask(worker, "count", json!([]));
                    if ended && response.text().contains("sockets") && after == before + 1 {
                        Verdict::Pass(format!("{seen} then {next}"))
                    } else {
                        Verdict::Fail(seen)
                    }
                },
            ));
        }
    }
    attempts.push(Attempt::new(
        "sockets: connections that are accepted and read are allowed",
        |ground| {
            let (failed, echoes) = ground.attempt("roomy", "serve", json!([800, 3.0]));
            match failed {
                true => Verdict::Fail(echoes.to_string()),
                false => Verdict::Pass(echoes.to_string()),
            }
        },
    ));
    attempts
}

/// Locks and leases of files, too, are memory of the kernel that no control group is charged for. And an event takes the longer the more
/// watches of epoll wait for it.
fn descriptors() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (worker, what, with, says) in [
        ("hostile", "locks", json!([40_000, 15]), "locks"),
        ("spawned", "locks", json!([40_000, 15]), "locks"),
        // In a process whose first thread has ended.
        (
            "hostile",
            "locks_without_first_thread",
            json!([40_000, 15]),
            "locks",
        ),
        ("roomy", "leases", json!([12, 1000, 20]), "locks"),
        ("hostile", "watches", json!([150, 15]), "watches"),
        ("spawned", "watches", json!([150, 15]), "watches"),
    ] {
        attempts.push(Attempt::new(
            format!("descriptors: {worker} with many {what} ends, and says why"),
            move |ground| {
                let before = ground.victim_count();
                let response = ground.raw(worker, &format!("many_{what}"), with.clone());
                let after = ground.victim_count();
                let seen = format!("{} after {:?}", response.text(), response.head_after);
                let ended = response.header("x-amz-function-error").is_some();
                let next = ground.ask(worker, "count", json!([]));
                if ended && response.text().contains(says) && after == before + 1 {
                    Verdict::Pass(format!("{seen} then {next}"))
                } else {
                    Verdict::Fail(seen)
                }
            },
        ));
    }
    for (what, with, most) in [
        ("locks", json!([5000, 3]), 5000),
        ("watches", json!([25, 3]), 10_000),
    ] {
        attempts.push(Attempt::new(
            format!("descriptors: some thousand {what} are allowed"),
            move |ground| {
                let (_, held) = ground.attempt("hostile", &format!("many_{what}"), with.clone());
                match held.as_u64() == Some(most) {
                    true => Verdict::Pass(held.to_string()),
                    false => Verdict::Fail(held.to_string()),
                }
            },
        ));
    }
    attempts.push(Attempt::new(
        "descriptors: open folders of an overlay with many names end the worker, and a few do not",
        |ground| {
            // Folders that the template has written to are overlays.
            let keys = json!({"memory_mb": MEMORY_MB, "timeout_s": 25 * patience()});
            deploy_with(
                &ground.daemon,
                "overlaid",
                &keys,
                "open('/tmp/at-import', 'w').close()\n",
            );
            let before = ground.victim_count();
            let (_, few) = ground.attempt("overlaid", "many_folders", json!([4, 20_000, 3]));
            let response = ground.raw("overlaid", "many_folders", json!([40, 20_000, 15]));
            let after = ground.victim_count();
            let seen = format!(
                "{few} then {} after {:?}",
                response.text(),
                response.head_after
            );
            let ended = response.header("x-amz-function-error").is_some();
            if few == 4 && ended && response.text().contains("open folders") && after == before + 1
            {
                Verdict::Pass(seen)
            } else {
                Verdict::Fail(seen)
            }
        },
    ));
    attempts
}

fn pids() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in ["roomy", "roomy-spawned"] {
        attempts.push(Attempt::new(
            format!("pids: {worker} cannot make processes without end"),
            move |ground| {
                let (escaped, seen) = ground.attempt(worker, "pids", json!([4000]));
                let refused = seen[1] == "EAGAIN" && seen[0].as_u64() <= Some(PIDS);
                if escaped || !refused {
                    Verdict::Fail(seen.to_string())
                } else {
                    Verdict::Pass(seen.to_string())
                }
            },
        ));
    }
    attempts.push(Attempt::new(
        "pids: processes without end in little memory end that worker, with its reason, at once",
        |ground| {
            let response = ground.raw("hostile", "pids", json!([4000]));
            let seen = format!("{} after {:?}", response.text(), response.head_after);
            let next = ground.ask("hostile", "count", json!([]));
            let ended = response.header("x-amz-function-error").is_some();
            // Where the memory suffices for as many processes as are allowed, the limit of processes refuses the next one.
            let clear = if ended {
                response.text().to_lowercase().contains("memory")
            } else {
                response.json()[1][1] == "EAGAIN"
            };
            if clear {
                Verdict::Pass(format!("{seen} then {next}"))
            } else {
                Verdict::Fail(seen)
            }
        },
    ));
    attempts
}

fn ends_for_memory(
    ground: &Ground,
    function: &str,
    what: &str,
    with: serde_json::Value,
) -> Verdict {
    let response = ground.raw(function, what, with);
    let text = response.text();
    if response.header("x-amz-function-error").is_none() {
        let said = response.json();
        // The limit also holds if only children were killed.
        return if said[0] == true {
            Verdict::Fail(text)
        } else {
            Verdict::Pass(text)
        };
    }
    if !text.to_lowercase().contains("memory") {
        return Verdict::Fail(format!("ended, but does not say why: {text}"));
    }
    let next = ground.ask(function, "count", json!([]));
    Verdict::Pass(format!("{text} then {next}"))
}
