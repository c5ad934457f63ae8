//! Clients of ASGI and WSGI applications that leave before they have read their response.

use std::time::Duration;

use pilot_harness::{Request, eventually};
use serde_json::json;

use crate::lab;

#[test]
fn a_client_that_leaves_in_mid_stream_frees_the_worker() {
    let code = "import asyncio\nasync def app(scope, receive, send):\n    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    for _ in range(6000 if scope['path'].endswith('/long') else 1):\n        await send({'type': 'http.response.body', 'body': b'x' * 1000, 'more_body': True})\n        if scope['path'].endswith('/long'):\n            await asyncio.sleep(0.01)\n    await send({'type': 'http.response.body', 'body': b''})\n";
    let daemon = lab(
        code,
        json!({"interface": "asgi", "handler": "app:app", "scale": {"max": 1}, "timeout_s": 90}),
    );
    let mut connection = daemon.connect();
    connection.send(&Request::new("GET", "/fn/lab/long"));
    eventually("it streams", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    connection.hang_up();
    let response = daemon.get("/fn/lab/short").ok();
    assert!(
        response.head_after.as_secs() < 20,
        "{:?}",
        response.head_after
    );
}

/// Its paths: `/state`; `/short` takes a second; `/endless` never ends by itself.
const SHARED_BY_ASGI: &str = r#"
import asyncio, json, os
begun, seen = [], []
async def app(scope, receive, send):
    assert scope["type"] == "http"
    path = scope["path"].removeprefix("/fn/lab/")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if path == "state":
        state = json.dumps({"pid": os.getpid(), "begun": begun, "seen": seen})
        return await send({"type": "http.response.body", "body": state.encode()})
    begun.append(path)
    await receive()
    ended = asyncio.ensure_future(receive())
    ticks = 0
    while not ended.done() and (path == "endless" or ticks < 20):
        await send({"type": "http.response.body", "body": b"tick", "more_body": True})
        await asyncio.sleep(0.05)
        ticks += 1
    if ended.done():
        seen.append(ended.result()["type"])
    else:
        ended.cancel()
    await send({"type": "http.response.body", "body": b"done"})
"#;
const SHARED_BY_WSGI: &str = r#"
import json, os, time
begun, seen = [], []
def app(environ, start_response):
    path = environ["PATH_INFO"][1:]
    start_response("200 OK", [])
    if path == "state":
        return [json.dumps({"pid": os.getpid(), "begun": begun, "seen": seen}).encode()]
    begun.append(path)
    return parts(path)

def parts(path):
    ticks = 0
    try:
        while path == "endless" or ticks < 20:
            yield b"tick"
            time.sleep(0.05)
            ticks += 1
        yield b"done"
    except GeneratorExit:
        seen.append("http.disconnect")
        raise
"#;

#[test]
fn a_client_that_leaves_takes_nothing_from_the_others_of_its_worker() {
    for (interface, code) in [("asgi", SHARED_BY_ASGI), ("wsgi", SHARED_BY_WSGI)] {
        let keys = json!({"interface": interface, "handler": "app:app", "concurrency": 4, "scale": {"max": 1}});
        let daemon = lab(code, keys);
        let state = || daemon.get("/fn/lab/state").ok().json();
        let before = state();
        let (mut other, mut leaver) = (daemon.connect(), daemon.connect());
        other.send(&Request::new("GET", "/fn/lab/short"));
        leaver.send(&Request::new("GET", "/fn/lab/endless"));
        eventually("both are served", || {
            (state()["begun"].as_array().map(Vec::len) == Some(2)).then_some(())
        });
        leaver.hang_up();
        eventually("the application is told", || {
            (state()["seen"] == json!(["http.disconnect"])).then_some(())
        });
        let text = other.receive("GET").ok().text();
        assert!(text.ends_with("tickdone"), "{interface}: {text}");
        assert_eq!(text.matches("tick").count(), 20);
        assert_eq!(state()["pid"], before["pid"], "{interface}");
        // Its place is free: four more at once.
        let mut four: Vec<_> = (0..4).map(|_| daemon.connect()).collect();
        for connection in &mut four {
            connection.send(&Request::new("GET", "/fn/lab/short"));
        }
        eventually("all are served", || {
            let described = daemon.describe("lab");
            (described["workers"]["waiting"] == 0).then_some(())
        });
        for mut connection in four {
            connection.receive("GET").ok();
        }
        assert_eq!(state()["pid"], before["pid"], "{interface}");
        assert!(!daemon.logs("lab").contains("Traceback"), "{interface}");
    }
}

const UNREAD_BY_ASGI: &str = r#"
import json, os
ended = sent = 0
async def app(scope, receive, send):
    global ended, sent
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"].endswith("/state"):
        body = json.dumps({"pid": os.getpid(), "ended": ended, "sent": sent}).encode()
        return await send({"type": "http.response.body", "body": body})
    try:
        for _ in range(4000):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            sent += 1
    finally:
        ended += 1
"#;
const UNREAD_BY_WSGI: &str = r#"
import json, os
ended = sent = 0
def app(environ, start_response):
    start_response("200 OK", [])
    if environ["PATH_INFO"] == "/state":
        return [json.dumps({"pid": os.getpid(), "ended": ended, "sent": sent}).encode()]
    return parts()

def parts():
    global ended, sent
    try:
        for _ in range(4000):
            yield bytes(65536)
            sent += 1
    finally:
        ended += 1
"#;

#[test]
fn a_client_that_stopped_reading_and_leaves_keeps_no_place() {
    for (interface, code) in [("asgi", UNREAD_BY_ASGI), ("wsgi", UNREAD_BY_WSGI)] {
        let keys = json!({"interface": interface, "handler": "app:app", "concurrency": 2, "scale": {"max": 1}});
        let daemon = lab(code, keys);
        let state = || daemon.get("/fn/lab/state").ok().json();
        let pid = state()["pid"].clone();
        for number in 1..=5 {
            let mut leaver = daemon.connect();
            leaver.send(&Request::new("GET", "/fn/lab/long"));
            leaver.response_begins();
            // All that is between the application and the client is full then, and the daemon awaits no part.
            let sent = || state()["sent"].as_u64().unwrap();
            eventually("the application waits", || {
                let before = sent();
                std::thread::sleep(Duration::from_millis(100));
                (before > 0 && sent() == before).then_some(())
            });
            leaver.hang_up();
            eventually("the application is told", || {
                (state()["ended"] == number).then_some(())
            });
        }
        assert_eq!(state()["pid"], pid, "{interface}");
    }
}
