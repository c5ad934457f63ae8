//! Opens the file of the registry, and says what to do if that fails.

use std::path::Path;

use pilot_sqlite::{create_private, is_of_the_disk};
use rusqlite::{Connection, ErrorCode};

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
    let opened = pilot_sqlite::open(path, "the registry", is_of_the_disk, prepared);
    let (connection, _) = opened.map_err(|error| failed(path, &error))?;
    Ok(connection)
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
fn prepared(connection: Connection) -> rusqlite::Result<Connection> {
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_query_value(None, "schema_version", |row| row.get::<_, i64>(0))?;
    Ok(connection)
}

/// What to do with a damaged file.
pub(super) const DAMAGED: &str = "it is damaged; stop here, copy a backup of the data directory back, or move this file and those with \
                                  -wal and -shm behind its name away and deploy all functions again";
const DISK: &str = "make room on its disk if it is full, or repair the disk, and start again; nothing that was deployed is lost";
const ACCESS: &str =
    "its disk must have room, and the daemon's user must be able to write to it and to its folder";
const BUSY: &str = "another program uses it; end that program and start again";
