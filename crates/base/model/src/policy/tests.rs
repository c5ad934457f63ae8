use super::*;
use crate::config::FunctionConfig;
use crate::manifest::Manifest;
use crate::scale::ScaleConfig;
use proptest::prelude::*;

fn policy_of(manifest: &str) -> Result<Policy, String> {
    let manifest = Manifest::parse(manifest, "pilot.toml").map_err(|error| error.to_string())?;
    let (name, spec) = manifest.functions.iter().next().unwrap();
    Ok(spec.check(name).unwrap().scale.policy)
}

fn problem_of(line: &str) -> String {
    line.parse::<Policy>().unwrap_err().to_string()
}

#[test]
fn a_function_without_a_policy_follows_demand() {
    assert_eq!(policy_of("[functions.x]\n"), Ok(Policy::Demand));
}

#[test]
fn a_policy_is_a_word_a_line_or_a_table() {
    for (text, expected) in [
        (
            "[functions.x.scale]\npolicy = \"cusum\"\n",
            Policy::Cusum(CusumPolicy::default()),
        ),
        (
            "[functions.x.scale]\npolicy = \"static:3\"\n",
            Policy::Static(StaticPolicy {
                workers: 3,
                tick_s: 2.0,
            }),
        ),
        (
            "[functions.x.scale.policy]\nname = \"cusum\"\nh = 6\n",
            Policy::Cusum(CusumPolicy {
                h: 6.0,
                ..CusumPolicy::default()
            }),
        ),
        (
            "[functions.x.scale.policy]\nname = \"smoothing-markov\"\nreading = \"literal\"\nregions = 6\n",
            Policy::SmoothingMarkov(SmoothingMarkovPolicy {
                regions: 6,
                reading: Reading::Literal,
                ..SmoothingMarkovPolicy::default()
            }),
        ),
    ] {
        assert_eq!(policy_of(text), Ok(expected), "{text}");
    }
}

#[test]
fn a_wrong_name_names_the_nearest() {
    let problem = policy_of("[functions.x.scale]\npolicy = \"cusun\"\n").unwrap_err();
    assert!(problem.contains("functions.x.scale.policy: "), "{problem}");
    assert!(problem.contains("did you mean \"cusum\"?"), "{problem}");
    let problem = policy_of("[functions.x.scale.policy]\nname = \"adaptive_cusum\"\n").unwrap_err();
    assert!(
        problem.contains("did you mean \"adaptive-cusum\"?"),
        "{problem}"
    );
}

#[test]
fn a_constant_of_another_policy_lists_those_of_this_one() {
    let problem =
        policy_of("[functions.x.scale.policy]\nname = \"cusum\"\nbeta = 0.3\n").unwrap_err();
    assert!(
        problem.contains("cusum has no constant \"beta\""),
        "{problem}"
    );
    assert!(
        problem.contains("(its constants: alpha, k, h, overshoot, margin, tick_s)"),
        "{problem}"
    );
    assert!(problem_of("demand:h=1").contains("demand has no constants"));
}

#[test]
fn a_constant_out_of_range_names_its_key_and_the_range() {
    for (line, key) in [
        ("cusum:h=-1", "scale.policy.h"),
        ("cusum:h=nan", "scale.policy.h"),
        ("cusum:k=inf", "scale.policy.k"),
        ("cusum:alpha=0", "scale.policy.alpha"),
        ("cusum:margin=1.5", "scale.policy.margin"),
        ("cusum:tick_s=0", "scale.policy.tick_s"),
        ("cusum:h=six", "scale.policy.h"),
        ("static:-1", "scale.policy.workers"),
        ("smoothing-markov:reading=both", "scale.policy.reading"),
        ("arima:window=8", "scale.policy.samples_min"),
        ("histogram:bin_s=0.1", "scale.policy.bin_s"),
        (
            "histogram:head_percentile=99",
            "scale.policy.head_percentile",
        ),
    ] {
        let problem = problem_of(line);
        assert!(problem.starts_with(&format!("{key}: is ")), "{problem}");
        assert!(problem.contains("must "), "{problem}");
    }
}

#[test]
fn what_is_no_constant_says_what_is_expected() {
    assert!(problem_of("cusum:6").contains("where CONSTANT=VALUE is expected"));
    assert!(problem_of("static:3,4").contains("where CONSTANT=VALUE is expected"));
    assert!(problem_of("cusum:").contains("where CONSTANT=VALUE is expected"));
    let problem = policy_of("[functions.x.scale.policy]\nh = 6\n").unwrap_err();
    assert!(problem.contains("has no name"), "{problem}");
    let problem = policy_of("[functions.x.scale]\npolicy = 3\n").unwrap_err();
    assert!(problem.contains("a policy's name, or a table"), "{problem}");
    let problem =
        policy_of("[functions.x.scale.policy]\nname = \"cusum\"\nh = true\n").unwrap_err();
    assert!(problem.contains("a number or a word"), "{problem}");
}

