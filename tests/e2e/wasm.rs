//! `runtime = "wasm"`: functions that are WebAssembly components.

mod hostile;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;

use pilot_harness::{Daemon, DaemonOptions, Machine, Project, Request, eventually, needs_root};
use serde_json::json;

use crate::{answer, daemon, daemon_with, failure};

/// Whether this machine can build components. If not, that is said.
fn builds_components() -> bool {
    let found = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", "wasm32-wasip2"])
        .output();
    let folder = found.map_or_else(|_| Vec::new(), |output| output.stdout);
    if !Path::new(String::from_utf8_lossy(&folder).trim()).is_dir() {
        pilot_harness::skip("Rust for wasm32-wasip2: rustup target add wasm32-wasip2");
        return false;
    }
    true
}

/// The component of these tests. `None`: this machine cannot build it, and `PILOT_TEST_COMPONENT` does not name the file.
fn component() -> Option<Vec<u8>> {
    if let Some(file) = std::env::var_os("PILOT_TEST_COMPONENT") {
        return Some(std::fs::read(file).unwrap());
    }
    if !builds_components() {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let target = root.join("target/component");
    let built = Command::new("cargo")
        .args(["build", "--release", "--locked", "--quiet"])
        .args(["--target", "wasm32-wasip2", "--target-dir"])
        .arg(&target)
        .current_dir(root.join("tests/e2e/fixtures/component"))
        .env_remove("RUSTFLAGS")
        .status()
        .unwrap();
    assert!(built.success(), "the component of the tests does not build");
    let file = target.join("wasm32-wasip2/release/hostile_component.wasm");
    Some(std::fs::read(file).unwrap())
}

/// A project with the component as function `lab`.
fn project(component: &[u8], keys: &str) -> Project {
    Project::empty().file("lab.wasm", component).manifest(
        "lab",
        &format!("runtime = \"wasm\"\ncomponent = \"lab.wasm\"\n{keys}"),
    )
}

/// A daemon with that function. `None`: this machine cannot build the component.
#[track_caller]
fn wasm_lab(keys: &str) -> Option<Daemon> {
    let component = component()?;
    let daemon = daemon();
    daemon.deploy(&project(&component, keys));
    Some(daemon)
}

#[test]
fn new_makes_a_component_that_builds_and_deploys() {
    needs_root!();
    if !builds_components() {
        return;
    }
    let daemon = daemon();
    let home = Project::empty();
    let folder = home.path().join("greeter");
    let path = folder.display().to_string();
    let told = daemon.cli_ok(&["new", "--template", "wasm", &path]);
    assert!(told.contains("rustup target add wasm32-wasip2") && told.contains("/build"));
    let built = Command::new("sh")
        .arg(folder.join("build"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    daemon.deploy_dir(&folder);
    let response = daemon.get("/fn/greeter/?name=Ada").ok();
    assert_eq!(response.text(), "Hello, Ada!\n");
    assert_eq!(daemon.get("/fn/greeter/").ok().text(), "Hello, World!\n");
}

#[test]
fn a_component_gets_requests_as_they_were_sent_and_only_its_own_variables() {
    needs_root!();
    let Some(component) = component() else { return };
    let daemon = daemon();
    let keys = "environment = { COLOUR = \"blue\", LD_PRELOAD = \"/var/task/evil.so\" }";
    // What is uploaded in place of machine code is not used.
    let uploaded =
        project(&component, keys).file(".pilot-component.cwasm", "\x7fELF, of a stranger");
    daemon.deploy(&uploaded);
    let request = Request::new("PUT", "/fn/lab/seen?x=1&y=%C3%BC").header("x-custom", "seen");
    let response = daemon.send(&request).ok();
    assert_eq!(response.header("x-kind"), Some("component"));
    let text = response.text();
    let seen: Vec<&str> = text.lines().collect();
    for line in [
        "target /seen?x=1&y=%C3%BC",
        "method Method::Put",
        "header x-custom=seen",
        "variable COLOUR=blue",
        "variable LD_PRELOAD=/var/task/evil.so",
        "variable K_SERVICE=lab",
    ] {
        assert!(seen.contains(&line), "no {line:?} in {seen:#?}");
    }
    let variables: Vec<_> = seen
        .iter()
        .filter(|line| line.starts_with("variable "))
        .collect();
    assert_eq!(variables.len(), 5, "{variables:?}");
    assert_eq!(daemon.get("/fn/lab/status?418").status, 418);
    let head = daemon.send(&Request::new("HEAD", "/fn/lab/"));
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("5"))
    );
}

#[test]
fn each_request_has_an_instance_of_its_own_in_the_same_worker() {
    needs_root!();
    let Some(daemon) = wasm_lab("scale.max = 1") else {
        return;
    };
    for round in 0..5 {
        let response = daemon.get("/fn/lab/count").ok();
        assert_eq!(response.text(), "1");
        let timing = response.header("server-timing").unwrap_or("");
        assert!(timing.contains("instance;dur="), "{timing}");
        assert_eq!(
            response.start_kind(),
            if round == 0 { "cold" } else { "warm" }
        );
    }
}

#[test]
fn a_component_runs_where_there_is_little_address_space() {
    needs_root!();
    let Some(component) = component() else { return };
    let daemon = daemon_with(DaemonOptions {
        machine: Machine::LittleAddressSpace,
        ..DaemonOptions::default()
    });
    daemon.deploy(&project(&component, "memory_mb = 128\nscale.max = 1"));
    for _ in 0..3 {
        assert_eq!(daemon.get("/fn/lab/count").ok().text(), "1");
    }
    let log = daemon.log_texts("lab");
    assert!(
        log.contains("the address space has no room for the memories of"),
        "{log}"
    );
    hostile::takes_all_memory(&daemon);
}

#[test]
fn a_component_streams_a_body_while_it_arrives() {
    needs_root!();
    let Some(daemon) = wasm_lab("") else { return };
    assert_eq!(daemon.get("/fn/lab/stream").ok().text(), "one two three");
    let mut connection = daemon.connect();
    connection.send_raw(
        b"POST /fn/lab/upper HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
    );
    // The first part comes back before the second is sent.
    assert!(connection.raw_line().starts_with("HTTP/1.1 200"));
    while !connection.raw_line().is_empty() {}
    assert_eq!(
        (
            connection.raw_line().as_str(),
            connection.raw_line().as_str()
        ),
        ("5", "FIRST")
    );
    connection.send_raw(b"6\r\nsecond\r\n0\r\n\r\n");
    assert_eq!(
        (
            connection.raw_line().as_str(),
            connection.raw_line().as_str()
        ),
        ("6", "SECOND")
    );
    assert_eq!(connection.raw_line(), "0");
    // Whoever sends much must read meanwhile, because nothing is gathered on the way.
    let mut reader = TcpStream::connect(daemon.address()).unwrap();
    let mut writer = reader.try_clone().unwrap();
    let sending = thread::spawn(move || {
        let head = "POST /fn/lab/upper HTTP/1.0\r\nhost: h\r\ncontent-length: 8388608\r\n\r\n";
        writer.write_all(head.as_bytes()).unwrap();
        writer.write_all(&vec![b'x'; 8 << 20]).unwrap();
    });
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    sending.join().unwrap();
    let upper = all.iter().rev().take_while(|byte| **byte == b'X').count();
    assert_eq!(upper, 8 << 20);
}

#[test]
fn the_invoke_api_posts_the_event_to_a_component() {
    needs_root!();
    let Some(daemon) = wasm_lab("") else { return };
    assert_eq!(answer(&daemon, "lab", json!({"a": [1]})), json!({"a": [1]}));
    let failed = failure(&daemon, "lab", json!({"fail": "fail"}));
    assert_eq!(failed["errorType"], "Runtime.HttpStatus");
}

#[test]
fn what_a_component_prints_is_in_its_log_also_after_its_response() {
    needs_root!();
    let Some(daemon) = wasm_lab("") else { return };
    daemon.get("/fn/lab/log?hello").ok();
    assert_eq!(daemon.get("/fn/lab/after").ok().text(), "sent");
    eventually("both lines are in the log", || {
        let log = daemon.log_texts("lab");
        (log.contains("said hello") && log.contains("after the response")).then_some(())
    });
}

#[test]
fn a_component_that_fails_or_is_too_slow_is_counted_as_such() {
    needs_root!();
    let Some(daemon) = wasm_lab("timeout_s = 3") else {
        return;
    };
    for (path, status) in [("trap", 500), ("loop", 504), ("count", 200)] {
        let response = daemon.get(&format!("/fn/lab/{path}"));
        assert_eq!(response.status, status, "{}", response.text());
        assert_eq!(response.header("pilot-component-failed"), None);
    }
    eventually("the log says how it ended", || {
        let log = daemon.log_texts("lab");
        (log.contains("Status: function_error") && log.contains("Status: timeout")).then_some(())
    });
    let metrics = daemon.get("/metrics").ok().text();
    for expected in [
        "faas_timeouts_total{faas_name=\"lab\",faas_trigger=\"http\"} 1\n",
        "faas_trigger=\"http\",outcome=\"function_error\"} 1\n",
    ] {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }
}

#[test]
fn one_worker_runs_many_instances_at_the_same_time() {
    needs_root!();
    let Some(daemon) = wasm_lab("scale.max = 1") else {
        return;
    };
    let mut connections: Vec<_> = (0..12).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&Request::new("GET", "/fn/lab/stream"));
    }
    for connection in &mut connections {
        assert_eq!(connection.receive("GET").ok().text(), "one two three");
    }
}

#[test]
fn a_worker_starts_from_what_the_deployment_compiled() {
    needs_root!();
    let Some(mut daemon) = wasm_lab("") else {
        return;
    };
    // A restart of the daemon starts workers from the same file.
    daemon.stop();
    daemon.resume();
    assert_eq!(daemon.get("/fn/lab/").ok().text(), "hello");
    let code = daemon.data_dir().join("code");
    let compiled = std::fs::read_dir(code).unwrap().filter_map(|version| {
        let file = version.ok()?.path().join(".pilot-component.cwasm");
        file.exists().then_some(file)
    });
    let compiled: Vec<_> = compiled.collect();
    assert_eq!(compiled.len(), 1, "{compiled:?}");
    assert!(!daemon.log_texts("lab").contains("compiled again"));
    // After an update of Pilotlight, it may not fit any more.
    daemon.scale("lab", 0);
    std::fs::write(&compiled[0], "machine code of another release").unwrap();
    assert_eq!(daemon.get("/fn/lab/").ok().text(), "hello");
    eventually("the log says that it was compiled again", || {
        daemon
            .log_texts("lab")
            .contains("compiled again")
            .then_some(())
    });
}
