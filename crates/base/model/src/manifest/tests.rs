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
fn a_value_of_the_wrong_type_names_line_function_key_and_what_would_do() {
    for (line, wanted) in [
        (
            "memory_mb = \"much\"",
            "functions.a.memory_mb: is \"much\", must be a whole number",
        ),
        (
            "memory_mb = -1",
            "functions.a.memory_mb: is -1, must be a whole number, not below 0",
        ),
        ("memory_mb = 1.5", "functions.a.memory_mb: is 1.5, must be"),
        (
            "timeout_s = true",
            "functions.a.timeout_s: is true, must be a number",
        ),
        (
            "runtime = 3.11",
            "functions.a.runtime: is 3.11, must be a text in quotes",
        ),
        (
            "handler = [\"app\"]",
            "functions.a.handler: is an array, must be a text in quotes",
        ),
        (
            "environment = { LEVEL = 5 }",
            "functions.a.environment.LEVEL: is 5, must be a text in quotes",
        ),
        (
            "environment = \"x\"",
            "functions.a.environment: is \"x\", must be a table",
        ),
        (
            "scale = 3",
            "functions.a.scale: is 3, must be a table of keys",
        ),
        (
            "scale.max = \"all\"",
            "functions.a.scale.max: is \"all\", must be a whole number",
        ),
    ] {
        let problem = problem_of(&format!("[functions.a]\n{line}\n"));
        assert!(
            problem.starts_with(&format!("pilot.toml:2: {wanted}")),
            "{line}: {problem}"
        );
    }
    let problem = problem_of("functions.a = 1\n");
    assert!(
        problem.starts_with("pilot.toml:1: functions.a: is 1, must be a table of keys"),
        "{problem}"
    );
}

#[test]
fn a_value_out_of_range_names_its_line() {
    for (text, line) in [
        ("[functions.a]\n\nmemory_mb = 1\n", 3),
        ("[functions.a.scale]\nidle_s = 1\nmax = 0\n", 3),
        ("[functions.a]\nscale = { min = 3, max = 2 }\n", 2),
        ("[functions.\"a b\"]\n", 1),
        ("\n[functions.a]\nenvironment = { \"1A\" = \"\" }\n", 3),
    ] {
        let problem = problem_of(text);
        assert!(
            problem.starts_with(&format!("pilot.toml:{line}: ")),
            "{text:?}: {problem}"
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
