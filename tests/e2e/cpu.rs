//! CPU time: what is metered is what the kernel counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pilot_harness::{
    ArchiveEntry, Daemon, Need, Request, Response, archive, descendants, eventually, group_with,
    groups_of, needs, needs_root,
};
use serde_json::json;

use crate::{lab, plain};

/// Computes in its process or in another one, and ends as the event says.
const MIXED: &str = "
import os, time

def burn(seconds):
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass

def handler(event, context):
    kind = event['kind']
    if kind == 'child':
        child = os.fork()
        if child == 0:
            burn(event['burn'])
            os._exit(0)
        os.waitpid(child, 0)
        return kind
    burn(event['burn'])
    if kind == 'error':
        raise ValueError('as asked')
    if kind == 'crash':
        os._exit(3)
    if kind == 'timeout':
        while True:
            pass
    return kind
";

/// Reads the count of a group, nanoseconds.
type Count = fn(&Path) -> Option<u64>;

/// The daemon's control group that counts CPU time, and the file with the count.
fn counted_in(daemon: &Daemon) -> (PathBuf, Count) {
    let groups = groups_of(daemon.pid());
    let of_v1 = groups
        .iter()
        .find(|group| group.join("cpuacct.usage").exists());
    match of_v1 {
        Some(group) => (group.clone(), v1_ns),
        None => (group_with(daemon.pid(), "memory.max"), v2_ns),
    }
}

