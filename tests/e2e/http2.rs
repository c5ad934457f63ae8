//! HTTP/2: the routes over it, and clients that use it to take what others need.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::{Daemon, DaemonOptions, Project, Request, eventually, resident_bytes};
use serde_json::{Value, json};

use crate::access::{free_port, said};
use crate::tls::{Authority, Files, curl, got};
use crate::{ECHO, answer, daemon_with, plain};

/// Memory that the daemon may need beyond what it had when it was quiet.
const MEMORY_MORE_MAX: u64 = 64 << 20;

fn configured(config: &str) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(format!("h2c = true\n{config}")),
        ..DaemonOptions::default()
    })
}

/// curl with HTTP/2 and without TLS.
#[track_caller]
fn curl2(arguments: &[&str]) -> (String, String) {
    got(&curl(
        None,
        &[&["--http2-prior-knowledge"], arguments].concat(),
    ))
}

/// An application that tells its request, streams, and counts what it gets.
const APP: &str = r#"
import json

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    told = json.dumps({"method": scope["method"], "path": scope["path"], "len": len(body), "headers": headers}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close"), (b"x-app", b"yes")]})
    await send({"type": "http.response.body", "body": told[:1], "more_body": True})
    await send({"type": "http.response.body", "body": told[1:]})
"#;

#[test]
fn all_routes_work_over_http2() {
    let daemon = configured("");
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.upload_code(
        "asgi",
        &json!({"interface": "asgi", "handler": "app:app"}),
        APP,
    );
    let at = |path: &str| format!("{}{path}", daemon.endpoint());
    let (body, how) = curl2(&[
        "--data",
        "[1, 2]",
        &at("/2015-03-31/functions/lab/invocations"),
    ]);
    assert_eq!((body.as_str(), how.as_str()), ("[1, 2]", "2 200"));
    let streaming = at("/2021-11-15/functions/lab/response-streaming-invocations");
    let (body, how) = curl2(&["--data", "7", &streaming]);
    assert!(
        how == "2 200" && body.contains("InvokeComplete"),
        "{how} {body}"
    );
    // A large body, and the headers of an event.
    let large = format!("\"{}\"", "x".repeat(3_000_000));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large");
    std::fs::write(&file, &large).unwrap();
    let from_file = format!("@{}", file.display());
    let (body, how) = curl2(&[
        "--data-binary",
        &from_file,
        &at("/2015-03-31/functions/lab/invocations"),
    ]);
    assert!(
        how == "2 200" && body == large,
        "{how}, {} bytes",
        body.len()
    );
    let (body, how) = curl2(&["--cookie", "a=1; b=2", &at("/fn/lab/x?y=1")]);
    let event: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (how.as_str(), &event["cookies"]),
        ("2 200", &json!(["a=1", "b=2"])),
        "{event}"
    );
    assert_eq!(
        event["headers"]["host"],
        daemon.address().to_string().as_str()
    );
    let (body, how) = curl2(&[
        "--data-binary",
        &from_file,
        "--dump-header",
        "-",
        &at("/fn/asgi/p"),
    ]);
    assert!(
        how == "2 200" && body.contains("\"len\": 3000002"),
        "{how} {body}"
    );
    assert!(
        body.contains("x-app: yes") && !body.contains("connection:"),
        "{body}"
    );
    let (body, how) = curl2(&["--head", &at("/fn/asgi/p")]);
    assert!(
        how == "2 200" && body.contains("x-app: yes"),
        "{how} {body}"
    );
    for (path, status) in [
        ("/healthz", "2 200"),
        ("/metrics", "2 200"),
        ("/fn/nobody", "2 404"),
        ("/_pilot/v1/functions", "2 404"),
    ] {
        assert_eq!(curl2(&[&at(path)]).1, status, "{path}");
    }
    // HTTP/1 is on the same port.
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
    let (_, how) = got(&curl(None, &["--http1.1", &at("/healthz")]));
    assert_eq!(how, "1.1 200");
}

