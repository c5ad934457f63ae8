//! How a worker starts: cold and warm, phases, hooks, reseeding, spare workers, `reuse = "once"`, `template = "off"`.

use std::collections::HashSet;

use nix::sys::signal::Signal;
use pilot_harness::{Daemon, Need, Response, eventually, needs};
use pilot_sys::process::ignore_signal;
use serde_json::{Value, json};

use crate::{ECHO, answer, daemon, lab, plain, starts};

/// The phases of a `Server-Timing` header, ms.
fn phases(response: &Response) -> Vec<(String, f64)> {
    let header = response
        .header("server-timing")
        .unwrap_or_else(|| panic!("no Server-Timing: {response:?}"));
    header
        .split(',')
        .filter_map(|entry| {
            let (name, rest) = entry.trim().split_once(';')?;
            let ms = rest
                .split(';')
                .find_map(|part| part.trim().strip_prefix("dur="))?;
            Some((name.to_owned(), ms.parse().unwrap()))
        })
        .collect()
}

fn has(phases: &[(String, f64)], name: &str) -> bool {
    phases.iter().any(|(phase, _)| phase == name)
}

#[track_caller]
fn retire(daemon: &Daemon, function: &str) {
    daemon.scale(function, 0);
    eventually("nobody is idle", || {
        (daemon.workers(function, "idle") == 0).then_some(())
    });
}

#[test]
fn the_first_invocation_is_cold_with_every_phase_and_the_next_is_warm() {
    let daemon = lab(ECHO, plain());
    retire(&daemon, "lab");
    let cold = daemon.invoke("lab", &json!({}));
    assert_eq!(cold.start_kind(), "cold");
    let seen = phases(&cold);
    for phase in ["fork", "sandbox", "init", "handler"] {
        assert!(has(&seen, phase), "no {phase} in {seen:?}");
    }
    let warm = daemon.invoke("lab", &json!({}));
    assert_eq!(warm.start_kind(), "warm");
    let seen = phases(&warm);
    assert!(has(&seen, "handler") && !has(&seen, "fork"), "{seen:?}");
}

#[test]
fn the_phases_explain_the_time_that_the_client_saw() {
    let daemon = lab(
        "import time\ndef handler(event, context):\n    time.sleep(0.2)\n",
        plain(),
    );
    // What the machine does between the daemon and the client is in no phase, so the best of ten starts counts.
    let unexplained = (0..10).map(|_| {
        retire(&daemon, "lab");
        let cold = daemon.invoke("lab", &json!({}));
        let sum: f64 = phases(&cold)
            .iter()
            .filter(|(name, _)| name != "total")
            .map(|(_, ms)| ms)
            .sum();
        let seen = cold.head_after.as_secs_f64() * 1e3;
        assert!(
            sum > 200.0 && sum <= seen + 1.0,
            "phases {sum} ms, client {seen} ms"
        );
        seen - sum
    });
    let unexplained = unexplained.min_by(f64::total_cmp).unwrap();
    assert!(unexplained < 20.0, "unexplained: {unexplained} ms");
}

#[test]
fn scale_0_retires_idle_workers_at_once_and_scale_n_starts_some() {
    let daemon = lab(ECHO, plain());
    daemon.invoke("lab", &json!({}));
    daemon.cli_ok(&["scale", "lab", "0"]);
    assert_eq!(daemon.workers("lab", "idle"), 0);
    assert_eq!(daemon.invoke("lab", &json!({})).start_kind(), "cold");
    daemon.scale("lab", 3);
    eventually("three are idle", || {
        (daemon.workers("lab", "idle") == 3).then_some(())
    });
    assert_eq!(daemon.invoke("lab", &json!({})).start_kind(), "warm");
}

#[test]
fn scale_says_until_when_it_holds_the_minimum_down() {
    let daemon = lab(ECHO, json!({"scale": {"min": 1, "max": 4}}));
    let said = daemon.cli_ok(&["scale", "lab", "0"]);
    assert!(
        said.contains(
            "until the next request at most 0 kept ready; from then on scale.min = 1 counts again"
        ),
        "{said}"
    );
    assert_eq!(daemon.workers("lab", "idle"), 0);
    assert!(!daemon.cli_ok(&["scale", "lab", "2"]).contains("until"));
}