fn v1_ns(group: &Path) -> Option<u64> {
    fs::read_to_string(group.join("cpuacct.usage"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn v2_ns(group: &Path) -> Option<u64> {
    let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let usec = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(usec.trim().parse::<u64>().ok()? * 1000)
}

/// What the kernel counts for everything below the daemon, and for the templates: the groups that have processes when no worker is
/// there.
fn kernel_ns(daemon: &Daemon) -> (u64, BTreeMap<PathBuf, u64>) {
    let (group, count) = counted_in(daemon);
    let inner = fs::read_dir(&group)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let templates = inner.filter_map(|inner| {
        let processes = fs::read_to_string(inner.join("cgroup.procs")).ok()?;
        (!processes.is_empty()).then_some(())?;
        Some((inner.clone(), count(&inner)?))
    });
    let templates = templates.collect();
    (count(&group).unwrap(), templates)
}

/// Seconds of CPU time of the workers that have ended, as `/metrics` says.
fn of_ended_workers(daemon: &Daemon) -> f64 {
    let text = daemon.get("/metrics").ok().text();
    let samples = text
        .lines()
        .filter(|line| line.starts_with("pilot_worker_cpu_seconds_total{"));
    samples
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

/// The column of the exported records, empty fields left out.
fn column(csv: &str, name: &str) -> Vec<i64> {
    let mut lines = csv.lines();
    let at = lines
        .next()
        .unwrap()
        .split(',')
        .position(|column| column == name)
        .unwrap();
    lines
        .filter_map(|line| line.split(',').nth(at)?.parse().ok())
        .collect()
}

#[test]
fn metered_cpu_time_is_what_the_kernel_counts_for_the_workers() {
    needs_root!();
    let daemon = lab(MIXED, json!({"timeout_s": 0.4, "scale": {"max": 4}}));
    daemon.scale("lab", 0);
    no_worker(&daemon);
    let (all_before, templates_before) = kernel_ns(&daemon);
    let ended_before = of_ended_workers(&daemon);
    let calls = std::env::var("PILOT_TEST_CPU_CALLS").map_or(150, |number| number.parse().unwrap());
    for number in 0..calls {
        let (kind, burn) = match number % 50 {
            7 => ("crash", 0.02),
            23 => ("timeout", 0.02),
            at if at % 5 == 0 => ("child", 0.01),
            at if at % 5 == 1 => ("error", 0.005),
            _ => ("ok", 0.005),
        };
        let response = daemon.invoke("lab", &json!({"kind": kind, "burn": burn}));
        assert_eq!(response.status, 200, "{}", response.text());
    }
    daemon.scale("lab", 0);
    no_worker(&daemon);
    let records = || {
        let csv = daemon.cli_ok(&["cost", "export", "lab"]);
        (csv.lines().count() == calls + 1).then_some(csv)
    };
    let csv = eventually("every call has a record", records);
    let parts = ["cpu_user_ns", "cpu_system_ns"].map(|name| column(&csv, name));
    assert!(parts.iter().flatten().all(|part| *part >= 0), "{csv}");
    assert!(
        parts.iter().all(|part| part.len() == calls),
        "a call has no CPU time: {csv}"
    );
    let metered = parts.iter().flatten().sum::<i64>() as f64 / 1e9;
    // The workers end in the background.
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let (kernel, ended) = {
        let (all, templates) = kernel_ns(&daemon);
        let since = |(path, ns): (&PathBuf, &u64)| ns - templates_before.get(path).unwrap_or(&0);
        let templates: u64 = templates.iter().map(since).sum();
        (
            seconds(all - all_before - templates),
            of_ended_workers(&daemon) - ended_before,
        )
    };
    eprintln!(
        "{calls} calls: {metered:.4} s in the records, {ended:.4} s with what workers did between and after calls, {kernel:.4} s \
         counted by the kernel with the ends of workers"
    );
    assert!(
        metered <= ended * 1.0001,
        "counted twice: {metered} {ended}"
    );
    assert!(ended <= kernel * 1.0001, "counted twice: {ended} {kernel}");
    // Of few calls, the ends of workers are a larger share.
    let allowed = if calls >= MANY { 0.01 } else { 0.03 };
    assert!(
        (kernel - metered) / kernel < allowed,
        "{metered} of {kernel}"
    );
}

/// So many calls, and the bar: `PILOT_TEST_CPU_CALLS=10000`, which takes some minutes.
const MANY: usize = 10_000;

/// Waits until no worker of `lab` is there, and what a deployment does in the background is over: nothing below the daemon uses CPU time.
fn no_worker(daemon: &Daemon) {
    let (mut last, mut since) = (None, Instant::now());
    eventually("no worker is there, and nothing runs", || {
        let (all, groups) = kernel_ns(daemon);
        let none = daemon.workers("lab", "idle") + daemon.workers("lab", "busy") == 0;
        // Interpreter, perhaps environment, function.
        let now = (none && groups.len() <= 3).then_some(all);
        if now.is_none() || now != last {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() > AT_REST).then_some(())
    });
}

/// Without CPU time for so long, nothing runs. A busy machine lets what wants to run wait for less.
const AT_REST: Duration = Duration::from_millis(500);

#[test]
fn the_time_that_a_call_was_throttled_is_in_its_record() {
    let daemon = lab(MIXED, json!({"cpu": 0.05}));
    daemon.upload_code("free", &plain(), MIXED);
    for function in ["lab", "free"] {
        let response = daemon.invoke(function, &json!({"kind": "ok", "burn": 0.04}));
        assert_eq!(response.json(), "ok");
    }
    let of = |function: &str| {
        eventually("the call has a record", || {
            let csv = daemon.cli_ok(&["cost", "export", function]);
            column(&csv, "throttled_ns").first().copied()
        })
    };
    // 40 ms of CPU time, 5 ms in each period of 100 ms.
    assert!(of("lab") > 100_000_000, "{}", of("lab"));
    assert!(of("free") < of("lab") / 2, "{}", of("free"));
}

/// Takes memory and CPU time, as a handler and as a server.
const GREEDY: &str = "
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def use(megabytes, seconds):
    held = bytearray(megabytes << 20)
    held[::4096] = b'x' * len(held[::4096])
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass

def handler(event, context):
    use(event['mb'], event['burn'])

class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        use(64, 0.04)
        self.send_response(200)
        self.send_header('Content-Length', '0')
        self.end_headers()

if __name__ == '__main__':
    ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Server).serve_forever()
";

/// CPU time of all processes below the daemon (Documentation/scheduler/sched-stats.rst).
fn computed_ns(daemon: &Daemon) -> u64 {
    let of_process = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let all = descendants(daemon.pid()).into_iter();
    all.filter_map(of_process).sum()
}

#[test]
fn calls_of_every_kind_have_their_memory_and_cpu_time() {
    let daemon = lab(GREEDY, json!({"memory_mb": 256, "timeout_s": 30}));
    daemon.upload_code(
        "server",
        &json!({"runtime": "http", "command": ["python3", "app.py"], "memory_mb": 256, "cpu": 0.2}),
        GREEDY,
    );
    daemon.upload_code(
        "precise",
        &json!({"cpu": 0.1, "timeout_s": 5, "cpu_limit": {"enforcement": "precise"}}),
        GREEDY,
    );
    let records = |function: &str, column: &str| {
        let csv = daemon.cli_ok(&["cost", "export", function]);
        self::column(&csv, column)
    };
    let wait_for = |function: &str, count: usize| {
        eventually("the calls have records", || {
            (records(function, "unix_ms").len() == count).then_some(())
        });
    };
    // The peak is that of the call, not of the last sample.
    daemon.invoke("lab", &json!({"mb": 1, "burn": 0})).ok();
    daemon.invoke("lab", &json!({"mb": 128, "burn": 0})).ok();
    // A caller that hangs up.
    let mut hangs_up = daemon.connect();
    let event = json!({"mb": 1, "burn": 20}).to_string();
    let path = "/2015-03-31/functions/lab/invocations";
    hangs_up.send(&Request::new("POST", path).body(event));
    // What it computes until then is what is measured.
    let before = computed_ns(&daemon);
    eventually("it computes", || {
        (computed_ns(&daemon) > before + 300_000_000).then_some(())
    });
    hangs_up.hang_up();
    wait_for("lab", 3);
    let memory = records("lab", "memory_used_bytes");
    assert!(memory[1] > 128 << 20, "{memory:?}");
    assert_eq!(memory.len(), 3, "{memory:?}");
    // Most of it is the kernel's, for reading the clock.
    let cpu = ["cpu_user_ns", "cpu_system_ns"].map(|split| records("lab", split)[2]);
    assert!(cpu.iter().sum::<i64>() > 100_000_000, "{cpu:?}");

    // A server behind its function URL.
    daemon.get("/fn/server/").ok();
    wait_for("server", 1);
    let memory = records("server", "memory_used_bytes");
    assert!(memory[0] > 64 << 20, "{memory:?}");
    let throttled = records("server", "throttled_ns");
    assert!(throttled[0] > 50_000_000, "{throttled:?}");

    // Stopped, not throttled by the kernel.
    daemon
        .invoke("precise", &json!({"mb": 1, "burn": 0.03}))
        .ok();
    wait_for("precise", 1);
    let throttled = records("precise", "throttled_ns");
    assert!(throttled[0] > 100_000_000, "{throttled:?}");
}

/// Milliseconds from the handler's call to its return.
fn duration_ms(response: &Response) -> f64 {
    let timing = response.header("server-timing").unwrap_or_default();
    let handler = timing
        .split(", ")
        .find_map(|entry| entry.strip_prefix("handler;dur="));
    handler.unwrap().parse().unwrap()
}

#[test]
fn a_precise_limit_makes_short_calls_take_their_cpu_time_divided_by_their_share() {
    needs!(Need::ExactCpuTime);
    let precise = json!({"cpu": 0.1, "timeout_s": 2, "cpu_limit": {"enforcement": "precise"}});
    let daemon = lab(MIXED, precise);
    // The call before it may have left CPU time of its quota over. No call may use that.
    for _ in 0..3 {
        let response = daemon
            .invoke("lab", &json!({"kind": "ok", "burn": 0.02}))
            .ok();
        let took = duration_ms(&response);
        // 20 ms at a tenth of a CPU. The kernel alone gives 10 ms at once, and 10 ms 100 ms later: at most 120 ms.
        assert!(took > 150.0, "{took} ms");
    }
    // Other processes are part of the worker.
    let response = daemon
        .invoke("lab", &json!({"kind": "child", "burn": 0.02}))
        .ok();
    assert!(duration_ms(&response) > 150.0, "{}", duration_ms(&response));
    // A worker that is stopped most of the time still crashes, times out and is killed.
    for kind in ["timeout", "crash"] {
        let response = daemon.invoke("lab", &json!({"kind": kind, "burn": 0.001}));
        assert!(
            response.header("x-amz-function-error").is_some(),
            "{kind}: {}",
            response.text()
        );
    }
    let response = daemon
        .invoke("lab", &json!({"kind": "ok", "burn": 0.001}))
        .ok();
    assert_eq!(response.json(), "ok");
    let described = daemon.cli_ok(&["describe", "lab"]);
    assert!(described.contains("precise"), "{described}");
    daemon.scale("lab", 0);
    no_worker(&daemon);
}

#[test]
fn the_period_of_the_quota_is_the_functions_own() {
    let short = json!({"cpu": 0.2, "cpu_limit": {"period_ms": 10}});
    let daemon = lab(MIXED, short);
    let response = daemon
        .invoke("lab", &json!({"kind": "ok", "burn": 0.02}))
        .ok();
    // 20 ms at a fifth of a CPU. With the kernel's period of 100 ms it would not wait at all.
    assert!(duration_ms(&response) > 40.0, "{}", duration_ms(&response));
}

#[test]
fn the_cpu_time_of_a_shared_worker_is_divided_among_its_calls() {
    let keys = json!({"concurrency": 4, "scale": {"max": 1}});
    let daemon = lab(MIXED, keys);
    let event = json!({"kind": "ok", "burn": 0.05}).to_string();
    let request = Request::new("POST", "/2015-03-31/functions/lab/invocations").body(event);
    let mut connections: Vec<_> = (0..4).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&request);
    }
    for connection in &mut connections {
        assert_eq!(connection.receive("POST").json(), "ok");
    }
    daemon.scale("lab", 0);
    let (csv, ended) = eventually("the worker's end is counted", || {
        let csv = daemon.cli_ok(&["cost", "export", "lab"]);
        let ended = of_ended_workers(&daemon);
        (csv.lines().count() == 5 && ended > 0.0).then_some((csv, ended))
    });
    let parts = ["cpu_user_ns", "cpu_system_ns"].map(|name| column(&csv, name));
    assert!(parts.iter().all(|part| part.len() == 4), "{csv}");
    assert!(parts.iter().flatten().all(|part| *part >= 0), "{csv}");
    let sum = parts.iter().flatten().sum::<i64>() as f64 / 1e9;
    assert!(sum <= ended * 1.0001, "counted twice: {sum} {ended}");
    assert!(sum >= 0.2, "four calls of 50 ms each: {sum}");
}

#[test]
fn describe_warns_when_sharing_a_worker_makes_calls_dearer() {
    let daemon = lab(
        MIXED,
        json!({"concurrency": 8, "cpu": 0.5, "scale": {"max": 1}}),
    );
    let event = json!({"kind": "ok", "burn": 0.03});
    for _ in 0..12 {
        assert_eq!(daemon.invoke("lab", &event).json(), "ok");
    }
    assert!(!daemon.cli_ok(&["describe", "lab"]).contains("dear"));
    let request =
        Request::new("POST", "/2015-03-31/functions/lab/invocations").body(event.to_string());
    for _ in 0..4 {
        let mut connections: Vec<_> = (0..6).map(|_| daemon.connect()).collect();
        for connection in &mut connections {
            connection.send(&request);
        }
        for connection in &mut connections {
            assert_eq!(connection.receive("POST").json(), "ok");
        }
    }
    let described = daemon.cli_ok(&["describe", "lab"]);
    assert!(
        described.contains("dear") && described.contains("set concurrency = "),
        "{described}"
    );
}

/// Two processes on each CPU compute from one time to another. They stay there: shares are of each CPU, and other processes of the
/// machine would move them.
const SPINS: &str = "
import os, time

def handler(event, context):
    children = []
    for cpu in sorted(os.sched_getaffinity(0)) * 2:
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, {cpu})
            time.sleep(max(0, event['from'] - time.time()))
            while time.time() < event['to']:
                pass
            os._exit(0)
        children.append(child)
    late = event['from'] > 0 and time.time() > event['from']
    for child in children:
        os.waitpid(child, 0)
    return 'late' if late else 'in time'
