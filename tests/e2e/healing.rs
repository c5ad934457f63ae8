//! Processes of the daemon that are killed from outside: whatever died is made again when it is needed, or the daemon ends so that
//! its supervisor starts it again.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::{
    ArchiveEntry, Daemon, archive, descendants, eventually, eventually_within, is_gone, needs_root,
};
use serde_json::json;

use crate::{ECHO, daemon};

const NODE: &str = "exports.handler = async (event) => event;\n";

fn end(pid: i32) {
    // It may have ended with another one.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    eventually("it is gone", || is_gone(pid).then_some(()));
}

/// Process 1 of the tree below the daemon that makes all sandboxes.
fn spawner(daemon: &Daemon) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let children = fs::read_to_string(children).unwrap();
    let mut children = children.split_whitespace();
    let first = children.next().unwrap().parse().unwrap();
    assert_eq!(children.next(), None, "the daemon has one child");
    first
}

fn serves(daemon: &Daemon, function: &str) {
    let what = format!("{function} serves again");
    eventually_within(Duration::from_secs(20), &what, || {
        let response = daemon.invoke(function, &json!("hello"));
        let failed = response.header("x-amz-function-error").is_some();
        (response.status == 200 && !failed).then(|| assert_eq!(response.json(), "hello"))
    });
}

#[test]
fn whatever_of_a_sandbox_is_killed_is_made_again() {
    needs_root!();
    let daemon = daemon();
    daemon.upload_code("python", &json!({"scale": {"spare": 1}}), ECHO);
    daemon.upload_code("spawned", &json!({"template": "off"}), ECHO);
    let node = json!({"runtime": "node", "handler": "index.handler"});
    let archive = archive(&[ArchiveEntry::text("index.js", NODE)]);
    assert_eq!(daemon.upload("node", &node, &archive).0, 200);
    let functions = ["python", "spawned", "node"];
    for function in functions {
        serves(&daemon, function);
    }
    let spawner = spawner(&daemon);
    // The processes are made again, so they are told apart by their places in the tree: the first ones are closest to the root.
    let mut killed = HashSet::from([spawner]);
    for _ in 0..24 {
        let victim = descendants(daemon.pid())
            .into_iter()
            .find(|pid| !killed.contains(pid));
        let Some(victim) = victim else { break };
        killed.insert(victim);
        end(victim);
        for function in functions {
            serves(&daemon, function);
        }
        assert_eq!(daemon.get("/readyz").status, 200);
    }
    assert!(killed.len() > 8, "{killed:?}");
    assert!(!is_gone(spawner));
}

#[test]
fn a_daemon_without_its_spawner_says_so_and_ends() {
    let mut daemon = daemon();
    daemon.upload_code("python", &json!({}), ECHO);
    serves(&daemon, "python");
    end(spawner(&daemon));
    let status = daemon.ends_by_itself();
    assert_ne!(status, Some(0));
    assert!(
        daemon.log().contains("the spawner has ended"),
        "{}",
        daemon.log()
    );
    daemon.resume();
    serves(&daemon, "python");
}

#[test]
fn programs_in_sandboxes_are_killed_before_the_daemon_when_memory_is_short() {
    needs_root!();
    let daemon = daemon();
    daemon.upload_code("python", &json!({}), ECHO);
    serves(&daemon, "python");
    // None: it has ended.
    let score = |pid: i32| -> Option<i32> {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
        Some(text.trim().parse().unwrap())
    };
    let own = score(daemon.pid()).unwrap();
    let spawner = spawner(&daemon);
    assert_eq!(score(spawner), Some(own));
    let interpreters: Vec<(i32, i32)> = descendants(daemon.pid())
        .into_iter()
        .filter(|pid| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            program.to_string_lossy().contains("python")
        })
        .filter_map(|pid| Some((pid, score(pid)?)))
        .collect();
    assert!(
        interpreters.len() >= 3,
        "templates and a worker: {interpreters:?}"
    );
    for (pid, score) in interpreters {
        assert!(score > own, "{pid}");
    }
}