#[test]
fn the_module_is_imported_once_in_the_template_and_not_in_its_workers() {
    let code =
        "import time\nborn = time.monotonic_ns()\ndef handler(event, context):\n    return born\n";
    let daemon = lab(code, plain());
    let mut born = HashSet::new();
    for _ in 0..3 {
        retire(&daemon, "lab");
        let response = daemon.invoke("lab", &json!({})).ok();
        assert_eq!(response.start_kind(), "cold");
        born.insert(response.json().as_u64().unwrap());
    }
    assert_eq!(born.len(), 1);
}

#[test]
fn without_a_template_every_worker_is_a_fresh_interpreter() {
    let code = "import time\nborn = time.monotonic_ns()\ncount = 0\ndef handler(event, context):\n    global count\n    count += 1\n    return [born, count]\n";
    let daemon = lab(code, json!({"template": "off"}));
    let mut born = HashSet::new();
    for _ in 0..3 {
        retire(&daemon, "lab");
        let first = answer(&daemon, "lab", json!({}));
        assert_eq!(first[1], 1);
        assert_eq!(
            answer(&daemon, "lab", json!({}))[1],
            2,
            "the worker is kept"
        );
        born.insert(first[0].as_u64().unwrap());
    }
    assert_eq!(born.len(), 3);
}

#[test]
fn without_a_template_asgi_works_too() {
    let code = "async def app(scope, receive, send):\n    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    await send({'type': 'http.response.body', 'body': b'ok'})\n";
    let daemon = lab(
        code,
        json!({"template": "off", "interface": "asgi", "handler": "app:app"}),
    );
    assert_eq!(daemon.get("/fn/lab/").ok().text(), "ok");
}

#[test]
fn without_a_template_packages_that_start_threads_import() {
    needs!(Need::Network);
    let daemon = daemon();
    let project = pilot_harness::Project::function(
        "lab",
        "import numpy\ndef handler(event, context):\n    return int(numpy.arange(event).sum())\n",
        "template = \"off\"",
    )
    .file("requirements.txt", "numpy==2.4.6\n");
    daemon.deploy(&project);
    assert_eq!(answer(&daemon, "lab", json!(4)), 6);
}

#[test]
fn reuse_once_never_shows_an_invocation_the_state_of_another() {
    let code = "import os\ncount = 0\ndef handler(event, context):\n    global count\n    count += 1\n    left = sorted(os.listdir('/tmp'))\n    open('/tmp/left', 'w').write('x')\n    os.environ['LEFT'] = 'x' if 'LEFT' not in os.environ else 'seen'\n    return [count, left, os.environ['LEFT']]\n";
    let daemon = lab(code, json!({"reuse": "once"}));
    for _ in 0..10 {
        let response = daemon.invoke("lab", &json!({})).ok();
        assert_eq!(response.json(), json!([1, [], "x"]));
        assert_eq!(response.start_kind(), "cold");
    }
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    (0..5)
                        .map(|_| answer(&daemon, "lab", json!({})))
                        .collect::<Vec<Value>>()
                })
            })
            .collect();
        for client in clients {
            for seen in client.join().unwrap() {
                assert_eq!(seen, json!([1, [], "x"]));
            }
        }
    });
}

#[test]
fn a_spare_worker_makes_the_next_start_warm() {
    let daemon = lab(ECHO, json!({"reuse": "once", "scale": {"spare": 1}}));
    daemon.invoke("lab", &json!({})).ok();
    for _ in 0..5 {
        eventually("a spare worker is idle", || {
            (daemon.workers("lab", "idle") >= 1).then_some(())
        });
        let response = daemon.invoke("lab", &json!({})).ok();
        assert_eq!(response.start_kind(), "warm", "the spare worker took it");
    }
}

