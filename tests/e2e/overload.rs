//! More requests than the machine can serve: who is refused, and how soon; what other functions and the control API notice.

use std::thread;
use std::time::{Duration, Instant};

use pilot_harness::{
    ArchiveEntry, Daemon, DaemonOptions, Request, Response, archive, eventually, eventually_within,
    needs_root,
};
use serde_json::{Value, json};

use crate::{answer, daemon, daemon_with};

/// Sleeps as long as the event says, and returns it.
const SLEEPER: &str =
    "import time\ndef handler(event, context):\n    time.sleep(event)\n    return event\n";

fn invocation(function: &str, event: &Value) -> Request {
    let path = format!("/2015-03-31/functions/{function}/invocations");
    Request::new("POST", &path).body(event.to_string())
}

fn with_workers(workers: u32) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(format!("[limits]\nworkers = {workers}\n")),
        ..DaemonOptions::default()
    })
}

/// Sends so many requests at once, each on its own connection. Returns the responses.
fn burst(daemon: &Daemon, number: usize, request: &Request) -> Vec<Response> {
    let mut connections: Vec<_> = (0..number).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(request);
    }
    let responses = connections.iter_mut();
    responses
        .map(|connection| connection.receive("POST"))
        .collect()
}

fn retry_after(response: &Response) -> u64 {
    response.header("retry-after").unwrap().parse().unwrap()
}

/// A function with one worker, whose invocations have taken this long so far.
fn one_worker(scale: &Value, seconds: f64) -> Daemon {
    let daemon = daemon();
    let spec = json!({"scale": scale, "timeout_s": 30});
    daemon.upload_code("lab", &spec, SLEEPER);
    for _ in 0..3 {
        answer(&daemon, "lab", json!(seconds));
    }
    daemon
}

#[test]
fn a_request_that_would_wait_for_too_long_is_refused_at_once() {
    let daemon = one_worker(&json!({"max": 1, "max_wait_s": 1}), 0.5);
    let begun = Instant::now();
    let responses = burst(&daemon, 12, &invocation("lab", &json!(0.5)));
    let took = begun.elapsed();
    let served = responses.iter().filter(|one| one.status == 200).count();
    assert!((1..=4).contains(&served), "{served} are served");
    let mut early = 0;
    for refused in responses.iter().filter(|one| one.status != 200) {
        assert_eq!(refused.status, 429, "{}", refused.text());
        let kind = refused.header("x-amzn-errortype").unwrap();
        assert!(kind.starts_with("TooManyRequestsException"), "{kind}");
        assert!((1..=60).contains(&retry_after(refused)));
        let reason = refused.json()["Reason"].clone();
        early += usize::from(reason == "FunctionInvocationRateLimitExceeded");
    }
    assert!(early >= 6, "{early} were refused at once");
    assert!(took < Duration::from_secs(6), "they would take {took:?}");
}

#[test]
fn the_daemon_says_how_long_requests_wait_if_their_function_does_not() {
    let daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\nmax_wait_s = 0\n".to_owned()),
        ..DaemonOptions::default()
    });
    for (name, scale) in [
        ("impatient", json!({"max": 1})),
        ("patient", json!({"max": 1, "max_wait_s": 20})),
    ] {
        daemon.upload_code(name, &json!({"scale": scale, "timeout_s": 30}), SLEEPER);
        answer(&daemon, name, json!(0.01));
        let mut running = daemon.connect();
        running.send(&invocation(name, &json!(4)));
        eventually("it runs", || {
            (daemon.workers(name, "busy") == 1).then_some(())
        });
        let status = daemon.invoke(name, &json!(0)).status;
        assert_eq!(status, if name == "patient" { 200 } else { 429 }, "{name}");
        running.receive("POST").ok();
    }
}

#[test]
fn a_clients_deadline_bounds_its_wait_and_does_not_end_what_runs() {
    let daemon = one_worker(&json!({"max": 1}), 1.0);
    let with = |name: &str, value: &str| invocation("lab", &json!(1)).header(name, value);
    // A free worker serves who comes, also if it takes longer.
    let tight = with("x-pilot-deadline-ms", "100");
    assert_eq!(daemon.send(&tight).status, 200);
    for (name, late, in_time) in [
        ("x-pilot-deadline-ms", "1000", "25000"),
        ("prefer", "wait=1", "respond-async, wait=25"),
    ] {
        let mut running = daemon.connect();
        running.send(&invocation("lab", &json!(4)));
        eventually("it runs", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        let refused = daemon.send(&with(name, late));
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert!(retry_after(&refused) >= 1);
        assert_eq!(daemon.send(&with(name, in_time)).status, 200);
        running.receive("POST").ok();
    }
    let wrong = daemon.send(&with("x-pilot-deadline-ms", "soon"));
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.text().contains("X-Pilot-Deadline-Ms"),
        "{}",
        wrong.text()
    );
}

