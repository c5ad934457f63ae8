use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::Arrival;

fn parse_with(text: &str, set: &[&str]) -> Result<Profile, WorkloadError> {
    let set: Vec<String> = set.iter().map(|setting| (*setting).to_owned()).collect();
    Profile::parse(text, "p.toml", "p", Path::new("."), &set)
}

fn parse(text: &str) -> Profile {
    parse_with(text, &[]).unwrap()
}

fn problem(text: &str) -> String {
    parse_with(text, &[]).unwrap_err().to_string()
}

fn seconds(profile: &Profile) -> Vec<f64> {
    profile
        .arrivals()
        .map(|arrival| arrival.at.as_secs_f64())
        .collect()
}

/// Arrivals from one time (s) to another, the end not included.
fn between(arrivals: &[f64], from: f64, to: f64) -> usize {
    arrivals
        .iter()
        .filter(|at| (from..to).contains(*at))
        .count()
}

const BURSTY: &str = r#"
    repeat = 4
    [[phases]]
    name = "warm-up"
    duration_s = [8, 35, 35, 35]
    rate = 2
    [[phases]]
    name = "ramp"
    duration_s = 4
    from = 2
    to = 20
    [[phases]]
    name = "drain"
    duration_s = 8
    rate = 0
"#;

#[test]
fn a_constant_rate_is_spaced_evenly_from_its_first_instant() {
    let profile = parse("[[phases]]\nduration_s = 2\nrate = 4");
    assert_eq!(
        seconds(&profile),
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    );
    assert_eq!(profile.expected(), 8.0);
    assert_eq!(profile.duration(), Duration::from_secs(2));
}

#[test]
fn a_ramp_from_nothing_reaches_each_whole_number_where_its_integral_does() {
    // The integral of 2t is t²: arrivals at √k.
    let profile = parse("[[phases]]\nduration_s = 3\nfrom = 0\nto = 6");
    for (k, at) in seconds(&profile).iter().enumerate() {
        assert!((at - (k as f64).sqrt()).abs() < 1e-6, "{k}: {at}");
    }
    assert_eq!(profile.arrivals().count(), 9);
    let falling = parse("[[phases]]\nduration_s = 3\nfrom = 6\nto = 0");
    assert_eq!(falling.arrivals().count(), 9);
}

#[test]
fn a_list_of_durations_has_one_for_each_repetition() {
    let profile = parse(BURSTY);
    let warm_ups: Vec<Duration> = profile
        .phases()
        .iter()
        .filter(|phase| phase.name == "warm-up")
        .map(|phase| phase.end - phase.start)
        .collect();
    assert_eq!(warm_ups, [8, 35, 35, 35].map(Duration::from_secs));
    assert_eq!(profile.duration(), Duration::from_secs(8 + 3 * 35 + 4 * 12));
    let arrivals = seconds(&profile);
    assert_eq!(between(&arrivals, 0.0, 8.0), 16);
    assert_eq!(between(&arrivals, 8.0, 12.0), 44);
    assert_eq!(between(&arrivals, 12.0, 20.0), 0);
    assert!(
        problem(&BURSTY.replace("repeat = 4", "repeat = 3"))
            .contains("p.toml:3: duration_s: has 4 numbers")
    );
}

#[test]
fn twice_as_fast_is_the_same_arrivals_in_half_the_time() {
    let (slow, fast) = (
        parse(BURSTY),
        parse_with(BURSTY, &["time_scale=2"]).unwrap(),
    );
    let (slow, fast) = (seconds(&slow), seconds(&fast));
    assert_eq!(slow.len(), fast.len());
    for (slow, fast) in slow.iter().zip(&fast) {
        assert!((slow / 2.0 - fast).abs() < 1e-6, "{slow} {fast}");
    }
}

