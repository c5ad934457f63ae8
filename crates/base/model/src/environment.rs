//! What a version's code runs with: interpreters of this machine and installed packages.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ids::EnvironmentId;

/// Interpreters and installed dependencies; functions with equal dependencies share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Environment {
    /// Hash over interpreters and requirements.
    pub id: EnvironmentId,
    /// CPython: of every Python function, and of others whose code has a `requirements.txt`.
    #[serde(flatten)]
    pub python: Option<Python>,
    /// Where Python packages are installed (added to `sys.path`, or shown as PYTHONPATH), or `None` when there are none. Its
    /// `bin` has their commands.
    pub packages_dir: Option<PathBuf>,
    /// Importable top-level modules of the *declared* requirements (not of what those pull in).
    pub imports: Vec<String>,
    /// Node.js: of every Node function, and of others whose code has a `package.json`.
    #[serde(default)]
    pub node: Option<Node>,
}

/// A CPython of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Python {
    /// The executable, symbolic links resolved.
    #[serde(rename = "python")]
    pub executable: PathBuf,
    /// `sys.base_prefix` of it: what must be visible in the sandbox for it to run.
    #[serde(rename = "python_prefix")]
    pub prefix: PathBuf,
}

impl Environment {
    /// The folders that must be visible in a sandbox for its interpreters to run, except those that always are.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let python = self.python.iter().flat_map(Python::folders);
        let node = self.node.iter().map(|node| node.prefix.as_path());
        python
            .chain(node)
            .filter(|folder| !folder.starts_with("/usr"))
            .map(Path::to_owned)
            .collect()
    }
}

impl Python {
    /// What must be visible in a sandbox for it to run.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        [Some(self.prefix.as_path()), self.executable.parent()]
            .into_iter()
            .flatten()
    }
}

/// A Node.js of this machine, and what was installed for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// The executable, symbolic links resolved.
    pub executable: PathBuf,
    /// The folder that must be visible in the sandbox for it to run: what `bin` is in.
    pub prefix: PathBuf,
    /// `20.20.2`.
    pub version: String,
    /// The `node_modules` of the dependencies, or `None` when there are none. Its `.bin` has their commands.
    pub modules_dir: Option<PathBuf>,
}
