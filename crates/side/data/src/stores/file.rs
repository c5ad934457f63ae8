//! Folders of the daemon's machine.
//!
//! A file that is written to while it is read would be a mix of two contents. So its length and times are compared at the end,
//! and if they differ, the fetch begins again. A file that another one takes the place of, as by rename(2), is read to its end.

mod calls;

use std::fs::{File, Metadata};
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
        4
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
                let (file, state) = open(&folder, &key)?;
                let file = calls.opened(file);
                let settled = Some(state).filter(|state| state.is_settled(SystemTime::now()));
                let validator = settled.map(Validator::File);
                if validator.is_some() && validator == known {
                    file.close();
                    return Ok(None);
                }
                let reading = Reading { file, state, at: 0 };
                Ok(Some((reading, validator)))
            });
            let Some((reading, validator)) = opened.await? else {
                return Ok(Got::Unchanged(None));
            };
            let (calls, len) = (self.calls.clone(), reading.state.len);
            let body = stream::try_unfold(reading, move |reading| {
                let calls = calls.clone();
                async move { calls.call(move || reading.next()).await }
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
fn open(folder: &OwnedFd, key: &Path) -> Result<(File, FileState), StoreError> {
    let how = OpenHow::new()
        // A pipe or a device must not make the daemon wait.
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file: File = openat2(folder.as_fd(), key, how).map_err(failed)?.into();
    let metadata = file.metadata().map_err(|error| unavailable(&error))?;
    if !metadata.is_file() {
        return Err(StoreError::new(Kind::NotFound, "it is not a file"));
    }
    Ok((file, FileState::of(&metadata)))
}

/// What changes whenever a file's content does: which file it is, its length, and when it was modified and changed, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileState {
    file: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// How many names it has. To give it one or to take one from it changes the last time.
    names: u64,
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            names: metadata.nlink(),
        }
    }

    /// False: the file was changed a moment ago. The clock of a file system has ticks, so that a change in the same tick would
    /// show the same time.
    fn is_settled(&self, now: SystemTime) -> bool {
        let changed = u64::try_from(self.changed.0).ok();
        let changed = changed.map(|changed| UNIX_EPOCH + Duration::from_secs(changed));
        let age = changed.and_then(|changed| now.duration_since(changed).ok());
        age.is_some_and(|age| age >= SETTLED)
    }

    /// Whether the content of the same file is still the same.
    fn has_content_of(&self, before: &Self) -> bool {
        (self.len, self.modified) == (before.len, before.modified)
            && (self.changed == before.changed || self.names != before.names)
    }
}

/// A file of which a part has been read.
struct Reading {
    file: OpenFile,
    /// As it was before.
    state: FileState,
    at: u64,
}

impl Reading {
    fn next(mut self) -> Result<Option<(Bytes, Self)>, StoreError> {
        let mut part = vec![0; PART_LEN];
        let read = self.file.read(&mut part);
        let len = read.map_err(|error| unavailable(&error))?;
        self.at += len as u64;
        if len == 0 || self.at > self.state.len {
            self.check()?;
        }
        if len == 0 {
            self.file.close();
            return Ok(None);
        }
        part.truncate(len);
        Ok(Some((part.into(), self)))
    }

    fn check(&self) -> Result<(), StoreError> {
        let metadata = self.file.metadata().map_err(|error| unavailable(&error))?;
        match FileState::of(&metadata).has_content_of(&self.state) {
            true => Ok(()),
            false => Err(StoreError::new(Kind::Unavailable, CHANGED)),
        }
    }
}

fn unavailable(error: &io::Error) -> StoreError {
    StoreError::new(Kind::Unavailable, &error.to_string())
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

const CHANGED: &str = "it was written to while it was read: write another file, and rename it";
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
        let state = || FileState::of(&file.as_file().metadata().unwrap());
        let (before, now) = (state(), SystemTime::now());
        assert!(!before.is_settled(now) && before.is_settled(now + Duration::from_secs(4)));
        assert_eq!(before, state());
        fs::write(file.path(), "x").unwrap();
        assert_ne!(before, state());
    }

    /// Reads the first part of a file, and the rest after `meanwhile`.
    async fn read_around(meanwhile: impl FnOnce(&Path)) -> Result<Vec<u8>, StoreError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 3 * PART_LEN]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Ticks of the clock play no part.
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000))
            .unwrap();
        let config = FileConfig {
            path: folder.path().to_owned(),
        };
        let store = FileStore::open(&config).unwrap();
        let Got::Object(mut object) = store.get("file", None).await? else {
            panic!("nothing is known");
        };
        let first = object.body.try_next().await?.unwrap();
        meanwhile(&path);
        let rest: Vec<Bytes> = object.body.try_collect().await?;
        Ok([&[first][..], &rest].concat().concat())
    }

    #[tokio::test]
    async fn a_file_that_is_written_to_while_it_is_read_is_not_mixed() {
        let append = |path: &Path| {
            use std::io::Write as _;
            let mut file = File::options().append(true).open(path).unwrap();
            file.write_all(&[1]).unwrap();
        };
        let ends = [
            read_around(|path| fs::write(path, vec![2; 3 * PART_LEN]).unwrap()).await,
            read_around(|path| fs::write(path, vec![1; 2 * PART_LEN]).unwrap()).await,
            read_around(append).await,
        ];
        for end in ends {
            let error = end.unwrap_err();
            assert_eq!(
                (error.kind, error.problem.as_str()),
                (Kind::Unavailable, CHANGED)
            );
        }
    }

    #[tokio::test]
    async fn a_file_that_another_one_replaces_is_read_to_its_end() {
        let end = read_around(|path| {
            let new = path.with_extension("new");
            fs::write(&new, "new").unwrap();
            fs::rename(new, path).unwrap();
        });
        assert_eq!(end.await.unwrap(), vec![1; 3 * PART_LEN]);
    }

    #[test]
    fn times_that_were_set_back_hide_no_change() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let before = FileState::of(&file.as_file().metadata().unwrap());
        let (seconds, ns) = before.changed;
        let changed = FileState {
            changed: (seconds, ns + 1),
            ..before
        };
        assert!(!changed.has_content_of(&before));
        // Its name was taken away.
        let removed = FileState {
            names: 0,
            ..changed
        };
        assert!(removed.has_content_of(&before));
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
