//! `pilot.toml`: the functions of a project. An unknown key is an error that names the nearest known one. Nothing is guessed and
//! nothing is ignored.

mod lists;
mod misplaced;
mod place;
mod syntax;

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::de::DeTable;

pub use self::lists::list_for_table;
pub use self::syntax::syntax_in_words;
use crate::config::FunctionConfig;
use crate::ids::FunctionName;
use crate::layer;
use crate::nearest::{nearest, with_nearest_key};
use crate::spec::{FunctionSpec, SpecError};

/// A project's functions, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// The functions as written. All of them have been checked.
    pub functions: BTreeMap<FunctionName, FunctionSpec>,
    /// The layers, by name.
    pub layers: BTreeMap<String, LayerSpec>,
}

/// The `[layers.NAME]` table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// A folder or a zip file, relative to the manifest.
    pub path: String,
}

/// Why a manifest is invalid. `line` counts from 1.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ManifestError {
    /// Not TOML, a key that is unknown, or a value of the wrong type.
    #[error("{file}{at}: {problem}", at = at(*line))]
    Syntax {
        /// The file as named by the caller.
        file: String,
        /// Where.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// A name that is not a function's name.
    #[error("{file}{at}: {problem}", at = at(*line))]
    Name {
        /// The file.
        file: String,
        /// Where.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// A value out of range.
    #[error("{file}{at}: {error}", at = at(*line))]
    Spec {
        /// The file.
        file: String,
        /// Where.
        line: Option<usize>,
        /// Which key and why.
        error: SpecError,
    },
    /// No function in it.
    #[error("{file}: has no function; add a table [functions.NAME]")]
    Empty {
        /// The file.
        file: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    functions: BTreeMap<String, FunctionSpec>,
    #[serde(default)]
    layers: BTreeMap<String, LayerSpec>,
}

impl Manifest {
    /// Reads a manifest and checks every function in it. `file` is for messages.
    ///
    /// # Errors
    /// The first problem, with its line if it has one.
    pub fn parse(text: &str, file: &str) -> Result<Self, ManifestError> {
        let document = read(text, file)?;
        for name in document.layers.keys() {
            layer::check_name(name).map_err(|error| ManifestError::Name {
                file: file.to_owned(),
                line: place::line_of_key(text, &["layers", name]),
                problem: error.to_string(),
            })?;
        }
        let mut functions = BTreeMap::new();
        for (written, spec) in document.functions {
            let name: FunctionName =
                written
                    .parse()
                    .map_err(|error: crate::ids::InvalidName| ManifestError::Name {
                        file: file.to_owned(),
                        line: place::line_of_key(text, &["functions", &written]),
                        problem: error.to_string(),
                    })?;
            let _checked: FunctionConfig =
                check(&name, &spec, &document.layers).map_err(|error| ManifestError::Spec {
                    file: file.to_owned(),
                    line: place::line_of_value(text, &error),
                    error,
                })?;
            functions.insert(name, spec);
        }
        if functions.is_empty() {
            return Err(ManifestError::Empty {
                file: file.to_owned(),
            });
        }
        Ok(Self {
            functions,
            layers: document.layers,
        })
    }
}

/// Checks a function of a manifest that has these layers.
fn check(
    name: &FunctionName,
    spec: &FunctionSpec,
    layers: &BTreeMap<String, LayerSpec>,
) -> Result<FunctionConfig, SpecError> {
    let unknown = spec
        .layers
        .iter()
        .find(|layer| !layers.contains_key(*layer));
    if let Some(unknown) = unknown {
        let hint = match nearest(unknown, layers.keys().map(String::as_str)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if layers.is_empty() => {
                "the manifest has no layers; add a table [layers.NAME] with a path".to_owned()
            }
            None => {
                let known: Vec<&str> = layers.keys().map(String::as_str).collect();
                format!("the manifest has: {}", known.join(", "))
            }
        };
        return Err(SpecError {
            function: name.to_string(),
            key: "layers",
            problem: format!(
                "has \"{}\", which is not a layer; {hint}",
                unknown.escape_default()
            ),
        });
    }
    // The ids are not known before the layers are packed, and the other checks do not depend on them.
    let mut spec = spec.clone();
    for layer in &mut spec.layers {
        *layer = format!("{layer}:{}", "0".repeat(64));
    }
    spec.check(name)
}

fn read(text: &str, file: &str) -> Result<Document, ManifestError> {
    let syntax = |error: &toml::de::Error, problem: String| ManifestError::Syntax {
        file: file.to_owned(),
        line: error.span().map(|span| place::line_at(text, span.start)),
        problem,
    };
    let document =
        DeTable::parse(text).map_err(|error| syntax(&error, syntax_in_words(text, &error)))?;
    if let Some((at, problem)) = lists::first(document.get_ref()) {
        return Err(ManifestError::Syntax {
            file: file.to_owned(),
            line: Some(place::line_at(text, at)),
            problem,
        });
    }
    let document = toml::Deserializer::from(document);
    serde_path_to_error::deserialize(document).map_err(|error| {
        let (inner, path) = (error.inner(), error.path().to_string());
        let problem = in_words(&path, inner.message());
        let hint = misplaced::hint(&path, inner.message());
        let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
        syntax(inner, problem + &hint)
    })
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

/// Serde's message about a value, in a user's words and with the key: for an unknown key the nearest known one, for a wrong type
/// the right one, for a word that is not valid the valid ones. `key` is the value's path, as `serde_path_to_error` writes it.
#[must_use]
pub fn in_words(key: &str, message: &str) -> String {
    if message.starts_with("unknown field `") {
        return with_nearest_key(message);
    }
    let wrong = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split_once(", expected "));
    let problem = match wrong {
        Some((found, wanted)) => {
            // serde_json appends " at line 1 column 17".
            let named = wanted.split(" at line ").next().unwrap_or(wanted);
            let found = found_in_words(found);
            let is_large = found.bytes().all(|byte| byte.is_ascii_digit());
            let wanted = is_large.then(|| largest(named)).flatten();
            let wanted = wanted.unwrap_or_else(|| wanted_in_words(named));
            match (found.as_str(), named) {
                ("a table", "a sequence") => format!(
                    "is a table, must be a list: [\"a\", \"b\"], or of tables, each with two brackets: [[{key}]]"
                ),
                // Of a tagged enumeration. The path ends at its table.
                (_, "variant identifier") => format!(
                    "the key that says which one it is (kind, type or name) is {found}, must be a text in quotes"
                ),
                // Of the toml crate, for an enumeration. It does not say what it found.
                ("variant", "string only") => format!("must be {TEXT}"),
                _ => format!(
                    "is {found}, must be {wanted}{}",
                    without(&found, named, key)
                ),
            }
        }
        None => unknown_word(message)
            .or_else(|| missing_key(message))
            // Of the toml crate, for an enumeration.
            .or_else(|| (message == "wanted string or table").then(|| format!("must be {TEXT}")))
            .unwrap_or_else(|| message.to_owned()),
    };
    match key {
        "." | "" => problem,
        key => format!("{key}: {problem}"),
    }
}

/// What a text has that a number has not. Empty: it was not to be a number, or nobody knows which.
fn without(found: &str, wanted: &str, key: &str) -> String {
    let quoted = found
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let is_number = ["u", "i", "f", "a nonzero u"]
        .iter()
        .filter_map(|start| wanted.strip_prefix(start))
        .any(|bits| matches!(bits, "8" | "16" | "32" | "64" | "size"));
    match quoted {
        Some(text) if is_number && text.parse::<f64>().is_ok() => "; without quotes".to_owned(),
        Some(text) if is_number && syntax::is_number_with_unit(text) => {
            format!(
                "; without quotes and without a unit{}",
                syntax::unit_of(key)
            )
        }
        _ => String::new(),
    }
}

/// Of `` unknown variant `x`, expected one of `a`, `b` ``.
fn unknown_word(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown variant `")?;
    let (found, wanted) = rest.split_once("`, expected ")?;
    let known: Vec<String> = wanted
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|word| format!("\"{word}\""))
        .collect();
    let (last, others) = known.split_last()?;
    let known = match others {
        [] => last.clone(),
        others => format!("{} or {last}", others.join(", ")),
    };
    Some(format!(
        "\"{}\" is not valid, must be {known}",
        found.escape_default()
    ))
}

/// Of `` missing field `x` ``.
fn missing_key(message: &str) -> Option<String> {
    let rest = message.strip_prefix("missing field `")?;
    let (key, _) = rest.split_once('`')?;
    Some(format!("the key '{key}' is missing"))
}

/// `string "much"`, `` integer `-5` ``, `map` (`serde::de::Unexpected`).
fn found_in_words(found: &str) -> String {
    match found {
        "map" => "a table".to_owned(),
        "sequence" => "an array".to_owned(),
        other => {
            let (_, value) = other.split_once(' ').unwrap_or(("", other));
            let value = value.trim_start_matches("point ");
            // A number of more than 64 bits is "`1` as i128".
            let value = value.split_once("` as ").map_or(value, |(value, _)| value);
            value.trim_matches('`').to_owned()
        }
    }
}

/// The range of a type, for a number that is too large for it.
fn largest(wanted: &str) -> Option<&'static str> {
    Some(match wanted {
        "u8" => "a whole number, at most 255",
        "u16" => "a whole number, at most 65535",
        "u32" => "a whole number, at most 4294967295",
        "u64" | "usize" => "a whole number, at most 18446744073709551615",
        _ => return None,
    })
}

/// A string, as a user writes it.
const TEXT: &str = "a text in quotes";

/// What a visitor of `serde` or of ours expects.
fn wanted_in_words(wanted: &str) -> &str {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not below 0",
        "a nonzero u16" | "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => {
            "a whole number, at least 1"
        }
        "f32" | "f64" => "a number",
        "a string" | "path string" | "string or map" => TEXT,
        "a boolean" => "true or false",
        "a map" => "a table",
        "a sequence" => "a list, for example [\"a\", \"b\"]",
        other if other.starts_with("struct ") => "a table of keys",
        other => other,
    }
}

#[cfg(test)]
mod tests;
