//! The pool from outside: the number of workers, the queue and its limit, disconnects, idle workers.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use pilot_harness::{
    Connection, Daemon, DaemonOptions, Request, Response, eventually, eventually_within, patience,
};
use serde_json::{Value, json};

use crate::{answer, daemon_with, lab};

/// Sleeps as long as the event says, and returns its worker.
const SLEEP: &str = "import os, time\nme = None\ndef handler(event, context):\n    global me\n    me = me or os.urandom(8).hex()\n    time.sleep(event)\n    return me\n";

const PATH: &str = "/2015-03-31/functions/lab/invocations";

/// Sends this number of requests at once, each on its own connection. Returns the responses and the time until the last one.
fn burst(daemon: &Daemon, number: usize, event: &Value) -> (Vec<Response>, Duration) {
    let mut connections: Vec<Connection> = (0..number).map(|_| daemon.connect()).collect();
    let request = Request::new("POST", PATH).body(event.to_string());
    let began = Instant::now();
    for connection in &mut connections {
        connection.send(&request);
    }
    let responses = connections
        .iter_mut()
        .map(|connection| connection.receive("POST"))
        .collect();
    (responses, began.elapsed())
}

fn different(responses: &[Response]) -> usize {
    responses
        .iter()
        .map(|response| response.clone().ok().text())
        .collect::<HashSet<_>>()
        .len()
}

#[test]
fn each_of_many_slow_requests_gets_its_own_worker() {
    let daemon = lab(SLEEP, json!({"memory_mb": 64, "timeout_s": 60}));
    // All workers must have started before the first request is over.
    let sleep = patience();
    let (responses, took) = burst(&daemon, 12, &json!(sleep));
    assert_eq!(different(&responses), 12);
    // One after another, they would take twelve times as long.
    assert!(took < Duration::from_secs(6) * sleep, "{took:?}");
}

#[test]
fn never_more_workers_than_max() {
    let daemon = lab(SLEEP, json!({"scale": {"max": 3}}));
    let (responses, took) = burst(&daemon, 9, &json!(0.3));
    assert!(different(&responses) <= 3);
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert!(daemon.workers("lab", "idle") <= 3);
}

#[test]
fn few_workers_serve_a_burst_of_short_requests() {
    let daemon = lab(SLEEP, json!({}));
    for _ in 0..20 {
        answer(&daemon, "lab", json!(0));
    }
    // On a machine that is busy with other things, calls take longer, and more workers pay. The best of five bursts counts.
    let bursts = (0..5).map(|_| {
        daemon.scale("lab", 0);
        let (responses, _) = burst(&daemon, 50, &json!(0));
        different(&responses)
    });
    let workers = bursts.min().unwrap();
    assert!(
        workers <= 14,
        "{workers} workers for 50 requests of a handler that takes no time"
    );
}

