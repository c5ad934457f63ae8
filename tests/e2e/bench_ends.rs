//! `pilot bench` when requests fail, and when it is interrupted: no figure is made of failures, and Ctrl-C prints what there is.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::{Daemon, DaemonOptions, Project, eventually};
use serde_json::{Value, json};

use crate::{ECHO, daemon_with, lab, plain};

/// Raises at every second call of a worker.
const EVERY_SECOND_FAILS: &str = "calls = 0\n\ndef handler(event, context):\n    global calls\n    calls += 1\n    \
                                  if calls % 2 == 0:\n        raise ValueError('as told')\n    return calls\n";

const STEADY: &str = "[[phases]]\nname = \"steady\"\nduration_s = 1\nrate = 20\n";

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn failures_are_counted_apart_and_are_in_no_figure() {
    // A start costs more than a wait, so one worker serves all.
    let daemon = lab(EVERY_SECOND_FAILS, json!({"scale": {"max": 1}}));
    let arguments = ["bench", "warm", "lab", "-n", "10", "--warm-up", "0"];
    let output = daemon.cli(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("lab: 5 answers"),
        "{}",
        stdout(&output)
    );
    assert!(
        stderr(&output).contains("5 of 10 responses were errors, and are in no figure")
            && stderr(&output).contains("as told"),
        "{}",
        stderr(&output)
    );
    let files = Project::empty().file("steady.toml", STEADY);
    let profile = files.path().join("steady.toml").display().to_string();
    let samples = files.path().join("samples.csv").display().to_string();
    let output = daemon.cli(&[
        "bench",
        "load",
        &profile,
        "--target",
        "lab",
        "--json",
        "--over-ms",
        "60000",
        "--samples",
        &samples,
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(
            "10 of 20 requests failed (10 × the function raised an error), and are in no figure"
        ),
        "{}",
        stderr(&output)
    );
    let load: Value = serde_json::from_slice(&output.stdout).unwrap();
    let total = &load["total"];
    assert_eq!(
        (
            &total["answered"],
            &total["failed"],
            &total["complete_us"]["count"]
        ),
        (&json!(20), &json!(10), &json!(10)),
        "{load}"
    );
    assert_eq!(
        total["over_ms"]["60000"], 10,
        "a failure is over every limit"
    );
    let lines = std::fs::read_to_string(samples).unwrap().lines().count();
    assert_eq!(lines, 21, "the samples have every request");
}

#[test]
fn refusals_alone_make_no_figure_at_all() {
    let daemon = daemon_with(DaemonOptions {
        config: Some("invoke_token = \"call\"\n".to_owned()),
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    for (arguments, requests) in [
        (
            &["bench", "warm", "lab", "-n", "6", "--warm-up", "0"][..],
            6,
        ),
        (&["bench", "cold", "lab", "-n", "3", "--warm-up", "0"], 3),
        (&["bench", "burst", "lab", "-n", "2", "-c", "4"], 8),
    ] {
        let output = daemon.cli(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        let wanted = format!(
            "{requests} of {requests} responses were errors ({requests} × 403), and are in no figure"
        );
        assert!(stderr(&output).contains(&wanted), "{}", stderr(&output));
    }
}

/// A `pilot bench` that is interrupted as soon as the function has been called this often.
fn interrupted(daemon: &Daemon, arguments: &[&str], calls: u64) -> (Output, Duration) {
    let before = invocations(daemon);
    let child = daemon
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it measures", || {
        (invocations(daemon) >= before + calls).then_some(())
    });
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let sent = Instant::now();
    kill(pid, Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    (output, sent.elapsed())
}

fn invocations(daemon: &Daemon) -> u64 {
    daemon.describe("lab")["totals"]["invocations"]
        .as_u64()
        .unwrap()
}

#[test]
fn ctrl_c_prints_the_figures_until_then() {
    let daemon = lab(
        "import time\n\ndef handler(event, context):\n    time.sleep(event.get('s', 0))\n",
        plain(),
    );
    let files = Project::empty().file("long.toml", STEADY.replace("= 1\n", "= 600\n"));
    let profile = files.path().join("long.toml").display().to_string();
    for arguments in [
        &["bench", "warm", "lab", "--seconds", "600"][..],
        &["bench", "warm", "lab", "--seconds", "600", "-c", "3"],
        &["bench", "cold", "lab", "-n", "100000"],
        &["bench", "burst", "lab", "-n", "100000", "-c", "3"],
        &["bench", "load", &profile, "--target", "lab"],
        &[
            "bench",
            "load",
            &profile,
            "--target",
            "lab",
            "--threads",
            "2",
        ],
    ] {
        let (output, took) = interrupted(&daemon, arguments, 30);
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(
            stdout(&output).contains("P99") && stdout(&output).contains("answer"),
            "{arguments:?}: {}",
            stdout(&output)
        );
        assert!(
            stderr(&output).contains("interrupted: these are the figures until then"),
            "{}",
            stderr(&output)
        );
        assert!(took < Duration::from_secs(10), "{arguments:?}: {took:?}");
    }
    // A request that runs for long does not delay the end.
    let slow = [
        "bench",
        "warm",
        "lab",
        "-d",
        "{\"s\": 20}",
        "--warm-up",
        "0",
        "--json",
    ];
    let child = daemon
        .command(&slow)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the request runs", || {
        (daemon.workers("lab", "busy") >= 1).then_some(())
    });
    let sent = Instant::now();
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        sent.elapsed() < Duration::from_secs(10),
        "{:?}",
        sent.elapsed()
    );
    let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&measured["interrupted"], &measured["complete_us"]["count"]),
        (&json!(true), &json!(0))
    );
}

#[test]
fn a_long_measurement_has_a_progress_bar_on_a_terminal_only() {
    let daemon = lab(ECHO, plain());
    let arguments = ["bench", "warm", "lab", "--seconds", "2.5"];
    let plain = daemon.cli(&arguments);
    assert_eq!(stderr(&plain), "");
    // script(1) gives the command a terminal.
    let line = format!("{} {}", env!("CARGO_BIN_EXE_pilot"), arguments.join(" "));
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("PILOT_ENDPOINT", daemon.control_endpoint())
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(
        stdout(&output).contains("Ctrl-C stops and prints what there is"),
        "{}",
        stdout(&output)
    );
}
