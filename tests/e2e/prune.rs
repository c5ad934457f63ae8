//! What all functions together keep: bounds at deployment, and `pilot prune`.

use std::fs;
use std::thread;

use pilot_harness::{ArchiveEntry, Daemon, DaemonOptions, Request, archive, eventually, multipart};
use serde_json::{Value, json};

use crate::access::with_control_address;
use crate::{ECHO, answer, daemon, daemon_with, plain};

fn limited(limits: &str) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(format!("[limits]\n{limits}\n")),
        ..DaemonOptions::default()
    })
}

fn upload(daemon: &Daemon, name: &str, files: &[(&str, &str)]) -> Value {
    let entries: Vec<ArchiveEntry> = files
        .iter()
        .map(|(name, text)| ArchiveEntry::text(name, text))
        .collect();
    daemon.upload(name, &plain(), &archive(&entries)).1
}

fn says(word: &str) -> String {
    format!("def handler(event, context):\n    return '{word}'\n")
}

fn three_versions() -> Daemon {
    let daemon = daemon();
    for word in ["one", "two", "three"] {
        daemon.upload_code("lab", &plain(), &says(word));
    }
    daemon
}

fn prune(daemon: &Daemon, arguments: &[&str]) -> Value {
    let mut all = vec!["prune", "--json"];
    all.extend(arguments);
    serde_json::from_str(&daemon.cli_ok(&all)).unwrap()
}

fn kinds(report: &Value) -> Vec<(&str, &str)> {
    let removed = report["removed"].as_array().unwrap();
    let mut kinds: Vec<_> = removed
        .iter()
        .map(|one| (one["kind"].as_str().unwrap(), one["name"].as_str().unwrap()))
        .collect();
    kinds.sort_unstable();
    kinds
}

fn folders(daemon: &Daemon, name: &str) -> usize {
    fs::read_dir(daemon.data_dir().join(name)).unwrap().count()
}