#[test]
fn the_control_api_works_over_http2_with_tls() {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign("localhost", &files);
    let port = free_port();
    let keys = files.keys("control_");
    let daemon = configured(&format!("control_listen = \"127.0.0.1:{port}\"\n{keys}"));
    daemon.upload_code("lab", &plain(), ECHO);
    let bearer = format!("authorization: Bearer {}", daemon.admin_token());
    let list = format!("https://localhost:{port}/_pilot/v1/functions");
    let ca = authority.file();
    let (body, how) = got(&curl(Some(&ca), &["--http2", "--header", &bearer, &list]));
    assert!(how == "2 200" && body.contains("lab"), "{how} {body}");
    let (_, how) = got(&curl(Some(&ca), &["--http2", &list]));
    assert_eq!(how, "2 401");
}

#[test]
fn a_server_of_a_function_gets_http1_and_its_trailers_pass() {
    let daemon = configured("");
    let project = Project::empty()
        .manifest(
            "web",
            "runtime = \"http\"\ncommand = [\"python3\", \"server.py\"]\n",
        )
        .file("server.py", SERVER);
    daemon.deploy(&project);
    let at = |path: &str| format!("{}/fn/web{path}", daemon.endpoint());
    let (body, how) = curl2(&["--header", "te: trailers", "--data", "abc", &at("/told")]);
    assert!(how.starts_with("2 200"), "{how} {body}");
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(told["version"], "HTTP/1.1", "{told}");
    assert_eq!(told["te"], "trailers", "{told}");
    assert_eq!(told["body"], "abc", "{told}");
    let output = curl(
        None,
        &[
            "--http2-prior-knowledge",
            "--dump-header",
            "-",
            &at("/trailers"),
        ],
    );
    let (body, how) = got(&output);
    assert!(
        how == "2 200" && body.contains("x-sum: 42"),
        "{}",
        said(&output)
    );
    assert!(!body.contains("keep-alive"), "{body}");
}

const SERVER: &str = r#"
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        told = {"version": self.request_version, "te": self.headers["te"], "body": body}
        self.say(json.dumps(told).encode())

    def do_GET(self):
        self.send_response(200)
        for name, value in [("Transfer-Encoding", "chunked"), ("Trailer", "x-sum"), ("Keep-Alive", "timeout=5"), ("Connection", "keep-alive")]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n")

    def say(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

/// A client of HTTP/2 that sends whatever it is told to.
struct Raw(TcpStream);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = len[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A request's head without compression: `method`, `path`, and the authority `x`.
fn head(method: &str, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

impl Raw {
    /// Connects, with these settings.
    fn open(daemon: &Daemon, settings: &[(u16, u32)]) -> Self {
        let mut raw = Self(TcpStream::connect(daemon.address()).unwrap());
        raw.0
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        raw.send(&frame(SETTINGS, 0, 0, &payload)).unwrap();
        raw
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)
    }

    /// The next frame: its kind, flags, stream and payload. `None`: the connection has ended.
    fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; usize::try_from(len).unwrap()];
        self.0.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        Some((header[3], header[4], stream, payload))
    }

    /// Reads up to a frame of this kind. Returns false if the connection ends before it.
    fn until(&mut self, wanted: u8) -> bool {
        while let Some((kind, ..)) = self.next() {
            if kind == wanted {
                return true;
            }
        }
        false
    }

    /// Reads to the end of the connection. Returns the reason that the daemon gave, if it gave one.
    fn reason(&mut self) -> Option<u32> {
        let mut reason = None;
        while let Some((kind, _, _, payload)) = self.next() {
            if kind == GOAWAY {
                reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
            }
        }
        reason
    }
}

/// The time of the slowest of some calls of an honest client.
fn slowest(daemon: &Daemon, calls: usize) -> Duration {
    (0..calls)
        .map(|_| {
            let begun = Instant::now();
            assert_eq!(answer(daemon, "lab", json!(1)), json!(1));
            begun.elapsed()
        })
        .max()
        .unwrap()
}

const SLEEPS: &str =
    "import time\ndef handler(event, context):\n    time.sleep(event)\n    return event\n";

