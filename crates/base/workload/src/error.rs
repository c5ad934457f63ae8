//! Why a profile or a trace cannot be used. Each error names the file, the place in it, and what is allowed.

use std::io;

/// See the variants. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("{file}: {source}{hint}")]
    Read {
        /// Which.
        file: String,
        /// Why.
        source: io::Error,
        /// What to do, with `; ` in front; may be empty.
        hint: &'static str,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{file}{at}: {problem}", at = at(*line))]
    Syntax {
        /// The profile.
        file: String,
        /// Where.
        line: Option<usize>,
        /// What is wrong, with the nearest known key.
        problem: String,
    },
    /// The value of a key is invalid, missing, or inconsistent with another.
    #[error("{file}{at}: {key}: {problem}", at = at(*line))]
    Value {
        /// The profile.
        file: String,
        /// Where.
        line: Option<usize>,
        /// Which key.
        key: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A trace's file does not have its documented format.
    #[error("{file}{at}: {problem}", at = at(*line))]
    Data {
        /// The CSV file.
        file: String,
        /// Where.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// An override cannot be applied.
    #[error("--set {setting}: {problem}")]
    Set {
        /// As it was typed.
        setting: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
}

fn at(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(":{line}"))
}
