//! A full disk: the daemon starts on it, serves what is deployed, and functions can be removed until there is room again. The data
//! directory is a file system of its own, of a few megabytes.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pilot_harness::{Daemon, DaemonOptions, Request, eventually, needs_root};
use serde_json::json;

use crate::{ECHO, answer, daemon_with, plain};

/// The size of the file system, MiB.
const DISK_MB: u32 = 48;

const TALKS: &str = "def handler(event, context):\n    print('x' * 100_000)\n    return event\n";

fn on_a_small_disk() -> Daemon {
    let daemon = daemon_with(DaemonOptions {
        data_disk_mb: Some(DISK_MB),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.upload_code("talks", &plain(), TALKS);
    daemon.upload_code("goes", &plain(), ECHO);
    daemon
}

/// Writes to the file until nothing more fits on its disk.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let block = vec![7; 4096];
    while file.write_all(&block).is_ok() {}
}

fn filler(daemon: &Daemon) -> PathBuf {
    daemon.data_dir().join("filler")
}

/// What is in the folders of code and of unfinished work.
fn stored(daemon: &Daemon) -> Vec<PathBuf> {
    let below = |path: PathBuf| {
        fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let code = below(daemon.data_dir().join("code"));
    let staged = below(daemon.data_dir().join("staging")).flat_map(below);
    let mut all: Vec<PathBuf> = code.chain(staged).collect();
    all.sort();
    all
}

fn reserve(daemon: &Daemon) -> u64 {
    let file = daemon.data_dir().join("reserve");
    file.metadata().map_or(0, |file| file.len())
}

/// A deployment that must be refused for want of room.
#[track_caller]
fn is_refused(daemon: &Daemon) {
    let before = stored(daemon);
    let project = pilot_harness::Project::function("new", ECHO, "");
    let output = daemon.cli(&["deploy", &project.path().display().to_string()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("the disk of the data directory") && said.contains("pilot remove"),
        "{said}"
    );
    assert_eq!(stored(daemon), before, "nothing is half done");
    assert!(!daemon.cli_ok(&["list"]).contains("new"));
}

#[test]
fn a_daemon_starts_on_a_full_disk_serves_and_removes() {
    needs_root!();
    let mut daemon = on_a_small_disk();
    assert_eq!(reserve(&daemon), 4 << 20);
    daemon.stop();
    fill(&filler(&daemon));
    daemon.resume();
    let log = daemon.log();
    assert!(log.contains("the disk is full"), "{log}");
    assert_eq!(reserve(&daemon), 0, "its room is in use");
    let list = daemon.cli_ok(&["list"]);
    assert!(list.contains("lab") && list.contains("goes"), "{list}");
    assert_eq!(answer(&daemon, "lab", json!({"k": 1})), json!({"k": 1}));
    is_refused(&daemon);
    daemon.cli_ok(&["remove", "goes"]);
    assert_eq!(daemon.invoke("goes", &json!({})).status, 404);
    // Also after a restart.
    daemon.stop();
    daemon.resume();
    assert_eq!(daemon.invoke("goes", &json!({})).status, 404);
    assert_eq!(answer(&daemon, "lab", json!(2)), 2);
    fs::remove_file(filler(&daemon)).unwrap();
    daemon.upload_code("new", &plain(), ECHO);
    assert_eq!(answer(&daemon, "new", json!(3)), 3);
    assert_eq!(reserve(&daemon), 4 << 20, "the reserve is there again");
}

/// No byte is free, not even those of the reserve and of the indexes that SQLite keeps beside its files.
fn fill_wholly(daemon: &Daemon) {
    let data = daemon.data_dir();
    for index in ["registry.sqlite-shm", "async.sqlite-shm"] {
        let _ = fs::remove_file(data.join(index));
    }
    File::create(data.join("reserve")).unwrap();
    fill(&filler(daemon));
}

#[test]
fn a_daemon_that_was_killed_starts_on_a_disk_without_any_room() {
    needs_root!();
    let mut daemon = on_a_small_disk();
    let event = Request::new("POST", "/2015-03-31/functions/lab/invocations")
        .header("x-amz-invocation-type", "Event")
        .body("1");
    assert_eq!(daemon.send(&event).status, 202);
    // While it runs, the disk fills up, and a removal takes what the reserve gives.
    fill(&filler(&daemon));
    daemon.cli_ok(&["remove", "goes"]);
    daemon.kill();
    fill_wholly(&daemon);
    daemon.resume();
    let log = daemon.log();
    assert!(log.contains("the disk takes nothing"), "{log}");
    assert_eq!(answer(&daemon, "lab", json!({"k": 1})), json!({"k": 1}));
    assert_eq!(answer(&daemon, "talks", json!(2)), 2);
    assert_eq!(daemon.invoke("goes", &json!({})).status, 404);
    is_refused(&daemon);
    assert_eq!(daemon.send(&event).status, 503);
    // Once more, from the state that this leaves.
    daemon.kill();
    fill_wholly(&daemon);
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!(3)), 3);
    let told = |daemon: &Daemon| daemon.log().matches("the disk takes nothing").count();
    let before = told(&daemon);
    fs::remove_file(filler(&daemon)).unwrap();
    daemon.stop();
    daemon.resume();
    assert_eq!(told(&daemon), before, "the indexes are in files again");
    daemon.upload_code("new", &plain(), ECHO);
    assert_eq!(answer(&daemon, "new", json!(4)), 4);
    eventually("the accepted event has ended", || {
        (daemon.cli_ok(&["async", "list", "--json"]).trim() == "[]").then_some(())
    });
    assert_eq!(daemon.cli_ok(&["dlq", "list", "--json"]).trim(), "[]");
}

#[test]
fn a_start_that_needs_room_on_a_full_disk_says_so_and_works_once_there_is() {
    needs_root!();
    let mut daemon = on_a_small_disk();
    daemon.stop();
    let data = daemon.data_dir();
    // As at the first start: the files have to be made, and nothing is deployed.
    let files = ["registry.sqlite", "async.sqlite"];
    let folders = ["code", "layers", "environments"];
    for name in files.iter().chain(&folders) {
        fs::rename(data.join(name), data.join(format!("{name}.away"))).unwrap();
    }
    for folder in folders {
        fs::create_dir(data.join(folder)).unwrap();
    }
    fill_wholly(&daemon);
    let (code, said) = daemon.refuses_to_resume();
    assert_ne!(code, Some(0));
    assert!(
        said.contains(".sqlite cannot be opened") && said.contains("make room on this disk"),
        "{said}"
    );
    fs::remove_file(filler(&daemon)).unwrap();
    for name in files.iter().chain(&folders) {
        fs::rename(data.join(format!("{name}.away")), data.join(name)).unwrap();
    }
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
}

#[test]
fn a_damaged_registry_is_an_error_that_names_the_file_and_what_to_do() {
    let mut daemon = daemon_with(DaemonOptions::default());
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.stop();
    let file = daemon.data_dir().join("registry.sqlite");
    let whole = fs::read(&file).unwrap();
    // The header is whole, the tables are not.
    let mut damaged = whole.clone();
    damaged[100..].fill(0x5a);
    fs::write(&file, &damaged).unwrap();
    let (code, said) = daemon.refuses_to_resume();
    assert_ne!(code, Some(0));
    let name = file.display().to_string();
    assert!(
        said.contains(&name) && said.contains("copy a backup"),
        "{said}"
    );
    assert_eq!(fs::read(&file).unwrap(), damaged, "it is left as it is");
    fs::write(&file, whole).unwrap();
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
}

#[test]
fn a_disk_that_fills_up_while_a_daemon_runs_is_told_once_and_ends_nothing() {
    needs_root!();
    let daemon = on_a_small_disk();
    assert_eq!(answer(&daemon, "talks", json!(1)), 1);
    fill(&filler(&daemon));
    for turn in 0..30 {
        assert_eq!(answer(&daemon, "talks", json!(turn)), turn);
    }
    let told = || {
        daemon
            .log()
            .matches("a function's log was not written")
            .count()
    };
    eventually("a line about the log", || (told() > 0).then_some(()));
    assert_eq!(told(), 1, "{}", daemon.log());
    is_refused(&daemon);
    for name in ["goes", "talks"] {
        daemon.cli_ok(&["remove", name]);
        assert_eq!(daemon.invoke(name, &json!({})).status, 404);
    }
    assert_eq!(answer(&daemon, "lab", json!(2)), 2);
    let is_ready = daemon.get("/readyz").ok().json()["ready"].clone();
    assert_eq!(is_ready, true);
    fs::remove_file(filler(&daemon)).unwrap();
    daemon.upload_code("talks", &plain(), TALKS);
    assert_eq!(answer(&daemon, "talks", json!(3)), 3);
    eventually("a log that is written again", || {
        daemon
            .cli_ok(&["logs", "talks"])
            .contains("REPORT")
            .then_some(())
    });
}

#[test]
fn an_event_that_cannot_be_stored_is_503_and_the_accepted_ones_run() {
    needs_root!();
    let daemon = on_a_small_disk();
    let event = Request::new("POST", "/2015-03-31/functions/lab/invocations")
        .header("x-amz-invocation-type", "Event")
        .body(format!("\"{}\"", "x".repeat(200_000)));
    fill(&filler(&daemon));
    // The log of the store may have some room in its file.
    let refused = (0..1000).find_map(|_| {
        let answer = daemon.send(&event);
        (answer.status != 202).then_some(answer)
    });
    let refused = refused.expect("a full disk takes no more");
    assert_eq!(refused.status, 503, "{}", refused.text());
    fs::remove_file(filler(&daemon)).unwrap();
    eventually("the event after there is room", || {
        (daemon.send(&event).status == 202).then_some(())
    });
    eventually("the end of the accepted events", || {
        (daemon.cli_ok(&["async", "list", "--json"]).trim() == "[]").then_some(())
    });
    assert_eq!(daemon.cli_ok(&["dlq", "list", "--json"]).trim(), "[]");
}

#[test]
fn an_event_is_accepted_as_soon_as_a_full_disk_has_room() {
    needs_root!();
    let mut daemon = on_a_small_disk();
    daemon.stop();
    fill(&filler(&daemon));
    daemon.resume();
    assert_eq!(reserve(&daemon), 0, "its room is in use");
    let event = Request::new("POST", "/2015-03-31/functions/lab/invocations")
        .header("x-amz-invocation-type", "Event")
        .body("1");
    let refused = daemon.send(&event);
    assert_eq!(refused.status, 503, "{}", refused.text());
    fs::remove_file(filler(&daemon)).unwrap();
    // The first one. Nothing else that would need room has asked for it.
    let accepted = daemon.send(&event);
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    assert_eq!(reserve(&daemon), 4 << 20, "the reserve is there again");
    eventually("the end of the accepted event", || {
        (daemon.cli_ok(&["async", "list", "--json"]).trim() == "[]").then_some(())
    });
}

#[test]
fn a_token_is_revoked_and_a_secret_removed_for_good_on_a_full_disk() {
    needs_root!();
    let mut daemon = daemon_with(DaemonOptions {
        data_disk_mb: Some(DISK_MB),
        config: Some("invocations = \"token\"\n".to_owned()),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    let leaked = daemon.cli_ok(&["token", "create", "leaked", "--role", "invoke"]);
    let kept = daemon.cli_ok(&["token", "create", "kept", "--role", "invoke"]);
    let secret = Request::new("PUT", "/_pilot/v1/secrets/db").body("hunter2");
    daemon.send(&secret).ok();
    let status = |daemon: &Daemon, token: &str| {
        let request = Request::new("POST", "/2015-03-31/functions/lab/invocations")
            .header("authorization", &format!("Bearer {}", token.trim()))
            .body("1");
        daemon.connect().exchange(&request).status
    };
    assert_eq!(status(&daemon, &leaked), 200);
    fill(&filler(&daemon));
    assert_eq!(reserve(&daemon), 4 << 20);
    daemon.cli_ok(&["token", "revoke", "leaked"]);
    daemon.cli_ok(&["secret", "rm", "db"]);
    assert_eq!(reserve(&daemon), 0, "its room is in use");
    for _ in 0..2 {
        assert_eq!(status(&daemon, &leaked), 403);
        assert_eq!(status(&daemon, &kept), 200);
        assert!(!daemon.cli_ok(&["token", "list"]).contains("leaked"));
        assert_eq!(daemon.cli_ok(&["secret", "list", "--json"]).trim(), "[]");
        daemon.kill();
        daemon.resume();
    }
}

#[test]
fn a_slow_body_on_a_full_disk_stays_in_memory() {
    needs_root!();
    let daemon = on_a_small_disk();
    fill(&filler(&daemon));
    let text = "x".repeat(2_000_000);
    let mut connection = daemon.connect();
    let head = format!(
        "POST /2015-03-31/functions/lab/invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n\"",
        text.len() + 2
    );
    connection.send_raw(head.as_bytes());
    connection.send_raw(&text.as_bytes()[..1_000_000]);
    // Longer than a body may take that is not moved to the disk.
    std::thread::sleep(Duration::from_millis(400));
    connection.send_raw(&text.as_bytes()[1_000_000..]);
    connection.send_raw(b"\"");
    assert_eq!(connection.receive("POST").ok().json(), text);
}

#[test]
fn a_daemon_whose_own_log_cannot_be_written_serves() {
    let daemon = daemon_with(DaemonOptions {
        full_log: true,
        arguments: ["--log-level", "debug"].map(str::to_owned).into(),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
    daemon.cli_ok(&["remove", "lab"]);
    assert_eq!(daemon.invoke("lab", &json!({})).status, 404);
}
