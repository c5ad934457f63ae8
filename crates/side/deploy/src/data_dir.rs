//! The layout of the data directory, and its lock, so that only one daemon uses it.
//!
//! ```text
//! lock             locked by the running daemon
//! sweep.lock       locked (flock) by a sweep, or shared by backups
//! registry.sqlite  functions, versions, environments
//! code/ID          unpacked code, one folder per version id
//! layers/ID        layers, and merged-HASH: the layers of a version, merged
//! environments/ID  installed packages and their record
//! staging/RUN      unfinished work of this run of the daemon; that of other runs is removed
//! reserve          room for removals on a full disk
//! tooling/ID       pip for an interpreter without one
//! ```
//!
//! Only entries with the daemon's own names are removed: a folder may be a link to a disk that has other files.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use pilot_sys::tree;
use tempfile::TempDir;

use crate::durable;

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
        // For backups. On a full disk, flock(1) makes it as well.
        let _ = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join(SWEEP_LOCK));
        let staging = tempfile::Builder::new()
            .prefix(RUN)
            .rand_bytes(RUN_LEN)
            .tempdir_in(root.join(STAGING))?;
        Ok(Some(Self {
            root,
            staging,
            _lock: lock,
        }))
    }

    /// Makes what was deployed readable for sandboxes again, if it is not: a backup was copied back under a strict umask, for example.
    /// Usually looks at the modes of some folders only.
    pub(crate) fn repair(&self) {
        let mut repaired = 0;
        for folder in [CODE, ENVIRONMENTS, LAYERS, TOOLING] {
            for place in ours(&self.root.join(folder)).unwrap_or_default() {
                match durable::repair(&place) {
                    Ok(was_narrow) => repaired += usize::from(was_narrow),
                    Err(error) => {
                        tracing::warn!(%error, path = %place.display(), "functions may not be able to read their files");
                    }
                }
            }
        }
        if repaired > 0 {
            tracing::warn!(
                folders = repaired,
                "functions could not read their files, because the modes of folders had changed: they are repaired"
            );
        }
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
        let made = tempfile::Builder::new()
            .prefix(WORK)
            .tempdir_in(self.staging.path())?;
        Ok(Stage(made))
    }

    /// A new file for an upload. It has no name, so it is gone when it is closed.
    pub(crate) fn spool(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.staging.path())
    }

    /// Locks what is deployed for a sweep. `Ok(None)`: a backup has the lock. No file, and so no lock: nobody makes a backup.
    pub(crate) fn lock_for_sweep(&self) -> io::Result<Option<Option<File>>> {
        let lock = match File::open(self.root.join(SWEEP_LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(None)),
            Err(error) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Some(lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes the unfinished work of earlier runs.
    pub(crate) fn clear_leftovers(&self) -> io::Result<()> {
        for path in ours(&self.root.join(STAGING))? {
            if path != self.staging.path() && is_run(&path) {
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
        match ours(&root.join(folder)) {
            Ok(entries) => deployed.extend(entries.first().map(|_| folder)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deployed)
}

/// Whether this folder has nothing but unfinished work.
fn is_run(folder: &Path) -> bool {
    let is_work = |entry: fs::DirEntry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(WORK.as_bytes())
    };
    let is_folder = folder.symlink_metadata().is_ok_and(|found| found.is_dir());
    let entries = fs::read_dir(folder);
    is_folder && entries.is_ok_and(|mut all| all.all(|entry| entry.is_ok_and(is_work)))
}

/// The entries of a folder that have a name that the daemon gives.
pub(crate) fn ours(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (ours, _) = entries(folder)?;
    Ok(ours)
}

/// Entries of the folders of a data directory that the daemon did not make. It leaves them alone. A folder that cannot be read has none.
#[must_use]
pub fn foreign(root: &Path) -> Vec<PathBuf> {
    let folders = [CODE, LAYERS, ENVIRONMENTS, STAGING].into_iter();
    let found = folders.filter_map(|folder| entries(&root.join(folder)).ok());
    found.flat_map(|(_, foreign)| foreign).collect()
}

/// The entries of a folder: the daemon's, and others.
fn entries(folder: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        all.push(entry?.path());
    }
    Ok(all.into_iter().partition(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(is_ours)
    }))
}

/// Whether the daemon gives such names: of a version or environment, of a layer, of merged layers, or of a run.
fn is_ours(name: &str) -> bool {
    if let Some(run) = name.strip_prefix(RUN) {
        return run.len() == RUN_LEN && run.bytes().all(|byte| byte.is_ascii_alphanumeric());
    }
    let (digits, lengths) = match name.strip_prefix(MERGED) {
        Some(digits) => (digits, &[HASH_LEN][..]),
        None => (name, &[ID_LEN, HASH_LEN][..]),
    };
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    lengths.contains(&digits.len()) && digits.bytes().all(is_digit)
}

/// The beginning of the names of merged layers. No layer id begins like this.
pub(crate) const MERGED: &str = "merged-";
/// The beginning of the names of runs, and the length of what follows.
const RUN: &str = "run-";
const RUN_LEN: usize = 6;
/// The beginning of the names in a run; also of files without a name, where a file system cannot make them.
const WORK: &str = ".tmp";
/// Digits of the id of a version or environment.
const ID_LEN: usize = 16;
/// Digits of a whole hash.
const HASH_LEN: usize = 64;
const CODE: &str = "code";
const ENVIRONMENTS: &str = "environments";
const LAYERS: &str = "layers";
const STAGING: &str = "staging";
const SWEEP_LOCK: &str = "sweep.lock";
const TOOLING: &str = "tooling";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        let leftover = root.path().join("staging/run-killed/.tmp1");
        fs::create_dir_all(&leftover).unwrap();
        let data_dir = DataDir::open(root.path()).unwrap().unwrap();
        let ours = data_dir.stage().unwrap();
        data_dir.clear_leftovers().unwrap();
        assert!(!leftover.exists());
        assert!(ours.path().exists());
    }

    #[test]
    fn files_of_others_stay_also_where_a_folder_is_a_link() {
        let (root, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(disk.path(), root.path().join(STAGING)).unwrap();
        let foreign_names = ["photos", "lost+found", "run-", "run-of-may", "notes.txt"];
        for name in foreign_names.into_iter().chain(["run-killed"]) {
            fs::create_dir(disk.path().join(name)).unwrap();
        }
        // By chance, it is called like a run.
        fs::create_dir_all(disk.path().join("run-report/may")).unwrap();
        let data_dir = DataDir::open(root.path()).unwrap().unwrap();
        let stage = data_dir.stage().unwrap();
        data_dir.clear_leftovers().unwrap();
        for name in foreign_names {
            assert!(disk.path().join(name).exists(), "{name}");
        }
        assert!(!disk.path().join("run-killed").exists());
        assert!(disk.path().join("run-report/may").exists());
        assert!(stage.path().exists());
        assert_eq!(foreign(root.path()).len(), foreign_names.len());
        // Nothing of them was deployed.
        fs::write(data_dir.code().join("notes.txt"), "").unwrap();
        assert_eq!(deployed(root.path()).unwrap(), [] as [&str; 0]);
    }

    #[test]
    fn what_was_copied_back_under_a_strict_umask_is_repaired() {
        let root = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(root.path()).unwrap().unwrap();
        let (code, notes) = (
            data_dir.code().join("f99b1bbba009551d"),
            data_dir.code().join("notes"),
        );
        for folder in [&code, &notes] {
            DirBuilder::new().mode(0o700).create(folder).unwrap();
        }
        data_dir.repair();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&code), 0o755);
        assert_eq!(mode(&notes), 0o700, "it is not ours");
    }

    #[test]
    fn names_of_versions_layers_and_runs_are_ours() {
        let hash = "0123456789abcdef".repeat(4);
        let merged = format!("{MERGED}{hash}");
        for name in ["f99b1bbba009551d", &hash, &merged, "run-aB3xYz"] {
            assert!(is_ours(name), "{name}");
        }
        let (upper, short) = (hash.to_uppercase(), &merged[..30]);
        for name in [
            "",
            "F99B1BBBA009551D",
            "f99b1bbba009551",
            &upper,
            short,
            "merged-",
            "run-a.b.c.",
        ] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