#[test]
fn a_flood_that_has_all_places_gives_another_function_its_share_and_control_answers() {
    let daemon = with_workers(4);
    let spec = json!({"timeout_s": 60});
    for name in ["flood", "other"] {
        daemon.upload_code(name, &spec, SLEEPER);
    }
    let mut connections: Vec<_> = (0..24).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&invocation("flood", &json!(1)));
    }
    eventually("all places are busy", || {
        (daemon.workers("flood", "busy") == 4).then_some(())
    });
    let other = daemon.invoke("other", &json!(0)).ok();
    let waiting = daemon.workers("flood", "waiting");
    assert!(waiting > 0, "it was served after the flood");
    // It takes the place of the first invocation that ends.
    assert!(
        other.head_after < Duration::from_secs(4),
        "{:?}",
        other.head_after
    );
    let mut control = daemon.connect_control();
    for path in ["/_pilot/v1/functions", "/readyz", "/metrics"] {
        let answered = control.exchange(&Request::new("GET", path)).ok();
        assert!(answered.head_after < Duration::from_secs(2), "{path}");
    }
    for mut connection in connections {
        assert_eq!(connection.receive("POST").ok().json(), 1);
    }
}

#[test]
fn reserved_places_are_kept_free_and_must_fit_on_the_machine() {
    let daemon = with_workers(8);
    let spec = |reserved: u32| json!({"timeout_s": 60, "scale": {"reserved": reserved}});
    daemon.upload_code("flood", &json!({"timeout_s": 60}), SLEEPER);
    daemon.upload_code("kept", &spec(3), SLEEPER);
    let mut connections: Vec<_> = (0..10).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&invocation("flood", &json!(3)));
    }
    eventually("all places but the reserved ones are busy", || {
        (daemon.workers("flood", "busy") == 5).then_some(())
    });
    thread::scope(|scope| {
        let calls = [0; 3].map(|_| scope.spawn(|| daemon.invoke("kept", &json!(0.2)).ok()));
        for call in calls {
            call.join().unwrap();
        }
    });
    assert!(daemon.workers("flood", "busy") <= 5);
    for mut connection in connections {
        connection.receive("POST").ok();
    }
    let code = archive(&[ArchiveEntry::text("app.py", SLEEPER)]);
    let (_, event) = daemon.upload("more", &spec(4), &code);
    let refused = event.to_string();
    assert!(refused.contains("scale.reserved = 4"), "{refused}");
    assert!(refused.contains("limits.workers"), "{refused}");
}

#[test]
fn when_memory_is_short_idle_workers_end_and_others_are_served() {
    needs_root!();
    const GROWS: &str = "import time\nkept = None\ndef handler(event, context):\n    global kept\n    kept = kept or bytearray(b'x') * (80 << 20)\n    time.sleep(event)\n    return len(kept)\n";
    let daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\ntotal_memory_mb = 270\n".to_owned()),
        ..DaemonOptions::default()
    });
    daemon.upload_code("large", &json!({"memory_mb": 128, "timeout_s": 30}), GROWS);
    daemon.upload_code("other", &json!({"memory_mb": 64}), SLEEPER);
    answer(&daemon, "other", json!(0));
    // Three workers would be more than nine tenths of what all may have.
    let mut connections: Vec<_> = (0..3).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&invocation("large", &json!(1)));
    }
    for mut connection in connections {
        connection.receive("POST").ok();
    }
    eventually_within(Duration::from_secs(30), "an idle worker is ended", || {
        let text = daemon.get("/metrics").ok().text();
        let mut lines = text.lines();
        let ended = |line: &&str| {
            line.starts_with("pilot_worker_ends_total{") && line.contains("\"pressure\"")
        };
        lines.find(ended).map(|_| ())
    });
    assert_eq!(answer(&daemon, "other", json!(0)), 0);
    assert_eq!(answer(&daemon, "large", json!(0)), 80 << 20);
}