#[test]
fn a_setting_replaces_a_value_of_the_file_or_of_every_phase_of_a_name() {
    let profile = parse_with(
        BURSTY,
        &["warm-up.duration_s=60", "repeat = 2", "spacing=poisson"],
    )
    .unwrap();
    assert_eq!(profile.duration(), Duration::from_secs(2 * 72));
    for (setting, what) in [
        ("warmup.duration_s=60", "did you mean 'warm-up'?"),
        ("warm-up.duration=60", "did you mean 'duration_s'?"),
        ("spacing=uneven", "even"),
        ("trace.minutes=3", "has no [trace]"),
        ("time_scale", "KEY=VALUE"),
        ("seed=many", "seed=many"),
    ] {
        let error = parse_with(BURSTY, &[setting]).unwrap_err().to_string();
        assert!(error.contains(what), "{setting}: {error}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_what_would_do() {
    for (text, expected) in [
        (
            "",
            "p.toml: phases: there are none, and no [trace]; add [[phases]] with duration_s and rate",
        ),
        (
            "\n[[phases]]\nrat = 1",
            "p.toml:3: unknown key 'rat', did you mean 'rate'?",
        ),
        (
            "\n\n[[phases]]\nrate = 1",
            "p.toml:3: duration_s: is missing; give it in seconds",
        ),
        (
            "[[phases]]\nduration_s = 1",
            "p.toml:1: rate: is missing; give rate, or from and to",
        ),
        (
            "[[phases]]\nduration_s = 1\nfrom = 1",
            "p.toml:1: from: and to come together",
        ),
        (
            "[[phases]]\nduration_s = 1\nfrom = 1\nrate = 1",
            "p.toml:1: rate: does not go with from and to",
        ),
        (
            "[[phases]]\nduration_s = 1\nrate = -1",
            "p.toml:1: rate: -1 is not between 0 and",
        ),
        (
            "[[phases]]\nduration_s = 1\nrate = nan",
            "p.toml:1: rate: NaN is not between",
        ),
        (
            "[[phases]]\nduration_s = \"1 s\"\nrate = 1",
            "p.toml:2: duration_s: must be a number of seconds, or a list",
        ),
        (
            "time_scale = 0\n[[phases]]\nduration_s = 1\nrate = 1",
            "p.toml: time_scale: must be above 0",
        ),
        (
            "repeat = 0\n[[phases]]\nduration_s = 1\nrate = 1",
            "p.toml: repeat: must be 1 or more",
        ),
        (
            "[trace]\nformat = \"azure2020\"",
            "p.toml:2: format: \"azure2020\" is not valid, must be \"azure2019\" or \"azure2021\"",
        ),
        (
            "seed = \"many\"\n[[phases]]\nduration_s = 1\nrate = 1",
            "p.toml:1: seed: is \"many\", must be a whole number, not below 0",
        ),
        (
            "phases = [{ duration_s = 1, rate = true }]",
            "p.toml:1: rate: is true, must be a number",
        ),
        (
            "[trace]\nformat = \"azure2019\"",
            "p.toml:1: trace.path: is missing",
        ),
        (
            "repeat = 2\n[trace]\nformat = \"azure2019\"",
            "p.toml: repeat: does not go with [trace]",
        ),
        (
            "[trace]\nformat = \"azure2019\"\npath = \"nowhere.csv\"",
            "nowhere.csv: No such file or directory (os error 2); name the folder that has the trace's files with --data DIR",
        ),
    ] {
        let problem = problem(text);
        assert!(problem.contains(expected), "{text:?}: {problem}");
    }
    let absent = Profile::read(Path::new("/nowhere/p.toml"))
        .unwrap_err()
        .to_string();
    assert!(absent.starts_with("/nowhere/p.toml: "), "{absent}");
}

#[test]
fn a_poisson_process_has_the_mean_and_the_variance_of_one() {
    let text = "spacing = \"poisson\"\n[[phases]]\nduration_s = 20000\nrate = 5";
    let mut counts = vec![0.0_f64; 20_000];
    for arrival in parse(text).arrivals() {
        let second = usize::try_from(arrival.at.as_secs()).unwrap();
        counts[second.min(19_999)] += 1.0;
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts
        .iter()
        .map(|count| (count - mean).powi(2))
        .sum::<f64>()
        / counts.len() as f64;
    // Standard errors: 0.016 and 0.053.
    assert!((mean - 5.0).abs() < 0.08, "{mean}");
    assert!((variance - 5.0).abs() < 0.3, "{variance}");
}

#[test]
fn the_same_seed_gives_the_same_arrivals_and_another_seed_others() {
    let text = "spacing = \"poisson\"\n[[phases]]\nduration_s = 50\nrate = 5";
    let first: Vec<Arrival> = parse(text).arrivals().collect();
    assert_eq!(first, parse(text).arrivals().collect::<Vec<_>>());
    let other: Vec<Arrival> = parse_with(text, &["seed=2"]).unwrap().arrivals().collect();
    assert_ne!(first, other);
}

fn phases() -> impl Strategy<Value = Vec<(f64, f64, f64)>> {
    let rate = prop_oneof![Just(0.0), 0.0..200.0_f64];
    proptest::collection::vec((0.0..20.0_f64, rate.clone(), rate), 1..8)
}

fn text_of(phases: &[(f64, f64, f64)]) -> String {
    let tables = phases.iter().map(|(length, from, to)| {
        format!("[[phases]]\nduration_s = {length:?}\nfrom = {from:?}\nto = {to:?}\n")
    });
    tables.collect()
}

proptest! {
    #[test]
    fn arrivals_are_sorted_and_lie_within_the_run(phases in phases(), poisson: bool, scale in 0.1..10.0_f64) {
        let spacing = if poisson { "poisson" } else { "even" };
        let text = format!("spacing = \"{spacing}\"\ntime_scale = {scale:?}\n{}", text_of(&phases));
        let profile = parse(&text);
        let mut before = Duration::ZERO;
        for arrival in profile.arrivals() {
            prop_assert!(arrival.at >= before && arrival.at <= profile.duration());
            before = arrival.at;
        }
    }

    #[test]
    fn evenly_spaced_each_phase_has_its_integral_of_the_rate_within_one(phases in phases()) {
        let profile = parse(&text_of(&phases));
        let arrivals: Vec<Duration> = profile.arrivals().map(|arrival| arrival.at).collect();
        for ((length, from, to), phase) in phases.iter().zip(profile.phases()) {
            let expected = length * (from + to) / 2.0;
            let found = arrivals.iter().filter(|at| (phase.start..phase.end).contains(*at)).count();
            // An arrival exactly on the border may be rounded to either side.
            prop_assert!((found as f64 - expected).abs() <= 1.0 + 1e-6, "{found} of {expected}");
        }
    }

    #[test]
    fn poisson_totals_stay_within_six_standard_deviations(rate in 1.0..50.0_f64, seed: u32) {
        let text = format!("seed = {seed}\nspacing = \"poisson\"\n[[phases]]\nduration_s = 20\nrate = {rate:?}");
        let profile = parse(&text);
        let off = profile.arrivals().count() as f64 - profile.expected();
        prop_assert!(off.abs() <= 6.0 * profile.expected().sqrt() + 3.0, "{off} of {}", profile.expected());
    }

    #[test]
    fn any_text_is_a_profile_or_an_error(text in "[a-z_=\\[\\]\"0-9.\n -]{0,80}") {
        let _ = parse_with(&text, &[]);
    }
}