";

#[test]
fn workers_share_short_cpus_by_their_weights() {
    needs_root!();
    let keys = |weight: u32| json!({"cpu": 64, "timeout_s": 60, "cpu_limit": {"weight": weight}});
    let daemon = lab(SPINS, keys(100));
    daemon.upload_code("heavy", &keys(400), SPINS);
    for function in ["lab", "heavy"] {
        daemon.invoke(function, &json!({"from": 0, "to": 0})).ok();
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let from = now.unwrap().as_secs() + 3;
    std::thread::scope(|scope| {
        for function in ["lab", "heavy"] {
            let event = json!({"from": from, "to": from + 4});
            let daemon = &daemon;
            scope.spawn(move || assert_eq!(daemon.invoke(function, &event).ok().json(), "in time"));
        }
    });
    let of = |function: &str| {
        eventually("both calls have records", || {
            let csv = daemon.cli_ok(&["cost", "export", function]);
            let (user, system) = (column(&csv, "cpu_user_ns"), column(&csv, "cpu_system_ns"));
            let sums: Vec<i64> = user.iter().zip(&system).map(|(a, b)| a + b).collect();
            (sums.len() == 2).then(|| sums.into_iter().max().unwrap())
        })
    };
    #[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds")]
    let ratio = of("heavy") as f64 / of("lab") as f64;
    assert!((2.5..6.0).contains(&ratio), "{ratio}");
    let described = daemon.cli_ok(&["describe", "heavy"]);
    assert!(
        described.contains("cpu weight") && described.contains("400"),
        "{described}"
    );
}

/// The weights of the daemon's groups that are not usual, as they were written.
fn unusual_weights(daemon: &Daemon) -> Vec<String> {
    let prefix = format!("pilotlightd-{}-", daemon.pid());
    let mut found = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let mut folders: Vec<PathBuf> = places
        .filter(|place| place.starts_with("/sys/fs/cgroup"))
        .map(PathBuf::from)
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if !path.is_dir() || path.is_symlink() {
                continue;
            }
            let of_daemon = path
                .components()
                .any(|part| part.as_os_str().to_string_lossy().starts_with(&prefix));
            let is_worker = of_daemon && !entry.file_name().to_string_lossy().starts_with(&prefix);
            for file in ["cpu.shares", "cpu.weight"] {
                if is_worker && let Ok(text) = fs::read_to_string(path.join(file)) {
                    let text = text.trim().to_owned();
                    if !["1024", "100"].contains(&&*text) {
                        found.push(text);
                    }
                }
            }
            folders.push(path);
        }
    }
    found
}

