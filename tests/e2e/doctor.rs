//! `pilot doctor`: what this machine enforces, without a daemon, for root and for another user.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pilot_harness::needs_root;
use serde_json::{Value, json};

use crate::{ECHO, daemon, plain};

fn doctor(program: &Path, data_dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["doctor", "--json", "--data-dir"])
        .arg(data_dir)
        .stdin(Stdio::null());
    command
}

fn checks(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn check<'a>(checks: &'a [Value], what: &str) -> &'a Value {
    let found = checks.iter().find(|check| check["what"] == what);
    found.unwrap_or_else(|| panic!("no check of {what}: {checks:?}"))
}

#[test]
fn the_doctor_says_what_the_daemon_says_and_leaves_nothing() {
    let daemon = daemon();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let output = doctor(Path::new(env!("CARGO_BIN_EXE_pilot")), &dir)
        .output()
        .unwrap();
    let found = checks(&output);
    assert!(!dir.exists(), "it creates nothing");
    let of_doctor: Vec<String> = found
        .iter()
        .filter(|check| check["group"] == "isolation" && check["state"] == "missing")
        .map(|check| {
            let change = check["change"].as_str().unwrap();
            assert!(!change.is_empty(), "{check}");
            format!(
                "{}: {}",
                check["what"].as_str().unwrap(),
                check["found"].as_str().unwrap()
            )
        })
        .collect();
    let readiness = daemon.get("/readyz").ok().json();
    assert_eq!(readiness["reasons"], serde_json::json!(of_doctor));
    let is_missing = found.iter().any(|check| check["state"] == "missing");
    assert_eq!(output.status.code(), Some(i32::from(is_missing)));
    assert_eq!(check(&found, "Python")["state"], "ok");
    assert_eq!(check(&found, "data directory")["state"], "ok");
    let open_files = check(&found, "open files");
    let change = open_files["change"].as_str();
    let says_what = change.is_some_and(|change| change.contains("fs.file-max="));
    let is_absent = open_files["state"] == "absent";
    assert_eq!(
        (is_absent, is_absent),
        (says_what, open_files["state"] != "ok"),
        "{open_files}"
    );
    let busy = doctor(Path::new(env!("CARGO_BIN_EXE_pilot")), &daemon.data_dir())
        .output()
        .unwrap();
    let busy = check(&checks(&busy), "data directory")["found"].clone();
    assert!(
        busy.as_str().unwrap().contains("in use by a daemon"),
        "{busy}"
    );
}

#[test]
fn the_doctor_tells_another_user_what_only_root_gets() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("pilot");
    std::fs::copy(env!("CARGO_BIN_EXE_pilot"), &program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(home.path(), open).unwrap();
    let as_nobody = |data_dir: &Path| {
        doctor(&program, data_dir)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap()
    };
    let output = as_nobody(&home.path().join("data"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = checks(&output);
    for (what, state, change) in [
        ("users", "missing", "run the daemon as root"),
        ("memory, CPU and pids limits", "missing", "Delegate=yes"),
        ("outbound network", "absent", "run the daemon as root"),
        ("data directory", "missing", "--data-dir"),
    ] {
        let check = check(&found, what);
        assert_eq!(check["state"], state, "{check}");
        assert!(
            check["change"].as_str().unwrap().contains(change),
            "{check}"
        );
    }
}

#[test]
fn the_doctor_prints_for_people_and_refuses_a_wrong_configuration() {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["doctor", "--data-dir"])
        .arg(home.path())
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "isolation\n",
        "features\n",
        "interpreters\n",
        "daemon\n",
        " users ",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let config = home.path().join("pilotd.toml");
    std::fs::write(&config, "lissten = 1\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["doctor", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn the_doctor_finds_what_serve_refuses() {
    let mut daemon = daemon();
    daemon.upload_code("greet", &plain(), ECHO);
    daemon.stop();
    let dir = daemon.data_dir();
    let found = |what: &str| {
        let output = doctor(Path::new(env!("CARGO_BIN_EXE_pilot")), &dir)
            .output()
            .unwrap();
        (
            check(&checks(&output), what).clone(),
            output.status.code() == Some(1),
        )
    };
    let (registry, _) = found("registry");
    assert_eq!(
        (&registry["state"], &registry["found"]),
        (&json!("ok"), &json!("1 function"))
    );
    let newer = dir.join("newer.sqlite");
    let connection = rusqlite::Connection::open(&newer).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let newer = std::fs::read(newer).unwrap();
    for (file, content, what, words) in [
        (
            "registry.sqlite",
            Some(&[7; 9000][..]),
            "registry",
            "registry.sqlite cannot be opened",
        ),
        (
            "registry.sqlite",
            Some(&newer[..]),
            "registry",
            "registry.sqlite has schema 99",
        ),
        (
            "async.sqlite",
            Some(&newer[..]),
            "asynchronous invocations",
            "async.sqlite has schema 99",
        ),
        ("tokens.json", Some(&b"["[..]), "tokens", "tokens.json"),
        (
            "admin.token",
            Some(&b"x"[..]),
            "tokens",
            "admin.token has no token",
        ),
        ("secrets.key", None, "secrets", "secrets.key is missing"),
        (
            "control.sock",
            Some(&b""[..]),
            "control socket",
            "control.sock exists and is not a socket",
        ),
    ] {
        let path = dir.join(file);
        let before = std::fs::read(&path).ok();
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let (check, failed) = found(what);
        assert!(
            failed && check["state"] == "missing" && check["found"].to_string().contains(words),
            "{check}"
        );
        let (_, log) = daemon.refuses_to_resume();
        assert!(log.contains(words), "{file}: {log}");
        match before {
            Some(before) => {
                std::fs::write(&path, before).unwrap();
                let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(&path, private).unwrap();
            }
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    daemon.resume();
    let (registry, _) = found("data directory");
    assert!(
        registry["found"].to_string().contains("in use"),
        "{registry}"
    );
}

/// The user that owns nothing.
const NOBODY: u32 = 65_534;