#[test]
fn rapid_resets_end_their_connection_and_nobody_else_notices() {
    let daemon = configured("");
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.upload_code("slow", &json!({"scale": {"max": 2}}), SLEEPS);
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
    let quiet = resident_bytes(daemon.pid());
    // Whole requests, each cancelled at once (CVE-2023-44487). `seen`: only when the daemon has begun with it.
    let attack = |seen: bool| {
        let mut raw = Raw::open(&daemon, &[]);
        let path = "/2015-03-31/functions/slow/invocations";
        for number in 0..20_000_u32 {
            let stream = 2 * number + 1;
            let mut bytes = frame(HEADERS, END_HEADERS, stream, &head("POST", path));
            bytes.extend(frame(DATA, END_STREAM, stream, b"9"));
            if seen {
                bytes.extend(frame(PING, 0, 0, &[0; 8]));
            }
            let mut sent = raw.send(&bytes).is_ok();
            if seen {
                sent &= raw.until(PING);
            }
            if !sent
                || raw
                    .send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()))
                    .is_err()
            {
                return number;
            }
        }
        raw.reason();
        20_000
    };
    thread::scope(|scope| {
        let attackers: Vec<_> = [false, true, true, false]
            .map(|seen| (seen, scope.spawn(move || attack(seen))))
            .into();
        assert!(slowest(&daemon, 50) < Duration::from_secs(2));
        for (seen, attacker) in attackers {
            let begun = Instant::now();
            let sent = attacker.join().unwrap();
            assert!(
                begun.elapsed() < Duration::from_secs(15),
                "the daemon closes the connection"
            );
            assert!(!seen || sent < 1000, "{sent} requests were begun");
        }
    });
    let request = Request::new("GET", "/metrics").header("connection", "close");
    eventually("both connections are counted", || {
        let metrics = daemon.connect_control().exchange(&request).text();
        let mut lines = metrics.lines();
        let resets = lines.find(|line| line.contains("reason=\"too_many_resets\""))?;
        resets.ends_with(" 2").then_some(())
    });
    let after = resident_bytes(daemon.pid());
    assert!(
        after < quiet + MEMORY_MORE_MAX,
        "{quiet} bytes before, {after} after"
    );
    assert!(slowest(&daemon, 5) < Duration::from_secs(2));
}

#[test]
fn a_head_without_an_end_is_cut_off_and_a_flood_of_continuations_too() {
    let daemon = configured("[limits]\nconnections = 64\nconnections_per_address = 64\n");
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
    let quiet = resident_bytes(daemon.pid());
    // A flood: h2 ends the connection with ENHANCE_YOUR_CALM (11).
    let mut flood = Raw::open(&daemon, &[]);
    flood
        .send(&frame(HEADERS, END_STREAM, 1, &head("GET", "/healthz")))
        .unwrap();
    for _ in 0..20_000 {
        if flood
            .send(&frame(CONTINUATION, 0, 1, b"\0\x01a\x01b"))
            .is_err()
        {
            break;
        }
    }
    assert_eq!(flood.reason(), Some(11));
    // A trickle: each has had a request before, so it is not the first to go.
    let begun = Instant::now();
    let mut slow: Vec<Raw> = (0..60)
        .map(|_| {
            let mut raw = Raw::open(&daemon, &[]);
            raw.send(&frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                1,
                &head("GET", "/healthz"),
            ))
            .unwrap();
            while raw
                .next()
                .is_some_and(|(_, flags, stream, _)| stream != 1 || flags & END_STREAM == 0)
            {
            }
            raw.send(&frame(HEADERS, END_STREAM, 3, &[0; 100])[..20])
                .unwrap();
            raw
        })
        .collect();
    assert!(slowest(&daemon, 20) < Duration::from_secs(2));
    let mut open = slow.len();
    while open > 0 && begun.elapsed() < Duration::from_secs(25) {
        thread::sleep(Duration::from_millis(500));
        open = slow
            .iter_mut()
            .map(|raw| raw.send(&[0]).is_ok())
            .filter(|sent| *sent)
            .count();
    }
    let took = begun.elapsed();
    assert_eq!(open, 0, "after {took:?}");
    assert!(took > Duration::from_secs(8), "{took:?}");
    let more = resident_bytes(daemon.pid()).saturating_sub(quiet);
    assert!(more < MEMORY_MORE_MAX, "{more} bytes more");
    assert!(slowest(&daemon, 5) < Duration::from_secs(2));
}

