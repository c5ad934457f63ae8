//! The Python part of an environment: a CPython and the packages of `requirements.txt` or `pyproject.toml`, in
//! `environments/ID/packages`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::runtime::{NeededBy, PythonNeed};
use pilot_model::{EnvironmentId, Python};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use self::installer::{Installation, Installer, failure, progress};
use self::interpreter::{Interpreter, Interpreters};
use self::requirements::Requirements;
use super::config::{EnvironmentConfig, SourceBuilds};
use super::error::EnvironmentError;
use super::part::{Parts, Unfinished, disk};
use super::program::on_path;
use super::site::{Say, Site, without_stage};
use crate::data_dir::make_dir;
use crate::hash::Fields;
use crate::process;

mod installer;
mod interpreter;
mod requirements;

pub(crate) use self::requirements::RequirementsError;

/// The part that some code needs.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: EnvironmentId,
    pub(super) interpreter: Interpreter,
    /// As the runtime says.
    pub(super) always: Option<NeededBy>,
    requirements: Option<Requirements>,
}

/// A part that exists.
#[derive(Debug)]
pub(super) struct Obtained {
    pub(super) python: Python,
    pub(super) reused: bool,
}

/// What is recorded about a part, in addition to its packages.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    python_version: String,
    requirements: Vec<String>,
    imports: Vec<String>,
}

/// Builds Python parts.
#[derive(Debug)]
pub(super) struct PythonParts {
    parts: Arc<Parts>,
    config: EnvironmentConfig,
    interpreters: Interpreters,
}

impl PythonParts {
    pub(super) fn new(parts: Arc<Parts>, config: EnvironmentConfig) -> Self {
        Self {
            interpreters: Interpreters::new(config.search_path.clone()),
            parts,
            config,
        }
    }

    /// `None`: nobody needs Python.
    pub(super) async fn plan(
        &self,
        need: &PythonNeed,
        code: &Path,
        code_hash: &str,
    ) -> Result<Option<Plan>, EnvironmentError> {
        let requirements = requirements::find(code, need.files)?;
        if self.config.source_builds == SourceBuilds::Refused
            && let Some(required) = &requirements
            && let Some(line) = required.wants_source()
        {
            return Err(RequirementsError {
                file: required.file.to_owned(),
                problem: format!(
                    "'{line}' is built from its source, which this daemon refuses (sources = \"wheels-only\" in [build] of \
                     pilotd.toml); require a wheel"
                ),
            }
            .into());
        }
        let file = requirements
            .as_ref()
            .map(|required| NeededBy::File(required.file));
        let Some(needed_by) = need.always.or(file) else {
            return Ok(None);
        };
        let interpreter = self
            .interpreters
            .find(need.minor.as_deref(), needed_by)
            .await?;
        let mut hash = Fields::default();
        hash.add(&interpreter.version)
            .add(&interpreter.abi)
            .add(interpreter.executable.as_os_str().as_encoded_bytes());
        if let Some(required) = &requirements {
            hash.add(CANONICAL);
            for list in [&required.lines, &required.constraints] {
                hash.add(Requirements::text(list));
            }
            if required.local {
                hash.add(code_hash);
            }
        }
        Ok(Some(Plan {
            id: EnvironmentId::from_hex(&hash.hex()),
            interpreter,
            always: need.always,
            requirements,
        }))
    }

    pub(super) async fn obtain(
        &self,
        plan: &Plan,
        code: &Path,
        say: Say<'_>,
    ) -> Result<Obtained, EnvironmentError> {
        let obtained = |packages_dir, imports, reused| Obtained {
            python: Python {
                executable: plan.interpreter.executable.clone(),
                prefix: plan.interpreter.prefix.clone(),
                packages_dir,
                imports,
            },
            reused,
        };
        let Some(required) = &plan.requirements else {
            return Ok(obtained(None, Vec::new(), true));
        };
        let claimed = self.parts.claim(&plan.id).await;
        if let Some(record) = claimed.record::<Record>() {
            let packages = claimed.place().join(PACKAGES);
            return Ok(obtained(Some(packages), record.imports, true));
        }
        let site = Site {
            parts: &self.parts,
            config: &self.config,
            code,
            say,
        };
        let unfinished = claimed.begin()?;
        let record = site
            .build_python(&plan.interpreter, required, &unfinished)
            .await?;
        let (place, record) = unfinished.finish(record).await?;
        Ok(obtained(Some(place.join(PACKAGES)), record.imports, false))
    }
}

