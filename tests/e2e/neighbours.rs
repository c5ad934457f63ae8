//! What one function or its callers do must not be felt by others: the daemon's memory and the latency of a neighbour while a
//! function answers more than anybody reads, breaks off in the middle of a frame, or prints without end.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pilot_harness::{
    ArchiveEntry, Connection, Daemon, DaemonOptions, Request, archive, eventually,
    eventually_within, needs_root, patience, resident_bytes,
};
use serde_json::json;
use tokio_tungstenite::tungstenite;

use crate::{ECHO, answer, daemon, daemon_with, failure};

/// Memory that the daemon may need beyond what it had when it was quiet.
pub(crate) const MEMORY_MORE_MAX: u64 = 64 << 20;

pub(crate) fn invocation(function: &str, event: &serde_json::Value) -> Request {
    let target = format!("/2015-03-31/functions/{function}/invocations");
    Request::new("POST", &target).body(event.to_string())
}

/// Calls a function from many connections that do not read. Returns them with the daemon's highest memory.
pub(crate) fn unread(
    daemon: &Daemon,
    request: &Request,
    count: usize,
    time: Duration,
) -> (Vec<Connection>, u64) {
    let mut connections: Vec<Connection> = (0..count).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(request);
    }
    let begin = Instant::now();
    let mut highest = 0;
    while begin.elapsed() < time {
        highest = highest.max(resident_bytes(daemon.pid()));
        std::thread::sleep(Duration::from_millis(20));
    }
    (connections, highest)
}

#[test]
fn answers_that_nobody_reads_do_not_take_the_daemons_memory() {
    let daemon = daemon();
    let large = "def handler(event, context):\n    return 'x' * event\n";
    daemon.upload_code(
        "large",
        &json!({"scale": {"max": 40}, "timeout_s": 60}),
        large,
    );
    daemon.upload_code("neighbour", &json!({}), large);
    answer(&daemon, "large", json!(1));
    answer(&daemon, "neighbour", json!(1));
    let quiet = resident_bytes(daemon.pid());
    let request = invocation("large", &json!(6_000_000));
    let (connections, highest) = unread(&daemon, &request, 40, Duration::from_secs(4));
    assert!(
        highest < quiet + MEMORY_MORE_MAX,
        "{quiet} bytes before, then {highest}"
    );
    // A neighbour's long answers still pass.
    for _ in 0..5 {
        let text = answer(&daemon, "neighbour", json!(1_000_000));
        assert_eq!(text.as_str().map(str::len), Some(1_000_000));
    }
    // Whoever reads in the end gets everything. All at the same time, because some wait for the memory of others.
    std::thread::scope(|scope| {
        for mut connection in connections {
            scope.spawn(move || {
                let response = connection.receive("POST").ok();
                assert_eq!(response.body.len(), 6_000_002);
            });
        }
    });
}

#[test]
fn bodies_that_arrive_slowly_do_not_take_the_daemons_memory() {
    const PIECES: usize = 20;
    let daemon = daemon();
    let hash = "import hashlib\ndef handler(event, context):\n    return hashlib.sha256(event.encode()).hexdigest()\n";
    daemon.upload_code("lab", &json!({"timeout_s": 60}), hash);
    let wanted = |text: &str| answer(&daemon, "lab", json!(text));
    let piece = "0123456789abcdef".repeat(100 << 6);
    let hash = wanted(&piece.repeat(PIECES));
    let quiet = resident_bytes(daemon.pid());
    let mut connections: Vec<Connection> = (0..64).map(|_| daemon.connect()).collect();
    let head = format!(
        "POST /2015-03-31/functions/lab/invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n\"",
        PIECES * piece.len() + 2
    );
    let mut highest = 0;
    for at in 0..PIECES {
        for connection in &mut connections {
            if at == 0 {
                connection.send_raw(head.as_bytes());
            }
            connection.send_raw(piece.as_bytes());
        }
        highest = highest.max(resident_bytes(daemon.pid()));
        // The clients are slow, also beside a slow disk.
        std::thread::sleep(Duration::from_millis(100) * patience());
    }
    highest = highest.max(resident_bytes(daemon.pid()));
    assert!(
        highest < quiet + MEMORY_MORE_MAX,
        "{quiet} bytes before, then {highest}"
    );
    let dir = daemon.data_dir();
    let files = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let without_names = files
        .filter_map(|file| std::fs::read_link(file.unwrap().path()).ok())
        .filter(|path| path.starts_with(&dir) && path.to_string_lossy().ends_with(" (deleted)"));
    assert_eq!(without_names.count(), 64);
    // All of them arrive in the end.
    for mut connection in connections {
        connection.send_raw(b"\"");
        assert_eq!(connection.receive("POST").ok().json(), hash);
    }
    memory_is_given_back(&daemon, quiet + MEMORY_MORE_MAX);
}

