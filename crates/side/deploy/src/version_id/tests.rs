use std::sync::LazyLock;

use pilot_model::FunctionName;
use pilot_model::asynchronous::AsyncSpec;
use pilot_model::policy::PolicySpec;
use pilot_model::scale::ScaleSpec;
use pilot_model::spec::FunctionSpec;
use proptest::prelude::*;
use serde::Deserialize;

use super::canonical::canonical;
use super::*;

fn check(spec: &FunctionSpec) -> FunctionConfig {
    spec.check(&"lab".parse().unwrap()).unwrap()
}

/// Every key of a Python function written out with its default.
fn defaults() -> FunctionSpec {
    FunctionSpec {
        runtime: Some("python".to_owned()),
        handler: Some("app.handler".to_owned()),
        interface: Some("event".to_owned()),
        memory_mb: Some(256),
        timeout_s: Some(30.0),
        cpu: Some(1.0),
        network: Some("none".to_owned()),
        template: Some("on".to_owned()),
        reuse: Some("always".to_owned()),
        concurrency: Some(1),
        owner: Some("lab".to_owned()),
        scale: Some(ScaleSpec {
            min: Some(0),
            max: Some(64),
            spare: Some(0),
            idle_s: Some(60.0),
            policy: Some(PolicySpec::Line("demand".to_owned())),
            max_wait_s: None,
            reserved: Some(0),
        }),
        asynchronous: Some(AsyncSpec {
            retries: Some(2),
            max_age_s: Some(21_600.0),
            retry_wait_s: Some(60.0),
            dead_letter: Some(true),
            ..AsyncSpec::default()
        }),
        ..FunctionSpec::default()
    }
}

/// Specifications with some of the keys; a small range of values, so that two of them are often alike.
fn specs() -> impl Strategy<Value = FunctionSpec> {
    fn word(words: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
        proptest::option::of(proptest::sample::select(words).prop_map(str::to_owned))
    }
    let scale = (
        proptest::option::of(0_u32..2),
        proptest::option::of(63_u32..65),
        proptest::option::of(0_u32..2),
        proptest::option::of(proptest::sample::select(&[60.0, 60.5][..])),
        word(&[
            "demand",
            "cusum",
            "cusum:h=8",
            "cusum:h=7",
            "static:15",
            "static:2",
            "smoothing-markov:reading=literal",
        ]),
        proptest::option::of(proptest::sample::select(&[1.0, 1.5][..])),
        proptest::option::of(0_u32..2),
    )
        .prop_map(
            |(min, max, spare, idle_s, policy, max_wait_s, reserved)| ScaleSpec {
                min,
                max,
                spare,
                idle_s,
                policy: policy.map(PolicySpec::Line),
                max_wait_s,
                reserved,
            },
        );
    (
        word(&["python", "python3.11"]),
        word(&["app.handler", "app.app", "app.other"]),
        word(&["event", "asgi", "wsgi"]),
        proptest::option::of(255_u64..258),
        proptest::option::of(proptest::sample::select(&[30.0, 30.001][..])),
        proptest::option::of(proptest::sample::select(&[1.0, 0.999][..])),
        word(&["none", "outbound", "host"]),
        proptest::collection::btree_map("[AB]", "[xy]?", 0..2),
        (word(&["on", "off"]), word(&["always", "once"])),
        proptest::option::of(1_u32..3),
        proptest::option::of(scale),
        word(&["lab", "team"]),
    )
        .prop_map(
            |(
                runtime,
                handler,
                interface,
                memory_mb,
                timeout_s,
                cpu,
                network,
                environment,
                (template, reuse),
                concurrency,
                scale,
                owner,
            )| FunctionSpec {
                concurrency: concurrency.filter(|_| reuse.as_deref() != Some("once")),
                runtime,
                handler,
                interface,
                memory_mb,
                timeout_s,
                cpu,
                network,
                environment,
                template,
                reuse,
                scale,
                owner,
                ..FunctionSpec::default()
            },
        )
}

/// The specification with every missing key written out with its default.
fn written_out(spec: &FunctionSpec) -> FunctionSpec {
    let default = defaults();
    let applies_to_app = spec
        .interface
        .as_deref()
        .is_some_and(|word| word != "event");
    let handler = if applies_to_app {
        Some("app.app".to_owned())
    } else {
        default.handler
    };
    let scale = spec.scale.clone().unwrap_or_default();
    let default_scale = default.scale.unwrap_or_default();
    FunctionSpec {
        runtime: spec.runtime.clone().or(default.runtime),
        handler: spec.handler.clone().or(handler),
        interface: spec.interface.clone().or(default.interface),
        memory_mb: spec.memory_mb.or(default.memory_mb),
        timeout_s: spec.timeout_s.or(default.timeout_s),
        cpu: spec.cpu.or(default.cpu),
        network: spec.network.clone().or(default.network),
        template: spec.template.clone().or(default.template),
        reuse: spec.reuse.clone().or(default.reuse),
        concurrency: spec.concurrency.or(default.concurrency),
        owner: spec.owner.clone().or(default.owner),
        environment: spec.environment.clone(),
        scale: Some(ScaleSpec {
            min: scale.min.or(default_scale.min),
            max: scale.max.or(default_scale.max),
            spare: scale.spare.or(default_scale.spare),
            idle_s: scale.idle_s.or(default_scale.idle_s),
            policy: scale.policy.or(default_scale.policy),
            max_wait_s: scale.max_wait_s.or(default_scale.max_wait_s),
            reserved: scale.reserved.or(default_scale.reserved),
        }),
        ..FunctionSpec::default()
    }
}

