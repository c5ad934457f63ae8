//! The runtime that a worker gets, from `pilot describe`.

use std::fs;
use std::time::Duration;

use pilot_harness::{
    DaemonOptions, Project, descendants, eventually, eventually_within, needs_root,
};
use serde_json::json;

use super::{all_clean, node_lab, provided, provided_lab};
use crate::{answer, daemon, daemon_with};

/// Returns the sandbox's network namespace, which is unique among running sandboxes.
const WHERE: &str =
    "import os\ndef handler(event, headers):\n    return os.readlink('/proc/self/ns/net')\n";

#[test]
fn a_used_sandbox_is_cleaned_and_used_again() {
    needs_root!();
    let daemon = provided_lab(WHERE, "reuse = \"once\"");
    let first = answer(&daemon, "lab", json!({}));
    let again = eventually("the sandbox is used again", || {
        let place = answer(&daemon, "lab", json!({}));
        (place == first).then_some(place)
    });
    assert_eq!(again, first);
    let runtimes = &daemon.describe("lab")["runtimes"];
    assert!(
        runtimes["totals"]["reused"].as_u64() >= Some(1),
        "{runtimes}"
    );
}

#[test]
fn functions_of_different_owners_never_share_a_used_sandbox() {
    needs_root!();
    let daemon = daemon();
    for name in ["lab", "other"] {
        let keys =
            "runtime = \"provided\"\ncommand = [\"python3\", \"bootstrap.py\"]\nreuse = \"once\"";
        daemon.deploy(&provided(WHERE, "").manifest(name, keys));
    }
    let mut places = [Vec::new(), Vec::new()];
    for _ in 0..6 {
        for (name, places) in ["lab", "other"].into_iter().zip(&mut places) {
            places.push(answer(&daemon, name, json!({})));
        }
    }
    assert!(
        places[0].iter().all(|place| !places[1].contains(place)),
        "{places:?}"
    );
}

#[test]
fn functions_of_one_owner_may_share_used_sandboxes() {
    needs_root!();
    let daemon = daemon();
    let mut places = Vec::new();
    for name in ["lab", "other"] {
        let keys = format!(
            "runtime = \"provided\"\ncommand = [\"python3\", \"bootstrap.py\"]\nreuse = \"once\"\nowner = \"team\"\nenvironment.NAME = \"{name}\""
        );
        daemon.deploy(&provided(WHERE, "").manifest(name, &keys));
        all_clean(&daemon, name);
        places.push(answer(&daemon, name, json!({})));
        all_clean(&daemon, name);
    }
    assert_eq!(places[0], places[1]);
    let runtimes = &daemon.describe("other")["runtimes"];
    assert!(
        runtimes["totals"]["adapted"].as_u64() >= Some(1),
        "{runtimes}"
    );
}

#[test]
fn a_node_worker_comes_from_one_that_was_kept() {
    needs_root!();
    let daemon = node_lab("exports.handler = async () => process.pid;\n", "");
    answer(&daemon, "lab", json!({}));
    daemon.scale("lab", 0);
    eventually("the worker is gone and a Node.js waits", || {
        let runtimes = daemon.describe("lab")["runtimes"].clone();
        (runtimes["base"]["available"].as_u64() >= Some(1)).then_some(())
    });
    assert_eq!(daemon.invoke("lab", &json!({})).start_kind(), "cold");
    let runtimes = &daemon.describe("lab")["runtimes"];
    assert!(
        runtimes["totals"]["reused"].as_u64() >= Some(1)
            || runtimes["totals"]["adapted"].as_u64() >= Some(1),
        "{runtimes}"
    );
}

#[test]
fn over_the_memory_budget_neither_idle_workers_nor_their_runtimes_are_kept() {
    needs_root!();
    let daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\nmemory_mb = 10\n".to_owned()),
        ..DaemonOptions::default()
    });
    let code = "exports.handler = async () => 'there';\n";
    daemon.deploy(
        &Project::empty()
            .file("index.js", code)
            .manifest("lab", "runtime = \"node\""),
    );
    assert_eq!(answer(&daemon, "lab", json!({})), "there");
    let of_node = |pid: &i32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("worker.js")
    };
    // Memory is measured every five seconds.
    eventually_within(Duration::from_secs(40), "no Node.js is left", || {
        let left = descendants(daemon.pid()).into_iter().filter(of_node);
        (left.count() == 0).then_some(())
    });
    // A process is gone a moment before it is counted.
    eventually("they are counted", || {
        let runtimes = daemon.describe("lab")["runtimes"].clone();
        let none = runtimes["base"]["available"] == 0 && daemon.workers("lab", "idle") == 0;
        (none && runtimes["totals"]["evicted"].as_u64() >= Some(1)).then_some(())
    });
    let again = daemon.invoke("lab", &json!({})).ok();
    assert_eq!((again.start_kind(), again.json()), ("cold", json!("there")));
}
