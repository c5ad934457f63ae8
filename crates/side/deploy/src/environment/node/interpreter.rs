//! Node.js on this machine: which one is used, its description of itself, and its npm.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use pilot_model::runtime::NeededBy;
use serde::Deserialize;

use super::super::program::{Described, NotFound, Programs, is_there, on_path};

/// A Node.js interpreter, from its own description.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Interpreter {
    /// `20.20.2`.
    pub(crate) version: String,
    /// The ABI version of its compiled addons (`process.versions.modules`).
    pub(super) abi: String,
    /// `linux-x64`.
    pub(super) platform: String,
    /// Its path, with symbolic links and shims resolved.
    pub(super) executable: PathBuf,
    /// The folder that it was found in.
    #[serde(skip)]
    pub(super) found_in: PathBuf,
}

impl Described for Interpreter {
    fn executable(&self) -> &Path {
        &self.executable
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node {} at {}", self.version, self.executable.display())
    }
}

impl Interpreter {
    /// The folder that must be visible for it to run: the one that contains its `bin`.
    pub(super) fn prefix(&self) -> PathBuf {
        let bin = self.executable.parent().unwrap_or(Path::new("/"));
        match bin.file_name() {
            Some(name) if name == "bin" => bin.parent().unwrap_or(bin).to_owned(),
            _ => bin.to_owned(),
        }
    }

    /// The npm beside it, otherwise the first one on PATH.
    pub(super) fn npm(&self, search_path: &OsString) -> Option<PathBuf> {
        let beside = [Some(self.found_in.as_path()), self.executable.parent()];
        beside
            .into_iter()
            .flatten()
            .map(|folder| folder.join("npm"))
            .find(|npm| is_there(npm))
            .or_else(|| on_path(search_path, "npm"))
    }
}

/// Finds Node.js on a PATH.
pub(super) type Interpreters = Programs<Interpreter>;

impl Interpreters {
    /// The first one on PATH that runs and has the wanted major version (`None`: any version that is recent enough).
    pub(super) async fn find(
        &self,
        major: Option<u32>,
        needed_by: NeededBy,
    ) -> Result<Interpreter, NotFound> {
        let mut names = vec!["node".to_owned(), "nodejs".to_owned()];
        if let Some(major) = major {
            names.extend(
                ["node", "nodejs", "node-", "nodejs-"].map(|name| format!("{name}{major}")),
            );
        }
        for candidate in names.iter().flat_map(|name| self.candidates(name)) {
            let Some(mut node) = self.ask(&candidate, PROBE).await else {
                continue;
            };
            if fits(&node, major) {
                let folder = candidate.path.parent();
                node.found_in = folder.unwrap_or(Path::new("/")).to_owned();
                return Ok(node);
            }
        }
        Err(NotFound {
            wanted: match major {
                Some(major) => format!("Node.js {major}"),
                None => format!("Node.js {OLDEST_MAJOR} or newer"),
            },
            found: self.found(is_node, PROBE, "Node.js").await,
            needed_by,
        })
    }
}

fn is_node(name: &str) -> bool {
    let rest = name
        .strip_prefix("nodejs")
        .or_else(|| name.strip_prefix("node"));
    rest.is_some_and(|rest| {
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn fits(node: &Interpreter, wanted: Option<u32>) -> bool {
    let major = node
        .version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| match wanted {
        Some(wanted) => major == wanted,
        None => major >= OLDEST_MAJOR,
    })
}

/// The oldest version for npm's current lockfiles and for the worker. Older ones can be requested by their number.
const OLDEST_MAJOR: u32 = 18;
const PROBE: &[&str] = &["-e", include_str!("probe.js")];

#[cfg(test)]
mod tests {
    use super::super::super::program::tests::write_program;
    use super::*;

    fn says(version: &str) -> String {
        format!(
            r#"echo '{{"version":"{version}","abi":"115","platform":"linux-x64","executable":"'"$0"'"}}'"#
        )
    }

    async fn found(path: &Path, major: Option<u32>) -> Result<Interpreter, NotFound> {
        let interpreters = Interpreters::new(path.as_os_str().to_owned());
        interpreters.find(major, NeededBy::Runtime).await
    }

    #[tokio::test]
    async fn the_wanted_major_is_found_by_either_name_and_its_npm_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        write_program(folder.path(), "node", &says("20.1.0"));
        write_program(folder.path(), "node22", &says("22.3.0"));
        write_program(folder.path(), "npm", "");
        let twenty = found(folder.path(), None).await.unwrap();
        assert_eq!(twenty.version, "20.1.0");
        assert_eq!(
            twenty.npm(&"/nonexistent".into()),
            Some(folder.path().join("npm"))
        );
        let newer = found(folder.path(), Some(22)).await.unwrap();
        assert_eq!(newer.executable, folder.path().join("node22"));
    }

    #[tokio::test]
    async fn a_major_that_is_not_there_says_which_are() {
        let folder = tempfile::tempdir().unwrap();
        write_program(folder.path(), "node", &says("20.1.0"));
        write_program(folder.path(), "node-tool", "exit 1");
        let error = found(folder.path(), Some(22)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "Node.js 22 was not found on the daemon's PATH (there is Node 20.1.0 at {}); install it on the daemon's machine, or choose another runtime",
                folder.path().join("node").display()
            )
        );
        let empty = tempfile::tempdir().unwrap();
        let error = found(empty.path(), None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Node.js 18 or newer was not found on the daemon's PATH (no Node.js is); install it on the daemon's machine, or choose another runtime"
        );
    }

    #[tokio::test]
    async fn an_old_one_is_used_only_where_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        write_program(folder.path(), "node", &says("16.20.0"));
        assert!(found(folder.path(), None).await.is_err());
        assert!(found(folder.path(), Some(16)).await.is_ok());
    }

    #[tokio::test]
    async fn this_machines_node_describes_itself() {
        let path = std::env::var_os("PATH").unwrap();
        let Ok(node) = Interpreters::new(path).find(None, NeededBy::Runtime).await else {
            pilot_testkit::probe::skip("this_machines_node", "there is no Node.js");
            return;
        };
        assert!(node.executable.is_absolute() && !node.executable.is_symlink());
        assert!(node.executable.starts_with(node.prefix()));
        assert!(node.abi.parse::<u32>().is_ok());
    }

    #[test]
    fn the_prefix_is_what_bin_is_in() {
        let node = |executable: &str| Interpreter {
            version: "20.1.0".to_owned(),
            abi: "115".to_owned(),
            platform: "linux-x64".to_owned(),
            executable: executable.into(),
            found_in: PathBuf::new(),
        };
        assert_eq!(node("/usr/bin/node").prefix(), Path::new("/usr"));
        assert_eq!(node("/opt/node/node").prefix(), Path::new("/opt/node"));
    }
}
