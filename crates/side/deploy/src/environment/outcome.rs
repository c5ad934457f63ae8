//! The check of what a build has made, before the daemon uses it. No process of the build runs any more, and its files belong to the
//! daemon. They may be anything: links out of their folder, pipes, sockets, names of any length.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::error::EnvironmentError;
use crate::blocking::blocking;

/// Why it cannot be used.
#[derive(Debug)]
enum Refusal {
    Content(String),
    Disk(io::Error),
}

/// Checks that a folder has only folders, files, and links that stay within it. Removes links to nothing. `file` declares the packages.
pub(super) async fn check(folder: &Path, file: &'static str) -> Result<(), EnvironmentError> {
    check_with(folder, file, Links::Within).await
}

/// The same, but with links to anywhere, which the caller looks at.
pub(super) async fn check_kinds(folder: &Path, file: &'static str) -> Result<(), EnvironmentError> {
    check_with(folder, file, Links::Anywhere).await
}

/// Where links may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Within,
    Anywhere,
}

async fn check_with(
    folder: &Path,
    file: &'static str,
    links: Links,
) -> Result<(), EnvironmentError> {
    let path = folder.to_owned();
    match blocking(move || look(&path, links)).await {
        Ok(()) => Ok(()),
        Err(Refusal::Content(problem)) => Err(EnvironmentError::Outcome { file, problem }),
        Err(Refusal::Disk(source)) => Err(EnvironmentError::Disk {
            path: folder.to_owned(),
            source,
        }),
    }
}

fn look(folder: &Path, links: Links) -> Result<(), Refusal> {
    if !folder.symlink_metadata()?.is_dir() {
        return refuse("the build replaced its folder");
    }
    let root = folder.canonicalize()?;
    let mut open = vec![root.clone()];
    let mut entries = 0;
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = || {
                let inside = path.strip_prefix(&root).unwrap_or(&path);
                let text = inside.to_string_lossy();
                text.chars()
                    .take(200)
                    .flat_map(char::escape_debug)
                    .collect::<String>()
            };
            entries += 1;
            if entries > ENTRIES_MAX {
                return refuse(&format!("they have more than {ENTRIES_MAX} files"));
            }
            if path.as_os_str().len() > PATH_BYTES_MAX {
                return refuse(&format!("the path of '{}…' is too long", name()));
            }
            let kind = path.symlink_metadata()?.file_type();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_symlink() {
                match path.canonicalize() {
                    _ if links == Links::Anywhere => {}
                    Ok(target) if target.starts_with(&root) => {}
                    Ok(_) => {
                        return refuse(&format!(
                            "'{}' is a link that leads out of their folder",
                            name()
                        ));
                    }
                    Err(_) => fs::remove_file(&path)?,
                }
            } else if !kind.is_file() {
                let what = match kind {
                    kind if kind.is_fifo() => "a pipe",
                    kind if kind.is_socket() => "a socket",
                    _ => "a device",
                };
                return refuse(&format!("'{}' is {what}", name()));
            }
        }
    }
    Ok(())
}

fn refuse(problem: &str) -> Result<(), Refusal> {
    Err(Refusal::Content(problem.to_owned()))
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

const ENTRIES_MAX: usize = 500_000;
/// Below the kernel's `PATH_MAX`, with room for the folder's final place.
const PATH_BYTES_MAX: usize = 3_000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("part");
        fs::create_dir_all(folder.join("package/deep")).unwrap();
        fs::write(folder.join("package/file.py"), "").unwrap();
        fs::write(base.path().join("outside"), "").unwrap();
        (base, folder)
    }

    async fn problem(folder: &Path) -> Option<String> {
        check(folder, "requirements.txt")
            .await
            .err()
            .map(|error| error.to_string())
    }

    #[tokio::test]
    async fn links_within_are_kept_and_links_to_nothing_are_removed() {
        let (_base, folder) = folder();
        symlink("../file.py", folder.join("package/deep/link")).unwrap();
        symlink("/nowhere", folder.join("gone")).unwrap();
        assert_eq!(problem(&folder).await, None);
        assert!(folder.join("package/deep/link").exists());
        assert!(!folder.join("gone").is_symlink());
    }

    #[tokio::test]
    async fn a_link_that_leads_out_is_refused() {
        for target in ["/etc/passwd", "../outside", "package/up/../outside"] {
            let (_base, folder) = folder();
            symlink("..", folder.join("package/up")).unwrap();
            symlink(target, folder.join("link")).unwrap();
            let problem = problem(&folder).await.unwrap();
            assert!(
                problem.contains("'link' is a link that leads out"),
                "{target}: {problem}"
            );
        }
        let (base, folder) = folder();
        fs::rename(&folder, base.path().join("real")).unwrap();
        symlink("real", &folder).unwrap();
        assert!(
            problem(&folder)
                .await
                .unwrap()
                .contains("replaced its folder")
        );
    }

    #[tokio::test]
    async fn pipes_and_sockets_are_refused() {
        let (_base, folder) = folder();
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("package/s")).unwrap();
        assert!(
            problem(&folder)
                .await
                .unwrap()
                .contains("'package/s' is a socket")
        );
        fs::remove_file(folder.join("package/s")).unwrap();
        nix::unistd::mkfifo(&folder.join("p"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(problem(&folder).await.unwrap().contains("'p' is a pipe"));
    }
}