#[test]
fn spare_workers_stand_by_beyond_the_busy_ones() {
    let daemon = lab(
        "import time\ndef handler(event, context):\n    time.sleep(event)\n",
        json!({"scale": {"spare": 2}}),
    );
    daemon.invoke("lab", &json!(0)).ok();
    eventually("two spare workers are idle", || {
        (daemon.workers("lab", "idle") >= 2).then_some(())
    });
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.invoke("lab", &json!(4)));
        eventually("two spare workers are idle beside the busy one", || {
            let workers = daemon.describe("lab")["workers"].clone();
            (workers["busy"] == 1 && workers["idle"].as_u64() >= Some(2)).then_some(())
        });
    });
}

#[test]
fn spare_workers_end_once_the_function_is_no_longer_hot() {
    let daemon = lab(ECHO, json!({"scale": {"spare": 2, "idle_s": 2}}));
    daemon.invoke("lab", &json!({})).ok();
    eventually("two spare workers are idle", || {
        (daemon.workers("lab", "idle") >= 2).then_some(())
    });
    eventually("no worker is left", || {
        let workers = daemon.describe("lab")["workers"].clone();
        (workers["idle"] == 0 && workers["starting"] == 0).then_some(())
    });
}

#[test]
fn min_workers_are_there_from_the_start_and_stay() {
    let code = "import os, time\nme = None\ndef handler(event, context):\n    global me\n    me = me or os.urandom(8).hex()\n    time.sleep(event)\n    return me\n";
    let daemon = lab(code, json!({"scale": {"min": 2, "idle_s": 0.1}}));
    eventually("two are idle", || {
        (daemon.workers("lab", "idle") == 2).then_some(())
    });
    assert_eq!(daemon.invoke("lab", &json!(0)).start_kind(), "warm");
    // Further workers are reaped after `idle_s`; these two are not.
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| daemon.invoke("lab", &json!(2)).ok().text()))
            .collect();
        let served: HashSet<String> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        assert!(served.len() > 2, "only {} workers", served.len());
    });
    eventually("those beyond two are reaped", || {
        let workers = daemon.describe("lab")["workers"].clone();
        (workers["idle"] == 2 && workers["starting"] == 0).then_some(())
    });
    let started = starts(&daemon);
    for _ in 0..5 {
        assert_eq!(daemon.invoke("lab", &json!(0)).start_kind(), "warm");
        assert_eq!(daemon.workers("lab", "idle"), 2);
    }
    assert_eq!(starts(&daemon), started, "a worker was replaced");
}

#[test]
fn workers_do_not_share_their_random_numbers() {
    let code = "import random, uuid, os, secrets, ssl, tempfile\nrandom.random()\ndef handler(event, context):\n    return [random.random(), str(uuid.uuid4()), str(uuid.uuid1()), os.urandom(8).hex(), secrets.token_hex(8), ssl.RAND_bytes(8).hex(), tempfile.mktemp()]\n";
    let daemon = lab(code, json!({"reuse": "once"}));
    let seen: Vec<Value> = (0..6).map(|_| answer(&daemon, "lab", json!({}))).collect();
    for source in 0..7 {
        let different: HashSet<String> = seen
            .iter()
            .map(|values| values[source].to_string())
            .collect();
        assert_eq!(
            different.len(),
            seen.len(),
            "source {source} repeats: {different:?}"
        );
    }
}

#[test]
fn snapshot_hooks_run_in_lambdas_order_before_the_fork_and_after_it() {
    let code = r#"
import os, time
from snapshot_restore_py import register_before_snapshot, register_after_restore
said = []

@register_before_snapshot
def first():
    said.append(["before 1", os.getpid()])

@register_before_snapshot
def second():
    said.append(["before 2", os.getpid()])

register_after_restore(lambda word: said.append([word, os.getpid()]), "after 1")

@register_after_restore
def later():
    said.append(["after 2", os.getpid()])

def handler(event, context):
    return [[word for word, _ in said], os.getpid()]
"#;
    let daemon = lab(code, json!({"reuse": "once"}));
    for _ in 0..3 {
        let said = answer(&daemon, "lab", json!({}));
        assert_eq!(
            said[0],
            json!(["before 2", "before 1", "after 1", "after 2"])
        );
    }
}

