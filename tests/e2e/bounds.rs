//! Bounds in total: what everything below the daemon may have together. Who takes more is told so, and nobody else notices.

use std::time::{Duration, Instant};

use pilot_harness::{
    ArchiveEntry, Connection, Daemon, DaemonOptions, Request, archive, eventually, multipart,
    needs_root, resident_bytes,
};
use serde_json::{Value, json};

use crate::neighbours::{MEMORY_MORE_MAX, invocation, unread};
use crate::{ECHO, answer, daemon, daemon_with, plain};

fn configured(config: &str) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(config.to_owned()),
        ..DaemonOptions::default()
    })
}

/// Calls a function on a connection of its own, and does not wait.
fn call(daemon: &Daemon, function: &str, event: &Value) -> Connection {
    let mut connection = daemon.connect();
    connection.send(&invocation(function, event));
    connection
}

/// Holds so many MiB for so many seconds.
const HOG: &str = r#"
import time

def handler(event, context):
    held = bytearray(event["mb"] << 20)
    for at in range(0, len(held), 4096):
        held[at] = 1
    time.sleep(event["seconds"])
    return len(held)
"#;

#[test]
fn functions_that_together_take_more_than_the_total_are_told_so_and_nobody_else_notices() {
    needs_root!();
    let daemon = configured("[limits]\ntotal_memory_mb = 400\n");
    let hogs = ["hog-a", "hog-b", "hog-c"];
    for hog in hogs {
        daemon.upload_code(hog, &json!({"memory_mb": 256, "timeout_s": 30}), HOG);
    }
    daemon.upload_code("neighbour", &plain(), ECHO);
    assert_eq!(answer(&daemon, "neighbour", json!(1)), 1);
    // Alone, each of them may have so much.
    let event = json!({"mb": 180, "seconds": 0});
    assert_eq!(answer(&daemon, "hog-a", event), 180 << 20);

    let event = json!({"mb": 180, "seconds": 3});
    let running: Vec<_> = hogs.map(|hog| call(&daemon, hog, &event)).into();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        daemon.get("/healthz").ok();
        assert_eq!(answer(&daemon, "neighbour", json!(2)), 2);
    }
    let ends: Vec<Value> = running
        .into_iter()
        .map(|mut hog| hog.receive("POST").json())
        .collect();
    let (fine, killed): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.is_number());
    assert!(!fine.is_empty() && !killed.is_empty(), "{ends:?}");
    for end in killed {
        assert_eq!(end["errorType"], "Runtime.OutOfMemory");
        let message = end["errorMessage"].as_str().unwrap();
        assert!(message.contains("limits.total_memory_mb"), "{message}");
        assert!(
            message.contains("its own memory_mb was not reached"),
            "{message}"
        );
    }
    // What reaches its own limit is still told that.
    let own = daemon
        .invoke("hog-a", &json!({"mb": 300, "seconds": 0}))
        .json();
    let message = own["errorMessage"].as_str().unwrap();
    assert!(message.contains("raise memory_mb"), "{message}");
}

/// Starts processes until it cannot, and keeps them for a while.
const FORKS: &str = r#"
import os, time

def handler(event, context):
    started = []
    try:
        while True:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            started.append(pid)
    except OSError:
        pass
    time.sleep(2)
    for pid in started:
        os.kill(pid, 9)
    return len(started)
"#;

#[test]
fn processes_of_all_functions_have_a_limit_together_and_a_running_neighbour_is_served() {
    needs_root!();
    let daemon = configured("[limits]\ntotal_pids = 120\n");
    for name in ["forks-a", "forks-b"] {
        daemon.upload_code(name, &json!({"memory_mb": 1024, "timeout_s": 30}), FORKS);
    }
    daemon.upload_code("neighbour", &plain(), ECHO);
    assert_eq!(answer(&daemon, "neighbour", json!(1)), 1);
    let running = ["forks-a", "forks-b"].map(|name| call(&daemon, name, &Value::Null));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        daemon.get("/healthz").ok();
        assert_eq!(answer(&daemon, "neighbour", json!(2)), 2);
    }
    let started: u64 = running
        .into_iter()
        .map(|mut one| one.receive("POST").ok().json().as_u64().unwrap())
        .sum();
    // One of them alone could have 250.
    assert!((20..120).contains(&started), "{started}");
}

