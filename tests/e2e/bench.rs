//! `pilot bench`: its measurements of a real function, and its errors.

use pilot_harness::{Daemon, Project};
use serde_json::Value;

use crate::{ECHO, lab, plain};

const SLEEPS: &str = "import time\n\n\ndef handler(event, context):\n    time.sleep(event['ms'] / 1000)\n    return 1\n";

fn json(daemon: &Daemon, arguments: &[&str]) -> Value {
    serde_json::from_str(&daemon.cli_ok(arguments)).unwrap()
}

/// The message and the exit code of a refused command.
fn refused(daemon: &Daemon, arguments: &[&str]) -> (String, i32) {
    let output = daemon.cli(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?}: {said}");
    (said, output.status.code().unwrap())
}

fn whole(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no count"))
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn cold_finds_no_worker_and_has_the_phases_of_a_start() {
    let daemon = lab(ECHO, plain());
    let cold = json(
        &daemon,
        &[
            "bench",
            "cold",
            "lab",
            "--count",
            "5",
            "--json",
            "--samples",
        ],
    );
    assert_eq!(cold["start"]["cold"], 5, "{cold}");
    assert_eq!(
        cold["samples"]["first_byte_us"].as_array().unwrap().len(),
        5
    );
    let phases = cold["phases"].as_array().unwrap();
    for name in ["fork", "handler", "total"] {
        assert!(
            phases.iter().any(|phase| phase["name"] == name),
            "{name}: {cold}"
        );
    }
    let table = daemon.cli_ok(&["bench", "cold", "lab", "--count", "2"]);
    assert!(
        table.contains("first byte") && table.contains("2 cold"),
        "{table}"
    );
}

#[test]
fn warm_finds_workers_and_any_other_server_can_be_measured() {
    let daemon = lab(ECHO, plain());
    let warm = json(&daemon, &["bench", "warm", "lab", "-n", "20", "--json"]);
    assert_eq!(warm["start"], serde_json::json!({"warm": 20}), "{warm}");
    assert_eq!(warm["status"]["200"], 20);
    let url = format!("{}/healthz", daemon.endpoint());
    let other = json(
        &daemon,
        &[
            "bench", "warm", "--url", &url, "-n", "20", "-c", "4", "--json",
        ],
    );
    assert_eq!(other["status"]["200"], 20, "{other}");
    assert_eq!(other["connections"], 4);
}

#[test]
fn a_burst_is_timed_until_its_last_answer() {
    let daemon = lab(SLEEPS, plain());
    let arguments = [
        "bench",
        "burst",
        "lab",
        "-n",
        "2",
        "-c",
        "8",
        "-d",
        "{\"ms\": 50}",
        "--json",
    ];
    let burst = json(&daemon, &arguments);
    assert_eq!(burst["round_us"]["count"], 2, "{burst}");
    assert_eq!(burst["status"]["200"], 16);
    assert!(number(&burst["round_us"]["min"]) >= 50_000.0, "{burst}");
}

#[test]
fn a_function_that_raises_is_told_with_its_exception() {
    let daemon = lab(
        "def handler(event, context):\n    raise ValueError('as told')\n",
        plain(),
    );
    let (said, code) = refused(&daemon, &["bench", "warm", "lab", "-n", "3"]);
    assert!(
        said.contains("3 of 3 responses were errors") && said.contains("as told"),
        "{said}"
    );
    assert_eq!(code, 1);
}

#[test]
fn bench_names_a_missing_function_a_missing_server_and_a_wrong_option() {
    let daemon = lab(ECHO, plain());
    let (said, _) = refused(&daemon, &["bench", "cold", "labb"]);
    assert!(said.contains("did you mean 'lab'?"), "{said}");
    let (said, _) = refused(&daemon, &["bench", "warm", "--url", "http://127.0.0.1:1/"]);
    assert!(said.contains("cannot connect to 127.0.0.1:1"), "{said}");
    for (arguments, what) in [
        (&["bench", "warm"][..], "--url"),
        (&["bench", "warm", "--url", "ftp://a"], "http://"),
        (&["bench", "cold", "lab", "--count", "0"], "--count"),
        (&["bench", "warm", "lab", "--seconds", "never"], "seconds"),
        (&["bench", "cold", "lab", "--method", "GET"], "Invoke API"),
        (
            &["bench", "cold", "lab", "--file", "/nowhere/event"],
            "/nowhere/event",
        ),
    ] {
        let (said, code) = refused(&daemon, arguments);
        assert!(said.contains(what), "{arguments:?}: {said}");
        assert_eq!(code, 2, "{arguments:?}: {said}");
    }
    let gone = ["bench", "cold", "lab", "--endpoint", "http://127.0.0.1:1"];
    assert_eq!(refused(&daemon, &gone).1, 3);
}

/// Two seconds: 20 requests a second, then a ramp up to 60.
const PROFILE: &str = "[[phases]]\nname = \"steady\"\nduration_s = 1\nrate = 20\n\n\
                       [[phases]]\nname = \"ramp\"\nduration_s = 1\nfrom = 20\nto = 60\n";

#[test]
fn load_sends_what_the_profile_says_and_tells_of_every_request() {
    let daemon = lab(ECHO, plain());
    let files = Project::empty().file("two.toml", PROFILE);
    let profile = files.path().join("two.toml").display().to_string();
    let samples = files.path().join("samples.csv").display().to_string();
    let load = json(
        &daemon,
        &[
            "bench",
            "load",
            &profile,
            "--target",
            "lab",
            "--samples",
            &samples,
            "--over-ms",
            "20000",
            "--json",
        ],
    );
    let total = &load["total"];
    assert_eq!(
        (&total["requests"], &total["answered"]),
        (&60.into(), &60.into()),
        "{load}"
    );
    assert_eq!(total["status"]["200"], 60);
    assert_eq!(total["over_ms"]["20000"], 0);
    assert_eq!(load["phases"][0]["requests"], 20);
    assert_eq!(load["phases"][1]["requests"], 40);
    let starts = total["start"].as_object().unwrap();
    let counted: u64 = starts.values().map(|times| whole(&times["count"])).sum();
    assert_eq!(counted, 60, "each answer says how it started: {load}");
    assert!(
        whole(&starts["cold"]["count"]) >= 1,
        "the first finds no worker: {load}"
    );

    let text = std::fs::read_to_string(&samples).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 61);
    for (column, name) in [
        "intended_s",
        "taken_up_s",
        "sent_s",
        "first_byte_s",
        "done_s",
        "status",
        "start",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(lines[0][column + 3], *name);
    }
    for line in &lines[1..] {
        let times: Vec<f64> = line[3..8]
            .iter()
            .map(|cell| cell.parse().unwrap())
            .collect();
        assert!(times.is_sorted(), "{line:?}");
        assert_eq!(line[8], "200");
    }
    assert_eq!(
        lines[2][3], "0.050000",
        "evenly spaced, by the profile's clock"
    );
}

