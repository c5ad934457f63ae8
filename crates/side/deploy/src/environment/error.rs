//! Why an environment cannot be built.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::node::PackageError;
use super::program::NotFound;
use super::python::RequirementsError;

/// Why there is no environment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvironmentError {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error(transparent)]
    Requirements(#[from] RequirementsError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("{}", failed_message(.failure, .noun, .file))]
    Failed {
        failure: InstallFailure,
        /// What one of the things to install is called: `requirement`, `package`.
        noun: &'static str,
        /// Where it is required.
        file: &'static str,
        /// The installer's last lines.
        tail: String,
    },
    #[error(
        "the packages of {file} were not installed within {} s; raise the daemon's install time, or require less",
        .time_max.as_secs()
    )]
    TooLong {
        file: &'static str,
        time_max: Duration,
        tail: String,
    },
    #[error(
        "{python} has no pip, and a virtual environment with one could not be made; install uv, or its pip or venv package"
    )]
    NoPip { python: PathBuf, tail: String },
    #[error(
        "package.json needs npm, which is neither beside {node} nor on PATH; install npm, or deploy node_modules with the code \
         ('!node_modules/' in .pilotignore)"
    )]
    NoNpm { node: PathBuf },
    #[error("the environment could not be written to {path}: {source}")]
    Disk { path: PathBuf, source: io::Error },
}

/// What an installer's failure comes down to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InstallFailure {
    /// The declared requirement or package at fault, where it can be told.
    pub(crate) at_fault: Option<String>,
    /// Why, in one line.
    pub(crate) reason: String,
}

fn failed_message(failure: &InstallFailure, noun: &str, file: &str) -> String {
    match &failure.at_fault {
        Some(at_fault) => format!(
            "{noun} '{at_fault}' could not be installed: {}; change it in {file}",
            failure.reason
        ),
        None => format!(
            "the packages of {file} could not be installed: {}",
            failure.reason
        ),
    }
}
