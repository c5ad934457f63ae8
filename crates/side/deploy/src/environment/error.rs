//! Why an environment cannot be built.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::node::PackageError;
use super::program::NotFound;
use super::python::RequirementsError;

/// Why an environment cannot be built.
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
        /// The word for one of them: `requirement`, `package`.
        noun: &'static str,
        /// The file that requires it.
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

/// The cause of an installer's failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InstallFailure {
    /// The declared requirement or package at fault, if it is known.
    pub(crate) at_fault: Option<String>,
    /// The reason, in one line.
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