#[test]
fn a_hook_that_raises_before_the_snapshot_fails_the_deploy() {
    let daemon = daemon();
    let project = pilot_harness::Project::function(
        "lab",
        "from snapshot_restore_py import register_before_snapshot\n@register_before_snapshot\ndef no():\n    raise ValueError('not ready')\ndef handler(event, context):\n    pass\n",
        "",
    );
    let printed = daemon.deploy_fails(&project);
    assert!(printed.contains("not ready"), "{printed}");
}

#[test]
fn a_hook_that_raises_after_the_restore_is_an_error_of_that_invocation() {
    let code = "import os\nfrom snapshot_restore_py import register_after_restore\n@register_after_restore\ndef connect():\n    if os.path.exists('/var/task/down'):\n        raise ValueError('no database')\ndef handler(event, context):\n    return 'connected'\n";
    let daemon = lab(code, plain());
    assert_eq!(answer(&daemon, "lab", json!({})), "connected");
    let version = daemon.describe("lab")["version"].clone();
    let deployed = daemon
        .data_dir()
        .join("code")
        .join(version.as_str().unwrap());
    std::fs::write(deployed.join("down"), "").unwrap();
    daemon.scale("lab", 0);
    let error = crate::failure(&daemon, "lab", json!({}));
    assert_eq!(error["errorMessage"], "no database", "{error}");
    std::fs::remove_file(deployed.join("down")).unwrap();
    assert_eq!(answer(&daemon, "lab", json!({})), "connected");
}

#[test]
fn the_newest_cold_start_is_in_describe_with_its_timeline() {
    let daemon = lab(ECHO, plain());
    retire(&daemon, "lab");
    let id = daemon
        .invoke("lab", &json!({}))
        .header("x-amzn-requestid")
        .unwrap()
        .to_owned();
    daemon.invoke("lab", &json!({}));
    let last_cold = eventually("the cold start is described", || {
        let last_cold = daemon.describe("lab")["last_cold"].clone();
        (last_cold["id"] == id.as_str()).then_some(last_cold)
    });
    assert!(
        matches!(last_cold["start"].as_str(), Some("cold" | "cold_shared")),
        "{last_cold}"
    );
    let timeline = &last_cold["timeline"];
    let stamps: Vec<u64> = [
        "received",
        "admitted",
        "forked",
        "sandboxed",
        "initialised",
        "started",
        "returned",
        "finished",
    ]
    .iter()
    .map(|stamp| {
        timeline[stamp]
            .as_u64()
            .unwrap_or_else(|| panic!("no {stamp}: {timeline}"))
    })
    .collect();
    assert!(stamps.is_sorted(), "{timeline}");
}

#[test]
fn a_worker_ignores_no_signal_because_the_daemon_was_started_so() {
    // As in a background job of a shell without job control. The process of this test hands it on to the daemon.
    ignore_signal(Signal::SIGQUIT).unwrap();
    let code = "import signal\ndef handler(event, context):\n    ignored = int(next(line for line in open('/proc/self/status') if \
                line.startswith('SigIgn')).split()[1], 16)\n    \
                return [number for number in range(1, 32) if ignored >> number - 1 & 1]\n";
    let daemon = lab(code, json!({}));
    // Python itself ignores these: SIGPIPE, SIGXFSZ.
    assert_eq!(answer(&daemon, "lab", json!({})), json!([13, 25]));
}

#[test]
fn a_function_finds_its_roots_owner_and_the_settings_that_links_in_usr_lead_to() {
    pilot_harness::needs_root!();
    let code = r#"
import os
def handler(event, context):
    root = os.stat("/")
    return [root.st_uid, root.st_gid, [path for path in event if not os.path.exists(path)]]
"#;
    let daemon = lab(code, json!({}));
    let known = ["/usr/lib/ssl/openssl.cnf", "/etc/fonts/fonts.conf"];
    let here: Vec<&str> = known
        .into_iter()
        .filter(|path| std::path::Path::new(path).exists())
        .collect();
    assert_eq!(answer(&daemon, "lab", json!(here)), json!([0, 0, []]));
}
