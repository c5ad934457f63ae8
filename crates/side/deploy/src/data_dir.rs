//! Where what lies under the data directory, and that one daemon alone uses it.
//!
//! ```text
//! lock             held by the daemon while it runs
//! registry.sqlite  functions, versions, environments
//! code/ID          unpacked code, one folder per version id
//! environments/ID  installed packages and what is known of them
//! staging/RUN      unfinished work of this run of the daemon; another run's is rubbish
//! tooling/ID       a pip for an interpreter that has none
//! ```

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The data directory, locked.
#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    staging: TempDir,
    /// The lock goes when this is dropped.
    _lock: File,
}

impl DataDir {
    /// Creates what is missing and takes the lock. `Ok(None)`: another daemon has it.
    pub(crate) fn open(root: &Path) -> io::Result<Option<Self>> {
        make_dir(root)?;
        // Symbolic links resolved: these paths are mounted in sandboxes and compared.
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
        for folder in [CODE, ENVIRONMENTS, STAGING, TOOLING] {
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

    pub(crate) fn tooling(&self) -> PathBuf {
        self.root.join(TOOLING)
    }

    /// A new folder for unfinished work, removed when it is dropped.
    pub(crate) fn stage(&self) -> io::Result<TempDir> {
        TempDir::new_in(self.staging.path())
    }

    /// Removes what earlier runs left unfinished.
    pub(crate) fn clear_leftovers(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(STAGING))? {
            let path = entry?.path();
            if path != self.staging.path() {
                fs::remove_dir_all(&path)?;
            }
        }
        Ok(())
    }
}

/// Creates a folder that all may enter: sandboxed workers, which are nobody, read what lies below.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

const CODE: &str = "code";
const ENVIRONMENTS: &str = "environments";
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
