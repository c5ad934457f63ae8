//! Environments: interpreters and installed packages, built once per distinct set and shared by every function that requires
//! the same. An environment has up to two parts, each a folder of its own ([`part`]): CPython with its packages ([`python`]), and
//! Node.js with its `node_modules` ([`node`]). Its id is a hash over both, so that functions that differ in one share the other.
//!
//! Which parts: that of the function's runtime, or of its command's program, always; another where a file beside the code asks for
//! packages. A container has none: its image brings what it needs.
//!
//! Not here: which environments are still needed. The deployer knows and sweeps.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::{Environment, EnvironmentId, Runtime};

use self::node::NodeParts;
use self::part::Parts;
use self::program::NotFound;
use self::python::PythonParts;
use crate::data_dir::DataDir;
use crate::hash::Fields;

mod node;
mod part;
pub(crate) mod program;
mod python;

pub(crate) use self::node::{PackageError, link_commands};
pub(crate) use self::python::{RequirementsError, compile};

/// How environments are built.
#[derive(Debug, Clone)]
pub struct EnvironmentConfig {
    /// Longest that an installer may take.
    pub install_time_max: Duration,
    /// Whether packages may run code of their own while they are installed, as the daemon's user, in no sandbox.
    pub source_builds: SourceBuilds,
    /// Where interpreters, uv and npm are looked for, in the form of `PATH`.
    pub search_path: OsString,
}

/// Whether packages may run code while they are installed: Python's without a wheel are built, Node's have install scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceBuilds {
    /// As pip and npm do by themselves.
    Allowed,
    /// Wheels alone, and no scripts.
    Refused,
}

impl Default for EnvironmentConfig {
    fn default() -> Self {
        Self {
            install_time_max: Duration::from_secs(600),
            source_builds: SourceBuilds::Allowed,
            search_path: std::env::var_os("PATH").unwrap_or_default(),
        }
    }
}

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
        failure: Failure,
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
pub(crate) struct Failure {
    /// The declared requirement or package at fault, where it can be told.
    pub(crate) at_fault: Option<String>,
    /// Why, in one line.
    pub(crate) reason: String,
}

fn failed_message(failure: &Failure, noun: &str, file: &str) -> String {
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

/// Which environment some code needs. Nothing is built yet.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) id: EnvironmentId,
    python: Option<python::Plan>,
    node: Option<node::Plan>,
}

/// An environment that is there.
#[derive(Debug)]
pub(crate) struct Obtained {
    pub(crate) environment: Environment,
    /// It was there before, or needs no packages.
    pub(crate) reused: bool,
}

/// Builds environments.
#[derive(Debug)]
pub(crate) struct Environments {
    python: PythonParts,
    node: NodeParts,
}

/// Says how far a build is.
pub(crate) type Say<'a> = &'a (dyn Fn(String) + Send + Sync);

/// What one build of a part is given.
#[derive(Clone, Copy)]
struct Site<'a> {
    parts: &'a Parts,
    config: &'a EnvironmentConfig,
    code: &'a Path,
    say: Say<'a>,
}

impl Environments {
    pub(crate) fn new(data_dir: Arc<DataDir>, config: EnvironmentConfig) -> Self {
        let parts = Arc::new(Parts::new(data_dir));
        Self {
            python: PythonParts::new(Arc::clone(&parts), config.clone()),
            node: NodeParts::new(parts, config),
        }
    }

    /// Finds out which environment the code needs. Asks interpreters that are not known yet.
    pub(crate) async fn plan(
        &self,
        runtime: &Runtime,
        code: &Path,
        code_hash: &str,
    ) -> Result<Plan, EnvironmentError> {
        let python = match python::Wish::of(runtime) {
            Some(wish) => self.python.plan(&wish, code, code_hash).await?,
            None => None,
        };
        let node = match node::Wish::of(runtime) {
            Some(wish) => self.node.plan(&wish, code, code_hash).await?,
            None => None,
        };
        let parts = [
            python.as_ref().map(|plan| &plan.id),
            node.as_ref().map(|plan| &plan.id),
        ];
        Ok(Plan {
            id: id_of(parts.into_iter().flatten()),
            python,
            node,
        })
    }

