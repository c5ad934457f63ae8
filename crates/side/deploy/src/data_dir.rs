//! The layout of the data directory, and its lock, so that only one daemon uses it.
//!
//! ```text
//! lock             locked by the running daemon
//! registry.sqlite  functions, versions, environments
//! code/ID          unpacked code, one folder per version id
//! layers/ID        layers, and merged-HASH: the layers of a version, merged
//! environments/ID  installed packages and their record
//! staging/RUN      unfinished work of this run of the daemon; that of other runs is removed
//! reserve          room for removals on a full disk
//! tooling/ID       pip for an interpreter without one
//! ```

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use pilot_sys::tree;
use tempfile::TempDir;

/// The data directory, locked.
#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    staging: TempDir,
    /// Dropping it releases the lock.
    _lock: File,
}

impl DataDir {
    /// Creates missing folders and takes the lock. `Ok(None)`: another daemon has the lock.
    pub(crate) fn open(root: &Path) -> io::Result<Option<Self>> {
        make_dir(root)?;
        // Without symbolic links, because these paths are mounted in sandboxes and compared.
        let root = root.canonicalize()?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        for folder in [CODE, ENVIRONMENTS, LAYERS, STAGING, TOOLING] {
            make_dir(&root.join(folder))?;
        }
        let staging = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(root.join(STAGING))?;
        Ok(Some(Self {
            root,
            staging,
            _lock: lock,
        }))
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn code(&self) -> PathBuf {
        self.root.join(CODE)
    }

    pub(crate) fn environments(&self) -> PathBuf {
        self.root.join(ENVIRONMENTS)
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join(LAYERS)
    }

    pub(crate) fn tooling(&self) -> PathBuf {
        self.root.join(TOOLING)
    }

    /// A new folder for unfinished work, which is removed when dropped.
    pub(crate) fn stage(&self) -> io::Result<Stage> {
        Ok(Stage(TempDir::new_in(self.staging.path())?))
    }

    /// A new file for an upload. It has no name, so it is gone when it is closed.
    pub(crate) fn spool(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.staging.path())
    }

    /// Removes the unfinished work of earlier runs.
    pub(crate) fn clear_leftovers(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(STAGING))? {
            let path = entry?.path();
            if path != self.staging.path() {
                tree::remove(&path)?;
            }
        }
        Ok(())
    }
}

/// A folder for unfinished work, which is removed when dropped.
#[derive(Debug)]
pub(crate) struct Stage(TempDir);

impl Stage {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Removes it now.
    pub(crate) fn close(self) -> io::Result<()> {
        tree::remove(self.path())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is left is removed at the next start.
        if let Err(error) = tree::remove(self.path()) {
            tracing::warn!(%error, path = %self.path().display(), "unfinished work was not removed");
        }
    }
}

/// Creates a folder that everyone may enter, because sandboxed workers run as another user and read its files.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// The folders that have something deployed in them.
pub(crate) fn deployed(root: &Path) -> io::Result<Vec<&'static str>> {
    let mut deployed = Vec::new();
    for folder in [CODE, LAYERS, ENVIRONMENTS] {
        match fs::read_dir(root.join(folder)) {
            Ok(mut entries) => deployed.extend(entries.next().map(|_| folder)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deployed)
}

const CODE: &str = "code";
const ENVIRONMENTS: &str = "environments";
const LAYERS: &str = "layers";
const STAGING: &str = "staging";
const TOOLING: &str = "tooling";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_kept_out_until_the_first_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let first = DataDir::open(root.path()).unwrap().unwrap();
        assert!(DataDir::open(root.path()).unwrap().is_none());
        drop(first);
        assert!(DataDir::open(root.path()).unwrap().is_some());
    }

    #[test]
    fn a_stage_of_any_depth_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(root.path()).unwrap().unwrap();
        let stage = data_dir.stage().unwrap();
        let path = stage.path().to_owned();
        // 250 levels of 20 bytes are longer than the kernel's longest path.
        let (top, outer) = (path.join("top"), path.join("outer"));
        fs::create_dir(&top).unwrap();
        for _ in 0..25 {
            let deep = outer.join(["a-folder-of-20-bytes"; 10].join("/"));
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join("file"), "").unwrap();
            std::os::unix::fs::symlink("/", deep.join("link")).unwrap();
            fs::rename(&top, deep.join("inner")).unwrap();
            fs::rename(&outer, &top).unwrap();
        }
        drop(stage);
        assert!(!path.exists());
    }

    #[test]
    fn leftovers_of_a_killed_run_go_and_ours_stay() {
        let root = tempfile::tempdir().unwrap();
        let leftover = root.path().join("staging/run-killed/tmp1");
        fs::create_dir_all(&leftover).unwrap();
        let data_dir = DataDir::open(root.path()).unwrap().unwrap();
        let ours = data_dir.stage().unwrap();
        data_dir.clear_leftovers().unwrap();
        assert!(!leftover.exists());
        assert!(ours.path().exists());
    }
}
