//! A client that sends its next request as soon as it has the last byte of an answer: it gets the worker that has answered, and no
//! other one is started for it. Meanwhile threads of the daemon poll.

use std::thread;
use std::time::{Duration, Instant};

use pilot_harness::{Daemon, DaemonOptions, Request};
use serde_json::json;

use crate::{ECHO, daemon_with, lab, metric, plain, starts};

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

/// That the daemon takes an answer wakes nobody: the kernel would wake a thread that sleeps in recvmsg(2) for it.
#[test]
fn a_worker_sleeps_once_for_each_invocation() {
    const COUNTS: &str = "
import resource

def slept():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

def plain(event, context):
    return slept()

async def coroutine(event, context):
    return slept()

def wsgi(environ, start_response):
    start_response('200 OK', [])
    return [str(slept()).encode()]
";
    const CALLS: u64 = 200;
    let daemon = daemon_with(DaemonOptions::default());
    for (name, interface) in [("plain", "event"), ("coroutine", "event"), ("wsgi", "wsgi")] {
        let keys = json!({"handler": format!("app:{name}"), "interface": interface});
        daemon.upload_code(name, &keys, COUNTS);
        let mut connection = daemon.connect();
        let mut slept = || -> u64 {
            connection.send(&Request::new("POST", &format!("/fn/{name}/")).body("{}"));
            connection.receive("POST").ok().text().parse().unwrap()
        };
        // A new worker uses the first pause for other things.
        (0..20).for_each(|_| _ = slept());
        let before = slept();
        (1..CALLS).for_each(|_| _ = slept());
        let sleeps = slept() - before;
        assert!(sleeps <= CALLS * 5 / 4, "{name}: {sleeps} for {CALLS}");
    }
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

/// A daemon whose threads poll for at most this time, and its series.
fn polling(longest_us: u32) -> (Daemon, impl Fn(&Daemon) -> f64) {
    let daemon = daemon_with(DaemonOptions {
        config: Some(format!("busy_poll_us = {longest_us}\n")),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    let polled = |daemon: &Daemon| metric(daemon, "pilot_busy_poll_seconds_total");
    (daemon, polled)
}

/// Sends requests, one after the other on one connection.
fn ask_at_once(daemon: &Daemon, requests: usize) {
    let request = Request::new("POST", "/2015-03-31/functions/lab/invocations").body("1");
    let mut connection = daemon.connect();
    for _ in 0..requests {
        connection.send(&request);
        connection.receive("POST").ok();
    }
}

#[test]
fn threads_poll_while_requests_follow_each_other_and_sleep_when_none_come() {
    if thread::available_parallelism().unwrap().get() == 1 {
        pilot_harness::skip("a second processor: with one, no thread polls");
        return;
    }
    let (daemon, polled) = polling(1000);
    // Beside other processes that need the processors, it may take some time.
    let begun = Instant::now();
    while polled(&daemon) == 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody polls");
        ask_at_once(&daemon, 500);
    }
    let quiet = || {
        let before = polled(&daemon);
        // That nothing happens has no event to wait for.
        thread::sleep(Duration::from_millis(300));
        // The requests for the metrics themselves come between.
        polled(&daemon) - before < 0.01
    };
    assert!(quiet() || quiet(), "they do not sleep");
}

#[test]
fn no_thread_polls_if_the_configuration_says_so() {
    let (daemon, polled) = polling(0);
    ask_at_once(&daemon, 500);
    assert_eq!(polled(&daemon), 0.0);
}
