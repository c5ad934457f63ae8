//! End-to-end tests: the real binary with a daemon per test, used only from outside. There is one module per topic, and each test's
//! name is a promise to users.
//!
//! Tests that need namespaces and cgroups skip loudly without root. Tests do not sleep to wait for the daemon: they wait for
//! responses, or poll with a time limit.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

mod access;
mod apps;
mod asynchronous;
mod back_to_back;
mod bench;
mod bench_ends;
mod bounds;
mod builds;
mod cli;
mod connections;
mod cors;
mod cost;
mod cpu;
mod deploy;
mod doctor;
mod durability;
mod examples;
mod fidelity;
mod forecast;
mod full_disk;
mod handler;
mod handover;
mod hang_ups;
mod healing;
mod http2;
mod invoke_api;
mod keep_alive;
mod layers;
mod library;
mod machine;
mod mishaps;
mod neighbours;
mod overload;
mod own_imports;
mod package;
mod pool;
mod prune;
mod refused;
mod registry;
mod rollback;
mod runtimes;
mod secrets;
mod seen;
mod shared_modules;
mod simulate;
mod start;
mod stopping;
mod tls;
mod told;
mod triggers;
mod turns;
mod upload;
mod url;
mod wasm;
mod words;

use pilot_harness::{Daemon, DaemonOptions};
use serde_json::{Value, json};

/// A daemon with default options.
#[track_caller]
fn daemon() -> Daemon {
    Daemon::start(env!("CARGO_BIN_EXE_pilot"))
}

/// A daemon with these options.
#[track_caller]
fn daemon_with(options: DaemonOptions) -> Daemon {
    Daemon::start_with(env!("CARGO_BIN_EXE_pilot"), options)
}

/// A daemon with one function, `lab`, of this code and these keys.
#[track_caller]
fn lab(code: &str, keys: Value) -> Daemon {
    let daemon = daemon();
    daemon.upload_code("lab", &keys, code);
    daemon
}

/// The result of a function, which must succeed.
#[track_caller]
fn answer(daemon: &Daemon, function: &str, event: Value) -> Value {
    let response = daemon.invoke(function, &event).ok();
    assert_eq!(
        response.header("x-amz-function-error"),
        None,
        "{}",
        response.text()
    );
    response.json()
}

/// The error body of an invocation, which must fail.
#[track_caller]
fn failure(daemon: &Daemon, function: &str, event: Value) -> Value {
    let response = daemon.invoke(function, &event);
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(
        response.header("x-amz-function-error").is_some(),
        "no X-Amz-Function-Error: {}",
        response.text()
    );
    response.json()
}

/// Returns its event.
const ECHO: &str = "def handler(event, context):\n    return event\n";

/// The workers of `lab` that became ready, as the metrics count them once all events are counted.
fn starts(daemon: &Daemon) -> f64 {
    metric(daemon, "pilot_worker_starts_total{faas_name=\"lab\"}")
}

/// The value of a series of `/metrics`.
#[track_caller]
fn metric(daemon: &Daemon, series: &str) -> f64 {
    let text = daemon.get("/metrics").ok().text();
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap().trim_start().parse().unwrap()
}

/// The keys of a function without special needs.
fn plain() -> Value {
    json!({})
}
