//! Why a profile or a trace cannot be used. Each names the file, where in it, and what would do.

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
    /// A key has a value that does not do, is missing, or does not go with another.
    #[error("{file}{at}: {key}: {problem}", at = at(*line))]
    Value {
        /// The profile.
        file: String,
        /// Where.
        line: Option<usize>,
        /// Which key.
        key: String,
        /// What is wrong and what would do.
        problem: String,
    },
    /// A trace's file is not what its format says.
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
        /// What is wrong and what would do.
        problem: String,
    },
}

fn at(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(":{line}"))
}
