//! Opens the file of the registry, also on a disk without any room.
//!
//! SQLite keeps an index of the write-ahead log in a file beside it, `-shm`. A start makes this file anew and writes 32 KiB. On a full disk
//! this fails with an I/O error, although nothing is damaged and nothing of the registry has to be written. Then the index is kept in memory:
//! the VFS `unix-excl` does so, for one process (SQLite, "Write-Ahead Logging", section 8). The lock of the data directory says that
//! there is only one.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::RegistryError;

/// Opens the file. Creates it if there is none.
///
/// # Errors
/// [`RegistryError::Open`].
pub(super) fn connect(path: &Path) -> Result<Connection, RegistryError> {
    create_private(path).map_err(|error| RegistryError::Open {
        path: path.to_owned(),
        problem: format!("{error}: {ACCESS}"),
    })?;
    match prepared(Connection::open(path)) {
        Err(error) if is_of_the_disk(&error) => {
            let flags = OpenFlags::default();
            let opened = Connection::open_with_flags_and_vfs(path, flags, IN_MEMORY);
            // What the first one failed of says more.
            let connection = prepared(opened).map_err(|_| failed(path, &error))?;
            tracing::warn!(
                path = %path.display(),
                %error,
                "the disk takes nothing: the index of the registry's log is in memory until the next start"
            );
            Ok(connection)
        }
        done => done.map_err(|error| failed(path, &error)),
    }
}

/// Why the file cannot be used, and what to do.
pub(super) fn failed(path: &Path, error: &rusqlite::Error) -> RegistryError {
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => DAMAGED,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => BUSY,
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => ACCESS,
        _ => DISK,
    };
    RegistryError::Open {
        path: path.to_owned(),
        problem: format!("{error}: {advice}"),
    }
}

/// Reads once, so that the index of the log is there or the error is known.
fn prepared(opened: rusqlite::Result<Connection>) -> rusqlite::Result<Connection> {
    let connection = opened?;
    connection.busy_timeout(BUSY_TIME_MAX)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_query_value(None, "schema_version", |row| row.get::<_, i64>(0))?;
    Ok(connection)
}

fn is_of_the_disk(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DiskFull | ErrorCode::CannotOpen)
    )
}

/// Creates the file with access only for the daemon's user, because configurations contain environment variables.
fn create_private(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map(drop)
}

/// What to do with a damaged file.
pub(super) const DAMAGED: &str = "it is damaged; stop here, copy a backup of the data directory back, or move this file and those with \
                                  -wal and -shm behind its name away and deploy all functions again";
const DISK: &str = "make room on its disk if it is full, or repair the disk, and start again; nothing that was deployed is lost";
const ACCESS: &str =
    "its disk must have room, and the daemon's user must be able to write to it and to its folder";
const BUSY: &str = "another program uses it; end that program and start again";
/// SQLite's name.
const IN_MEMORY: &str = "unix-excl";
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
