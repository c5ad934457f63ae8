//! `pilot.toml`: the functions of a project. An unknown key is an error that names the nearest known one; nothing is
//! guessed and nothing is passed over.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::FunctionConfig;
use crate::ids::FunctionName;
use crate::spec::{FunctionSpec, SpecError};

/// A project's functions, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// What was written, with the checked form.
    pub functions: BTreeMap<FunctionName, FunctionSpec>,
}

/// Why a manifest does not do. `line` counts from 1.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ManifestError {
    /// Not TOML, or a value of the wrong type.
    #[error("{file}{at}: {problem}", at = line.map(|line| format!(":{line}")).unwrap_or_default())]
    Syntax {
        /// The file as named by the caller.
        file: String,
        /// Where.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// A name that is not a function's name.
    #[error("{file}: {problem}")]
    Name {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A value out of range.
    #[error("{file}: {error}")]
    Spec {
        /// The file.
        file: String,
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
}

impl Manifest {
    /// Reads a manifest and checks every function in it. `file` is for messages.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where it has one.
    pub fn parse(text: &str, file: &str) -> Result<Self, ManifestError> {
        let document: Document = toml::from_str(text).map_err(|error| ManifestError::Syntax {
            file: file.to_owned(),
            line: error
                .span()
                .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1),
            problem: with_nearest_key(error.message()),
        })?;
        let mut functions = BTreeMap::new();
        for (name, spec) in document.functions {
            let name: FunctionName =
                name.parse()
                    .map_err(|error: crate::ids::InvalidName| ManifestError::Name {
                        file: file.to_owned(),
                        problem: error.to_string(),
                    })?;
            let _checked: FunctionConfig =
                spec.check(&name).map_err(|error| ManifestError::Spec {
                    file: file.to_owned(),
                    error,
                })?;
            functions.insert(name, spec);
        }
        if functions.is_empty() {
            return Err(ManifestError::Empty {
                file: file.to_owned(),
            });
        }
        Ok(Self { functions })
    }
}

/// Serde's "unknown field `x`, expected one of `a`, `b`" with the nearest of the expected ones put first.
#[must_use]
pub fn with_nearest_key(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.to_owned();
    };
    let mut quoted = rest.split('`');
    let Some(unknown) = quoted.next() else {
        return message.to_owned();
    };
    // Between two quoted words stands ", " or " expected …": every second piece is a name.
    let known: Vec<&str> = quoted.skip(1).step_by(2).collect();
    let hint = nearest(unknown, known.iter().copied())
        .map_or_else(String::new, |near| format!(", did you mean '{near}'?"));
    format!(
        "unknown key '{unknown}'{hint} (known: {})",
        known.join(", ")
    )
}

/// The known word most like `word`, when it is like enough to be a slip of the hand.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests;
