//! Durability: kill -9, stop and start, and what a stop waits for.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use pilot_harness::{Daemon, DaemonOptions, Project, descendants, eventually, is_gone};
use serde_json::json;

use crate::{ECHO, answer, daemon, daemon_with, lab, plain};

#[track_caller]
fn everything_is_there(daemon: &Daemon) {
    assert_eq!(answer(daemon, "lab", json!({"k": 1})), json!({"k": 1}));
    assert_eq!(answer(daemon, "other", json!({})), "second");
    assert_eq!(daemon.describe("other")["number"], 2);
    assert_eq!(daemon.invoke("removed", &json!({})).status, 404);
}

fn with_functions() -> Daemon {
    let daemon = lab(ECHO, json!({"memory_mb": 192, "environment": {"A": "b"}}));
    daemon.upload_code(
        "other",
        &plain(),
        "def handler(event, context):\n    return 'first'\n",
    );
    daemon.upload_code(
        "other",
        &plain(),
        "def handler(event, context):\n    return 'second'\n",
    );
    daemon.upload_code("removed", &plain(), ECHO);
    daemon.cli_ok(&["remove", "removed"]);
    daemon
}

#[test]
fn after_kill_9_every_function_answers_its_next_request_without_a_redeploy() {
    let mut daemon = with_functions();
    everything_is_there(&daemon);
    let config = daemon.describe("lab")["config"].clone();
    daemon.kill();
    daemon.resume();
    everything_is_there(&daemon);
    assert_eq!(daemon.describe("lab")["config"], config);
}

#[test]
fn kill_9_in_the_middle_of_a_deploy_leaves_the_old_version() {
    let mut daemon = with_functions();
    let project = pilot_harness::Project::function(
        "lab",
        "import time\ntime.sleep(20)\ndef handler(event, context):\n    return 'new'\n",
        "",
    );
    let mut deploy = daemon
        .command(&["deploy", &project.path().display().to_string()])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The old version must serve during the trial start of the new one, so the test waits for a response.
    thread::sleep(Duration::from_millis(700));
    everything_is_there(&daemon);
    daemon.kill();
    let _ = deploy.kill();
    let _ = deploy.wait();
    daemon.resume();
    everything_is_there(&daemon);
}

#[test]
fn files_that_a_killed_daemon_had_begun_to_write_are_removed_at_the_next_start() {
    let mut daemon = daemon();
    daemon.kill();
    let (begun, foreign) = (
        daemon.data_dir().join(".pilotlight-new-aB3xYz"),
        daemon.data_dir().join(".tmpaB3xYz"),
    );
    for file in [&begun, &foreign] {
        std::fs::write(file, "{").unwrap();
    }
    daemon.resume();
    assert!(!begun.exists() && foreign.exists());
}

#[test]
fn many_kills_in_a_row_hurt_nothing() {
    let mut daemon = with_functions();
    for _ in 0..4 {
        daemon.kill();
        daemon.resume();
        everything_is_there(&daemon);
    }
}

#[test]
fn processes_of_a_killed_daemon_end_with_it() {
    let code =
        "import os\ndef handler(event, context):\n    return open('/proc/self/status').read()\n";
    let mut daemon = lab(code, json!({"environment": {"MARK_OF_THE_TEST": "x"}}));
    answer(&daemon, "lab", json!({}));
    let children = descendants(daemon.pid());
    assert!(!children.is_empty());
    daemon.kill();
    eventually("templates and workers are gone", || {
        children.iter().all(|pid| is_gone(*pid)).then_some(())
    });
    // The next daemon removes what the killed one left.
    daemon.resume();
}

#[test]
fn a_stop_waits_for_what_runs_and_leaves_nothing_running() {
    let mut daemon = lab(
        "import time\ndef handler(event, context):\n    time.sleep(event)\n    return 'finished'\n",
        plain(),
    );
    assert_eq!(answer(&daemon, "lab", json!(0)), "finished");
    let address = daemon.address();
    let children = descendants(daemon.pid());
    let mut connection = daemon.connect();
    connection.send(
        &pilot_harness::Request::new("POST", "/2015-03-31/functions/lab/invocations").body("1.5"),
    );
    eventually("it runs", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    let running = thread::spawn(move || connection.receive("POST"));
    let code = daemon.stop();
    assert_eq!(code, Some(0), "{}", daemon.log());
    assert_eq!(running.join().unwrap().ok().json(), "finished");
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "it still listens"
    );
    eventually("templates and workers are gone", || {
        children.iter().all(|pid| is_gone(*pid)).then_some(())
    });
}

#[test]
fn a_stop_gives_up_a_deployment_that_takes_longer_and_leaves_nothing_of_it() {
    let mut daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\ndrain_s = 1\n".to_owned()),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    let project = Project::function(
        "lab",
        "import time\ntime.sleep(600)\ndef handler(event, context):\n    return 'new'\n",
        "",
    );
    let mut deploy = daemon
        .command(&["deploy", &project.path().display().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    let mut lines = BufReader::new(deploy.stderr.take().unwrap());
    while !told.contains("importing") {
        assert_ne!(lines.read_line(&mut told).unwrap(), 0, "{told}");
    }
    assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    assert!(
        daemon.log().contains("they are given up"),
        "{}",
        daemon.log()
    );
    lines.read_to_string(&mut told).unwrap();
    assert_eq!(deploy.wait().unwrap().code(), Some(1));
    assert!(
        told.contains("it is not known whether it is deployed") && told.contains("`pilot list`"),
        "{told}"
    );
    assert!(!told.contains("not deployed:"), "{told}");
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
    assert_eq!(daemon.describe("lab")["number"], 1);
    eventually("only what is deployed is there", || {
        let count = |folder| std::fs::read_dir(daemon.data_dir().join(folder)).map(Iterator::count);
        let (code, runs) = (count("code").ok()?, count("staging").ok()?);
        (code == 1 && runs == 1).then_some(())
    });
}

#[test]
fn a_stop_leaves_no_cgroups_and_no_mounts() {
    let mut daemon = lab(ECHO, plain());
    answer(&daemon, "lab", json!({}));
    let data = daemon.data_dir().display().to_string();
    daemon.stop();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&data), "mounts are left");
}

