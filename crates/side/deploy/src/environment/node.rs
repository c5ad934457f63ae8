//! The Node.js part of an environment: a Node.js and the packages of `package.json`, in `environments/ID/node_modules`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::ports::BuildHost;
use pilot_model::runtime::{NeededBy, NodeNeed};
use pilot_model::{EnvironmentId, Node};
use serde::{Deserialize, Serialize};

use self::interpreter::{Interpreter, Interpreters};
use self::npm::{Installation, Versions, failure, progress, telling};
use self::package::{Found, NODE_MODULES, NPMRC, PACKAGE_JSON, Package};
use super::config::EnvironmentConfig;
use super::error::{EnvironmentError, InstallFailure};
use super::outcome;
use super::part::{Parts, Unfinished, disk};
use super::site::{Say, Site, without_folder};
use crate::blocking::blocking;
use crate::hash::Fields;

mod commands;
mod interpreter;
mod npm;
pub(super) mod package;
mod survey;
pub(super) mod tree;

pub(crate) use self::commands::link_commands;
pub(crate) use self::package::unread_lock;
pub(super) use self::survey::survey;

/// The fuzz target of [`package::find`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed_package(code: &Path) {
    let _ = package::find(code);
}

/// The part that some code needs.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: EnvironmentId,
    pub(super) interpreter: Interpreter,
    found: Found,
}

/// A part that exists.
#[derive(Debug)]
pub(super) struct Obtained {
    pub(super) node: Node,
    pub(super) reused: bool,
}

/// What is recorded about a part, in addition to its packages.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    node_version: String,
    dependencies: Vec<String>,
}

/// Builds Node.js parts.
#[derive(Debug)]
pub(super) struct NodeParts {
    parts: Arc<Parts>,
    config: EnvironmentConfig,
    builds: Arc<dyn BuildHost>,
    interpreters: Interpreters,
}

impl NodeParts {
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

    /// `None`: nobody needs Node.js.
    pub(super) async fn plan(
        &self,
        need: &NodeNeed,
        code: &Path,
        code_hash: &str,
    ) -> Result<Option<Plan>, EnvironmentError> {
        let found = package::find(code)?;
        let required = (found != Found::Nothing).then_some(NeededBy::File(PACKAGE_JSON));
        let Some(needed_by) = need.always.or(required) else {
            return Ok(None);
        };
        let interpreter = self.interpreters.find(need.major, needed_by).await?;
        let mut hash = Fields::default();
        hash.add("node")
            .add(&interpreter.version)
            .add(&interpreter.abi)
            .add(&interpreter.platform)
            .add(interpreter.executable.as_os_str().as_encoded_bytes());
        if let Found::Wanted(package) = &found {
            package.hash(&mut hash, code_hash);
        }
        Ok(Some(Plan {
            id: EnvironmentId::from_hex(&hash.hex()),
            interpreter,
            found,
        }))
    }

    pub(super) async fn obtain(
        &self,
        plan: &Plan,
        code: &Path,
        say: Say<'_>,
    ) -> Result<Obtained, EnvironmentError> {
        let obtained = |modules_dir, reused| Obtained {
            node: Node {
                executable: plan.interpreter.executable.clone(),
                prefix: plan.interpreter.prefix(),
                version: plan.interpreter.version.clone(),
                modules_dir,
            },
            reused,
        };
        let package = match &plan.found {
            Found::Nothing => return Ok(obtained(None, true)),
            Found::Brought => {
                say("node_modules is in the code: nothing of package.json is installed".to_owned());
                return Ok(obtained(None, true));
            }
            Found::Wanted(package) => package,
        };
        let claimed = self.parts.claim(&plan.id).await;
        if claimed.record::<Record>()?.is_some() {
            let modules = claimed.place().join(NODE_MODULES);
            return Ok(obtained(Some(modules), true));
        }
        let site = Site {
            parts: &self.parts,
            config: &self.config,
            builds: &*self.builds,
            code,
            say,
        };
        let unfinished = claimed.begin()?;
        site.build_node(&plan.interpreter, package, &unfinished)
            .await?;
        let record = Record {
            node_version: plan.interpreter.version.clone(),
            dependencies: package.declared.keys().cloned().collect(),
        };
        let (place, _) = unfinished.finish(NODE_MODULES, record).await?;
        Ok(obtained(Some(place.join(NODE_MODULES)), false))
    }
}