    /// Gives the planned environment; what of it is not there is built. Concurrent calls for one part share one build.
    pub(crate) async fn obtain(
        &self,
        plan: &Plan,
        code: &Path,
        say: Say<'_>,
    ) -> Result<Obtained, EnvironmentError> {
        let mut obtained = Obtained {
            environment: Environment {
                id: plan.id.clone(),
                python: None,
                packages_dir: None,
                imports: Vec::new(),
                node: None,
            },
            reused: true,
        };
        if let Some(python) = &plan.python {
            let part = self.python.obtain(python, code, say).await?;
            obtained.reused &= part.reused;
            let environment = &mut obtained.environment;
            environment.python = Some(part.python);
            environment.packages_dir = part.packages_dir;
            environment.imports = part.imports;
        }
        if let Some(node) = &plan.node {
            let part = self.node.obtain(node, code, say).await?;
            obtained.reused &= part.reused;
            obtained.environment.node = Some(part.node);
        }
        Ok(obtained)
    }
}

impl Plan {
    /// The names of the folders under `environments/` that it uses.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &str> {
        let python = self.python.as_ref().map(|plan| plan.id.as_str());
        let node = self.node.as_ref().map(|plan| plan.id.as_str());
        python.into_iter().chain(node)
    }

    /// The interpreter that code is compiled for ahead.
    pub(crate) fn python(&self) -> Option<&Path> {
        let python = self.python.as_ref()?;
        Some(&python.interpreter.executable)
    }

    /// What the environment made from it has, for people: `Python 3.11.7, 2 packages; Node 20.20.2`. Empty: nothing.
    pub(crate) fn in_words(&self, environment: &Environment) -> String {
        let python = self.python.as_ref().map(|plan| {
            let name = format!("Python {}", plan.interpreter.version);
            with_packages(name, python::count(environment.packages_dir.as_deref()))
        });
        let node = self.node.as_ref().map(|plan| {
            let name = format!("Node {}", plan.interpreter.version);
            let modules = environment.node.as_ref();
            with_packages(
                name,
                node::count(modules.and_then(|node| node.modules_dir.as_deref())),
            )
        });
        let both: Vec<String> = python.into_iter().chain(node).collect();
        both.join("; ")
    }
}

fn with_packages(name: String, packages: usize) -> String {
    match packages {
        0 => name,
        1 => format!("{name}, 1 package"),
        several => format!("{name}, {several} packages"),
    }
}

/// That of its one part; of both, a hash over them. So an environment of Python alone keeps the id it had before there was Node.
fn id_of<'a>(parts: impl Iterator<Item = &'a EnvironmentId>) -> EnvironmentId {
    let parts: Vec<&EnvironmentId> = parts.collect();
    if let [only] = parts.as_slice() {
        return (*only).clone();
    }
    let mut hash = Fields::default();
    hash.add("environment");
    for part in parts {
        hash.add(part.as_str());
    }
    EnvironmentId::from_hex(&hash.hex())
}

/// The program that a command begins with, when it is one of an interpreter's: its name as typed.
fn program_of(runtime: &Runtime) -> Option<&str> {
    match runtime {
        Runtime::Provided { command } | Runtime::Http { command, .. } => {
            command.first().map(String::as_str)
        }
        Runtime::Python { .. } | Runtime::Node { .. } | Runtime::Container { .. } => None,
    }
}

/// Where the code is staged means nothing to anybody.
fn without_stage(text: &str, stage: &Path) -> String {
    text.replace(&format!("{}/", stage.display()), "")
}

#[cfg(test)]
mod tests;
