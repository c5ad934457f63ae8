//! Environments: an interpreter and installed packages, built once per distinct set and shared by every function that requires
//! the same. `environments/ID` holds `packages/` and `environment.json`; it appears by a rename, whole or not at all.
//!
//! Not here: which environments are still needed. The deployer knows and sweeps.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::{Environment, EnvironmentId, Runtime};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::blocking::blocking;
use crate::data_dir::{DataDir, make_dir};
use crate::durable;
use crate::hash::Fields;
use crate::installer::{Failure, Installation, Installer, failure, progress};
use crate::keyed::Keyed;
use crate::process::{self, Ended};
use crate::python::{Interpreter, Interpreters, NoInterpreter, on_path};
use crate::requirements::{self, Requirements, RequirementsError};

/// How environments are built.
#[derive(Debug, Clone)]
pub struct EnvironmentConfig {
    /// Longest that an installer may take.
    pub install_time_max: Duration,
    /// Whether packages without a wheel may be built, which runs their setup code as the daemon's user, in no sandbox.
    pub source_builds: SourceBuilds,
    /// Where interpreters and uv are looked for, in the form of `PATH`.
    pub search_path: OsString,
}

/// Whether packages without a wheel may be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceBuilds {
    /// As pip does by itself.
    Allowed,
    /// Wheels alone.
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
    Interpreter(#[from] NoInterpreter),
    #[error(transparent)]
    Requirements(#[from] RequirementsError),
    #[error("{}", failed_message(.failure, .file))]
    Failed {
        failure: Failure,
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
    #[error("the environment could not be written to {path}: {source}")]
    Disk { path: PathBuf, source: io::Error },
}

fn failed_message(failure: &Failure, file: &str) -> String {
    match &failure.requirement {
        Some(requirement) => format!(
            "requirement '{requirement}' could not be installed: {}; change it in {file}",
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
    pub(crate) interpreter: Interpreter,
    requirements: Option<Requirements>,
}

/// An environment that is there.
#[derive(Debug)]
pub(crate) struct Obtained {
    pub(crate) environment: Environment,
    /// It was there before, or needs no packages.
    pub(crate) reused: bool,
}

/// What is remembered of an environment beside its packages.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    python_version: String,
    requirements: Vec<String>,
    imports: Vec<String>,
}

/// Builds environments.
#[derive(Debug)]
pub(crate) struct Environments {
    data_dir: Arc<DataDir>,
    config: EnvironmentConfig,
    interpreters: Interpreters,
    building: Keyed,
}

/// Says how far a build is.
pub(crate) type Say<'a> = &'a (dyn Fn(String) + Send + Sync);

impl Environments {
    pub(crate) fn new(data_dir: Arc<DataDir>, config: EnvironmentConfig) -> Self {
        Self {
            interpreters: Interpreters::new(config.search_path.clone()),
            data_dir,
            config,
            building: Keyed::default(),
        }
    }

    /// Finds out which environment the code needs. Asks the interpreter when it is not known yet.
    pub(crate) async fn plan(
        &self,
        runtime: &Runtime,
        code: &Path,
        code_hash: &str,
    ) -> Result<Plan, EnvironmentError> {
        let requirements = requirements::find(code)?;
        let interpreter = self.interpreters.find(runtime).await?;
        let mut hash = Fields::default();
        hash.add(&interpreter.version)
            .add(&interpreter.abi)
            .add(interpreter.executable.as_os_str().as_encoded_bytes());
        for line in requirements.iter().flat_map(|required| &required.lines) {
            hash.add(line);
        }
        if requirements.as_ref().is_some_and(|required| required.local) {
            hash.add(code_hash);
        }
        Ok(Plan {
            id: EnvironmentId::from_hex(&hash.hex()),
            interpreter,
            requirements,
        })
    }

    /// Gives the planned environment, built if it is not there. Concurrent calls for one share one build.
    pub(crate) async fn obtain(
        &self,
        plan: &Plan,
        code: &Path,
        say: Say<'_>,
    ) -> Result<Obtained, EnvironmentError> {
        let Some(required) = &plan.requirements else {
            return Ok(Obtained {
                environment: plan.environment(None, Vec::new()),
                reused: true,
            });
        };
        let place = self.data_dir.environments().join(plan.id.as_str());
        let _building = self.building.lock(plan.id.as_str()).await;
        let (record, reused) = match read_record(&place) {
            Some(record) => (record, true),
            None => (self.build(plan, required, code, &place, say).await?, false),
        };
        Ok(Obtained {
            environment: plan.environment(Some(place.join(PACKAGES)), record.imports),
            reused,
        })
    }

    async fn build(
        &self,
        plan: &Plan,
        required: &Requirements,
        code: &Path,
        place: &Path,
        say: Say<'_>,
    ) -> Result<Record, EnvironmentError> {
        // A folder without its record is none of ours, or damaged.
        clear(place).map_err(|source| disk(place, source))?;
        let stage = self
            .data_dir
            .stage()
            .map_err(|source| disk(place, source))?;
        let staged = stage.path().join("environment");
        let packages = staged.join(PACKAGES);
        make_dir(&packages).map_err(|source| disk(&packages, source))?;
        let file = match required.file {
            "requirements.txt" => code.join(required.file),
            _ => {
                let file = stage.path().join("requirements.txt");
                fs::write(&file, required.lines.join("\n"))
                    .map_err(|source| disk(&file, source))?;
                file
            }
        };
        let installer = self.installer(&plan.interpreter, say).await?;
        say(format!("installing the packages of {}", required.file));
        let command = installer.command(&Installation {
            python: &plan.interpreter.executable,
            file: &file,
            cwd: code,
            target: &packages,
            source_builds: self.config.source_builds,
        });
        let ended = process::run(command, self.config.install_time_max, |line| {
            if let Some(line) = progress(line) {
                say(without_stage(line, code));
            }
        })
        .await
        .map_err(|source| disk(&plan.interpreter.executable, source))?;
        self.check(&ended, required, code)?;
        let record = Record {
            python_version: plan.interpreter.version.clone(),
            requirements: required.lines.clone(),
            imports: imports(&plan.interpreter, &packages, required).await,
        };
        let place = place.to_owned();
        blocking(move || {
            // The stage moves along: it is to outlive the work on it.
            let stage = stage;
            let kept = keep(&record, &staged, &place);
            drop(stage);
            kept.map(|()| record).map_err(|source| disk(&place, source))
        })
        .await
    }

    fn check(
        &self,
        ended: &Ended,
        required: &Requirements,
        code: &Path,
    ) -> Result<(), EnvironmentError> {
        if ended.succeeded() {
            return Ok(());
        }
        let tail = without_stage(&ended.tail, code);
        Err(match ended.status {
            None => EnvironmentError::TooLong {
                file: required.file,
                time_max: self.config.install_time_max,
                tail,
            },
            Some(_) => EnvironmentError::Failed {
                failure: failure(&tail, required),
                file: required.file,
                tail,
            },
        })
    }

    /// uv if it is there, else the interpreter's pip, else a pip of ours for that interpreter.
    async fn installer(
        &self,
        interpreter: &Interpreter,
        say: Say<'_>,
    ) -> Result<Installer, EnvironmentError> {
        if let Some(uv) = on_path(&self.config.search_path, "uv") {
            return Ok(Installer::Uv(uv));
        }
        if interpreter.pip {
            return Ok(Installer::Pip(interpreter.executable.clone()));
        }
        let mut hash = Fields::default();
        hash.add(&interpreter.version)
            .add(interpreter.executable.as_os_str().as_encoded_bytes());
        let id = EnvironmentId::from_hex(&hash.hex());
        let place = self.data_dir.tooling().join(id.as_str());
        let python = place.join("bin/python");
        let _building = self.building.lock(&format!("tooling {id}")).await;
        if place.join(READY).exists() {
            return Ok(Installer::Pip(python));
        }
        say(format!(
            "{} has no pip: making a virtual environment that has one",
            interpreter.executable.display()
        ));
        // A virtual environment cannot be moved, so it is made in its place and marked once it is whole.
        let mut command = Command::new(&interpreter.executable);
        command.args(["-I", "-m", "venv", "--clear"]).arg(&place);
        let ended = process::run(command, self.config.install_time_max, |_| {})
            .await
            .map_err(|source| disk(&interpreter.executable, source))?;
        if !ended.succeeded() {
            return Err(EnvironmentError::NoPip {
                python: interpreter.executable.clone(),
                tail: ended.tail,
            });
        }
        fs::write(place.join(READY), "").map_err(|source| disk(&place, source))?;
        Ok(Installer::Pip(python))
    }
}

impl Plan {
    fn environment(&self, packages_dir: Option<PathBuf>, imports: Vec<String>) -> Environment {
        Environment {
            id: self.id.clone(),
            python: self.interpreter.executable.clone(),
            python_prefix: self.interpreter.prefix.clone(),
            packages_dir,
            imports,
        }
    }
}

/// Compiles code to bytecode, so that a read-only mount has it. What does not compile is left as it is: importing it says why.
/// Its folder never changes, so the bytecode is marked as not to be compared with its source (PEP 552).
pub(crate) async fn compile(python: &Path, code: &Path) {
    let mut command = Command::new(python);
    command
        .args(["-I", "-m", "compileall", "-q", "-q"])
        .args(["--invalidation-mode", "unchecked-hash"])
        .arg(code);
    match process::run(command, COMPILE_TIME_MAX, |_| {}).await {
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the code was not compiled ahead"),
    }
}

/// The modules that the declared requirements bring. Without them the template imports less ahead; nothing else breaks.
async fn imports(
    interpreter: &Interpreter,
    packages: &Path,
    required: &Requirements,
) -> Vec<String> {
    let mut command = Command::new(&interpreter.executable);
    command
        .args(["-I", "-c", include_str!("scripts/imports.py")])
        .arg(packages)
        .args(
            required
                .lines
                .iter()
                .filter_map(|line| Requirements::package(line)),
        );
    let mut found = None;
    let ended = process::run(command, COMPILE_TIME_MAX, |line| {
        found = serde_json::from_str(line).ok().or(found.take());
    })
    .await;
    found.unwrap_or_else(|| {
        tracing::warn!(
            ?ended,
            "the modules of the installed packages could not be listed"
        );
        Vec::new()
    })
}

/// Where the code is staged means nothing to anybody.
fn without_stage(text: &str, code: &Path) -> String {
    text.replace(&format!("{}/", code.display()), "")
}

fn keep(record: &Record, staged: &Path, place: &Path) -> io::Result<()> {
    let json = serde_json::to_vec_pretty(record)?;
    fs::write(staged.join(RECORD), json)?;
    durable::finish_tree(staged)?;
    durable::settle(staged, place)
}

fn clear(place: &Path) -> io::Result<()> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read_record(place: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(place.join(RECORD)).ok()?).ok()
}

fn disk(path: &Path, source: io::Error) -> EnvironmentError {
    EnvironmentError::Disk {
        path: path.to_owned(),
        source,
    }
}

const PACKAGES: &str = "packages";
const RECORD: &str = "environment.json";
const READY: &str = "ready";
const COMPILE_TIME_MAX: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