#[test]
fn lines_are_shown_without_what_is_the_default() {
    for line in [
        "demand",
        "static:15",
        "static:3,tick_s=0.5",
        "cusum",
        "cusum:k=4,h=6",
        "histogram:bin_s=30",
        "smoothing-markov:reading=literal",
        "auto:memory_weight=0.1",
    ] {
        assert_eq!(line.parse::<Policy>().unwrap().to_string(), line);
    }
    let shuffled: Policy = "cusum:h=6,k=4".parse().unwrap();
    assert_eq!(shuffled.to_string(), "cusum:k=4,h=6");
}

#[test]
fn a_configuration_stored_before_there_were_policies_still_loads() {
    let scale: ScaleConfig =
        toml::from_str("min = 0\nmax = 64\nparked = 0\nidle_s = 60\n").unwrap();
    assert_eq!(scale.policy, Policy::Demand);
}

#[test]
fn a_stored_policy_that_lacks_a_constant_has_its_default() {
    let policy: Policy = toml::from_str("name = \"cusum\"\nh = 6.0\n").unwrap();
    assert_eq!(
        policy,
        Policy::Cusum(CusumPolicy {
            h: 6.0,
            ..CusumPolicy::default()
        })
    );
}

#[test]
fn a_policy_is_stored_with_the_function() {
    let name = "f".parse().unwrap();
    let manifest = Manifest::parse(
        "[functions.f.scale]\npolicy = \"adaptive-cusum:k=1\"\n",
        "pilot.toml",
    )
    .unwrap();
    let config = manifest.functions[&name].check(&name).unwrap();
    let stored = toml::to_string(&config).unwrap();
    assert!(stored.contains("name = \"adaptive-cusum\""), "{stored}");
    let loaded: FunctionConfig = toml::from_str(&stored).unwrap();
    assert_eq!(loaded, config);
}

/// Any policy with any valid constants.
pub(super) fn any_policy() -> impl Strategy<Value = Policy> {
    let number = prop_oneof![
        Just(0.0),
        0.0..1.0_f64,
        1.0..100.0_f64,
        (0_u32..200).prop_map(f64::from),
        any::<f64>()
    ];
    (
        0..Policy::all().len(),
        proptest::collection::vec((any::<proptest::sample::Index>(), number), 0..6),
    )
        .prop_filter_map("constants that do not agree", |(which, changes)| {
            let mut policy = Policy::all()[which];
            for (key, number) in changes {
                let keys = policy.constants().map_or(&[][..], |c| c.keys());
                if !keys.is_empty() {
                    // A value that is out of range does not change the constant.
                    let _ = policy.set(keys[key.index(keys.len())], &ConstantSpec::Number(number));
                }
            }
            policy.to_string().parse().ok()
        })
}

proptest! {
    #[test]
    fn what_is_shown_is_read_back(policy in any_policy()) {
        prop_assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
    }

    #[test]
    fn what_is_stored_is_loaded(policy in any_policy()) {
        let stored = toml::to_string(&policy).unwrap();
        prop_assert_eq!(toml::from_str::<Policy>(&stored).unwrap(), policy);
    }

    #[test]
    fn no_line_makes_the_reader_panic(line in ".{0,60}") {
        let _ = line.parse::<Policy>();
    }

    #[test]
    fn no_line_of_a_policy_makes_the_reader_panic(line in "(cusum|static|arima|histogram)[:=,a-z0-9.]{0,30}") {
        let _ = line.parse::<Policy>();
    }
}

#[test]
fn more_workers_than_the_function_may_have_are_refused() {
    let checked = |policy: &str| {
        let keys = format!("scale.max = 4\nscale.policy = \"{policy}\"");
        let spec: crate::spec::FunctionSpec =
            toml::from_str(&format!("handler = \"a.b\"\n{keys}")).unwrap();
        spec.check(&"f".parse().unwrap()).map(drop)
    };
    assert!(checked("static:4").is_ok() && checked("reactive").is_ok());
    for policy in ["static", "static:5"] {
        let problem = checked(policy).unwrap_err().to_string();
        assert!(
            problem.contains("must be at most scale.max, which is 4"),
            "{problem}"
        );
    }
}

#[test]
fn the_table_of_policies_has_every_constant_with_its_default() {
    let page = include_str!("../../../../../docs/forecasting.md");
    for policy in Policy::all() {
        let name = policy.name();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("no row of {name}"));
        let values = policy.constants().map_or_else(Vec::new, Constants::values);
        for (key, value, _) in values {
            let shown = format!("`{key}` {value} ");
            assert!(row.contains(&shown), "{name}: {shown}");
        }
    }
}
