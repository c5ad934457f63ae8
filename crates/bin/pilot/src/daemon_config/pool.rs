//! `[pool]` of `pilotd.toml`: constants of the pools. Their defaults suit everyone; they exist for experiments.

use std::time::Duration;

use pilot_model::StartRule;
use pilot_model::policy::{Policy, PolicySpec};
use pilot_pool::KeyedSettings;
use serde::Deserialize;

/// See the module.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PoolConstants {
    /// When another worker is started for requests that wait.
    pub(crate) start_rule: StartRule,
    /// How many runtimes that cannot fork are started ahead: a policy as in `[scale]`. `demand`: none is.
    #[serde(deserialize_with = "policy")]
    pub(crate) runtimes_policy: Policy,
    /// The longest that cleaning a runtime may take, seconds.
    pub(crate) runtimes_clean_s: f64,
    /// The longest that adapting a runtime may take, seconds.
    pub(crate) runtimes_adapt_s: f64,
}

impl Default for PoolConstants {
    fn default() -> Self {
        let keyed = KeyedSettings::default();
        Self {
            start_rule: StartRule::default(),
            runtimes_policy: keyed.policy,
            runtimes_clean_s: keyed.clean_max.as_secs_f64(),
            runtimes_adapt_s: keyed.adapt_max.as_secs_f64(),
        }
    }
}

impl PoolConstants {
    /// # Errors
    /// The key that is out of range.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (key, seconds) in [
            ("pool.runtimes_clean_s", self.runtimes_clean_s),
            ("pool.runtimes_adapt_s", self.runtimes_adapt_s),
        ] {
            if !SECONDS.contains(&seconds) {
                return Err(format!("{key} is {seconds}, must be from 0.1 to 600"));
            }
        }
        Ok(())
    }

    /// The settings of the keyed pool, with these constants.
    pub(crate) fn keyed(&self) -> KeyedSettings {
        KeyedSettings {
            policy: self.runtimes_policy,
            clean_max: Duration::from_secs_f64(self.runtimes_clean_s),
            adapt_max: Duration::from_secs_f64(self.runtimes_adapt_s),
            ..KeyedSettings::default()
        }
    }
}

/// The problem of a policy names `scale.policy`, which is not the key here.
fn policy<'de, D: serde::Deserializer<'de>>(written: D) -> Result<Policy, D::Error> {
    let spec = PolicySpec::deserialize(written)?;
    let checked = spec.check();
    checked.map_err(|error| serde::de::Error::custom(error.problem))
}

const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_those_of_the_pools_unless_the_file_says_otherwise() {
        let default: PoolConstants = toml::from_str("").unwrap();
        assert_eq!(default.keyed(), KeyedSettings::default());
        let text = "start_rule = \"sooner\"\nruntimes_policy = \"demand\"\nruntimes_clean_s = 2";
        let written: PoolConstants = toml::from_str(text).unwrap();
        assert_eq!(written.start_rule, StartRule::Sooner);
        assert_eq!(written.keyed().policy, Policy::Demand);
        assert_eq!(written.keyed().clean_max, Duration::from_secs(2));
        assert_eq!(written.check(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        let problem = |text: &str| match toml::from_str::<PoolConstants>(text) {
            Ok(read) => read.check().unwrap_err(),
            Err(error) => error.message().to_owned(),
        };
        for (text, part) in [
            ("start_rule = \"eager\"", "sooner"),
            ("runtimes_policy = \"demnad\"", "did you mean \"demand\"?"),
            ("runtimes_adapt_s = 0", "must be from 0.1 to 600"),
        ] {
            assert!(problem(text).contains(part), "{text}: {}", problem(text));
        }
    }
}
