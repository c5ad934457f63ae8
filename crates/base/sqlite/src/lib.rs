//! Opens the daemon's files of SQLite. A file is private, and what is committed is on the disk: WAL, with `synchronous = FULL`.
//!
//! SQLite keeps an index of the write-ahead log in a file beside it, `-shm`. A start makes this file anew and writes 32 KiB. On a full disk
//! this fails with an I/O error, although nothing is damaged and nothing of the file has to be written. Then the index is kept in memory:
//! the VFS `unix-excl` does so, for one process (SQLite, "Write-Ahead Logging", section 8). The lock of the data directory says that
//! there is only one.
//!
//! Not here: schemas, what is done with a damaged file, and what people are told.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Where the index of the log is. All connections to a file must have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// In a file.
    File,
    /// In the memory of this process.
    Memory,
}

impl Index {
    /// A connection to the file. It waits for a lock of others for a few seconds.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn connect(self, path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
        let connection = match self {
            Self::File => Connection::open_with_flags(path, flags),
            Self::Memory => Connection::open_with_flags_and_vfs(path, flags, IN_MEMORY),
        }?;
        connection.busy_timeout(BUSY_TIME_MAX)?;
        Ok(connection)
    }
}

/// Creates the file if there is none, with access only for the daemon's user: it contains what others must not read.
///
/// # Errors
/// Those of open(2).
pub fn create_private(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map(drop)
}

/// What is wrong with a file before it is opened. `None`: there is none, or it has something in it. SQLite takes an empty file as a new
/// database, and removes a write-ahead log that has no database: both would lose what was in them, without an error.
///
/// # Errors
/// Those of stat(2).
pub fn hollow(path: &Path) -> io::Result<Option<&'static str>> {
    let bytes = |path: &Path| match fs::metadata(path) {
        Ok(file) => Ok(Some(file.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    Ok(match bytes(path)? {
        Some(0) => Some("the file is empty"),
        None if bytes(&with(path, LOG))?.is_some_and(|bytes| bytes > 0) => {
            Some("the file is missing, and its log (-wal) is there")
        }
        _ => None,
    })
}

/// Removes a file that was just created and could not be written, on a full disk for example: the next start would find it [`hollow`].
pub fn remove_if_empty(path: &Path) {
    if path.metadata().is_ok_and(|file| file.len() == 0) {
        // The caller has an error already.
        let _ = fs::remove_file(path);
    }
}

/// Opens a file with `open`, which gets a connection whose commits are durable, and reads or writes something: so the index of the log is
/// there, or the error is known. If `is_of_the_disk` says that the disk takes nothing, it is tried with the index in memory. `what` names
/// the file in the daemon's log.
///
/// # Errors
/// Those of `open`, the first one if both fail: it says more.
pub fn open<T, E>(
    path: &Path,
    what: &str,
    is_of_the_disk: impl Fn(&E) -> bool,
    open: impl Fn(Connection) -> Result<T, E>,
) -> Result<(T, Index), E>
where
    E: From<rusqlite::Error> + Display,
{
    let attempt = |index: Index| open(durable(index.connect(path, OpenFlags::default())?)?);
    let error = match attempt(Index::File) {
        Ok(opened) => return Ok((opened, Index::File)),
        Err(error) if !is_of_the_disk(&error) => return Err(error),
        Err(error) => error,
    };
    let Ok(opened) = attempt(Index::Memory) else {
        return Err(error);
    };
    tracing::warn!(
        path = %path.display(),
        %error,
        "the disk takes nothing: the index of the log of {what} is in memory until the next start"
    );
    Ok((opened, Index::Memory))
}

/// Copies a file that no process writes, with what its write-ahead log has, into `folder`. Opening the copy changes nothing of the
/// original. `Ok(None)`: there is no such file.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy(path: &Path, folder: &Path) -> io::Result<Option<PathBuf>> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let copied = folder.join(name);
    match fs::copy(path, &copied) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        done => done?,
    };
    match fs::copy(with(path, LOG), with(&copied, LOG)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => drop(done?),
    }
    Ok(Some(copied))
}

fn with(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    PathBuf::from(name)
}

/// Whether the disk is full, or fails.
#[must_use]
pub fn is_of_the_disk(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DiskFull | ErrorCode::CannotOpen)
    )
}