#[test]
fn who_computes_for_long_gives_way_to_others() {
    needs_root!();
    let daemon = lab(SPINS, json!({"timeout_s": 60}));
    daemon.invoke("lab", &json!({"from": 0, "to": 0})).ok();
    let all_are_usual = || unusual_weights(&daemon).is_empty().then_some(());
    eventually("its worker has its weight", all_are_usual);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let to = now.unwrap().as_secs() + 6;
    std::thread::scope(|scope| {
        let long = scope.spawn(|| daemon.invoke("lab", &json!({"from": 0, "to": to})).ok());
        eventually("its worker has a hundredth of its weight", || {
            let hundredth = |weight: &String| ["1", "10"].contains(&weight.as_str());
            unusual_weights(&daemon).iter().any(hundredth).then_some(())
        });
        long.join().unwrap();
    });
    eventually("it has all of its weight again", all_are_usual);
}

#[test]
fn a_kept_runtime_has_the_weight_of_its_function() {
    needs_root!();
    let daemon = lab(MIXED, plain());
    let code = "exports.handler = async () => 1;\n";
    let index = archive(&[ArchiveEntry::text("index.js", code)]);
    // So that both have the same kept runtimes.
    let node = |weight: u32| json!({"runtime": "node", "cpu_limit": {"weight": weight}});
    for (function, weight) in [("light", 50), ("usual", 100)] {
        let (status, event) = daemon.upload(function, &node(weight), &index);
        assert_eq!(status, 200, "{event}");
    }
    assert_eq!(daemon.invoke("light", &json!({})).ok().json(), 1);
    let written = unusual_weights(&daemon);
    assert!(
        ["50", "512"]
            .iter()
            .any(|one| written.contains(&(*one).to_owned())),
        "{written:?}"
    );
    // Its runtime is cleaned, kept, and given to the other one.
    daemon.scale("light", 0);
    eventually("no worker is there", || {
        let of = |state| daemon.workers("light", state);
        (of("idle") + of("busy") == 0).then_some(())
    });
    assert_eq!(daemon.invoke("usual", &json!({})).ok().json(), 1);
    eventually("it is used again", || {
        let uses = "pilot_runtime_uses_total{faas_name=\"usual\",how=\"reused\"} 1";
        daemon.get("/metrics").text().contains(uses).then_some(())
    });
    eventually("no group has the other function's weight", || {
        unusual_weights(&daemon).is_empty().then_some(())
    });
}
