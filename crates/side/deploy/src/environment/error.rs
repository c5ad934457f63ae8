//! Why an environment cannot be built.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use pilot_model::ports::{BuildError, MemoryShortage};
use pilot_model::size::Size;

use super::node::package::PackageError;
use super::program::NotFound;
use super::python::requirements::RequirementsError;

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
        "the packages of {file} were not installed within {} s; raise time_s in [build] of pilotd.toml, or require less",
        .time_max.as_secs()
    )]
    TooLong {
        file: &'static str,
        time_max: Duration,
        tail: String,
    },
    #[error("the packages of {file} could not be installed: {} ended the installer", signal_name(*.signal))]
    Killed {
        file: &'static str,
        signal: i32,
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
    #[error("the packages of {file} were not installed: {}", .limit)]
    OverLimit {
        file: &'static str,
        limit: BuildLimit,
        tail: String,
    },
    #[error("the packages of {file} could not be installed: {unreachable}")]
    Unreachable {
        file: &'static str,
        unreachable: Unreachable,
        tail: String,
    },
    #[error("the packages of {file} cannot be used: {problem}")]
    Outcome { file: &'static str, problem: String },
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(
        "the record {path} of an environment that is there cannot be read: {source}; deploy again, or if the file is damaged, remove it: \
         then the environment is built again"
    )]
    Record { path: PathBuf, source: io::Error },
    #[error("the environment could not be written to {path}: {source}")]
    Disk { path: PathBuf, source: io::Error },
}

/// A limit of builds that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BuildLimit {
    #[error(
        "the build used more memory than its limit of {}; require packages that have wheels, or raise memory_mb in [build] of \
         pilotd.toml",
        Size(*.0)
    )]
    Memory(u64),
    #[error("the build was ended: {}", .0.around())]
    MemoryAround(MemoryShortage),
    #[error(
        "the build wrote more than its limit of {}, or the disk is nearly full; require less, or raise disk_mb in [build] of pilotd.toml",
        Size(*.0)
    )]
    Disk(u64),
    #[error("the build printed more than {}", Size(*.0))]
    Output(u64),
}

/// A host that a build did not reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreachable {
    /// `host:port`.
    pub(crate) address: String,
    /// Why; `None`: builds may not connect to it.
    pub(crate) problem: Option<String>,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = &self.address;
        match &self.problem {
            Some(problem) => write!(
                f,
                "{address} could not be reached from the daemon's machine ({problem}); check its network, and the index or registry \
                 that is configured there"
            ),
            None => write!(
                f,
                "builds may not connect to {address}; require packages of the daemon's registries, or let its operator add the host to \
                 hosts in [build] of pilotd.toml"
            ),
        }
    }
}

/// The cause of an installer's failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InstallFailure {
    /// The declared requirement or package at fault, if it is known.
    pub(crate) at_fault: Option<String>,
    /// The reason, in one line.
    pub(crate) reason: String,
}

fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.to_string())
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