#[test]
fn load_keeps_pace_while_the_handler_sleeps() {
    let daemon = lab(SLEEPS, plain());
    let files = Project::empty().file(
        "one.toml",
        "[[phases]]\nname = \"only\"\nduration_s = 1\nrate = 40\n",
    );
    let profile = files.path().join("one.toml").display().to_string();
    let samples = files.path().join("samples.csv").display().to_string();
    let load = json(
        &daemon,
        &[
            "bench",
            "load",
            &profile,
            "--target",
            "lab",
            "--body-text",
            "{\"ms\": 700}",
            "--samples",
            &samples,
            "--json",
        ],
    );
    assert_eq!(load["total"]["answered"], 40, "{load}");
    assert!(
        number(&load["total"]["complete_us"]["min"]) >= 700_000.0,
        "{load}"
    );
    // One after another, the requests would take 28 s. The last one is sent before the first one is answered, unless the machine
    // stands still for half a second.
    let text = std::fs::read_to_string(&samples).unwrap();
    let column = |at: usize| -> Vec<f64> {
        let cells = text
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(at).unwrap().parse().unwrap());
        cells.collect()
    };
    let (intended, sent, done) = (column(3), column(5), column(7));
    let waiting = intended.iter().filter(|at| **at < done[0]).count();
    assert!(
        waiting >= 25,
        "{waiting} were meant to be sent before the first answer"
    );
    let late = sent
        .iter()
        .zip(&intended)
        .filter(|(sent, at)| *sent - *at > 0.5)
        .count();
    assert_eq!(late, 0, "{text}");
}

