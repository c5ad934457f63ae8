//! The files of tokens, secrets and keys: each is written under another name first, and replaced as a whole and durably.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::NamedTempFile;

/// A file beside `path` that becomes `path` when it is complete. It has mode 0600 from its beginning.
///
/// # Errors
/// The kernel's.
pub fn unfinished(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .rand_bytes(RANDOM_LEN)
        .tempfile_in(path.parent().unwrap_or(Path::new(".")))
}

/// Removes what a daemon left that was killed while it wrote such a file. Returns how many. Call it before this daemon writes
/// one. It leaves files with other names alone.
///
/// # Errors
/// The kernel's.
pub fn remove_unfinished(folder: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(is_unfinished) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_unfinished(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).unwrap_or_default();
    random.len() == RANDOM_LEN && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A file with a value as JSON.
#[derive(Debug)]
pub(crate) struct DurableFile {
    path: PathBuf,
    reserve: Option<Release>,
}

/// Frees the room that is kept on the disk. Returns whether there was some.
struct Release(Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}

impl DurableFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            reserve: None,
        }
    }

    /// `release`: see [`DurableFile::replace_by_less`].
    pub(crate) fn with_reserve(
        mut self,
        release: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.reserve = Some(Release(Box::new(release)));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file by this value. It has mode 0600 from its beginning. After a power failure, the file is the new one: a token
    /// that was revoked stays so.
    pub(crate) fn replace(&self, value: &impl Serialize) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut file = unfinished(&self.path)?;
        serde_json::to_writer_pretty(&mut file, value)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        // The name, too.
        File::open(folder)?.sync_all()
    }

    /// The same after something was removed from the value, which must work on a full disk: once more with the room of the reserve.
    pub(crate) fn replace_by_less(&self, value: &impl Serialize) -> io::Result<()> {
        self.spend(|| self.replace(value))
    }

    fn spend(&self, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(error) if is_full(&error) && self.release() => write(),
            done => done,
        }
    }

    fn release(&self) -> bool {
        self.reserve
            .as_ref()
            .is_some_and(|Release(release)| release())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// What no other program calls its files.
const PREFIX: &str = ".pilotlight-new-";
const RANDOM_LEN: usize = 6;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn only_a_removal_on_a_full_disk_uses_the_reserve_once() {
        let folder = tempfile::tempdir().unwrap();
        let held = Arc::new(AtomicBool::new(true));
        let reserve = Arc::clone(&held);
        let file = DurableFile::new(folder.path().join("gone/file"))
            .with_reserve(move || reserve.swap(false, Ordering::Relaxed));
        // Its folder is missing, which is no full disk.
        assert!(file.replace_by_less(&1).is_err());
        assert!(held.load(Ordering::Relaxed));
        let full = || match held.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        };
        file.spend(full).unwrap();
        let still_full = file.spend(|| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(still_full.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn what_a_killed_daemon_left_goes_and_files_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        DurableFile::new(path.clone()).replace(&1).unwrap();
        // As kill -9 leaves it.
        let (_, left) = unfinished(&path).unwrap().keep().unwrap();
        let others = [
            ".tmpaB3xYz",
            ".pilotlight-new-",
            ".pilotlight-new-aB3xYz.json",
            ".pilotlight-new-a.b.c.",
        ];
        for name in others {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let below = folder.path().join(".pilotlight-new-folder");
        fs::create_dir(&below).unwrap();
        assert_eq!(remove_unfinished(folder.path()).unwrap(), 1);
        assert!(!left.exists() && below.exists());
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        for name in others {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        assert_eq!(remove_unfinished(folder.path()).unwrap(), 0);
    }
}