/// Bytes that the daemon reads from a connection at once.
const READ_LEN: u32 = 16 << 10;

/// CVE-2019-9512, -9513, -9515.
#[test]
fn frames_of_no_request_are_read_at_a_pace_and_answered() {
    let daemon = configured("");
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
    for (flood, answered, per_s) in [
        (frame(PING, 0, 0, &[7; 8]), PING, 20_000),
        // SETTINGS_INITIAL_WINDOW_SIZE, which may concern a hundred streams.
        (frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]), SETTINGS, 1_000),
    ] {
        let mut raw = Raw::open(&daemon, &[]);
        let socket = raw.0.try_clone().unwrap();
        let mut sender = &socket;
        let many = flood.repeat(1_000);
        let begun = Instant::now();
        let answers = thread::scope(|scope| {
            scope.spawn(move || while sender.write_all(&many).is_ok() {});
            let mut answers = 0;
            while begun.elapsed() < Duration::from_secs(2) {
                let (kind, flags, ..) = raw.next().unwrap();
                answers += u32::from(kind == answered && flags == 1);
            }
            assert!(slowest(&daemon, 20) < Duration::from_secs(2));
            socket.shutdown(std::net::Shutdown::Both).unwrap();
            answers
        });
        // A fifth of a second's at once, and what one read brings.
        let most = per_s * 23 / 10 + READ_LEN / u32::try_from(flood.len()).unwrap();
        assert!((per_s / 10..=most).contains(&answers), "{answers}");
    }
}

#[test]
fn a_client_that_takes_no_responses_holds_little_memory_and_few_places() {
    let daemon = configured("[limits]\nconnections = 48\nconnections_per_address = 40\n");
    let large = "def handler(event, context):\n    return 'x' * event\n";
    daemon.upload_code(
        "large",
        &json!({"scale": {"max": 40}, "timeout_s": 60}),
        large,
    );
    assert_eq!(answer(&daemon, "large", json!(1)), json!("x"));
    let quiet = resident_bytes(daemon.pid());
    // SETTINGS_INITIAL_WINDOW_SIZE. The second response fits into one frame, of which one byte may be sent.
    for (window, len) in [(0, "4000000"), (1, "15000")] {
        let mut raw = Raw::open(&daemon, &[(4, window)]);
        for number in 0..60_u32 {
            let stream = 2 * number + 1;
            let path = "/2015-03-31/functions/large/invocations";
            raw.send(&frame(HEADERS, END_HEADERS, stream, &head("POST", path)))
                .unwrap();
            raw.send(&frame(DATA, END_STREAM, stream, len.as_bytes()))
                .unwrap();
        }
        // The first is free with its connection, and 39 more count as connections of the address.
        let mut statuses = Vec::new();
        while statuses.len() < 20 {
            let (kind, _, stream, payload) = raw.next().unwrap();
            if kind == HEADERS {
                // 429 is not in HPACK's static table, so it is spelled; 200 is the index 8.
                let refused =
                    payload.windows(3).any(|text| text == b"429") || payload.first() != Some(&0x88);
                if refused {
                    statuses.push(stream);
                }
            }
        }
        assert!(
            statuses.iter().all(|stream| *stream > 2 * 38),
            "{statuses:?}"
        );
        let highest = (0..100)
            .map(|_| {
                thread::sleep(Duration::from_millis(20));
                resident_bytes(daemon.pid())
            })
            .max()
            .unwrap();
        assert!(
            highest < quiet + MEMORY_MORE_MAX,
            "{quiet} bytes before, then {highest}"
        );
        // When the client is gone, everybody is served. Each of its requests gives its place back when it has been cancelled.
        drop(raw);
        eventually("the end of its requests", || {
            (daemon.workers("large", "busy") == 0).then_some(())
        });
        let request = Request::new("GET", "/healthz").header("connection", "close");
        eventually("room for this address", || {
            (daemon.connect().exchange(&request).status == 200).then_some(())
        });
    }
}