/// The daemon looks every 5 s what it can give back. If it finds the memory in use, it looks less often, at least every 60 s.
fn memory_is_given_back(daemon: &Daemon, below: u64) {
    eventually_within(Duration::from_secs(70), "the memory is given back", || {
        (resident_bytes(daemon.pid()) < below).then_some(())
    });
}

/// Writes to its invocation channel itself.
const WIRE: &str = r#"
import os, socket, struct, sys, time

def channel():
    for number in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(number)))
        except OSError:
            continue
        if one.family == socket.AF_UNIX and one.type == socket.SOCK_STREAM:
            return one

def frame(kind, meta_len, body_len):
    return struct.pack("<IIIBBH", meta_len, body_len, 1, kind, 0, 0)

def handler(event, context):
    if event["what"] == "good":
        return "good"
    out = channel()
    if event["what"] == "long":
        out.sendall(frame(event["kind"], 0, event["len"]))
    else:
        out.sendall(frame(17, 2, 6_000_000) + b"{}")
        out.sendall(bytes(5_900_000))
    time.sleep(60)
"#;

#[test]
fn a_frame_over_the_limit_of_its_kind_ends_the_worker_before_it_is_read() {
    let daemon = daemon();
    daemon.upload_code("lab", &json!({"timeout_s": 20}), WIRE);
    // RESULT, HEAD, CHUNK.
    for (kind, len) in [(17, 6_291_557), (19, 65_537), (20, 64 << 20)] {
        let begin = Instant::now();
        let event = json!({"what": "long", "kind": kind, "len": len});
        let error = failure(&daemon, "lab", event).to_string();
        assert!(error.contains("over the limit"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(answer(&daemon, "lab", json!({"what": "good"})), "good");
}

#[test]
fn answers_that_break_off_do_not_take_the_daemons_memory() {
    let daemon = daemon();
    daemon.upload_code("lab", &json!({"scale": {"max": 40}, "timeout_s": 6}), WIRE);
    answer(&daemon, "lab", json!({"what": "good"}));
    let quiet = resident_bytes(daemon.pid());
    let request = invocation("lab", &json!({"what": "half"}));
    let (connections, highest) = unread(&daemon, &request, 40, Duration::from_secs(4));
    assert!(
        highest < quiet + MEMORY_MORE_MAX,
        "{quiet} bytes before, then {highest}"
    );
    for mut connection in connections {
        let response = connection.receive("POST");
        assert!(response.text().contains("timed out"), "{}", response.text());
    }
    assert_eq!(answer(&daemon, "lab", json!({"what": "good"})), "good");
    // What was held is free again, and the memory of long answers is not kept for later.
    memory_is_given_back(&daemon, quiet + MEMORY_MORE_MAX / 2);
}

/// Prints from four processes without end: if it may, from a large pipe into a large pipe, which takes hardly any time.
const NOISE: &str = r#"
import ctypes, fcntl, os

F_SETPIPE_SZ = 1031

def enlarge(pipe):
    try:
        fcntl.fcntl(pipe, F_SETPIPE_SZ, 1 << 20)
    except OSError:
        pass

def handler(event, context):
    if event != "noise":
        return event
    line = b"x" * 65535 + b"\n"
    for _ in range(3):
        if os.fork() == 0:
            break
    source, full = os.pipe()
    enlarge(full)
    enlarge(1)
    os.set_blocking(full, False)
    try:
        while True:
            os.write(full, line)
    except BlockingIOError:
        pass
    tee = ctypes.CDLL(None).tee
    while True:
        if tee(source, 1, 1 << 20, 0) < 0:
            os.write(1, line)
"#;

#[test]
fn a_function_that_prints_without_end_is_slowed_down_and_its_neighbour_is_not() {
    needs_root!();
    let daemon = daemon();
    daemon.upload_code(
        "noise",
        &json!({"scale": {"max": 8}, "timeout_s": 4, "cpu": 0.25}),
        NOISE,
    );
    daemon.upload_code("neighbour", &json!({}), ECHO);
    answer(&daemon, "noise", json!("quiet"));
    answer(&daemon, "neighbour", json!(1));
    let worst = |time: Duration| {
        let (begin, mut worst) = (Instant::now(), Duration::ZERO);
        while begin.elapsed() < time {
            let asked = Instant::now();
            daemon.get("/healthz").ok();
            answer(&daemon, "neighbour", json!(1));
            worst = worst.max(asked.elapsed());
        }
        worst
    };
    let request = invocation("noise", &json!("noise"));
    let mut connections: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    let begin = Instant::now();
    for connection in &mut connections {
        connection.send(&request);
    }
    // The machine can only make it longer, so the best of three seconds counts. The functions print in all of them.
    let noisy = (0..3).map(|_| worst(Duration::from_secs(1))).min().unwrap();
    assert!(noisy < Duration::from_millis(500), "{noisy:?}");
    for mut connection in connections {
        let response = connection.receive("POST");
        assert!(response.text().contains("timed out"), "{}", response.text());
    }
    // Their timeout is four seconds.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// Its workers do not become ready while there is a file beside its code.
const HANGS: &str = "import os, time\nfrom snapshot_restore_py import register_after_restore\n@register_after_restore\ndef connect():\n    while os.path.exists('/var/task/down'):\n        time.sleep(0.05)\ndef handler(event, context):\n    return 'connected'\n";

/// From now on, `function` hangs. Returns the file that holds it up.
fn hang(daemon: &Daemon, function: &str) -> PathBuf {
    let version = daemon.describe(function)["version"].clone();
    let code = daemon.data_dir().join("code");
    let down = code.join(version.as_str().unwrap()).join("down");
    std::fs::write(&down, "").unwrap();
    daemon.scale(function, 0);
    down
}

#[test]
fn starts_that_hang_leave_their_places_to_others_and_end_with_their_function() {
    const PLACES: u32 = 6;
    let daemon = daemon_with_workers(PLACES);
    daemon.upload_code("hangs", &json!({"reuse": "once", "timeout_s": 60}), HANGS);
    for name in ["late", "others"] {
        daemon.upload_code(name, &json!({"timeout_s": 60}), SLEEPER);
    }
    hang(&daemon, "hangs");
    let mut connections: Vec<_> = (0..2 * PLACES).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&invocation("hangs", &json!(0)));
    }
    eventually("all places are taken", || {
        (daemon.workers("hangs", "starting") >= u64::from(PLACES)).then_some(())
    });
    let begun = Instant::now();
    assert_eq!(answer(&daemon, "late", json!(0)), 0);
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(25), "{waited:?}");
    drop(connections);
    eventually("nobody waits", || {
        (daemon.describe("hangs")["workers"]["waiting"] == 0).then_some(())
    });
    daemon.cli_ok(&["remove", "hangs"]);
    let mut others: Vec<_> = (0..PLACES).map(|_| daemon.connect()).collect();
    for connection in &mut others {
        connection.send(&invocation("others", &json!(3)));
    }
    eventually("all places are free for others", || {
        (daemon.workers("others", "busy") == u64::from(PLACES)).then_some(())
    });
    for mut connection in others {
        assert_eq!(connection.receive("POST").ok().json(), 3);
    }
}

#[test]
fn a_start_that_hangs_is_given_up_in_time_or_when_nobody_waits() {
    let daemon = daemon_with_workers(6);
    let keys = json!({"scale": {"max": 1}, "timeout_s": 60});
    daemon.upload_code("hangs", &keys, HANGS);
    let down = hang(&daemon, "hangs");
    let mut connection = daemon.connect();
    let starting = |count: u64| {
        eventually("it starts, or is given up", || {
            (daemon.workers("hangs", "starting") == count).then_some(())
        });
    };
    connection.send(&invocation("hangs", &json!(0)));
    starting(1);
    connection.hang_up();
    eventually("nobody waits", || {
        (daemon.describe("hangs")["workers"]["waiting"] == 0).then_some(())
    });
    daemon.scale("hangs", 0);
    starting(0);
    let log = daemon.log();
    assert!(!log.contains("did not come up"), "it was told to: {log}");
    std::fs::remove_file(&down).unwrap();
    assert_eq!(answer(&daemon, "hangs", json!(0)), "connected");
    // A deployment's first worker, too.
    let code = format!("{HANGS}import time\nregister_after_restore(time.sleep, 3600)\n");
    let archive = archive(&[ArchiveEntry::text("app.py", &code)]);
    let (_, refused) = daemon.upload("hangs", &keys, &archive);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("not ready within 30 s"), "{refused}");
    assert_eq!(answer(&daemon, "hangs", json!(0)), "connected");
}

