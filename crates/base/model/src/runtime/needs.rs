//! What runtimes need of interpreters and packages.

use super::is_number;

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
        let minor = program.and_then(minor_of);
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

/// The minor version in `python3.11`. `Some(None)`: the daemon's default. `None`: the word does not mean CPython.
pub(super) fn minor_of(word: &str) -> Option<Option<String>> {
    let version = word.strip_prefix("python")?;
    if matches!(version, "" | "3") {
        return Some(None);
    }
    let minor = version.strip_prefix("3.").filter(is_number)?;
    Some(Some(format!("3.{minor}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_python_means_the_daemons() {
        for (name, minor) in [
            ("python", Some(None)),
            ("python3", Some(None)),
            ("python3.12", Some(Some("3.12"))),
            ("python3.x", None),
            ("python3.", None),
            ("python2", None),
            ("python-tool", None),
            ("pypy3", None),
        ] {
            let minor = minor.map(|minor| minor.map(str::to_owned));
            assert_eq!(minor_of(name), minor, "{name}");
        }
    }
}
