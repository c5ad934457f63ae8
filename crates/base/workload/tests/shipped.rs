//! The profiles that are shipped with Pilotlight, and how fast arrivals are generated.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pilot_workload::{Overrides, Profile};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../bench/edge-faas/profiles")
        .join(name)
}

#[test]
fn the_bursty_ramp_is_the_papers() {
    let profile = Profile::read(&shipped("bursty-ramp.toml")).unwrap();
    assert_eq!(profile.duration(), Duration::from_secs(201));
    assert_eq!(profile.arrivals().count(), 1042);
    let names: Vec<&str> = profile
        .phases()
        .iter()
        .map(|phase| phase.name.as_str())
        .collect();
    assert_eq!(
        names[..5],
        ["warm-up", "ramp", "spike", "cool-down", "drain"]
    );
}

#[test]
fn the_step_and_every_interval_of_the_sweep_are_read() {
    let step = Profile::read(&shipped("step.toml")).unwrap();
    assert_eq!(step.duration(), Duration::from_secs(201 - 16));
    for interval_s in [5, 10, 20, 35, 60, 120] {
        let overrides = Overrides {
            set: vec![format!("warm-up.duration_s={interval_s}")],
            ..Overrides::default()
        };
        let profile = Profile::read_with(&shipped("interval.toml"), &overrides).unwrap();
        assert_eq!(
            profile.duration(),
            Duration::from_secs(4 * (interval_s + 22))
        );
    }
}

#[test]
fn profiles_of_traces_ask_for_the_folder_of_the_data() {
    for name in ["azure2019-100.toml", "azure2019-busiest10.toml"] {
        let error = Profile::read(&shipped(name)).unwrap_err().to_string();
        assert!(error.contains("--data DIR"), "{error}");
    }
}

#[test]
fn the_profiles_of_the_documentation_are_understood() {
    let documentation = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/bench.md");
    let text = std::fs::read_to_string(documentation).unwrap();
    let examples: Vec<&str> = text
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let [phases, trace] = examples[..] else {
        panic!("{examples:?}");
    };
    let read = |text| Profile::parse(text, "example", "example", Path::new("."), &[]);
    assert_eq!(read(phases).unwrap().phases().len(), 8);
    // The profile is valid, but the trace itself is missing.
    let error = read(trace).unwrap_err().to_string();
    assert!(
        error.contains("100_inv.csv") && error.contains("--data DIR"),
        "{error}"
    );
}

/// The limit applies only to a release build: `cargo test --release -p pilot-workload -- --nocapture`.
#[test]
fn five_million_arrivals_a_second_are_made_on_one_core() {
    for text in [
        "[[phases]]\nduration_s = SECONDS\nrate = 1e6",
        "[[phases]]\nduration_s = SECONDS\nfrom = 0\nto = 2e6",
        "spacing = \"poisson\"\n[[phases]]\nduration_s = SECONDS\nrate = 1e6",
    ] {
        let text = text.replace("SECONDS", &SECONDS.to_string());
        let profile = Profile::parse(&text, "text", "text", Path::new("."), &[]).unwrap();
        rate(&text, &profile);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("x_inv.csv"),
        format!("HashFunction,HashApp,1\nf,a,{SECONDS}000000\n"),
    )
    .unwrap();
    let text = "[trace]\nformat = \"azure2019\"\npath = \"x_inv.csv\"";
    let profile = Profile::parse(text, "text", "text", folder.path(), &[]).unwrap();
    rate("azure2019", &profile);
}

fn rate(what: &str, profile: &Profile) {
    let began = Instant::now();
    let (count, last) = profile
        .arrivals()
        .fold((0_u32, Duration::ZERO), |(count, _), arrival| {
            (count + 1, arrival.at)
        });
    let per_second = f64::from(count) / began.elapsed().as_secs_f64();
    println!("{what:?}: {count} arrivals up to {last:?}, {per_second:.0}/s");
    assert!(
        cfg!(debug_assertions) || per_second > 5e6,
        "{what:?}: {per_second:.0}/s"
    );
}

/// Number of arrivals, in millions.
const SECONDS: u32 = if cfg!(debug_assertions) { 1 } else { 20 };