impl Site<'_> {
    async fn build_python(
        &self,
        interpreter: &Interpreter,
        required: &Requirements,
        unfinished: &Unfinished,
    ) -> Result<Record, EnvironmentError> {
        let packages = unfinished.folder().join(PACKAGES);
        make_dir(&packages).map_err(|source| disk(&packages, source))?;
        let work = unfinished.work();
        let write = |name: &str, lines: &[String]| {
            let file = work.join(name);
            fs::write(&file, Requirements::text(lines)).map_err(|source| disk(&file, source))?;
            Ok::<_, EnvironmentError>(file)
        };
        let file = write("requirements.txt", &required.lines)?;
        let constraints = match required.constraints.as_slice() {
            [] => None,
            lines => Some(write("constraints.txt", lines)?),
        };
        let installer = self.installer(interpreter).await?;
        (self.say)(format!("installing the packages of {}", required.file));
        let command = installer.command(&Installation {
            python: &interpreter.executable,
            file: &file,
            constraints: constraints.as_deref(),
            // uv also reads uv.toml and pyproject.toml of this folder and those above it.
            cwd: if required.local { self.code } else { &work },
            target: &packages,
            source_builds: self.config.source_builds,
        });
        let ended = process::run(command, self.config.install_time_max, |line| {
            if let Some(line) = progress(line) {
                (self.say)(without_stage(line, self.code));
            }
        })
        .await
        .map_err(|source| disk(&interpreter.executable, source))?;
        let tail = without_stage(&ended.tail, self.code);
        let failure = |tail: &str| failure(tail, required);
        self.check(&ended, (required.file, "requirement"), tail, failure)?;
        if let Installer::Pip(python) = &installer
            && *python != interpreter.executable
        {
            let bin = packages.join("bin");
            readdress(&bin, python, &interpreter.executable)
                .map_err(|source| disk(&bin, source))?;
        }
        Ok(Record {
            python_version: interpreter.version.clone(),
            requirements: required.lines.clone(),
            imports: imports(interpreter, &packages, required).await,
        })
    }

    /// uv if it is on PATH, otherwise the interpreter's pip, otherwise a pip that the daemon installs for this interpreter.
    async fn installer(&self, interpreter: &Interpreter) -> Result<Installer, EnvironmentError> {
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
        let place = self.parts.data_dir.tooling().join(id.as_str());
        let python = place.join("bin/python");
        let _building = self.parts.lock(&format!("tooling {id}")).await;
        if place.join(READY).exists() {
            return Ok(Installer::Pip(python));
        }
        (self.say)(format!(
            "{} has no pip: making a virtual environment that has one",
            interpreter.executable.display()
        ));
        // A virtual environment cannot be moved. So it is created in its place, and marked when it is complete.
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

/// Changes the interpreter in the first lines of installed commands. The daemon's own pip is in a virtual environment that does not
/// exist in the sandbox.
fn readdress(bin: &Path, from: &Path, to: &Path) -> std::io::Result<()> {
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    let entries = match fs::read_dir(bin) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        let metadata = path.symlink_metadata()?;
        if !metadata.is_file() || metadata.len() > SCRIPT_BYTES_MAX {
            continue;
        }
        // Anything that is not text is a binary.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        if text.starts_with("#!") && text.contains(&*from) {
            fs::write(&path, text.replacen(&*from, &to, 1))?;
        }
    }
    Ok(())
}

/// Compiles code to bytecode, because the folder is mounted read-only. Files that do not compile are skipped; their import reports
/// the error. The folder never changes, so the bytecode is marked as unchecked (PEP 552).
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

/// The modules of the declared requirements. Without them the template only imports less in advance.
async fn imports(
    interpreter: &Interpreter,
    packages: &Path,
    required: &Requirements,
) -> Vec<String> {
    let mut command = Command::new(&interpreter.executable);
    command
        .args(["-I", "-c", include_str!("python/imports.py")])
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

/// Number of packages that are installed in a folder.
pub(super) fn count(packages: Option<&Path>) -> usize {
    let entries = packages.and_then(|folder| fs::read_dir(folder).ok());
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".dist-info") || name.ends_with(".egg-info"))
        .count()
}

const PACKAGES: &str = "packages";
/// Begins the hash of requirements. Older daemons installed from other bytes than they hashed, so their environments are not used again.
const CANONICAL: &str = "canonical requirements 2";
const READY: &str = "ready";
const COMPILE_TIME_MAX: Duration = Duration::from_secs(120);
/// Largest command. The commands that installers write are a few lines.
const SCRIPT_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests;
