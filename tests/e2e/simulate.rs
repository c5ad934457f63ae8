//! `pilot simulate`: the real binary with a profile in its own folder, without a daemon.

use std::process::{Command, Output};

use pilot_harness::Project;
use serde_json::{Value, json};

const BURST: &str = "\
repeat = 3

[[phases]]
name = \"quiet\"
duration_s = 20
rate = 1

[[phases]]
name = \"spike\"
duration_s = 5
rate = 30

[[phases]]
name = \"drain\"
duration_s = 1
rate = 0
";

fn simulate(arguments: &[&str]) -> Output {
    let project = Project::empty().file("burst.toml", BURST);
    Command::new(env!("CARGO_BIN_EXE_pilot"))
        .arg("simulate")
        .args(arguments)
        .current_dir(project.path())
        .env("PILOT_ENDPOINT", "http://127.0.0.1:1")
        .output()
        .unwrap()
}

#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn report(arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&printed(&arguments)).unwrap()
}

#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn simulate_compares_policies_at_several_start_costs() {
    let text = printed(&[
        "burst.toml",
        "--policy",
        "demand",
        "--policy",
        "static:40",
        "--start-ms",
        "2,900",
        "--service-ms",
        "500",
        "--lead-s",
        "5",
    ]);
    for said in [
        "burst, a start takes 2 ms: 510 invocations",
        "burst, a start takes 900 ms: 510 invocations",
        "static:40",
        "COLD-WAIT",
        "all 2 cells",
        "invocations/s",
    ] {
        assert!(text.contains(said), "no \"{said}\" in\n{text}");
    }
}

#[test]
fn simulate_prints_json_that_says_who_waited_and_what_it_cost() {
    let report = report(&[
        "burst.toml",
        "--policy",
        "demand",
        "--policy",
        "static:40",
        "--start-ms",
        "900",
        "--service-ms",
        "500",
        "--lead-s",
        "5",
        "--worker-mb",
        "64",
    ]);
    let cells = report["cells"].as_array().unwrap();
    let [demand, held] = &cells[..] else {
        panic!("{report}")
    };
    assert_eq!(demand["policy"], "demand");
    assert_eq!(demand["invocations"], 510);
    assert!(demand["cold"].as_u64().unwrap() > 0, "{demand}");
    assert!(demand["cold_wait_s"].as_f64().unwrap() >= 0.9, "{demand}");
    // Forty workers of 64 MB for 78 s, ready before the first request.
    assert_eq!(held["cold"], 0, "{held}");
    assert_eq!(held["cold_shared"], 0, "{held}");
    assert_eq!(held["gb_s"], 195.0, "{held}");
    assert_eq!(report["standings"].as_array().unwrap().len(), 2);
}

#[test]
fn simulate_replaces_values_in_all_profiles_or_in_one() {
    let arguments = [
        "burst.toml",
        "burst.toml@spike.rate=60",
        "--set",
        "repeat=1",
    ];
    let report = report(&[&arguments[..], &["--policy", "demand"]].concat());
    let told = |at: usize, key: &str| report["cells"][at][key].clone();
    assert_eq!(
        (told(0, "profile"), told(0, "invocations")),
        (json!("burst"), json!(170))
    );
    let second = (told(1, "profile"), told(1, "invocations"));
    assert_eq!(second, (json!("burst@spike.rate=60"), json!(320)));
}

#[test]
fn simulate_gives_the_same_every_time() {
    let cells = || {
        let arguments = ["burst.toml", "--start-ms", "100", "--service-ms", "50"];
        report(&arguments)["cells"].clone()
    };
    assert_eq!(cells(), cells());
}

#[test]
fn simulate_draws_measured_times_from_a_file() {
    let project = Project::empty()
        .file("burst.toml", BURST)
        .file("starts.json", "{\"samples_ms\": [7, 7, 7]}");
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["simulate", "burst.toml", "--policy", "demand", "--json"])
        .args(["--start-file", "starts.json"])
        .current_dir(project.path())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["cells"][0]["start"], "starts");
    assert_eq!(report["cells"][0]["wait"]["max_ms"], 7.0, "{report}");
}

#[test]
fn simulate_repeats_a_cell_with_ticks_at_other_moments() {
    let arguments = ["burst.toml", "--policy", "cusum", "--start-ms", "900"];
    let report = report(&[&arguments[..], &["--service-ms", "500", "--trials", "5"]].concat());
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells[4]["profile"], "burst#5");
    let waits = |cell: &Value| cell["cold_wait_s"].as_f64().unwrap();
    assert!(
        cells
            .iter()
            .any(|cell| (waits(cell) - waits(&cells[0])).abs() > 0.1),
        "{report}"
    );
}

#[test]
fn simulate_lets_starts_and_invocations_share_cpus() {
    let wait = |arguments: &[&str]| {
        let given = ["burst.toml", "--policy", "demand", "--service-ms", "50"];
        let report = report(&[&given, arguments].concat());
        report["cells"][0]["beyond_service"]["p99_ms"]
            .as_f64()
            .unwrap()
    };
    let (alone, shared) = (wait(&[]), wait(&["--cores", "1", "--service-cpu", "40"]));
    assert!(shared > alone + 5.0, "{alone} ms, on one core {shared} ms");
}

#[test]
fn simulate_refuses_what_it_cannot_do_and_says_what_would_do() {
    for (arguments, said) in [
        (
            &["burst.toml", "--policy", "statik:4"][..],
            "did you mean \"static\"?",
        ),
        (
            &["burst.toml", "--policy", "cusum:hh=4"],
            "did you mean \"h\"?",
        ),
        (&["nowhere.toml"], "nowhere.toml"),
        (
            &["burst.toml", "--start-ms", "1e9"],
            "1000000000 ms is out of range",
        ),
        (&["burst.toml", "--max", "0"], "--max"),
        (&["burst.toml", "--service-cpu", "3"], "--cores"),
        (&["burst.toml", "--start-file", "burst.toml"], "samples_ms"),
        (&[], "<PROFILE"),
    ] {
        let error = refused(arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}