impl Site<'_> {
    async fn build_node(
        &self,
        interpreter: &Interpreter,
        package: &Package,
        unfinished: &Unfinished,
    ) -> Result<(), EnvironmentError> {
        let npm =
            interpreter
                .npm(&self.config.search_path)
                .ok_or_else(|| EnvironmentError::NoNpm {
                    node: interpreter.executable.clone(),
                })?;
        let work = unfinished.work();
        self.lay_out_packages(package, &work).await?;
        let versions = match &package.lock {
            Some(lock) => {
                (self.say)(format!("installing the packages of {}", lock.file));
                Versions::Locked
            }
            None => {
                (self.say)(
                    "installing the packages of package.json (there is no package-lock.json: the newest that fit)".to_owned(),
                );
                Versions::Open
            }
        };
        let node_dir = interpreter.executable.parent().unwrap_or(Path::new("/"));
        let mut shown = vec![interpreter.prefix(), npm.clone()];
        // npm is a link to a program of its package.
        let package_of_npm = npm.canonicalize().ok();
        shown.extend(package_of_npm.and_then(|npm| Some(npm.parent()?.parent()?.to_owned())));
        let build = self.begin(unfinished, shown).await?;
        let folder = build.inside(&work);
        let installation = Installation {
            npm: &npm,
            node_dir,
            search_path: &self.config.search_path,
            folder: Path::new(&folder),
            versions,
            source_builds: self.config.source_builds,
        };
        let ended = build
            .run(installation.command(), |line| {
                if let Some(line) = progress(line) {
                    (self.say)(line);
                }
            })
            .await;
        let unreachable = build.unreachable();
        // Also after a failure: what is removed then must not be written to.
        let closed = build.close().await;
        let ended = ended?;
        let tail = without_folder(&telling(&ended.tail), &folder);
        let failure = |tail: &str| failure(tail, &package.declared);
        self.check(
            &ended,
            unreachable,
            (PACKAGE_JSON, "package"),
            tail,
            failure,
        )?;
        closed?;
        outcome::check_kinds(&work, PACKAGE_JSON).await?;
        let modules = unfinished.folder().join(NODE_MODULES);
        let place = modules.clone();
        match blocking(move || tree::make_whole(&work, &modules)).await {
            Ok(None) => outcome::check(&place, PACKAGE_JSON).await,
            Ok(Some(link)) => Err(EnvironmentError::Failed {
                failure: InstallFailure {
                    at_fault: Some(link.name),
                    reason: format!("it is a link to {}, which is not in the code", link.target),
                },
                noun: "package",
                file: PACKAGE_JSON,
                tail: String::new(),
            }),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(EnvironmentError::Outcome {
                    file: PACKAGE_JSON,
                    problem: error.to_string(),
                })
            }
            Err(source) => Err(disk(&place, source)),
        }
    }

    /// Writes npm's input to its folder; if packages are beside the code, also the code.
    async fn lay_out_packages(
        &self,
        package: &Package,
        work: &Path,
    ) -> Result<(), EnvironmentError> {
        let write = |name: &str, text: &str| {
            let path = work.join(name);
            fs::write(&path, text).map_err(|source| disk(&path, source))
        };
        if package.local {
            let (code, folder) = (self.code.to_owned(), work.to_owned());
            blocking(move || tree::copy(&code, &folder))
                .await
                .map_err(|source| disk(work, source))?;
        }
        write(PACKAGE_JSON, &package.manifest.to_string())?;
        if let Some(lock) = &package.lock {
            write(lock.file, &lock.canonical.to_string())?;
        }
        if let Some(npmrc) = &package.npmrc {
            write(NPMRC, npmrc)?;
        }
        Ok(())
    }
}

/// Number of packages that are installed in a folder.
pub(super) fn count(modules: Option<&Path>) -> usize {
    let listed = |folder: &Path| -> io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    };
    let starts_with = |path: &Path, c| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().first() == Some(&c))
    };
    let mut packages = 0;
    for path in modules
        .map(listed)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|path| path.is_dir() && !starts_with(path, b'.'))
    {
        packages += if starts_with(&path, b'@') {
            listed(&path).map_or(0, |scope| scope.len())
        } else {
            1
        };
    }
    packages
}

#[cfg(test)]
mod tests;
