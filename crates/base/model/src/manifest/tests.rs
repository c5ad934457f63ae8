use super::*;
use crate::config::{Interface, Network, Reuse};
use proptest::prelude::*;

const FULL: &str = r#"
[functions.invert]
path = "."
runtime = "python3.11"
handler = "app.handler"
memory_mb = 256
timeout_s = 10
cpu = 1.0
network = "none"
environment = { LEVEL = "info" }
[functions.invert.scale]
min = 0
max = 64
parked = 0
idle_s = 60
"#;

fn problem_of(text: &str) -> String {
    Manifest::parse(text, "pilot.toml").unwrap_err().to_string()
}

#[test]
fn the_manifest_of_the_documentation_is_read() {
    let manifest = Manifest::parse(FULL, "pilot.toml").unwrap();
    let (name, spec) = manifest.functions.iter().next().unwrap();
    let config = spec.check(name).unwrap();
    assert_eq!(config.memory_bytes, 256 << 20);
    assert_eq!(config.network, Network::None);
    assert_eq!(config.interface, Interface::Event);
    assert_eq!(config.reuse, Reuse::Always);
    assert_eq!(config.cpu_milli, 1000);
    assert_eq!(config.scale.max, 64);
}

#[test]
fn an_unknown_key_names_the_nearest_known_one_and_its_line() {
    let text = "[functions.a]\nmemroy_mb = 1\n";
    let problem = problem_of(text);
    assert!(problem.starts_with("pilot.toml:2:"), "{problem}");
    assert!(problem.contains("did you mean 'memory_mb'?"), "{problem}");
}

#[test]
fn an_unknown_word_names_the_nearest_known_one() {
    let problem = problem_of("[functions.a]\nnetwork = \"outbond\"\n");
    assert!(problem.contains("functions.a.network"), "{problem}");
    assert!(problem.contains("did you mean \"outbound\"?"), "{problem}");
}

#[test]
fn values_out_of_range_name_key_and_range() {
    for (line, key) in [
        ("memory_mb = 1", "memory_mb"),
        ("timeout_s = 0", "timeout_s"),
        ("timeout_s = nan", "timeout_s"),
        ("cpu = -1.0", "cpu"),
        ("concurrency = 0", "concurrency"),
        ("scale = { min = 3, max = 2 }", "scale.min"),
        ("handler = \"app\"", "handler"),
        ("handler = \"../app.f\"", "handler"),
        ("runtime = \"pyhton\"", "runtime"),
        ("environment = { \"1A\" = \"\" }", "environment"),
    ] {
        let problem = problem_of(&format!("[functions.a]\n{line}\n"));
        assert!(
            problem.contains(&format!("functions.a.{key}: ")),
            "{problem}"
        );
    }
}

#[test]
fn once_and_concurrency_exclude_each_other() {
    let problem = problem_of("[functions.a]\nreuse = \"once\"\nconcurrency = 2\n");
    assert!(problem.contains("functions.a.concurrency"), "{problem}");
}

#[test]
fn a_manifest_without_functions_says_what_to_add() {
    assert!(problem_of("").contains("[functions.NAME]"));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}") {
        let _ = Manifest::parse(&text, "pilot.toml");
    }

    #[test]
    fn a_checked_config_is_within_its_bounds(
        memory_mb in any::<u64>(), timeout_s in any::<f64>(), cpu in any::<f64>(),
        min in any::<u32>(), max in any::<u32>(), parked in any::<u32>(), idle_s in any::<f64>(),
    ) {
        let spec = FunctionSpec {
            memory_mb: Some(memory_mb), timeout_s: Some(timeout_s), cpu: Some(cpu),
            scale: Some(crate::spec::ScaleSpec { min: Some(min), max: Some(max), parked: Some(parked), idle_s: Some(idle_s), ..Default::default() }),
            ..FunctionSpec::default()
        };
        if let Ok(config) = spec.check(&"f".parse().unwrap()) {
            prop_assert!(config.scale.min <= config.scale.max);
            prop_assert!(config.scale.parked <= config.scale.max);
            prop_assert!(config.cpu_milli >= 10);
            prop_assert!(config.timeout.as_secs_f64() > 0.0);
        }
    }
}