/// Sleeps for so many seconds.
const SLEEPER: &str =
    "import time\ndef handler(event, context):\n    time.sleep(event)\n    return event\n";

fn daemon_with_workers(workers: u32) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(format!("[limits]\nworkers = {workers}\n")),
        ..DaemonOptions::default()
    })
}

#[test]
fn workers_that_are_always_kept_must_fit_on_the_machine() {
    let daemon = daemon_with_workers(6);
    daemon.upload_code("first", &json!({"scale": {"min": 3}}), ECHO);
    let code = archive(&[ArchiveEntry::text("app.py", ECHO)]);
    let keys = json!({"scale": {"min": 10_000, "max": 10_000}});
    let (_, refused) = daemon.upload("greedy", &keys, &code);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("scale.min = 10000"), "{refused}");
    assert!(message.contains("limits.workers"), "{refused}");
    assert_eq!(daemon.get("/_pilot/v1/functions/greedy").status, 404);
    // The place of an older version of the same function counts once.
    daemon.upload_code("first", &json!({"scale": {"min": 4}}), ECHO);
    assert_eq!(answer(&daemon, "first", json!(1)), 1);
}

#[test]
fn with_all_places_taken_idle_workers_make_room_and_requests_wait_or_are_told_to_retry() {
    let daemon = daemon_with_workers(6);
    for name in ["busy", "idle", "late"] {
        daemon.upload_code(name, &json!({"timeout_s": 20}), SLEEPER);
    }
    daemon.scale("idle", 3);
    eventually("three idle workers", || {
        (daemon.workers("idle", "idle") == 3).then_some(())
    });
    // Eight requests at once on six places, of which idle workers have three.
    let mut connections: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&invocation("busy", &json!(5)));
    }
    eventually("all places are busy", || {
        (daemon.workers("busy", "busy") == 6).then_some(())
    });
    assert_eq!(daemon.workers("idle", "idle"), 0);
    // Requests of the function that has workers wait for them.
    for mut connection in connections {
        assert_eq!(connection.receive("POST").ok().json(), 5);
    }
    assert_eq!(answer(&daemon, "late", json!(0)), 0);

    // Where there are fewer places than functions, no function is entitled to one.
    let daemon = daemon_with_workers(1);
    for name in ["busy", "late"] {
        daemon.upload_code(name, &json!({"timeout_s": 20}), SLEEPER);
    }
    let mut running = daemon.connect();
    running.send(&invocation("busy", &json!(8)));
    eventually("the place is busy", || {
        (daemon.workers("busy", "busy") == 1).then_some(())
    });
    let refused = daemon.invoke("late", &json!(0));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(
        refused.text().contains("limits.workers"),
        "{}",
        refused.text()
    );
    assert_eq!(running.receive("POST").ok().json(), 8);
}