#[test]
fn one_function_too_many_is_refused_with_the_limit_and_what_to_remove() {
    let daemon = limited("functions = 2");
    for name in ["one", "two"] {
        daemon.upload_code(name, &plain(), ECHO);
    }
    let refused = upload(&daemon, "three", &[("app.py", ECHO)]);
    assert_eq!(refused["code"], "too_many_functions", "{refused}");
    let message = refused["message"].as_str().unwrap();
    for words in [
        "'three'",
        "the 2 functions",
        "limits.functions",
        "pilot remove",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    // A new version of one that is there is not one more.
    daemon.upload_code("two", &plain(), &says("again"));
    daemon.cli_ok(&["remove", "one"]);
    daemon.upload_code("three", &plain(), ECHO);
    assert_eq!(answer(&daemon, "three", json!(3)), 3);
}

#[test]
fn of_many_new_functions_at_one_instant_no_more_than_the_limit_come_to_be() {
    let daemon = limited("functions = 2");
    let events: Vec<Value> = thread::scope(|scope| {
        let uploads: Vec<_> = (0..6)
            .map(|number| {
                let daemon = &daemon;
                scope.spawn(move || upload(daemon, &format!("f{number}"), &[("app.py", ECHO)]))
            })
            .collect();
        uploads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let done = events.iter().filter(|event| event["event"] == "done");
    assert_eq!(done.count(), 2, "{events:?}");
    let listed = daemon.get("/_pilot/v1/functions").ok().json();
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[test]
fn code_beyond_the_limit_of_the_disk_is_refused_with_the_limit_and_what_to_remove() {
    let daemon = limited("disk_mb = 16");
    // Text that does not compress to nothing, so that the file system has to keep it.
    let filler = |mark: &str| mark.repeat(9_000_000 / mark.len());
    let first = filler("abcdefgh\n");
    let event = upload(&daemon, "one", &[("app.py", ECHO), ("data.txt", &first)]);
    assert_eq!(event["event"], "done", "{event}");
    let second = filler("ijklmnop\n");
    let files = [("app.py", ECHO), ("data.txt", second.as_str())];
    let refused = upload(&daemon, "two", &files);
    assert_eq!(refused["code"], "disk_limit", "{refused}");
    let message = refused["message"].as_str().unwrap();
    for words in ["'two'", "16 MB", "limits.disk_mb", "pilot prune"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert_eq!(answer(&daemon, "one", json!(1)), 1);
    daemon.cli_ok(&["remove", "one"]);
    // As soon as no worker runs from the files of the removed one.
    eventually("there is room", || {
        (upload(&daemon, "two", &files)["event"] == "done").then_some(())
    });
}

#[test]
fn prune_removes_old_versions_only_if_asked_and_says_so_before() {
    let daemon = three_versions();
    assert_eq!(kinds(&prune(&daemon, &[])), []);
    assert_eq!(folders(&daemon, "code"), 3);
    // Deployed a moment ago.
    let young = prune(&daemon, &["--versions", "--older-than", "1h"]);
    assert_eq!(kinds(&young), []);

    let planned = prune(&daemon, &["--versions", "--dry-run"]);
    assert_eq!(planned["dry_run"], true);
    assert_eq!(folders(&daemon, "code"), 3);
    assert_eq!(daemon.invoke("lab:1", &json!(0)).ok().json(), "one");

    let removed = prune(&daemon, &["--versions"]);
    assert_eq!(kinds(&removed), kinds(&planned));
    let listed = kinds(&removed);
    assert!(listed.contains(&("version", "lab:1")) && listed.contains(&("version", "lab:2")));
    assert_eq!(listed.iter().filter(|(kind, _)| *kind == "code").count(), 2);
    assert!(removed["bytes"].as_u64().unwrap() > 0);
    assert_eq!(removed["bytes"], planned["bytes"]);
    assert_eq!(folders(&daemon, "code"), 1);
    assert_eq!(daemon.invoke("lab:1", &json!(0)).status, 404);
    assert_eq!(answer(&daemon, "lab", json!(0)), "three");
    let described = daemon.describe("lab");
    assert_eq!(described["versions"], json!([]));
    // Numbers go on, and everything is as it was after a restart.
    daemon.upload_code("lab", &plain(), &says("four"));
    assert_eq!(daemon.describe("lab")["number"], 4);
    assert!(daemon.cli_ok(&["prune", "--versions"]).contains("lab:3"));
}

#[test]
fn prune_survives_a_restart() {
    let mut daemon = three_versions();
    prune(&daemon, &["--versions"]);
    daemon.kill();
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!(0)), "three");
    assert_eq!(daemon.describe("lab")["versions"], json!([]));
}

#[test]
fn prune_takes_nothing_from_a_deployment_or_a_rollback_that_is_under_way() {
    let daemon = three_versions();
    // A slow import: the deployment holds its function until it is over.
    let slow = format!("import time\ntime.sleep(5)\n{}", says("four"));
    thread::scope(|scope| {
        let deploying = scope.spawn(|| daemon.upload_code("lab", &plain(), &slow));
        let busy = loop {
            let pruned = prune(&daemon, &["--versions", "--dry-run"]);
            if pruned["busy"] == json!(["lab"]) {
                break prune(&daemon, &["--versions"]);
            }
        };
        assert_eq!(kinds(&busy), []);
        assert_eq!(busy["busy"], json!(["lab"]));
        assert_eq!(deploying.join().unwrap()["number"], 4);
    });
    assert_eq!(answer(&daemon, "lab", json!(0)), "four");
    assert_eq!(daemon.invoke("lab:3", &json!(0)).ok().json(), "three");
    assert!(daemon.cli_ok(&["rollback", "lab"]).contains("version 3"));
}

#[test]
fn only_an_administrator_prunes() {
    let (daemon, control) = with_control_address("");
    let token = daemon.cli_ok(&["token", "create", "ci", "--role", "deploy"]);
    let mut command = daemon.command(&["prune"]);
    command
        .args(["--endpoint", &format!("http://{control}")])
        .env("PILOT_TOKEN", token.trim());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("role 'admin'"));
}

#[test]
fn of_two_deployments_of_a_new_name_the_second_owner_is_refused() {
    let (daemon, control) = with_control_address("");
    let slow = format!("import time\ntime.sleep(1)\n{ECHO}");
    let code = archive(&[ArchiveEntry::text("app.py", &slow)]);
    let (kind, form) = multipart(&[
        ("spec", "application/json", b"{}"),
        ("code", "application/gzip", &code),
    ]);
    let owners = ["red", "blue"];
    let tokens = owners.map(|owner| {
        let token = daemon.cli_ok(&[
            "token", "create", owner, "--role", "deploy", "--owner", owner,
        ]);
        format!("Bearer {}", token.trim())
    });
    // Both are there before either has deployed: the import takes a second.
    let answers: Vec<String> = thread::scope(|scope| {
        let deployments: Vec<_> = tokens
            .iter()
            .map(|token| {
                let (kind, form) = (&kind, &form);
                scope.spawn(move || {
                    let request = Request::new("PUT", "/_pilot/v1/functions/lab")
                        .header("content-type", kind)
                        .header("authorization", token)
                        .body(form.clone());
                    pilot_harness::Connection::open(control)
                        .exchange(&request)
                        .text()
                })
            })
            .collect();
        deployments
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect()
    });
    let done = |text: &&String| text.contains("\"event\":\"done\"");
    assert_eq!(answers.iter().filter(done).count(), 1, "{answers:?}");
    let refused = answers.iter().find(|text| !done(text)).unwrap();
    assert!(refused.contains("another owner"), "{refused}");
    let first = owners[answers.iter().position(|text| done(&text)).unwrap()];
    assert_eq!(daemon.describe("lab")["config"]["owner"], first);
}