/// Whether the file is damaged, or is no database.
#[must_use]
pub fn is_damaged(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

fn durable(connection: Connection) -> rusqlite::Result<Connection> {
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// SQLite's name of the VFS.
const IN_MEMORY: &str = "unix-excl";
/// The end of the name of the write-ahead log.
const LOG: &str = "-wal";
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use rusqlite::ffi::{Error, SQLITE_BUSY, SQLITE_FULL};

    use super::*;

    fn written(connection: Connection) -> rusqlite::Result<Connection> {
        connection.execute_batch("CREATE TABLE IF NOT EXISTS known (number INTEGER)")?;
        Ok(connection)
    }

    #[test]
    fn a_file_is_private_and_its_commits_are_durable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.sqlite");
        create_private(&path).unwrap();
        let (connection, index) = open(&path, "a test", is_of_the_disk, written).unwrap();
        assert_eq!(index, Index::File);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let journal: String = connection
            .pragma_query_value(None, "journal_mode", |row| row.get(0))
            .unwrap();
        let synchronous: i64 = connection
            .pragma_query_value(None, "synchronous", |row| row.get(0))
            .unwrap();
        assert_eq!((journal.as_str(), synchronous), ("wal", 2));
    }

    #[test]
    fn if_the_disk_takes_nothing_the_index_is_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.sqlite");
        let attempts = Cell::new(0);
        let failing_with = |code| {
            attempts.set(0);
            let attempts = &attempts;
            move |connection| {
                attempts.set(attempts.get() + 1);
                match attempts.get() {
                    1 => Err(rusqlite::Error::SqliteFailure(Error::new(code), None)),
                    _ => written(connection),
                }
            }
        };
        let busy = failing_with(SQLITE_BUSY);
        assert!(open(&path, "a test", is_of_the_disk, busy).is_err());
        assert_eq!(attempts.get(), 1);
        let full = failing_with(SQLITE_FULL);
        let (connection, index) = open(&path, "a test", is_of_the_disk, full).unwrap();
        assert_eq!((index, attempts.get()), (Index::Memory, 2));
        connection
            .execute("INSERT INTO known VALUES (1)", [])
            .unwrap();
        assert!(!folder.path().join("file.sqlite-shm").exists());
        let reader = index.connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let known: i64 = reader
            .unwrap()
            .query_row("SELECT number FROM known", [], |row| row.get(0))
            .unwrap();
        assert_eq!(known, 1);
    }

    #[test]
    fn a_copy_has_what_is_only_in_the_log_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.sqlite");
        assert_eq!(copy(&path, scratch.path()).unwrap(), None);
        create_private(&path).unwrap();
        let (connection, _) = open(&path, "a test", is_of_the_disk, written).unwrap();
        connection
            .execute("INSERT INTO known VALUES (7)", [])
            .unwrap();
        let copied = copy(&path, scratch.path()).unwrap().unwrap();
        let (copy, _) = open(&copied, "a test", is_of_the_disk, written).unwrap();
        let known: i64 = copy
            .query_row("SELECT number FROM known", [], |row| row.get(0))
            .unwrap();
        assert_eq!(known, 7);
        copy.execute("DELETE FROM known", []).unwrap();
        let left: i64 = connection
            .query_row("SELECT count(*) FROM known", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 1);
    }

    #[test]
    fn an_empty_file_and_a_log_without_its_file_are_known_and_a_new_file_is_not_left_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.sqlite");
        assert_eq!(hollow(&path).unwrap(), None);
        // A log that was cut at an orderly end.
        fs::write(with(&path, LOG), "").unwrap();
        assert_eq!(hollow(&path).unwrap(), None);
        fs::write(with(&path, LOG), "log").unwrap();
        assert!(hollow(&path).unwrap().unwrap().contains("-wal"));
        create_private(&path).unwrap();
        assert!(hollow(&path).unwrap().unwrap().contains("empty"));
        remove_if_empty(&path);
        assert!(!path.exists());
        fs::write(&path, "something").unwrap();
        remove_if_empty(&path);
        assert_eq!(hollow(&path).unwrap(), None);
        assert!(path.exists());
    }

    #[test]
    fn a_damaged_file_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.sqlite");
        std::fs::write(&path, [7; 9000]).unwrap();
        let error = open(&path, "a test", is_of_the_disk, written).unwrap_err();
        assert!(is_damaged(&error), "{error}");
    }
}