/// A server that takes three seconds to end.
const ENDS_SLOWLY: &str = r#"
import http.server, os, signal, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")

def end(*_):
    time.sleep(3)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[test]
fn one_request_takes_one_place_of_a_function_whose_workers_end_slowly() {
    needs_root!();
    const PLACES: u32 = 5;
    let daemon = daemon_with_workers(PLACES);
    let keys =
        json!({"runtime": "http", "command": ["python3", "app.py"], "scale": {"idle_s": 600}});
    daemon.upload_code("slow", &keys, ENDS_SLOWLY);
    daemon.upload_code("quick", &json!({}), ECHO);
    daemon.scale("quick", 0);
    daemon.scale("slow", PLACES);
    eventually("all places are taken", || {
        (daemon.workers("slow", "idle") == u64::from(PLACES)).then_some(())
    });
    assert_eq!(answer(&daemon, "quick", json!(1)), 1);
    let left = daemon.workers("slow", "idle");
    assert_eq!(left, u64::from(PLACES) - 1, "for one request");
}

#[test]
fn with_few_descriptors_what_nobody_uses_makes_room() {
    needs_root!();
    let daemon = daemon();
    // Room for a third of what follows: a function in use has a template, a worker and two spare sandboxes.
    let limits = Command::new("prlimit")
        .arg(format!("--pid={}", daemon.pid()))
        .arg("--nofile=1000:1000")
        .status();
    assert!(limits.unwrap().success());
    let names: Vec<String> = (0..45).map(|number| format!("f{number}")).collect();
    let keys = json!({"scale": {"idle_s": 600}});
    for name in &names {
        daemon.upload_code(name, &keys, ECHO);
        assert_eq!(answer(&daemon, name, json!(1)), json!(1), "{name}");
    }
    // Those that made room start again.
    for name in &names {
        assert_eq!(answer(&daemon, name, json!(2)), json!(2), "{name}");
    }
    assert_eq!(daemon.get("/readyz").status, 200);
}