#[test]
fn a_function_whose_files_are_gone_says_so_to_whoever_calls_it_until_it_is_deployed_again() {
    let mut daemon = lab(ECHO, plain());
    daemon.upload_code("other", &plain(), ECHO);
    let version = daemon.describe("lab")["version"]
        .as_str()
        .unwrap()
        .to_owned();
    daemon.kill();
    std::fs::remove_dir_all(daemon.data_dir().join("code").join(version)).unwrap();
    daemon.resume();
    for answer in [daemon.invoke("lab", &json!({})), daemon.get("/fn/lab/")] {
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(
            answer.header("x-amzn-errortype"),
            Some("InvalidRuntimeException")
        );
        let message = answer.json()["Message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with("function 'lab' is broken: ")
                && message.ends_with("is gone; deploy it again"),
            "{message}"
        );
    }
    let output = daemon.cli(&["scale", "lab", "0"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        printed
            .starts_with("error: function 'lab' is broken, and no worker of it can be started: ")
            && printed.ends_with("is gone; deploy it again\n"),
        "{printed}"
    );
    let output = daemon.cli(&["invoke", "lab"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && printed.contains("deploy it again"),
        "{printed}"
    );
    for verb in ["list", "describe"] {
        let arguments = if verb == "list" {
            vec![verb]
        } else {
            vec![verb, "lab"]
        };
        let printed = daemon.cli_ok(&arguments);
        assert!(printed.contains("deploy it again"), "{verb}: {printed}");
    }
    assert_eq!(answer(&daemon, "other", json!(1)), json!(1));
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
    daemon.cli_ok(&["remove", "lab"]);
    assert_eq!(daemon.invoke("lab", &json!({})).status, 404);
}

#[test]
fn a_second_daemon_on_the_same_data_is_refused() {
    let daemon = lab(ECHO, plain());
    let usage = || {
        let files = std::fs::read_dir(daemon.data_dir().join("usage")).unwrap();
        let sizes = files.map(|file| file.unwrap().metadata().unwrap().len());
        sizes.sum::<u64>()
    };
    // The records of the deployment are written within a second; on a slow machine, a little later.
    let (mut before, mut since) = (usage(), Instant::now());
    eventually("nothing more is written", || {
        let now = usage();
        if now != before {
            (before, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(3)).then_some(())
    });
    let output = daemon
        .command(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            &daemon.data_dir().display().to_string(),
        ])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("another") || said.contains("in use") || said.contains("lock"),
        "{said}"
    );
    assert_eq!(usage(), before, "the second daemon wrote to the records");
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
}

#[test]
fn a_port_in_use_is_named() {
    let first = daemon();
    let home = tempfile::tempdir().unwrap();
    let output = first
        .command(&[
            "serve",
            "--listen",
            &first.address().to_string(),
            "--data-dir",
            &home.path().display().to_string(),
        ])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains(&first.address().to_string()), "{said}");
}

#[test]
fn a_restart_answers_within_a_second_with_many_functions() {
    let mut daemon = daemon();
    for number in 0..20 {
        daemon.upload_code(
            &format!("f{number}"),
            &plain(),
            &format!("def handler(event, context):\n    return {number}\n"),
        );
    }
    daemon.kill();
    daemon.resume();
    // The benchmark checks the bar. A debug build on a shared machine gets a margin.
    assert!(
        daemon.started_in() < Duration::from_secs(5),
        "{:?}",
        daemon.started_in()
    );
    for number in [0, 7, 19] {
        assert_eq!(answer(&daemon, &format!("f{number}"), json!({})), number);
    }
}

/// Every file below the folder except logs and usage records, with its length and its modification time.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            if path
                .file_name()
                .is_some_and(|name| name != "logs" && name != "usage")
            {
                found.extend(files(&path));
            }
        } else {
            let written = metadata.modified().unwrap();
            found.insert(path, (metadata.len(), written));
        }
    }
    found
}

#[test]
fn invocations_leave_nothing_on_disk_but_logs_and_usage_records() {
    let daemon = lab(ECHO, plain());
    daemon.upload_code("once", &json!({"reuse": "once"}), ECHO);
    let before = files(&daemon.data_dir());
    assert!(before.keys().any(|path| path.ends_with("registry.sqlite")));
    for number in 0..50 {
        for function in ["lab", "once"] {
            assert_eq!(answer(&daemon, function, json!(number)), json!(number));
            daemon.get(&format!("/fn/{function}/")).ok();
        }
    }
    // By then everything that is written after the responses is written.
    eventually("the last invocation is in the log", || {
        let log = daemon.logs("once");
        (log.matches("REPORT RequestId").count() == 100).then_some(())
    });
    assert_eq!(files(&daemon.data_dir()), before);
}
