//! Python interpreters on this machine: which one is used, and its description of itself.

use std::fmt;
use std::path::{Path, PathBuf};

use pilot_model::runtime::NeededBy;
use serde::Deserialize;

use super::super::program::{Described, NotFound, Programs};

/// An interpreter, from its own description.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Interpreter {
    pub(super) implementation: String,
    /// `3.11.7`.
    pub(crate) version: String,
    /// The ABI tag of its compiled modules.
    pub(super) abi: String,
    /// Its path, with symbolic links and shims resolved.
    pub(crate) executable: PathBuf,
    /// `sys.base_prefix`.
    pub(super) prefix: PathBuf,
    /// Whether it has pip.
    pub(super) pip: bool,
}

impl Described for Interpreter {
    fn executable(&self) -> &Path {
        &self.executable
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.executable.display();
        write!(f, "{} {} at {place}", self.implementation, self.version)
    }
}

/// Finds interpreters on a PATH.
pub(super) type Interpreters = Programs<Interpreter>;

impl Interpreters {
    /// The first CPython on PATH that runs and has the wanted minor version (`3.11`; `None`: any version that is recent enough).
    pub(super) async fn find(
        &self,
        minor: Option<&str>,
        needed_by: NeededBy,
    ) -> Result<Interpreter, NotFound> {
        let wanted = match minor {
            Some(minor) => format!("python{minor}"),
            None => "python3".to_owned(),
        };
        for candidate in self.candidates(&wanted) {
            let Some(interpreter) = self.ask(&candidate, PROBE).await else {
                continue;
            };
            if fits(&interpreter, minor) {
                return Ok(interpreter);
            }
        }
        Err(NotFound {
            found: self.found(is_python, PROBE, "Python").await,
            wanted,
            needed_by,
        })
    }
}

fn is_python(name: &str) -> bool {
    name.strip_prefix("python3").is_some_and(|rest| {
        rest.bytes()
            .all(|byte| byte == b'.' || byte.is_ascii_digit())
    })
}

/// Whether the worker runs on it: a CPython that is recent enough and has the wanted minor version.
fn fits(interpreter: &Interpreter, minor: Option<&str>) -> bool {
    let mut parts = interpreter
        .version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    interpreter.implementation == "cpython"
        && version >= OLDEST
        && minor.is_none_or(|minor| minor == format!("{}.{}", version.0, version.1))
}

/// The oldest Python that the worker supports.
const OLDEST: (u32, u32) = (3, 9);
const PROBE: &[&str] = &["-I", "-c", include_str!("probe.py")];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::program::tests::write_program;
    use super::*;

    fn says(version: &str) -> String {
        format!(
            r#"echo x >> "$0.calls"; echo '{{"implementation":"cpython","version":"{version}","abi":"x","executable":"/bin/sh","prefix":"/usr","pip":true}}'"#
        )
    }

    #[tokio::test]
    async fn a_shim_that_does_not_run_is_passed_over() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_program(
            first.path(),
            "python3.12",
            "echo not installed >&2; exit 127",
        );
        write_program(second.path(), "python3.12", &says("3.12.1"));
        let path = std::env::join_paths([first.path(), second.path()]).unwrap();
        let found = Interpreters::new(path)
            .find(Some("3.12"), NeededBy::Runtime)
            .await
            .unwrap();
        assert_eq!(found.version, "3.12.1");
    }

    #[tokio::test]
    async fn a_missing_interpreter_names_what_there_is() {
        let folder = tempfile::tempdir().unwrap();
        write_program(folder.path(), "python3.10", &says("3.10.4"));
        let path = folder.path().as_os_str().to_owned();
        let error = Interpreters::new(path)
            .find(Some("3.12"), NeededBy::Runtime)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "python3.12 was not found on the daemon's PATH (there is cpython 3.10.4 at /bin/sh); install it on the daemon's machine, or choose another runtime"
        );
    }

    #[tokio::test]
    async fn an_interpreter_is_asked_once() {
        let folder = tempfile::tempdir().unwrap();
        write_program(folder.path(), "python3", &says("3.11.2"));
        let interpreters = Interpreters::new(folder.path().as_os_str().to_owned());
        for _ in 0..3 {
            interpreters.find(None, NeededBy::Runtime).await.unwrap();
        }
        let calls = fs::read_to_string(folder.path().join("python3.calls")).unwrap();
        assert_eq!(calls.lines().count(), 1);
    }

    #[tokio::test]
    async fn this_machines_python_describes_itself() {
        let path = std::env::var_os("PATH").unwrap();
        let python = Interpreters::new(path)
            .find(None, NeededBy::Runtime)
            .await
            .unwrap();
        assert_eq!(python.implementation, "cpython");
        assert!(python.executable.is_absolute() && !python.executable.is_symlink());
        assert!(python.prefix.is_dir());
    }

    #[test]
    fn an_old_python_does_not_do() {
        let python = |version: &str| Interpreter {
            implementation: "cpython".to_owned(),
            version: version.to_owned(),
            abi: String::new(),
            executable: PathBuf::new(),
            prefix: PathBuf::new(),
            pip: true,
        };
        assert!(!fits(&python("3.8.20"), None));
        assert!(fits(&python("3.14.0"), None));
        assert!(!fits(&python("3.11.0"), Some("3.12")));
    }
}
