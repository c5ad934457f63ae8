//! Python interpreters of this machine: which one a runtime means, and what it says of itself.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::Runtime;
use serde::Deserialize;
use tokio::process::Command;

use crate::process;

/// An interpreter, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Interpreter {
    pub(crate) implementation: String,
    /// `3.11.7`.
    pub(crate) version: String,
    /// What its compiled modules are tagged with.
    pub(crate) abi: String,
    /// Symbolic links and shims resolved.
    pub(crate) executable: PathBuf,
    /// `sys.base_prefix`.
    pub(crate) prefix: PathBuf,
    /// Whether it has pip.
    pub(crate) pip: bool,
}

/// Why there is no interpreter.
#[derive(Debug, thiserror::Error)]
#[error("{wanted} was not found on PATH ({found}); install it, or choose another runtime")]
pub(crate) struct NoInterpreter {
    /// `python3`, `python3.12`.
    pub(crate) wanted: String,
    /// What is there instead.
    pub(crate) found: String,
}

/// Finds interpreters on a PATH and remembers what they said.
#[derive(Debug)]
pub(crate) struct Interpreters {
    path: OsString,
    /// By candidate file; what was said holds while the file is the same. Never held across an await.
    known: Mutex<HashMap<Candidate, Interpreter>>,
}

/// A file that may be an interpreter, with what tells that it was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Candidate {
    path: PathBuf,
    inode: u64,
    modified_ns: i64,
}

impl Interpreters {
    pub(crate) fn new(path: OsString) -> Self {
        Self {
            path,
            known: Mutex::default(),
        }
    }

    /// The interpreter that a runtime means: the first on PATH that runs and is a CPython of the wanted version.
    pub(crate) async fn find(&self, runtime: &Runtime) -> Result<Interpreter, NoInterpreter> {
        let Runtime::Python { minor } = runtime;
        let wanted = match minor {
            Some(minor) => format!("python{minor}"),
            None => "python3".to_owned(),
        };
        for candidate in self.candidates(&wanted) {
            let Some(interpreter) = self.probe(candidate).await else {
                continue;
            };
            if fits(&interpreter, minor.as_deref()) {
                return Ok(interpreter);
            }
        }
        Err(NoInterpreter {
            found: self.describe_found().await,
            wanted,
        })
    }

    fn candidates(&self, name: &str) -> Vec<Candidate> {
        std::env::split_paths(&self.path)
            .filter(|folder| folder.is_absolute())
            .filter_map(|folder| Candidate::at(folder.join(name)))
            .collect()
    }

    async fn probe(&self, candidate: Candidate) -> Option<Interpreter> {
        let known = self.known.lock().get(&candidate).cloned();
        // Behind a shim the interpreter may have gone although the shim is the same.
        if let Some(known) = known.filter(|known| known.executable.exists()) {
            return Some(known);
        }
        let mut command = Command::new(&candidate.path);
        command.args(["-I", "-c", include_str!("scripts/probe.py")]);
        let mut json = None;
        let ended = process::run(command, PROBE_TIME_MAX, |line| {
            json = serde_json::from_str::<Interpreter>(line)
                .ok()
                .or(json.take());
        })
        .await;
        match ended {
            Ok(ended) if ended.succeeded() => {}
            // A shim of a version that is not installed, for one.
            Ok(ended) => {
                tracing::debug!(path = %candidate.path.display(), output = ended.tail, "not a Python that runs");
                return None;
            }
            Err(error) => {
                tracing::debug!(path = %candidate.path.display(), %error, "not a Python that runs");
                return None;
            }
        }
        let interpreter = json?;
        self.known.lock().insert(candidate, interpreter.clone());
        Some(interpreter)
    }

    async fn describe_found(&self) -> String {
        let mut found: BTreeMap<PathBuf, String> = BTreeMap::new();
        for name in self.python_names() {
            for candidate in self.candidates(&name) {
                if let Some(one) = self.probe(candidate).await {
                    let text = format!(
                        "{} {} at {}",
                        one.implementation,
                        one.version,
                        one.executable.display()
                    );
                    found.insert(one.executable, text);
                }
            }
        }
        if found.is_empty() {
            return "no Python is".to_owned();
        }
        let texts: Vec<String> = found.into_values().collect();
        format!("there is {}", texts.join(", "))
    }

    fn python_names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::env::split_paths(&self.path)
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| {
                name.strip_prefix("python3").is_some_and(|rest| {
                    rest.bytes()
                        .all(|byte| byte == b'.' || byte.is_ascii_digit())
                })
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Candidate {
    fn at(path: PathBuf) -> Option<Self> {
        let metadata = fs::metadata(&path).ok()?;
        let executable = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
        executable.then(|| Self {
            inode: metadata.ino(),
            modified_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
            path,
        })
    }
}

/// Whether the worker runs on it: CPython, recent enough, of the wanted minor version.
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

/// Where a program lies on a PATH.
pub(crate) fn on_path(path: &OsString, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|file| Candidate::at(file.clone()).is_some())
}

/// Whether an interpreter's file is still there.
pub(crate) fn is_there(executable: &Path) -> bool {
    Candidate::at(executable.to_owned()).is_some()
}

/// The oldest Python that the worker is written for.
const OLDEST: (u32, u32) = (3, 9);
const PROBE_TIME_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn write_program(folder: &Path, name: &str, script: &str) {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn says(version: &str) -> String {
        format!(
            r#"echo x >> "$0.calls"; echo '{{"implementation":"cpython","version":"{version}","abi":"x","executable":"/bin/sh","prefix":"/usr","pip":true}}'"#
        )
    }

    fn runtime(word: &str) -> Runtime {
        Runtime::parse(word).unwrap()
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
            .find(&runtime("python3.12"))
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
            .find(&runtime("python3.12"))
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "python3.12 was not found on PATH (there is cpython 3.10.4 at /bin/sh); install it, or choose another runtime"
        );
    }

    #[tokio::test]
    async fn an_interpreter_is_asked_once() {
        let folder = tempfile::tempdir().unwrap();
        write_program(folder.path(), "python3", &says("3.11.2"));
        let interpreters = Interpreters::new(folder.path().as_os_str().to_owned());
        for _ in 0..3 {
            interpreters.find(&runtime("python")).await.unwrap();
        }
        let calls = fs::read_to_string(folder.path().join("python3.calls")).unwrap();
        assert_eq!(calls.lines().count(), 1);
    }

    #[tokio::test]
    async fn this_machines_python_describes_itself() {
        let path = std::env::var_os("PATH").unwrap();
        let python = Interpreters::new(path)
            .find(&runtime("python"))
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
