//! Programs on a PATH, and their descriptions of themselves. A description is cached as long as the file is the same.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::runtime::NeededBy;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::process;

/// A program that deployments need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// `Python`, `pip or uv`, `Node.js`, `npm`.
    pub name: &'static str,
    /// The program, for people; or why there is none.
    pub found: Result<String, String>,
}

/// A program's description of itself, one line of JSON. It displays as `Node 20.20.2 at /usr/bin/node`.
pub(crate) trait Described: Clone + DeserializeOwned + fmt::Display + Send {
    /// The path of the program, with symbolic links and shims resolved.
    fn executable(&self) -> &Path;
}

/// Why there is no such program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.in_words())]
pub(crate) struct NotFound {
    /// `python3.12`, `node`.
    pub(crate) wanted: String,
    /// What was found instead.
    pub(crate) found: String,
    pub(crate) needed_by: NeededBy,
}

impl NotFound {
    fn in_words(&self) -> String {
        let Self {
            wanted,
            found,
            needed_by,
        } = self;
        match needed_by {
            NeededBy::Runtime => format!(
                "{wanted} was not found on the daemon's PATH ({found}); install it on the daemon's machine, or choose another runtime"
            ),
            NeededBy::Command => format!(
                "command: {wanted} was not found on the daemon's PATH ({found}); install it on the daemon's machine, or change command"
            ),
            NeededBy::File(file) => format!(
                "{file} needs {wanted}, which was not found on the daemon's PATH ({found}); install it on the daemon's machine, or \
                 list {file} in .pilotignore if the function does without"
            ),
        }
    }
}

/// Programs of one kind on a PATH.
#[derive(Debug)]
pub(crate) struct Programs<T> {
    path: OsString,
    /// Descriptions by file, valid as long as the file is the same. Never held across an await.
    known: Mutex<HashMap<Candidate, T>>,
}

/// A file that may be such a program, with the attributes that change when it is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    inode: u64,
    modified_ns: i64,
}

impl<T: Described> Programs<T> {
    pub(crate) fn new(path: OsString) -> Self {
        Self {
            path,
            known: Mutex::default(),
        }
    }

    /// The files of this name, in the order of the PATH.
    pub(crate) fn candidates(&self, name: &str) -> Vec<Candidate> {
        std::env::split_paths(&self.path)
            .filter(|folder| folder.is_absolute())
            .filter_map(|folder| Candidate::at(folder.join(name)))
            .collect()
    }

    /// A candidate's description, from running it with these arguments; `None`: it does not run, or is a different program.
    pub(crate) async fn ask(&self, candidate: &Candidate, arguments: &[&str]) -> Option<T> {
        let known = self.known.lock().get(candidate).cloned();
        // The program behind a shim may have been removed although the shim is the same.
        if let Some(known) = known.filter(|known| known.executable().exists()) {
            return Some(known);
        }
        let mut command = Command::new(&candidate.path);
        // Options in the daemon's environment would apply only here.
        command.args(arguments).env_remove("NODE_OPTIONS");
        let mut said = None;
        let ended = process::run(command, ASK_TIME_MAX, |line| {
            said = serde_json::from_str::<T>(line).ok().or(said.take());
        })
        .await;
        let path = candidate.path.display();
        match ended {
            Ok(ended) if ended.succeeded() => {}
            // For example, the shim of a version that is not installed.
            Ok(ended) => {
                tracing::debug!(%path, output = ended.tail, "not a program that runs");
                return None;
            }
            Err(error) => {
                tracing::debug!(%path, %error, "not a program that runs");
                return None;
            }
        }
        let said = said?;
        self.known.lock().insert(candidate.clone(), said.clone());
        Some(said)
    }

    /// For an error message: the programs with a matching name.
    pub(crate) async fn found(
        &self,
        fits: impl Fn(&str) -> bool + Send,
        arguments: &[&str],
        nothing: &str,
    ) -> String {
        let mut found = BTreeMap::new();
        for name in self.names(fits) {
            for candidate in self.candidates(&name) {
                if let Some(one) = self.ask(&candidate, arguments).await {
                    found.insert(one.executable().to_owned(), one.to_string());
                }
            }
        }
        if found.is_empty() {
            return format!("no {nothing} is");
        }
        let texts: Vec<String> = found.into_values().collect();
        format!("there is {}", texts.join(", "))
    }

    fn names(&self, fits: impl Fn(&str) -> bool) -> Vec<String> {
        let mut names: Vec<String> = std::env::split_paths(&self.path)
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| fits(name))
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

/// The path of a program on a PATH.
pub(crate) fn on_path(path: &OsStr, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|file| is_there(file))
}

/// Whether the file exists and is executable.
pub(crate) fn is_there(executable: &Path) -> bool {
    Candidate::at(executable.to_owned()).is_some()
}

const ASK_TIME_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a shell script to a folder.
    pub(in super::super) fn write_program(folder: &Path, name: &str, script: &str) {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn what_is_missing_says_who_needs_it_and_what_there_is() {
        let missing = |needed_by| NotFound {
            wanted: "node".to_owned(),
            found: "no Node.js is".to_owned(),
            needed_by,
        };
        assert_eq!(
            missing(NeededBy::Runtime).to_string(),
            "node was not found on the daemon's PATH (no Node.js is); install it on the daemon's machine, or choose another runtime"
        );
        assert_eq!(
            missing(NeededBy::Command).to_string(),
            "command: node was not found on the daemon's PATH (no Node.js is); install it on the daemon's machine, or change command"
        );
        assert_eq!(
            missing(NeededBy::File("package.json")).to_string(),
            "package.json needs node, which was not found on the daemon's PATH (no Node.js is); install it on the daemon's machine, or list package.json in \
             .pilotignore if the function does without"
        );
    }

    #[test]
    fn a_file_that_cannot_be_run_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("npm"), "").unwrap();
        assert_eq!(on_path(folder.path().as_os_str(), "npm"), None);
        write_program(folder.path(), "npm", "");
        assert_eq!(
            on_path(folder.path().as_os_str(), "npm"),
            Some(folder.path().join("npm"))
        );
    }
}
