//! A policy as the user wrote it: one line, or a table. Only its form is checked.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::Policy;
use super::constants::{ConstantSpec, Constants};

/// `policy = "cusum:h=6"`, or `policy = { name = "cusum", h = 6 }`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PolicySpec {
    /// `NAME`, `NAME:CONSTANT=VALUE,…` or `static:WORKERS`.
    Line(String),
    /// `name`, and constants.
    Table(BTreeMap<String, ConstantSpec>),
}

/// An invalid policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct PolicyError {
    /// `scale.policy`, or `scale.policy.CONSTANT`.
    pub key: &'static str,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl PolicyError {
    pub(super) fn new(problem: String) -> Self {
        Self {
            key: "scale.policy",
            problem,
        }
    }
}

impl PolicySpec {
    /// Checks the name and every constant, and fills in the constants that were left out.
    ///
    /// # Errors
    /// A name that no policy has, a constant that this policy does not have, or an invalid value.
    pub fn check(&self) -> Result<Policy, PolicyError> {
        let mut policy;
        match self {
            Self::Line(line) => {
                let (name, rest) = match line.split_once(':') {
                    Some((name, rest)) => (name, Some(rest)),
                    None => (line.as_str(), None),
                };
                policy = named(name.trim())?;
                for (position, item) in rest
                    .into_iter()
                    .flat_map(|rest| rest.split(','))
                    .enumerate()
                {
                    let (key, value) = entry(&policy, position, item)?;
                    policy.set(key, &ConstantSpec::from_word(value))?;
                }
            }
            Self::Table(table) => {
                policy = match table.get("name") {
                    Some(ConstantSpec::Word(name)) => named(name)?,
                    Some(ConstantSpec::Number(_)) | None => {
                        return Err(PolicyError::new(
                            "has no name: add name = \"cusum\", for example".to_owned(),
                        ));
                    }
                };
                for (key, value) in table.iter().filter(|(key, _)| *key != "name") {
                    policy.set(key, value)?;
                }
            }
        }
        match policy.constants().map_or(Ok(()), Constants::agree) {
            Ok(()) => Ok(policy),
            Err((key, problem)) => Err(PolicyError { key, problem }),
        }
    }
}

/// The policy of that name, with its default constants.
fn named(name: &str) -> Result<Policy, PolicyError> {
    let all = Policy::all();
    if let Some(policy) = all.iter().find(|policy| policy.name() == name) {
        return Ok(*policy);
    }
    let names: Vec<&str> = all.iter().map(Policy::name).collect();
    let hint = crate::nearest::nearest(name, names.iter().copied())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Err(PolicyError::new(format!(
        "is \"{}\", must be one of {}{hint}",
        name.escape_default(),
        names.join(", ")
    )))
}

/// `KEY=VALUE`, or the first item without its key if the policy has a constant that may be written without it.
fn entry<'a>(
    policy: &Policy,
    position: usize,
    item: &'a str,
) -> Result<(&'a str, &'a str), PolicyError> {
    if let Some((key, value)) = item.split_once('=') {
        return Ok((key.trim(), value.trim()));
    }
    let positional = policy
        .constants()
        .and_then(Constants::positional)
        .filter(|_| position == 0);
    positional.map_or_else(
        || {
            Err(PolicyError::new(format!(
                "has \"{}\" where CONSTANT=VALUE is expected",
                item.escape_default()
            )))
        },
        |key| Ok((key, item.trim())),
    )
}

// Written by hand: for a wrong value, serde's untagged enums only say that no variant matches.
impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = PolicySpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a policy's name, or a table with its name and its constants")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<PolicySpec, E> {
                Ok(PolicySpec::Line(line.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PolicySpec, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(PolicySpec::Table)
            }
        }

        from.deserialize_any(Either)
    }
}
