//! Policies in a running daemon: the workers that they hold, changing them, and what `pilot describe` prints.

use std::time::Duration;

use pilot_harness::{Daemon, eventually, eventually_within};
use serde_json::json;

use crate::{ECHO, answer, lab};

fn held(daemon: &Daemon, workers: u64) -> Option<()> {
    (daemon.workers("lab", "idle") == workers).then_some(())
}

#[test]
fn a_static_pool_is_there_before_the_first_request() {
    let daemon = lab(ECHO, json!({"scale": {"policy": "static:3"}}));
    eventually("three idle workers", || held(&daemon, 3));
    let response = daemon.invoke("lab", &json!(1)).ok();
    assert_eq!(response.start_kind(), "warm");
}

#[test]
fn the_policy_is_changed_while_the_function_runs_and_describe_says_why_it_holds_what_it_holds() {
    let daemon = lab(ECHO, json!({}));
    assert_eq!(daemon.describe("lab").get("forecast"), None, "demand");

    let said = daemon.cli_ok(&["scale", "lab", "--policy", "static:2"]);
    assert!(said.contains("policy static:2"), "{said}");
    eventually("two idle workers", || held(&daemon, 2));
    let page = daemon.cli_ok(&["describe", "lab"]);
    assert!(
        page.contains(
            "  policy       static:2 (by `pilot scale`, until the next deploy)\n  configured   demand\n"
        ),
        "{page}"
    );
    assert!(
        page.contains("2 workers wanted") && page.contains("2 workers are always kept"),
        "{page}"
    );

    // Starts of two milliseconds: auto holds nothing for long.
    daemon.cli_ok(&["scale", "lab", "--policy", "auto"]);
    answer(&daemon, "lab", json!("a request"));
    eventually_within(Duration::from_secs(20), "no worker held", || {
        held(&daemon, 0)
    });
    let page = eventually("a tick that saw the request", || {
        let page = daemon.cli_ok(&["describe", "lab"]);
        page.contains("no worker is kept: 0 for requests that run or")
            .then_some(page)
    });
    assert!(page.contains("0 workers wanted"), "{page}");
    assert!(
        page.contains("policy       auto (by `pilot scale`"),
        "{page}"
    );
    assert!(!page.contains("static:2"), "{page}");

    // A deploy returns to the manifest's policy. `demand` keeps workers only for idle_s.
    daemon.cli_ok(&["scale", "lab", "--policy", "demand"]);
    assert_eq!(daemon.describe("lab").get("forecast"), None);
}

#[test]
fn a_policy_that_is_not_one_is_refused_by_name_and_changes_nothing() {
    let daemon = lab(ECHO, json!({"scale": {"policy": "static:1"}}));
    eventually("its worker", || held(&daemon, 1));
    let output = daemon.cli(&["scale", "lab", "--policy", "cusmu"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("did you mean \"cusum\""), "{error}");

    let response = daemon.post(
        "/_pilot/v1/functions/lab/scale",
        &json!({"policy": "cusum:alpha=7"}),
    );
    assert_eq!(response.status, 400, "{}", response.text());
    assert!(response.text().contains("alpha"), "{}", response.text());
    assert!(held(&daemon, 1).is_some());
}
