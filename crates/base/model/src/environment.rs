//! What a version's code runs with: interpreters of this machine and installed packages.

use std::path::{Path, PathBuf};

use crate::ids::EnvironmentId;

/// Interpreters and installed dependencies; functions with equal dependencies share one. It has one part per language.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Environment {
    /// Hash over interpreters and requirements.
    pub id: EnvironmentId,
    /// CPython: for Python functions, and for others whose code has a `requirements.txt`.
    pub python: Option<Python>,
    /// Node.js: for Node functions, and for others whose code has a `package.json`.
    pub node: Option<Node>,
}

/// A CPython of this machine, and what was installed for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Python {
    /// The executable, symbolic links resolved.
    pub executable: PathBuf,
    /// Its `sys.base_prefix`, which must be visible in the sandbox.
    pub prefix: PathBuf,
    /// The folder of the installed packages (added to `sys.path`, or in PYTHONPATH); `None` if there are none. Its `bin` has
    /// their commands.
    pub packages_dir: Option<PathBuf>,
    /// Importable top-level modules of the *declared* requirements (not of their dependencies).
    pub imports: Vec<String>,
}

impl Environment {
    /// Where Python packages are installed.
    #[must_use]
    pub fn packages_dir(&self) -> Option<&Path> {
        self.python.as_ref()?.packages_dir.as_deref()
    }

    /// Where packages of Node.js are installed.
    #[must_use]
    pub fn modules_dir(&self) -> Option<&Path> {
        self.node.as_ref()?.modules_dir.as_deref()
    }

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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// The executable, symbolic links resolved.
    pub executable: PathBuf,
    /// The folder that contains `bin`. It must be visible in the sandbox.
    pub prefix: PathBuf,
    /// `20.20.2`.
    pub version: String,
    /// The `node_modules` of the dependencies, or `None` if there are none. Its `.bin` has their commands.
    pub modules_dir: Option<PathBuf>,
}