#[test]
fn load_names_what_is_wrong_with_a_profile_or_its_target() {
    let daemon = lab(ECHO, plain());
    let files = Project::empty()
        .file("two.toml", PROFILE)
        .file("wrong.toml", PROFILE.replace("rate = 20", "rat = 20"))
        .file(
            "none.toml",
            "[trace]\nformat = \"azure2019\"\npath = \"a_inv.csv\"\n",
        );
    let path = |name: &str| files.path().join(name).display().to_string();
    let (two, wrong, none, absent) = (
        path("two.toml"),
        path("wrong.toml"),
        path("none.toml"),
        path("absent.toml"),
    );
    for (arguments, what) in [
        (
            &["bench", "load", &wrong, "--target", "lab"][..],
            "wrong.toml:4: unknown key 'rat', did you mean 'rate'?",
        ),
        (
            &["bench", "load", &absent, "--target", "lab"],
            "absent.toml: No such file",
        ),
        (&["bench", "load", &none, "--target", "lab"], "--data DIR"),
        (
            &[
                "bench",
                "load",
                &two,
                "--target",
                "lab",
                "--set",
                "rampp.rate=1",
            ],
            "did you mean 'ramp'?",
        ),
        (&["bench", "load", &two, "--target", "a b"], "--target"),
        (
            &[
                "bench",
                "load",
                &two,
                "--target",
                "lab",
                "--body-text",
                "{service_ms}",
            ],
            "does not say how long",
        ),
        (
            &[
                "bench",
                "load",
                &two,
                "--target",
                "lab",
                "--samples",
                "/nowhere/s.csv",
            ],
            "/nowhere/s.csv",
        ),
        (&["bench", "load", &two], "--target"),
    ] {
        let (said, code) = refused(&daemon, arguments);
        assert!(said.contains(what), "{arguments:?}: {said}");
        assert_eq!(code, 2, "{arguments:?}: {said}");
    }
    let (said, _) = refused(&daemon, &["bench", "load", &two, "--target", "labb"]);
    assert!(said.contains("did you mean 'lab'?"), "{said}");
    let (said, _) = refused(
        &daemon,
        &["bench", "load", &two, "--target", "http://127.0.0.1:1/"],
    );
    assert!(said.contains("is a server listening there?"), "{said}");
}

#[test]
fn load_gives_each_function_of_a_trace_its_own_target_and_time() {
    let daemon = lab(SLEEPS, plain());
    let files = Project::empty()
        .file("t_inv.csv", "HashFunction,HashApp,1\naa,x,4\nbb,y,2\n")
        .file(
            "t_run.csv",
            "HashFunction,percentile_Average_0,percentile_Average_100\naa,1,1\nbb,60,60\n",
        )
        .file(
            "trace.toml",
            "time_scale = 60.0\n[trace]\nformat = \"azure2019\"\npath = \"t_inv.csv\"\n",
        );
    daemon.upload_code("f0", &plain(), SLEEPS);
    daemon.upload_code("f1", &plain(), SLEEPS);
    let profile = files.path().join("trace.toml").display().to_string();
    let load = json(
        &daemon,
        &[
            "bench",
            "load",
            &profile,
            "--target",
            "f{index}",
            "--body-text",
            "{\"ms\": {service_ms}}",
            "--threads",
            "2",
            "--json",
        ],
    );
    assert_eq!(load["total"]["status"]["200"], 6, "{load}");
    let functions = load["functions"].as_array().unwrap();
    assert_eq!(
        (&functions[0]["target"], &functions[0]["requests"]),
        (&"f0".into(), &4.into())
    );
    assert_eq!(
        (&functions[1]["name"], &functions[1]["requests"]),
        (&"bb".into(), &2.into())
    );
    assert!(
        number(&functions[1]["complete_us"]["min"]) >= 60_000.0,
        "{load}"
    );
}
