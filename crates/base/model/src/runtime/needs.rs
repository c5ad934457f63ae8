//! What runtimes need of interpreters and packages.

use super::python;

/// What a function needs of CPython.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonNeed {
    /// `3.11`; `None`: the daemon's default.
    pub minor: Option<String>,
    /// Who needs an interpreter even if no packages are required; `None`: nobody.
    pub always: Option<NeededBy>,
    /// Which files may require packages.
    pub files: RequirementFiles,
}

/// What a function needs of Node.js.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNeed {
    /// `20`; `None`: the daemon's default.
    pub major: Option<u32>,
    /// Who needs Node.js even if no packages are required; `None`: nobody.
    pub always: Option<NeededBy>,
}

/// Who needs an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeededBy {
    /// The function's runtime.
    Runtime,
    /// It is the program of the function's command.
    Command,
    /// A file of requirements beside the code.
    File(&'static str),
}

/// Which files may require Python packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequirementFiles {
    /// Both; `requirements.txt` wins.
    All,
    /// `requirements.txt` alone: a `pyproject.toml` beside another language's code is about that code's tools.
    Txt,
}

impl PythonNeed {
    /// The need of a function whose command begins with this program.
    pub(super) fn of_program(program: Option<&str>) -> Self {
        let minor = program.and_then(python::minor_of);
        Self {
            always: minor.is_some().then_some(NeededBy::Command),
            minor: minor.flatten(),
            files: RequirementFiles::All,
        }
    }
}

impl NodeNeed {
    /// The need of a function whose command begins with this program.
    pub(super) fn of_program(program: Option<&str>) -> Self {
        let is_node = matches!(program, Some("node" | "nodejs"));
        Self {
            major: None,
            always: is_node.then_some(NeededBy::Command),
        }
    }
}
