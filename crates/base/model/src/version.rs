//! A deployed version: immutable, content-addressed, everything the path needs to run it without looking anything up.

use std::path::PathBuf;

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

/// Interpreter and installed dependencies; functions with equal dependencies share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Environment {
    /// Hash over interpreter and requirements.
    pub id: EnvironmentId,
    /// The interpreter's executable, symbolic links resolved.
    pub python: PathBuf,
    /// `sys.base_prefix` of it: what must be visible in the sandbox for it to run.
    pub python_prefix: PathBuf,
    /// Where the dependencies are installed (added to `sys.path`), or `None` when there are none.
    pub packages_dir: Option<PathBuf>,
    /// Importable top-level modules of the *declared* requirements (not of what those pull in).
    pub imports: Vec<String>,
}