#[test]
fn a_request_that_is_cancelled_does_not_keep_its_worker() {
    let daemon = configured("");
    daemon.upload_code(
        "slow",
        &json!({"scale": {"max": 1}, "timeout_s": 60}),
        SLEEPS,
    );
    assert_eq!(answer(&daemon, "slow", json!(0)), json!(0));
    for ends in ["reset", "close"] {
        let mut raw = Raw::open(&daemon, &[]);
        raw.send(&frame(
            HEADERS,
            END_HEADERS,
            1,
            &head("POST", "/2015-03-31/functions/slow/invocations"),
        ))
        .unwrap();
        raw.send(&frame(DATA, END_STREAM, 1, b"50")).unwrap();
        eventually("a busy worker", || {
            (daemon.workers("slow", "busy") == 1).then_some(())
        });
        if ends == "reset" {
            raw.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()))
                .unwrap();
            eventually("no busy worker", || {
                (daemon.workers("slow", "busy") == 0).then_some(())
            });
        }
        drop(raw);
        let begun = Instant::now();
        assert_eq!(answer(&daemon, "slow", json!(0)), json!(0));
        assert!(begun.elapsed() < Duration::from_secs(20), "{ends}");
    }
}

#[test]
fn a_websocket_over_http2_is_refused_clearly() {
    let daemon = configured("");
    let mut raw = Raw::open(&daemon, &[]);
    let mut block = Vec::new();
    for (name, value) in [(":method", "CONNECT"), (":authority", "localhost")] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block))
        .unwrap();
    let mut body = Vec::new();
    while let Some((kind, flags, stream, payload)) = raw.next() {
        if kind == DATA && stream == 1 {
            body.extend_from_slice(&payload);
        }
        if stream == 1 && flags & END_STREAM != 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("a WebSocket needs HTTP/1.1"), "{text}");
    // The settings do not offer it (SETTINGS_ENABLE_CONNECT_PROTOCOL, RFC 8441 §3), so no browser tries.
    drop(raw);
    let mut other = Raw::open(&daemon, &[]);
    let settings = loop {
        let (kind, flags, _, payload) = other.next().unwrap();
        if kind == SETTINGS && flags == 0 {
            break payload;
        }
    };
    assert!(
        settings.chunks(6).all(|one| one[..2] != [0, 8]),
        "{settings:?}"
    );
    assert_eq!(other.reason_after_nonsense(), Some(1));
}

impl Raw {
    /// The reason after a frame that no stream may have.
    fn reason_after_nonsense(&mut self) -> Option<u32> {
        self.send(&frame(DATA, 0, 0, b"x")).unwrap();
        self.reason()
    }
}

#[test]
fn a_draining_daemon_says_goaway_and_answers_what_runs() {
    let mut daemon = configured("");
    daemon.upload_code("slow", &plain(), SLEEPS);
    let mut raw = Raw::open(&daemon, &[]);
    let path = "/2015-03-31/functions/slow/invocations";
    let asks = frame(HEADERS, END_HEADERS, 1, &head("POST", path));
    raw.send(&asks).unwrap();
    raw.send(&frame(DATA, END_STREAM, 1, b"3")).unwrap();
    eventually("the call runs", || {
        (daemon.workers("slow", "busy") == 1).then_some(())
    });
    kill(Pid::from_raw(daemon.pid()), Signal::SIGTERM).unwrap();
    let (mut reasons, mut answer) = (Vec::new(), Vec::new());
    while let Some((kind, _, stream, payload)) = raw.next() {
        match (kind, stream) {
            // After the daemon was told to stop, so that the client sends its next request elsewhere.
            (GOAWAY, 0) => reasons.push(u32::from_be_bytes(payload[4..8].try_into().unwrap())),
            (DATA, 1) => answer.extend(payload),
            // A GOAWAY is certain only once this is answered.
            (PING, 0) => raw.send(&frame(PING, 1, 0, &payload)).unwrap(),
            _ => {}
        }
    }
    assert_eq!(answer, b"3");
    assert!(
        !reasons.is_empty() && reasons.iter().all(|reason| *reason == 0),
        "{reasons:?}"
    );
    assert_eq!(daemon.ends_by_itself(), Some(0));
}