#[test]
fn a_function_that_configures_nothing_has_its_name_alone() {
    let form = r#"{"name":"lab"}"#;
    assert_eq!(canonical(&check(&FunctionSpec::default())), form);
    assert_eq!(canonical(&check(&defaults())), form);
}

#[test]
fn a_configuration_from_before_a_key_existed_has_the_same_form() {
    let config = check(&FunctionSpec::default());
    let mut json = serde_json::to_value(&config).unwrap();
    json.as_object_mut().unwrap().remove("owner");
    json["scale"].as_object_mut().unwrap().remove("policy");
    let older: FunctionConfig = serde_json::from_value(json).unwrap();
    assert_eq!(canonical(&older), canonical(&config));
}

proptest! {
    #[test]
    fn a_key_written_with_its_default_changes_nothing(spec in specs()) {
        prop_assert_eq!(canonical(&check(&spec)), canonical(&check(&written_out(&spec))));
    }

    #[test]
    fn forms_are_equal_exactly_when_configurations_are(one in specs(), other in specs()) {
        let (one, other) = (check(&one), check(&other));
        prop_assert_eq!(one == other, canonical(&one) == canonical(&other));
    }

    /// Random pairs differ in many keys: here in one.
    #[test]
    fn one_key_with_another_value_changes_the_form(spec in specs(), other in specs(), key in 0_usize..18) {
        let mut changed = spec.clone();
        let mut scale = spec.scale.clone().unwrap_or_default();
        let other_scale = other.scale.clone().unwrap_or_default();
        match key {
            0 => changed.runtime = other.runtime,
            1 => changed.handler = other.handler,
            2 => changed.interface = other.interface,
            3 => changed.memory_mb = other.memory_mb,
            4 => changed.timeout_s = other.timeout_s,
            5 => changed.cpu = other.cpu,
            6 => changed.network = other.network,
            7 => changed.environment = other.environment,
            8 => changed.template = other.template,
            9 => changed.owner = other.owner,
            10 => changed.concurrency = other.concurrency.filter(|_| spec.reuse.as_deref() != Some("once")),
            11 => scale.min = other_scale.min,
            12 => scale.max = other_scale.max,
            13 => scale.spare = other_scale.spare,
            14 => scale.idle_s = other_scale.idle_s,
            15 => scale.max_wait_s = other_scale.max_wait_s,
            16 => scale.reserved = other_scale.reserved,
            _ => scale.policy = other_scale.policy,
        }
        changed.scale = Some(scale);
        let (one, other) = (check(&spec), check(&changed));
        prop_assert_eq!(one == other, canonical(&one) == canonical(&other));
    }
}

/// A row of `golden.json`: a configuration, its form and its id.
#[derive(Deserialize)]
struct Golden {
    name: FunctionName,
    spec: FunctionSpec,
    form: serde_json::Value,
    id: String,
}

#[test]
fn the_golden_configurations_keep_their_forms_and_ids() {
    let golden: Vec<Golden> = serde_json::from_str(include_str!("golden.json")).unwrap();
    for Golden {
        name,
        spec,
        form,
        id,
    } in golden
    {
        let config = spec.check(&name).unwrap();
        assert_eq!(canonical(&config), form.to_string(), "{name}");
        assert_eq!(made_of(&config).id().as_str(), id, "{name}");
    }
}

fn made_of(config: &FunctionConfig) -> MadeOf<'_> {
    static ENVIRONMENT: LazyLock<EnvironmentId> =
        LazyLock::new(|| EnvironmentId::from_hex("0123456789abcdef"));
    MadeOf {
        config,
        code_hash: "code",
        environment: &ENVIRONMENT,
    }
}

#[test]
fn code_and_environment_are_part_of_the_id() {
    let config = check(&FunctionSpec::default());
    let id = made_of(&config).id();
    let other_code = MadeOf {
        code_hash: "other",
        ..made_of(&config)
    };
    let other_environment = MadeOf {
        environment: &EnvironmentId::from_hex("0"),
        ..made_of(&config)
    };
    assert!(id != other_code.id() && id != other_environment.id());
}

#[test]
fn an_id_of_an_earlier_build_is_recognised_by_the_json_it_was_made_from() {
    let version = pilot_testkit::version("lab", 1);
    let config = version.config.clone();
    let mut stored = serde_json::to_value(&config).unwrap();
    // As a build wrote it that did not know this key.
    stored.as_object_mut().unwrap().remove("owner");
    let stored = stored.to_string();
    let made_of = made_of(&config);
    let version = Version {
        id: made_of.hash(&stored),
        ..Version::clone(&version)
    };
    assert_ne!(version.id, made_of.id());
    assert!(made_of.is_older(&version, &stored));
    let other_code = MadeOf {
        code_hash: "other",
        ..made_of
    };
    assert!(!other_code.is_older(&version, &stored));
    let mut changed = config.clone();
    changed.memory_bytes += 1;
    let other_config = MadeOf {
        config: &changed,
        ..made_of
    };
    assert!(!other_config.is_older(&version, &stored));
}
