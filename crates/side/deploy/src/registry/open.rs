//! Opens the file of the registry, and says what to do if that fails.
//!
//! Invariant: where something was deployed, there is no new registry. All of it would count as unused, and the daemon would remove it.

use std::path::Path;

use pilot_sqlite::{create_private, is_of_the_disk, remove_if_empty};
use rusqlite::{Connection, ErrorCode};

use super::RegistryError;
use crate::data_dir;

/// Opens the file. Creates it if there is none. Call [`refuse_lost`] before.
///
/// # Errors
/// [`RegistryError::Open`].
pub(super) fn connect(path: &Path) -> Result<Connection, RegistryError> {
    create_private(path).map_err(|error| RegistryError::Open {
        path: path.to_owned(),
        problem: format!("{error}: {ACCESS}"),
    })?;
    let opened = pilot_sqlite::open(path, "the registry", is_of_the_disk, prepared);
    let (connection, _) = opened.map_err(|error| {
        remove_if_empty(path);
        failed(path, &error)
    })?;
    Ok(connection)
}

/// Refuses a registry that has lost its content, or is missing although there is something deployed.
///
/// # Errors
/// [`RegistryError::Open`].
pub(super) fn refuse_lost(path: &Path, data_dir: &Path) -> Result<(), RegistryError> {
    let failed = |problem| RegistryError::Open {
        path: path.to_owned(),
        problem,
    };
    match pilot_sqlite::hollow(path) {
        Ok(None) if path.exists() => Ok(()),
        Ok(None) => refuse_new(path, data_dir, "it is missing"),
        // A first start was killed in the middle, perhaps.
        Ok(Some(_)) if path.exists() && nothing_is_deployed(data_dir) => Ok(()),
        Ok(Some(problem)) => Err(failed(format!("{problem}: {DAMAGED}"))),
        Err(error) => Err(failed(format!("{error}: {ACCESS}"))),
    }
}

fn nothing_is_deployed(data_dir: &Path) -> bool {
    data_dir::deployed(data_dir).is_ok_and(|folders| folders.is_empty())
}

/// Refuses a registry without content if there is something deployed. `why`: it has none.
///
/// # Errors
/// [`RegistryError::Open`].
pub(super) fn refuse_new(path: &Path, data_dir: &Path, why: &str) -> Result<(), RegistryError> {
    let failed = |problem| RegistryError::Open {
        path: path.to_owned(),
        problem,
    };
    let deployed = data_dir::deployed(data_dir);
    let deployed = deployed.map_err(|error| failed(format!("{error}: {ACCESS}")))?;
    if deployed.is_empty() {
        return Ok(());
    }
    let folders = deployed.join(", ");
    Err(failed(format!(
        "{why}, but the data directory has what was deployed ({folders}): copy a backup of the registry back, or move these folders \
         away and deploy all functions again"
    )))
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
pub(super) const DAMAGED: &str = "it is damaged; stop here, copy a backup of the data directory back, or move this file, those with -wal \
                                  and -shm behind its name, and the folders code, layers and environments away and deploy all functions \
                                  again";
const DISK: &str = "make room on its disk if it is full, or repair the disk, and start again; nothing that was deployed is lost";
const ACCESS: &str =
    "its disk must have room, and the daemon's user must be able to write to it and to its folder";
const BUSY: &str = "another program uses it; end that program and start again";
