//! Environments: interpreters and installed packages, built once per distinct set and shared by all functions that require the same
//! set. An environment has up to two parts, each in its own folder ([`part`]): CPython with its packages ([`python`]), and Node.js
//! with its `node_modules` ([`node`]). Its id is a hash over both parts, so that functions can share one part and differ in the other.
//!
//! An environment always has the part of the function's runtime, or of its command's program. It has another part if a file beside
//! the code requires packages. A container has no environment: its image contains everything.
//!
//! Not here: removing unused environments. The deployer does that.

use std::path::Path;
use std::sync::Arc;

use pilot_model::ports::BuildHost;
use pilot_model::runtime::NeededBy;
use pilot_model::{Environment, EnvironmentId, Runtime};

use self::node::NodeParts;
use self::part::Parts;
use self::python::PythonParts;
use self::site::Say;
use crate::data_dir::DataDir;
use crate::hash::Fields;

mod component;
mod config;
mod confined;
mod error;
mod node;
mod outcome;
mod part;
pub(crate) mod program;
mod python;
mod settings;
mod site;
mod survey;

pub(crate) use self::component::{ComponentCompiler, ComponentError};
pub use self::config::{EnvironmentConfig, SourceBuilds};
pub(crate) use self::error::EnvironmentError;
pub(crate) use self::node::{link_commands, unread_lock};
pub use self::program::Tool;
pub(crate) use self::python::Compiler;
pub use self::survey::survey;

#[cfg(any(test, fuzzing))]
pub(crate) use self::node::fuzzed_package;
#[cfg(any(test, fuzzing))]
pub(crate) use self::python::fuzzed_requirements;

/// The environment that some code needs. It is not built yet.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) id: EnvironmentId,
    python: Option<python::Plan>,
    node: Option<node::Plan>,
}

/// An environment that exists.
#[derive(Debug)]
pub(crate) struct Obtained {
    pub(crate) environment: Environment,
    /// It existed before, or needs no packages.
    pub(crate) reused: bool,
}

/// Builds environments.
#[derive(Debug)]
pub(crate) struct Environments {
    python: PythonParts,
    node: NodeParts,
    data_dir: Arc<DataDir>,
    builds: Arc<dyn BuildHost>,
}

impl Environments {
    /// `builds` runs installers and compilers.
    pub(crate) fn new(
        data_dir: Arc<DataDir>,
        config: EnvironmentConfig,
        builds: Arc<dyn BuildHost>,
    ) -> Self {
        let parts = Arc::new(Parts::new(Arc::clone(&data_dir)));
        Self {
            python: PythonParts::new(Arc::clone(&parts), config.clone(), Arc::clone(&builds)),
            node: NodeParts::new(parts, config, Arc::clone(&builds)),
            data_dir,
            builds,
        }
    }

    /// Compiles code for the interpreter of the function's runtime, if that is Python.
    pub(crate) fn compiler(&self, plan: &Plan) -> Option<Compiler> {
        let python = plan.python.as_ref()?;
        let runs_code = python.always == Some(NeededBy::Runtime);
        runs_code.then(|| {
            let (data_dir, builds) = (Arc::clone(&self.data_dir), Arc::clone(&self.builds));
            Compiler::new(python.interpreter.clone(), data_dir, builds)
        })
    }

    /// Compiles WebAssembly components.
    pub(crate) fn components(&self) -> ComponentCompiler {
        ComponentCompiler::new(Arc::clone(&self.data_dir), Arc::clone(&self.builds))
    }

    /// Finds out which environment the code needs. Runs interpreters that are not known yet.
    pub(crate) async fn plan(
        &self,
        runtime: &Runtime,
        code: &Path,
        code_hash: &str,
    ) -> Result<Plan, EnvironmentError> {
        let python = match runtime.python() {
            Some(need) => self.python.plan(&need, code, code_hash).await?,
            None => None,
        };
        let node = match runtime.node() {
            Some(need) => self.node.plan(&need, code, code_hash).await?,
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

    /// Returns the planned environment. Builds its missing parts; concurrent calls for one part share one build.
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
                node: None,
            },
            reused: true,
        };
        if let Some(python) = &plan.python {
            let part = self.python.obtain(python, code, say).await?;
            obtained.reused &= part.reused;
            obtained.environment.python = Some(part.python);
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

    /// The content of the environment, for people: `Python 3.11.7, 2 packages; Node 20.20.2`. Empty if it has none.
    pub(crate) fn in_words(&self, environment: &Environment) -> String {
        let python = self.python.as_ref().map(|plan| {
            let name = format!("Python {}", plan.interpreter.version);
            with_packages(name, python::count(environment.packages_dir()))
        });
        let node = self.node.as_ref().map(|plan| {
            let name = format!("Node {}", plan.interpreter.version);
            with_packages(name, node::count(environment.modules_dir()))
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

/// The id of the only part, or a hash over both. So an environment with Python only keeps the id of older daemons.
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

/// Characters at which an installer could end a line (Python's `str.splitlines`), or that nobody sees.
fn is_confusing(c: char) -> bool {
    (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