/// An application whose WebSockets take messages and answer nothing.
const SILENT_APP: &str = r#"
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200})
        return await send({"type": "http.response.body", "body": b"ok"})
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect": pass
"#;

/// A daemon with the application, and its memory.
fn silent_app() -> (Daemon, u64) {
    let daemon = daemon();
    let keys =
        json!({"interface": "asgi", "handler": "app:app", "concurrency": 128, "scale": {"max": 1}});
    daemon.upload_code("lab", &keys, SILENT_APP);
    daemon.get("/fn/lab/").ok();
    let quiet = resident_bytes(daemon.pid());
    (daemon, quiet)
}

/// An open WebSocket.
fn websocket(daemon: &Daemon) -> Connection {
    let mut connection = daemon.connect();
    connection.send_raw(
        b"GET /fn/lab/ HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert!(connection.raw_line().contains("101"));
    while !connection.raw_line().is_empty() {}
    connection
}

/// A frame of a client (RFC 6455 §5.2) with this first byte, masked with zeros, without the end of its payload.
fn frame(first: u8, len: u64, payload: &[u8]) -> Vec<u8> {
    [&[first, 0xff][..], &len.to_be_bytes(), &[0; 4], payload].concat()
}

/// Sends an unfinished message over many WebSockets, which may take so much memory.
fn unfinished_messages(message: &[u8], more_max: u64) {
    let (daemon, quiet) = silent_app();
    let with_message = |_| {
        let mut connection = websocket(&daemon);
        connection.send_raw(message);
        connection
    };
    let mut connections: Vec<_> = (0..120).map(with_message).collect();
    let highest = (0..50).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        resident_bytes(daemon.pid())
    });
    let highest = highest.max().unwrap_or_default();
    assert!(
        highest < quiet + more_max,
        "{quiet} bytes before, then {highest}"
    );
    // The last ones were told to try again later: a close frame with the code 1013. Pings are answered before, without a payload.
    let last = connections.pop().unwrap().until_the_end();
    let mut frames = last.as_slice();
    while let Some(after) = frames.strip_prefix(&[0x8a, 0]) {
        frames = after;
    }
    assert_eq!(
        frames.get(..4),
        Some(&[0x88, 2, 0x03, 0xf5][..]),
        "{last:?}"
    );
    drop(connections);
    memory_is_given_back(&daemon, quiet + MEMORY_MORE_MAX / 2);
    daemon.get("/fn/lab/").ok();
}

#[test]
fn unfinished_messages_of_websockets_do_not_take_the_daemons_memory() {
    unfinished_messages(&frame(0x82, 1 << 20, &vec![0; 1_000_000]), MEMORY_MORE_MAX);
}

#[test]
fn pings_between_fragments_hide_no_memory_of_an_unfinished_message() {
    let (fragment, ping) = (vec![0; 100_000], [0x89, 0x80, 0, 0, 0, 0]);
    let mut message = frame(0x02, 100_000, &fragment);
    for _ in 0..9 {
        message.extend_from_slice(&ping);
        message.extend(frame(0x00, 100_000, &fragment));
    }
    // The buffer of a message that comes in fragments grows to twice its length.
    unfinished_messages(&message, 2 * MEMORY_MORE_MAX);
}

#[test]
fn pings_whose_answers_nobody_reads_do_not_take_the_daemons_memory() {
    let (daemon, quiet) = silent_app();
    let handshake = format!("ws://{}/fn/lab/", daemon.address());
    let stream = TcpStream::connect(daemon.address()).unwrap();
    let (mut socket, _) = tungstenite::client(handshake, stream).unwrap();
    let connection = socket.get_mut();
    connection
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let ping = [&[0x89, 0x80 | 125, 0, 0, 0, 0][..], &[0; 125]].concat();
    let pings = ping.repeat(1000);
    // 20 MB: more than the kernel keeps for a connection.
    for _ in 0..150 {
        connection.write_all(&pings).unwrap();
    }
    let after = resident_bytes(daemon.pid());
    assert!(
        after < quiet + MEMORY_MORE_MAX / 4,
        "{quiet} bytes before, then {after}"
    );
    drop(socket);
    daemon.get("/fn/lab/").ok();
}