#[test]
fn one_worker_serves_several_at_once_when_concurrency_says_so() {
    let daemon = lab(SLEEP, json!({"concurrency": 8, "scale": {"max": 1}}));
    answer(&daemon, "lab", json!(0));
    let (responses, took) = burst(&daemon, 8, &json!(1));
    assert_eq!(different(&responses), 1);
    // One after another, they would take eight.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Of a large event, the worker has a part when its caller hangs up. The next event must not become the rest of it.
#[test]
fn a_caller_that_hangs_up_while_its_event_is_sent_spoils_no_other_one() {
    const CODE: &str = "import time\nasync def handler(event, context):\n    if event == 'block':\n        time.sleep(3)\n    return len(event)\n";
    let daemon = lab(
        CODE,
        json!({"concurrency": 4, "scale": {"max": 1}, "timeout_s": 20}),
    );
    assert_eq!(answer(&daemon, "lab", json!("four")), json!(4));
    let request = |event: Value| Request::new("POST", PATH).body(event.to_string());
    // How much of an event is sent is not seen from outside. If this is too short, the test passes without its case.
    let moment = || thread::sleep(Duration::from_millis(400));
    let [mut blocks, mut leaver, mut other] =
        [daemon.connect(), daemon.connect(), daemon.connect()];
    blocks.send(&request(json!("block")));
    eventually("it runs", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    moment();
    leaver.send(&request(json!("x".repeat(4 << 20))));
    moment();
    other.send(&request(json!("fifteen letters")));
    moment();
    leaver.hang_up();
    assert_eq!(blocks.receive("POST").ok().json(), json!(5));
    assert_eq!(other.receive("POST").ok().json(), json!(15));
}

#[test]
fn a_queue_that_overflows_answers_429_with_a_reason_and_serves_the_others() {
    let daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\nqueue = 10\n".into()),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &json!({"scale": {"max": 1}, "timeout_s": 30}), SLEEP);
    thread::scope(|scope| {
        let first = scope.spawn(|| answer(&daemon, "lab", json!(6)));
        eventually("the worker is busy", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        let (responses, _) = burst(&daemon, 14, &json!(0));
        let refused: Vec<&Response> = responses
            .iter()
            .filter(|response| response.status != 200)
            .collect();
        assert_eq!(refused.len(), 4, "{responses:?}");
        for response in refused {
            assert_eq!(response.status, 429);
            let kind = response.header("x-amzn-errortype").unwrap_or("");
            assert!(kind.starts_with("TooManyRequestsException"), "{response:?}");
            assert!(response.json()["Reason"].is_string(), "{}", response.text());
            assert!(
                response.head_after < Duration::from_secs(3),
                "it waited: {response:?}"
            );
        }
        first.join().unwrap();
    });
}

#[test]
fn a_request_that_waits_past_its_deadline_is_answered_and_not_run() {
    let daemon = lab(SLEEP, json!({"scale": {"max": 1}, "timeout_s": 4}));
    answer(&daemon, "lab", json!(0));
    // All of them would take nine seconds.
    let (responses, took) = burst(&daemon, 6, &json!(1.5));
    assert!(took < Duration::from_secs(12), "{took:?}");
    let mut kinds: Vec<u16> = responses.iter().map(|response| response.status).collect();
    kinds.sort_unstable();
    assert_eq!((kinds[0], kinds[5]), (200, 429));
    for response in &responses {
        assert!(
            matches!(response.status, 200 | 429),
            "{} {}",
            response.status,
            response.text()
        );
        assert!(
            response.header("x-amz-function-error").is_none(),
            "timed out for waiting: {}",
            response.text()
        );
    }
    assert_eq!(
        answer(&daemon, "lab", json!(0)).as_str().map(str::len),
        Some(16)
    );
}

#[test]
fn a_client_that_hangs_up_frees_its_slot() {
    let daemon = lab(SLEEP, json!({"scale": {"max": 1}, "timeout_s": 60}));
    answer(&daemon, "lab", json!(0));
    let mut connection = daemon.connect();
    connection.send(&Request::new("POST", PATH).body("50"));
    eventually("it runs", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    connection.hang_up();
    let response = daemon.invoke("lab", &json!(0)).ok();
    assert!(
        response.head_after < Duration::from_secs(5),
        "{:?}",
        response.head_after
    );
}

#[test]
fn a_client_that_hangs_up_while_it_waits_leaves_the_queue() {
    let daemon = lab(SLEEP, json!({"scale": {"max": 1}, "timeout_s": 60}));
    thread::scope(|scope| {
        let busy = scope.spawn(|| answer(&daemon, "lab", json!(5)));
        eventually("it runs", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        let mut waiting: Vec<Connection> = (0..10).map(|_| daemon.connect()).collect();
        for connection in &mut waiting {
            connection.send(&Request::new("POST", PATH).body("50"));
        }
        eventually("ten wait", || {
            (daemon.workers("lab", "waiting") == 10).then_some(())
        });
        waiting.into_iter().for_each(Connection::hang_up);
        eventually("nobody waits", || {
            (daemon.workers("lab", "waiting") == 0).then_some(())
        });
        busy.join().unwrap();
        let response = daemon.invoke("lab", &json!(0)).ok();
        assert!(
            response.head_after < Duration::from_secs(5),
            "{:?}",
            response.head_after
        );
    });
}

#[test]
fn idle_workers_are_reaped_after_idle_s() {
    let daemon = lab(SLEEP, json!({"scale": {"idle_s": 0.3}}));
    // Counted while they run: when they are idle, some may be gone already.
    let before = thread::scope(|scope| {
        scope.spawn(|| burst(&daemon, 4, &json!(3)));
        eventually("all run", || {
            (daemon.workers("lab", "busy") == 4).then_some(())
        });
        pilot_harness::descendants(daemon.pid()).len()
    });
    eventually("nobody is idle", || {
        (daemon.workers("lab", "idle") == 0).then_some(())
    });
    eventually("their processes are gone", || {
        (pilot_harness::descendants(daemon.pid()).len() < before || before <= 3).then_some(())
    });
}

#[test]
fn the_first_requests_after_a_restart_share_one_template() {
    // What a template has drawn while it imported the function, all its workers have. Each request gets a worker of its own.
    let code = "import os\ntemplate = os.urandom(8).hex()\nme = None\ndef handler(event, context):\n    global me\n    before, me = me, os.urandom(8).hex()\n    return [template, me, before]\n";
    let mut daemon = lab(code, json!({"reuse": "once"}));
    daemon.kill();
    daemon.resume();
    let (responses, _) = burst(&daemon, 10, &json!(0));
    assert_eq!(different(&responses), 10);
    let templates: HashSet<Value> = responses
        .iter()
        .map(|response| response.json()[0].clone())
        .collect();
    assert_eq!(templates.len(), 1, "{templates:?}");
}

#[test]
fn one_functions_flood_does_not_starve_another() {
    let daemon = lab(SLEEP, json!({"scale": {"max": 2}, "timeout_s": 30}));
    daemon.upload_code("other", &json!({}), SLEEP);
    answer(&daemon, "other", json!(0));
    thread::scope(|scope| {
        let flood = scope.spawn(|| burst(&daemon, 20, &json!(0.2)));
        eventually("the flood waits", || {
            (daemon.workers("lab", "waiting") > 5).then_some(())
        });
        let response = daemon.invoke("other", &json!(0)).ok();
        assert!(
            response.head_after < Duration::from_secs(1),
            "{:?}",
            response.head_after
        );
        flood.join().unwrap();
    });
}

/// A daemon with this memory limit for workers and templates.
fn with_memory_mb(memory_mb: u32) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(format!("[limits]\nmemory_mb = {memory_mb}\n")),
        ..DaemonOptions::default()
    })
}

/// The value of a line of `/metrics`, by its beginning.
fn metric(daemon: &Daemon, series: &str) -> Option<f64> {
    let text = daemon.get("/metrics").ok().text();
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// One worker of the function ends because memory is short. That is counted when its process has ended.
fn ends_for_memory(daemon: &Daemon, function: &str) {
    let ends = format!("pilot_worker_ends_total{{faas_name=\"{function}\",reason=\"pressure\"}}");
    eventually("its end is counted", || {
        (metric(daemon, &ends) == Some(1.0)).then_some(())
    });
}

/// Memory is measured every five seconds.
const SEVERAL_SAMPLES: Duration = Duration::from_secs(30);

#[test]
fn over_the_memory_budget_the_coldest_idle_worker_goes_and_its_function_still_answers() {
    const GROWS: &str = "import os\nkept = b''\ndef handler(event, context):\n    global kept\n    kept = kept or os.urandom(80 << 20)\n    return len(kept)\n";
    let daemon = with_memory_mb(140);
    for name in ["first", "second"] {
        daemon.upload_code(name, &json!({"memory_mb": 192}), GROWS);
        assert_eq!(answer(&daemon, name, json!({})), 80 << 20);
    }
    eventually_within(SEVERAL_SAMPLES, "the first one's worker goes", || {
        (daemon.workers("first", "idle") == 0).then_some(())
    });
    ends_for_memory(&daemon, "first");
    assert_eq!(
        daemon.workers("second", "idle"),
        1,
        "it was used more lately"
    );
    let templates = metric(&daemon, "pilot_templates{level=\"function\"}");
    assert_eq!(templates, Some(2.0), "workers go first");
    assert!(daemon.log().contains("memory is over its budget"));
    let again = daemon.invoke("first", &json!({})).ok();
    assert_eq!(
        (again.start_kind(), again.json()),
        ("cold", json!(80 << 20))
    );
}

#[test]
fn over_the_memory_budget_templates_of_cold_functions_go_after_the_workers() {
    const LARGE: &str = "import os\nDATA = os.urandom(60 << 20)\ndef handler(event, context):\n    return DATA[:8].hex()\n";
    let daemon = with_memory_mb(100);
    let mut said = Vec::new();
    for name in ["first", "second"] {
        daemon.upload_code(name, &json!({"memory_mb": 192}), LARGE);
        said.push(answer(&daemon, name, json!({})));
    }
    eventually_within(SEVERAL_SAMPLES, "one template goes", || {
        (metric(&daemon, "pilot_templates{level=\"function\"}") == Some(1.0)).then_some(())
    });
    // Workers go first.
    for name in ["first", "second"] {
        ends_for_memory(&daemon, name);
    }
    // The warmer one still runs; the other one imports again.
    assert_eq!(answer(&daemon, "second", json!({})), said[1]);
    let again = daemon.invoke("first", &json!({})).ok();
    assert_eq!(again.start_kind(), "cold");
    assert_ne!(again.json(), said[0]);
}
