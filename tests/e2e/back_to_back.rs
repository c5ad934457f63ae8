//! A client that sends its next request as soon as it has the last byte of an answer: it gets the worker that has answered, and no
//! other one is started for it.

use std::thread;

use pilot_harness::{DaemonOptions, Request};
use serde_json::json;

use crate::{ECHO, daemon_with, lab, plain, starts};

#[test]
fn one_worker_answers_a_client_that_asks_again_at_once() {
    let daemon = lab(ECHO, plain());
    daemon.upload_code("other", &plain(), ECHO);
    daemon.invoke("lab", &json!(0)).ok();
    let request = Request::new("POST", "/2015-03-31/functions/lab/invocations").body("1");
    thread::scope(|scope| {
        // Meanwhile there is something else to do.
        scope.spawn(|| (0..600).for_each(|_| drop(daemon.invoke("other", &json!(2)).ok())));
        let mut connection = daemon.connect();
        for call in 0..500 {
            connection.send(&request);
            let response = connection.receive("POST").ok();
            assert_eq!(response.start_kind(), "warm", "call {call}");
        }
        // Each on a connection of its own.
        for call in 0..100 {
            let response = daemon.send(&request).ok();
            assert_eq!(response.start_kind(), "warm", "call {call}");
        }
    });
    assert_eq!(starts(&daemon), 1.0);
}

/// Its answer is complete before it says so, as with some frameworks. A start of its worker takes half a second.
const SAYS_LATER: &str = r#"
import asyncio, time
from snapshot_restore_py import register_after_restore

@register_after_restore
def slowly():
    time.sleep(0.5)

async def app(scope, receive, send):
    assert scope["type"] == "http", scope
    await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok", "more_body": True})
    await asyncio.sleep(0.05)
    await send({"type": "http.response.body", "body": b""})
"#;

#[test]
fn a_worker_whose_answer_is_complete_is_waited_for_and_no_other_is_started() {
    let daemon = daemon_with(DaemonOptions {
        config: Some("[pool]\nstart_rule = \"sooner\"\n".to_owned()),
        ..DaemonOptions::default()
    });
    let keys = json!({"interface": "asgi", "handler": "app:app"});
    daemon.upload_code("lab", &keys, SAYS_LATER);
    for wanted in ["cold", "warm"] {
        let response = daemon.get("/fn/lab/").ok();
        assert_eq!(
            (response.start_kind(), response.text().as_str()),
            (wanted, "ok")
        );
    }
    assert_eq!(starts(&daemon), 1.0);
}
