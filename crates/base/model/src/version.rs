//! A deployed version: immutable, content-addressed, everything the path needs to run it without looking anything up.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::FunctionConfig;
use crate::ids::{EnvironmentId, VersionId};

/// A function's version as it lies on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// Hash over configuration, code and environment.
    pub id: VersionId,
    /// 1, 2, 3 … per function in the order of deployment: what `NAME:2` names.
    pub number: u32,
    /// The checked configuration.
    pub config: FunctionConfig,
    /// The unpacked code; mounted read-only at `/var/task`.
    pub code_dir: PathBuf,
    /// Interpreter and dependencies.
    pub environment: Environment,
}

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
