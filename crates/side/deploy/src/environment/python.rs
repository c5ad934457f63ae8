//! The Python part of an environment: a CPython and the packages of `requirements.txt` or `pyproject.toml`, in
//! `environments/ID/packages`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::ports::{BuildCommand, BuildHost};
use pilot_model::runtime::{NeededBy, PythonNeed};
use pilot_model::{EnvironmentId, Python};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use self::installer::{Installation, Installer, failure, progress};
use self::interpreter::{Interpreter, Interpreters};
use self::requirements::Requirements;
use super::config::{EnvironmentConfig, SourceBuilds};
use super::confined::Confined;
use super::error::EnvironmentError;
use super::node::tree::copy;
use super::outcome;
use super::part::{Parts, Unfinished, disk};
use super::program::on_path;
use super::site::{Say, Site, without_folder};
use crate::blocking::blocking;
use crate::data_dir::make_dir;
use crate::hash::Fields;
use crate::process;

mod compile;
mod installer;
mod interpreter;
pub(super) mod requirements;
mod survey;

pub(crate) use self::compile::Compiler;
use self::requirements::RequirementsError;
pub(super) use self::survey::survey;

/// The fuzz target of [`requirements::find`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed_requirements(code: &Path) {
    requirements::check_reading(code);
}

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
    builds: Arc<dyn BuildHost>,
    interpreters: Interpreters,
}

impl PythonParts {
    pub(super) fn new(
        parts: Arc<Parts>,
        config: EnvironmentConfig,
        builds: Arc<dyn BuildHost>,
    ) -> Self {
        Self {
            builds,
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
        if let Some(record) = claimed.record::<Record>()? {
            let packages = claimed.place().join(PACKAGES);
            return Ok(obtained(Some(packages), record.imports, true));
        }
        let site = Site {
            parts: &self.parts,
            config: &self.config,
            builds: &*self.builds,
            code,
            say,
        };
        let unfinished = claimed.begin()?;
        let record = site
            .build_python(&plan.interpreter, required, &unfinished)
            .await?;
        let (place, record) = unfinished.finish(PACKAGES, record).await?;
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
        let files = self.lay_out_requirements(required, unfinished).await?;
        let installer = self.installer(interpreter).await?;
        let mut shown = vec![interpreter.prefix.clone(), interpreter.executable.clone()];
        match &installer {
            Installer::Uv(uv) => shown.push(uv.clone()),
            Installer::OwnPip(_, folder) => shown.push(folder.clone()),
            Installer::Pip(_) => {}
        }
        let build = self.begin(unfinished, shown).await?;
        (self.say)(format!("installing the packages of {}", required.file));
        let done = self
            .install(interpreter, required, &installer, &files, &packages, &build)
            .await;
        // Also after a failure: what is removed then must not be written to.
        let closed = build.close().await;
        let imports = done?;
        closed?;
        outcome::check(&packages, required.file).await?;
        if let Installer::OwnPip(python, _) = &installer {
            let bin = packages.join("bin");
            readdress(&bin, python, &interpreter.executable)
                .map_err(|source| disk(&bin, source))?;
        }
        Ok(Record {
            python_version: interpreter.version.clone(),
            requirements: required.lines.clone(),
            imports,
        })
    }

    /// Writes the installer's input to the work folder; if packages are beside the code, also the code.
    async fn lay_out_requirements(
        &self,
        required: &Requirements,
        unfinished: &Unfinished,
    ) -> Result<Files, EnvironmentError> {
        let work = unfinished.work();
        let write = |name: &str, lines: &[String]| {
            let file = work.join(name);
            fs::write(&file, Requirements::text(lines)).map_err(|source| disk(&file, source))?;
            Ok::<_, EnvironmentError>(file)
        };
        let requirements = write("requirements.txt", &required.lines)?;
        let constraints = match required.constraints.as_slice() {
            [] => None,
            lines => Some(write("constraints.txt", lines)?),
        };
        // uv also reads uv.toml and pyproject.toml of its folder and those above it, so it gets one without the code if possible.
        let cwd = work.join("code");
        make_dir(&cwd).map_err(|source| disk(&cwd, source))?;
        if required.local {
            let (code, folder) = (self.code.to_owned(), cwd.clone());
            blocking(move || copy(&code, &folder))
                .await
                .map_err(|source| disk(&cwd, source))?;
        }
        Ok(Files {
            requirements,
            constraints,
            cwd,
        })
    }

    /// Installs, and returns the modules of the declared requirements.
    async fn install(
        &self,
        interpreter: &Interpreter,
        required: &Requirements,
        installer: &Installer,
        files: &Files,
        packages: &Path,
        build: &Confined,
    ) -> Result<Vec<String>, EnvironmentError> {
        let cwd = build.inside(&files.cwd);
        let mut command = installer.command(&Installation {
            python: &interpreter.executable,
            file: build.inside(&files.requirements),
            constraints: files.constraints.as_deref().map(|file| build.inside(file)),
            cwd: cwd.clone().into(),
            target: build.inside(packages),
            source_builds: self.config.source_builds,
        });
        let path = self.config.search_path.to_string_lossy().into_owned();
        command.environment.push(("PATH".to_owned(), path));
        let ended = build
            .run(command, |line| {
                if let Some(line) = progress(line) {
                    (self.say)(without_folder(line, &cwd));
                }
            })
            .await?;
        let tail = without_folder(&ended.tail, &cwd);
        let failure = |tail: &str| failure(tail, required);
        let unreachable = build.unreachable();
        self.check(
            &ended,
            unreachable,
            (required.file, "requirement"),
            tail,
            failure,
        )?;
        imports(interpreter, packages, required, build).await
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
            return Ok(Installer::OwnPip(python, place));
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
        Ok(Installer::OwnPip(python, place))
    }
}

/// The installer's input.
#[derive(Debug)]
struct Files {
    requirements: PathBuf,
    constraints: Option<PathBuf>,
    cwd: PathBuf,
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

/// The modules of the declared requirements. Without them the template only imports less in advance.
async fn imports(
    interpreter: &Interpreter,
    packages: &Path,
    required: &Requirements,
    build: &Confined,
) -> Result<Vec<String>, EnvironmentError> {
    let mut arguments = vec!["-I".to_owned(), "-c".to_owned()];
    arguments.push(include_str!("python/imports.py").to_owned());
    arguments.push(build.inside(packages));
    arguments.extend(
        required
            .lines
            .iter()
            .filter_map(|line| Requirements::package(line)),
    );
    let command = BuildCommand {
        program: interpreter.executable.clone(),
        arguments,
        environment: Vec::new(),
        cwd: PathBuf::from("/"),
    };
    let mut found: Option<Vec<String>> = None;
    let ended = build
        .run(command, |line| {
            found = serde_json::from_str(line).ok().or(found.take());
        })
        .await?;
    let found = found.unwrap_or_else(|| {
        tracing::warn!(
            ?ended,
            "the modules of the installed packages could not be listed"
        );
        Vec::new()
    });
    // The packages' own files say them.
    let plausible =
        |name: &String| name.len() <= MODULE_NAME_BYTES_MAX && !name.contains(char::is_control);
    Ok(found
        .into_iter()
        .filter(plausible)
        .take(MODULES_MAX)
        .collect())
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
/// Modules that a template imports in advance, and their names' longest.
const MODULES_MAX: usize = 1000;
const MODULE_NAME_BYTES_MAX: usize = 200;
/// Largest command. The commands that installers write are a few lines.
const SCRIPT_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests;
