//! `pilot rollback`: an earlier version becomes the live one again.

use std::process::Output;
use std::thread;

use pilot_harness::{Daemon, eventually};
use serde_json::{Value, json};

use crate::{answer, daemon, lab, plain};

/// Returns a word. With `{"slow": true}`, only after a while.
fn says(word: &str) -> String {
    format!(
        "import time\n\ndef handler(event, context):\n    time.sleep(1.5 if event.get('slow') else 0)\n    return '{word}'\n"
    )
}

fn three_versions() -> Daemon {
    let daemon = lab(&says("one"), plain());
    daemon.upload_code("lab", &plain(), &says("two"));
    daemon.upload_code("lab", &plain(), &says("three"));
    daemon
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_rollback_goes_to_the_version_before_and_running_calls_finish() {
    let daemon = three_versions();
    thread::scope(|scope| {
        let running = scope.spawn(|| answer(&daemon, "lab", json!({"slow": true})));
        eventually("the newest version is busy", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        let printed = daemon.cli_ok(&["rollback", "lab"]);
        assert!(
            printed.starts_with("✓ lab  version 2 (")
                && printed.ends_with(") is live again, in place of version 3\n"),
            "{printed}"
        );
        assert_eq!(answer(&daemon, "lab", json!({})), "two");
        assert_eq!(running.join().unwrap(), "three");
    });
    let described = daemon.describe("lab");
    assert_eq!(
        (&described["number"], &described["versions"]),
        (&json!(2), &json!([3, 1]))
    );
    let newer = daemon.invoke("lab:3", &json!({})).ok();
    assert_eq!(newer.json(), "three");
}

#[test]
fn a_rollback_to_any_kept_version_survives_a_restart_and_numbers_go_on() {
    let mut daemon = three_versions();
    let report: Value =
        serde_json::from_str(&daemon.cli_ok(&["rollback", "lab", "1", "--json"])).unwrap();
    assert_eq!(
        (&report["number"], &report["replaced"], &report["changed"]),
        (&json!(1), &json!(3), &json!(true)),
        "{report}"
    );
    assert!(
        daemon
            .cli_ok(&["rollback", "lab", "1"])
            .contains("was live already")
    );
    daemon.kill();
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!({})), "one");
    // The version that was live before this deployment is kept, although it has the lowest number.
    let report = daemon.upload_code("lab", &plain(), &says("four"));
    assert_eq!(report["number"], 4);
    daemon.cli_ok(&["rollback", "lab", "1"]);
    assert_eq!(answer(&daemon, "lab", json!({})), "one");
    daemon.cli_ok(&["rollback", "lab", "4"]);
    assert_eq!(answer(&daemon, "lab", json!({})), "four");
}

#[test]
fn a_version_that_is_not_there_is_an_error_that_lists_those_that_are() {
    let daemon = three_versions();
    daemon.cli_ok(&["rollback", "lab"]);
    let output = daemon.cli(&["rollback", "lab", "7"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        said(&output),
        "error: function 'lab' has no version 7: there are 1, 2 (the live one), 3\n"
    );
    daemon.cli_ok(&["rollback", "lab"]);
    let output = daemon.cli(&["rollback", "lab"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        said(&output),
        "error: function 'lab' has no version older than 1: there are 1 (the live one), 2, 3\n"
    );
    let output = daemon.cli(&["rollback", "lap"]);
    assert!(
        said(&output).contains("did you mean 'lab'?"),
        "{}",
        said(&output)
    );
    assert_eq!(
        daemon.cli(&["rollback", "lab", "-1"]).status.code(),
        Some(2)
    );
    let path = "/_pilot/v1/functions/lab/rollback";
    let refused = daemon.post(path, &json!({"version": 7}));
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (404, &json!("unknown_version"))
    );
    let refused = daemon.post(path, &json!({"versoin": 1}));
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("did you mean 'version'?"),
        "{}",
        refused.text()
    );
    assert_eq!(answer(&daemon, "lab", json!({})), "one");
}

#[test]
fn a_rollback_to_a_version_that_does_not_start_changes_nothing() {
    let daemon = daemon();
    let first = daemon.upload_code("lab", &plain(), &says("one"));
    daemon.upload_code("lab", &plain(), &says("two"));
    let code = daemon
        .data_dir()
        .join("code")
        .join(first["version"].as_str().unwrap());
    std::fs::remove_file(code.join("app.py")).unwrap();
    let output = daemon.cli(&["rollback", "lab"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("could not be imported"),
        "{}",
        said(&output)
    );
    assert_eq!(answer(&daemon, "lab", json!({})), "two");
    assert_eq!(daemon.describe("lab")["number"], 2);
}

#[test]
fn a_function_whose_live_version_is_broken_is_rolled_back() {
    let mut daemon = daemon();
    daemon.upload_code("lab", &plain(), &says("one"));
    let second = daemon.upload_code("lab", &plain(), &says("two"));
    daemon.stop();
    let code = daemon
        .data_dir()
        .join("code")
        .join(second["version"].as_str().unwrap());
    std::fs::remove_dir_all(code).unwrap();
    daemon.resume();
    assert_eq!(daemon.invoke("lab", &json!({})).status, 502);
    daemon.cli_ok(&["rollback", "lab"]);
    assert_eq!(answer(&daemon, "lab", json!({})), "one");
    let report = daemon.upload_code("lab", &plain(), &says("three"));
    assert_eq!(report["number"], 3);
}
