//! A body that arrives slowly: the worker starts meanwhile, and no worker waits for it.

use std::time::Duration;

use pilot_harness::{Connection, Daemon, eventually};
use serde_json::json;

use crate::{ECHO, lab, plain};

const INVOKE: &str = "/2015-03-31/functions/lab/invocations";
const ASGI: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})
"#;

/// Sends the head of a request and the first half of its body.
fn begin(daemon: &Daemon, target: &str, body: &str) -> Connection {
    let mut connection = daemon.connect();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.send_raw(head.as_bytes());
    connection.send_raw(&body.as_bytes()[..body.len() / 2]);
    connection
}

fn finish(mut connection: Connection, body: &str) -> pilot_harness::Response {
    connection.send_raw(&body.as_bytes()[body.len() / 2..]);
    connection.receive("POST")
}

#[track_caller]
fn retire(daemon: &Daemon) {
    daemon.scale("lab", 0);
    eventually("nobody is idle", || {
        (daemon.workers("lab", "idle") == 0).then_some(())
    });
}

#[track_caller]
fn a_worker_comes_up(daemon: &Daemon) {
    eventually("a worker is idle before the body is there", || {
        (daemon.workers("lab", "idle") == 1).then_some(())
    });
}

#[test]
fn a_worker_starts_while_the_body_of_an_event_arrives() {
    let daemon = lab(ECHO, plain());
    let body = json!({"padding": "x".repeat(200_000)}).to_string();
    for target in [
        INVOKE,
        "/fn/lab/",
        "/2021-11-15/functions/lab/response-streaming-invocations",
    ] {
        retire(&daemon);
        let connection = begin(&daemon, target, &body);
        a_worker_comes_up(&daemon);
        let response = finish(connection, &body).ok();
        assert_eq!(response.start_kind(), "cold", "{target}");
        let timing = response.header("server-timing").unwrap();
        for phase in ["fork;", "init;", "inputs;"] {
            assert!(timing.contains(phase), "no {phase} in {timing}");
        }
    }
}

#[test]
fn a_worker_starts_while_the_body_for_an_application_arrives() {
    let daemon = lab(ASGI, json!({"interface": "asgi", "handler": "app:app"}));
    let body = "x".repeat(200_000);
    retire(&daemon);
    let connection = begin(&daemon, "/fn/lab/", &body);
    a_worker_comes_up(&daemon);
    let response = finish(connection, &body).ok();
    assert_eq!(response.text(), "200000");
    assert_eq!(response.start_kind(), "cold");
}

#[test]
fn a_slow_body_reaches_an_application_whole() {
    let daemon = lab(ASGI, json!({"interface": "asgi", "handler": "app:app"}));
    let body = "x".repeat(3_000_000);
    for target in ["/fn/lab/", "/fn/lab/again"] {
        let connection = begin(&daemon, target, &body);
        // Longer than a body may take that stays in memory.
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(finish(connection, &body).ok().text(), "3000000");
    }
}

#[test]
fn slow_senders_hold_no_worker() {
    let daemon = lab(ECHO, json!({"scale": {"max": 1}}));
    let event = json!({"slow": "x".repeat(1000)});
    let body = event.to_string();
    let slow: Vec<_> = (0..8).map(|_| begin(&daemon, INVOKE, &body)).collect();
    a_worker_comes_up(&daemon);
    for number in 0..5 {
        let response = daemon.invoke("lab", &json!(number)).ok();
        assert_eq!(response.json(), json!(number));
    }
    for connection in slow {
        assert_eq!(finish(connection, &body).ok().json(), event);
    }
}

#[test]
fn a_sender_that_hangs_up_leaves_nothing() {
    let daemon = lab(ECHO, plain());
    let body = json!({"never": "x".repeat(1000)}).to_string();
    retire(&daemon);
    begin(&daemon, INVOKE, &body).hang_up();
    a_worker_comes_up(&daemon);
    assert_eq!(daemon.workers("lab", "waiting"), 0);
    assert_eq!(daemon.describe("lab")["totals"]["invocations"], 0);
    assert_eq!(daemon.invoke("lab", &json!(1)).ok().start_kind(), "warm");
}