#[test]
fn builds_have_a_limit_of_memory_together() {
    needs_root!();
    let daemon = configured("[build]\nmemory_mb = 512\ntotal_memory_mb = 300\n");
    daemon.upload_code("neighbour", &plain(), ECHO);
    // The compiler needs some 200 MB for one of these, which fits.
    let large = format!("x = lambda a: [{}]\n{ECHO}", "(1,a),".repeat(120_000));
    let build = |name: &str| -> String {
        let mark = format!("{large}\n# {name}\n");
        let code = archive(&[ArchiveEntry::text("app.py", &mark)]);
        let spec = json!({"memory_mb": 1024}).to_string();
        let (form, body) = multipart(&[
            ("spec", "application/json", spec.as_bytes()),
            ("code", "application/gzip", &code),
        ]);
        let request = Request::new("PUT", &format!("/_pilot/v1/functions/{name}"));
        // All lines: what was not compiled is progress.
        let answer = daemon.send(&request.header("content-type", &form).body(body));
        answer.ok().text()
    };
    let alone = build("alone");
    assert!(!alone.contains("total_memory_mb"), "{alone}");
    let said: Vec<String> = std::thread::scope(|scope| {
        let builds: Vec<_> = ["a", "b", "c", "d"]
            .map(|name| scope.spawn(move || build(name)))
            .into();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            assert_eq!(answer(&daemon, "neighbour", json!(2)), 2);
        }
        builds.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(
        said.iter()
            .any(|event| event.contains("all builds together reached total_memory_mb of [build]")),
        "{said:?}"
    );
    eventually("the neighbour answers", || {
        (answer(&daemon, "neighbour", json!(3)) == 3).then_some(())
    });
}

/// A response of six million bytes, described as an object: what is sent is made of what the worker answered.
const DESCRIBED: &str = r#"
def handler(event, context):
    if "requestContext" in event:
        return {"statusCode": 200, "body": "x" * 6_000_000}
    return "x" * event["len"]
"#;

#[test]
fn responses_that_are_made_of_answers_take_no_more_of_the_daemons_memory() {
    let daemon = daemon();
    let keys = json!({"scale": {"max": 40}, "timeout_s": 60});
    daemon.upload_code("large", &keys, DESCRIBED);
    assert_eq!(daemon.get("/fn/large/").ok().body.len(), 6_000_000);
    let quiet = resident_bytes(daemon.pid());
    let request = Request::new("GET", "/fn/large/");
    let (connections, highest) = unread(&daemon, &request, 40, Duration::from_secs(4));
    assert!(
        highest < quiet + MEMORY_MORE_MAX,
        "{quiet} bytes before, then {highest}"
    );
    std::thread::scope(|scope| {
        for mut connection in connections {
            scope.spawn(move || {
                let response = connection.receive("GET").ok();
                assert_eq!(response.body.len(), 6_000_000);
            });
        }
    });
}

#[test]
fn clients_that_read_too_slowly_do_not_keep_long_answers_of_the_same_function_from_others() {
    let daemon = daemon();
    let keys = json!({"scale": {"max": 20}, "timeout_s": 60, "memory_mb": 256});
    daemon.upload_code("lab", &keys, DESCRIBED);
    answer(&daemon, "lab", json!({"len": 1}));
    // Twelve answers of 6 MB, of which the function may have eight in the daemon. Each client reads 8 KiB every 200 ms, which would
    // take two minutes.
    let slow: Vec<_> = (0..12)
        .map(|_| call(&daemon, "lab", &json!({"len": 6_000_000})))
        .collect();
    let begin = Instant::now();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mut connection in slow {
            let over = &over;
            scope.spawn(move || {
                let mut piece = [0; 8 << 10];
                while !over.load(std::sync::atomic::Ordering::Relaxed)
                    && connection.read_some(&mut piece) > 0
                {
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
        }
        eventually("the memory is taken", || {
            (resident_bytes(daemon.pid()) > 40 << 20).then_some(())
        });
        let long = answer(&daemon, "lab", json!({"len": 1_000_000}));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(long.as_str().map(str::len), Some(1_000_000));
    });
    // Before, each write of theirs had 60 s.
    assert!(
        begin.elapsed() < Duration::from_secs(45),
        "{:?}",
        begin.elapsed()
    );
}

/// The worker has one channel for all its requests.
#[test]
fn a_client_that_reads_nothing_holds_up_no_other_request_of_its_worker() {
    const STREAMS: &str = r#"
async def app(scope, receive, send):
    assert scope["type"] == "http", scope
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"].endswith("/long"):
        for _ in range(3200):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
    await send({"type": "http.response.body", "body": b"done"})
"#;
    let daemon = daemon();
    let keys =
        json!({"interface": "asgi", "handler": "app.app", "concurrency": 4, "scale": {"max": 1}});
    daemon.upload_code("lab", &keys, STREAMS);
    daemon.get("/fn/lab/").ok();
    let mut slow = daemon.connect();
    slow.send(&Request::new("GET", "/fn/lab/long"));
    eventually("it is being answered", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(daemon.get("/fn/lab/").ok().text(), "done");
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
    }
    let long = slow.receive("GET").ok();
    assert_eq!(long.body.len(), 3200 * (1 << 16) + 4);
}

const APPLICATION: &str = r#"
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200})
        return await send({"type": "http.response.body", "body": b"ok"})
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect": pass
"#;

#[test]
fn a_websocket_without_descriptors_for_it_is_told_to_try_again() {
    needs_root!();
    let daemon = daemon();
    let keys = json!({"interface": "asgi", "handler": "app:app"});
    daemon.upload_code("lab", &keys, APPLICATION);
    daemon.get("/fn/lab/").ok();
    let limit = |files: &str| {
        let limited = std::process::Command::new("prlimit")
            .args(["--pid", &daemon.pid().to_string()])
            .arg(format!("--nofile={files}"))
            .status();
        assert!(limited.unwrap().success());
    };
    let handshake = Request::new("GET", "/fn/lab/")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let mut connection = daemon.connect();
    // Accepted before the limit: from now on, the daemon gets no new descriptor.
    connection.exchange(&Request::new("GET", "/healthz")).ok();
    limit("8:");
    let refused = connection.exchange(&handshake);
    limit("4096:");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(refused.text().contains("open files"), "{}", refused.text());
    let mut again = daemon.connect();
    again.send(&handshake);
    assert!(again.raw_line().contains("101"));
}
