//! Folders of the daemon's machine.

mod calls;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use pilot_model::BoxFuture;
use pilot_model::ports::InputFaultKind as Kind;

use self::calls::{Calls, OpenFile};
use super::{Got, Object, Store, StoreError, Validator};

/// A folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileConfig {
    /// The folder. Keys are paths below it.
    pub path: PathBuf,
}

/// A folder. It is opened once: what is renamed or mounted later does not change what functions can read.
#[derive(Debug)]
pub(crate) struct FileStore {
    folder: Arc<OwnedFd>,
    calls: Calls,
}

impl FileStore {
    /// # Errors
    /// There is no such folder.
    pub(crate) fn open(config: &FileConfig) -> Result<Self, String> {
        let folder = File::options()
            .read(true)
            .open(&config.path)
            .and_then(|folder| match folder.metadata()?.is_dir() {
                true => Ok(folder),
                false => Err(io::ErrorKind::NotADirectory.into()),
            });
        let folder = folder.map_err(|error| format!("path: {}: {error}", config.path.display()))?;
        Ok(Self {
            folder: Arc::new(folder.into()),
            calls: Calls::default(),
        })
    }
}

impl Store for FileStore {
    fn retries(&self) -> u32 {
        0
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        let (folder, key) = (Arc::clone(&self.folder), PathBuf::from(key));
        let known = known.cloned();
        Box::pin(async move {
            let calls = self.calls.clone();
            let opened = self.calls.call(move || {
                let (file, len, state) = open(&folder, &key)?;
                let (file, validator) = (calls.opened(file), state.map(Validator::File));
                if validator.is_some() && validator == known {
                    file.close();
                    return Ok(None);
                }
                Ok(Some((file, len, validator)))
            });
            let Some((file, len, validator)) = opened.await? else {
                return Ok(Got::Unchanged);
            };
            let calls = self.calls.clone();
            let body = stream::try_unfold(file, move |file| {
                let calls = calls.clone();
                async move { calls.call(move || read(file)).await }
            });
            Ok(Got::Object(Object {
                len: Some(len),
                validator,
                headers: Vec::new(),
                body: body.boxed(),
            }))
        })
    }
}

/// A regular file below the folder, without leaving it by a link (openat2(2), `RESOLVE_BENEATH`).
fn open(folder: &OwnedFd, key: &Path) -> Result<(File, u64, Option<FileState>), StoreError> {
    let how = OpenHow::new()
        // A pipe or a device must not make the daemon wait.
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file: File = openat2(folder.as_fd(), key, how).map_err(failed)?.into();
    let metadata = file
        .metadata()
        .map_err(|error| StoreError::new(Kind::Unavailable, &error.to_string()))?;
    if !metadata.is_file() {
        return Err(StoreError::new(Kind::NotFound, "it is not a file"));
    }
    let state = FileState::of(&metadata, SystemTime::now());
    Ok((file, metadata.len(), state))
}

/// What changes whenever a file's content does: which file it is, its length, and when it was modified and changed, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileState {
    file: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// `None`: the file was changed a moment ago. The clock of a file system has ticks, so that a change in the same tick would show
    /// the same time.
    fn of(metadata: &std::fs::Metadata, now: SystemTime) -> Option<Self> {
        let changed = u64::try_from(metadata.ctime()).ok()?;
        let age = now
            .duration_since(UNIX_EPOCH + Duration::from_secs(changed))
            .ok()?;
        (age >= SETTLED).then(|| Self {
            file: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

fn read(mut file: OpenFile) -> Result<Option<(Bytes, OpenFile)>, StoreError> {
    let mut part = vec![0; PART_LEN];
    match file.read(&mut part) {
        Ok(0) => {
            file.close();
            Ok(None)
        }
        Ok(len) => {
            part.truncate(len);
            Ok(Some((part.into(), file)))
        }
        Err(error) => Err(StoreError::new(Kind::Unavailable, &error.to_string())),
    }
}

fn failed(error: Errno) -> StoreError {
    match error {
        Errno::ENOENT | Errno::ENOTDIR => StoreError::new(Kind::NotFound, "there is no such file"),
        Errno::EXDEV | Errno::ELOOP => StoreError::new(
            Kind::Denied,
            "a link on its way leads out of the store's folder",
        ),
        Errno::EACCES | Errno::EPERM => {
            StoreError::new(Kind::Denied, "the daemon may not read the file")
        }
        error => StoreError::new(Kind::Unavailable, error.desc()),
    }
}

const PART_LEN: usize = 1 << 20;
/// Longer than a tick of any file system's clock (FAT: 2 s), and the seconds are cut.
const SETTLED: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use futures_util::TryStreamExt;
    use nix::sys::stat::Mode;

    use super::*;

    async fn read_all(store: &FileStore, key: &str) -> Result<Vec<u8>, StoreError> {
        let Got::Object(object) = store.get(key, None).await? else {
            panic!("nothing is known");
        };
        let parts: Vec<Bytes> = object.body.try_collect().await?;
        assert_eq!(
            object.len,
            Some(parts.iter().map(|part| part.len() as u64).sum())
        );
        Ok(parts.concat())
    }

    #[tokio::test]
    async fn only_regular_files_below_the_folder_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inside");
        fs::create_dir_all(path.join("sub")).unwrap();
        fs::write(path.join("sub/a"), vec![7; PART_LEN + 1]).unwrap();
        fs::write(folder.path().join("outside"), "secret").unwrap();
        symlink("sub/a", path.join("to-a")).unwrap();
        symlink("../outside", path.join("out")).unwrap();
        symlink("/etc/passwd", path.join("absolute")).unwrap();
        symlink("/proc/self/fd/0", path.join("magic")).unwrap();
        nix::unistd::mkfifo(&path.join("pipe"), Mode::S_IRWXU).unwrap();
        let store = FileStore::open(&FileConfig { path }).unwrap();
        assert_eq!(read_all(&store, "sub/a").await.unwrap().len(), PART_LEN + 1);
        assert_eq!(read_all(&store, "to-a").await.unwrap().len(), PART_LEN + 1);
        for (key, kind) in [
            ("out", Kind::Denied),
            ("absolute", Kind::Denied),
            ("magic", Kind::Denied),
            ("../outside", Kind::Denied),
            ("sub", Kind::NotFound),
            ("pipe", Kind::NotFound),
            ("none", Kind::NotFound),
            ("sub/a/b", Kind::NotFound),
        ] {
            assert_eq!(read_all(&store, key).await.unwrap_err().kind, kind, "{key}");
        }
    }

    #[test]
    fn a_file_that_was_changed_a_moment_ago_has_no_state() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let now = SystemTime::now();
        assert_eq!(FileState::of(&metadata, now), None);
        let then = now + Duration::from_secs(4);
        let before = FileState::of(&metadata, then).unwrap();
        assert_eq!(Some(before), FileState::of(&metadata, then));
        fs::write(file.path(), "x").unwrap();
        let metadata = file.as_file().metadata().unwrap();
        assert_ne!(Some(before), FileState::of(&metadata, then));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let open = |path: &str| FileStore::open(&FileConfig { path: path.into() });
        assert!(
            open("/nowhere")
                .unwrap_err()
                .starts_with("path: /nowhere: ")
        );
        assert!(open("/etc/passwd").unwrap_err().contains("/etc/passwd"));
    }
}
