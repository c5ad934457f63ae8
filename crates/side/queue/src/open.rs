//! Opens the store. A file that is damaged is set aside, with its write-ahead log, and the daemon starts with a new one: what was
//! in it is not deleted, and everything else works. An empty file, and a write-ahead log without its file, are damage: SQLite would
//! remove the log with what was accepted. A write that was torn by a power failure is no damage: SQLite's log has checksums, and
//! its end is cut at the last whole commit.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pilot_model::calendar::unix_ms;
use pilot_sqlite::{Index, create_private, hollow, is_damaged, is_of_the_disk, remove_if_empty};
use rusqlite::{Connection, OpenFlags};

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be opened.
    #[error("the store of asynchronous invocations {path} cannot be opened: {problem}")]
    Open {
        /// Its file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// It was written by a newer Pilotlight.
    #[error(
        "the store of asynchronous invocations {path} has schema {found}, this Pilotlight knows {known}: use the newer Pilotlight again"
    )]
    Newer {
        /// Its file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The schema that this Pilotlight supports.
        known: i64,
    },
}

/// The store, open.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// Where the index of the log is.
    pub(crate) index: Index,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    Damaged(String),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    File(#[from] io::Error),
    #[error("it has schema {0}")]
    Newer(i64),
}

impl Problem {
    fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            Self::Sqlite(error) => is_damaged(error),
            Self::File(_) | Self::Newer(_) => false,
        }
    }

    fn of(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Newer(found) => OpenError::Newer {
                path,
                found,
                known: SCHEMA,
            },
            other => OpenError::Open {
                path,
                problem: format!(
                    "{other}: make room on its disk if it is full, or repair the disk, and start again; nothing that was accepted is lost"
                ),
            },
        }
    }
}

/// Opens the store for writing. Creates it if there is none, or if the one that is there is damaged.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn open(path: &Path) -> Result<Opened, OpenError> {
    let problem = match try_open(path) {
        Err(problem) if problem.is_damage() => problem.to_string(),
        done => return done.map_err(|problem| problem.of(path)),
    };
    let aside = set_aside(path).map_err(|error| OpenError::Open {
        path: path.to_owned(),
        problem: format!("it is damaged ({problem}) and cannot be set aside: {error}"),
    })?;
    tracing::error!(
        problem,
        aside = %aside.display(),
        "the store of asynchronous invocations is damaged and was set aside: invocations that had been accepted and had not run \
         are in that file, or in the one with -wal behind its name; a new store is empty"
    );
    try_open(path).map_err(|problem| problem.of(path))
}

/// What a daemon would find in a store that no daemon has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Examined {
    /// There is none.
    Absent,
    /// It can be used.
    Usable,
    /// It is damaged. A daemon would set it aside.
    Damaged(String),
}

/// Looks at a store as a start of the daemon would. Reads a copy, which it makes in `scratch`, so that nothing is changed.
///
/// # Errors
/// The daemon would not start.
pub fn examine(path: &Path, scratch: &Path) -> Result<Examined, OpenError> {
    let unreadable = |error: io::Error| OpenError::Open {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    if let Some(problem) = hollow(path).map_err(unreadable)? {
        return Ok(Examined::Damaged(problem.to_owned()));
    }
    let Some(copied) = pilot_sqlite::copy(path, scratch).map_err(unreadable)? else {
        return Ok(Examined::Absent);
    };
    match try_open(&copied) {
        Ok(_) => Ok(Examined::Usable),
        Err(problem) if problem.is_damage() => Ok(Examined::Damaged(problem.to_string())),
        Err(problem) => Err(problem.of(path)),
    }
}

/// A second connection, which only reads.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn reader(path: &Path, index: Index) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    index.connect(path, flags)
}

fn try_open(path: &Path) -> Result<Opened, Problem> {
    if let Some(problem) = hollow(path)? {
        return Err(Problem::Damaged(problem.to_owned()));
    }
    create_private(path)?;
    let of_the_disk =
        |problem: &Problem| matches!(problem, Problem::Sqlite(error) if is_of_the_disk(error));
    let what = "asynchronous invocations";
    let opened = pilot_sqlite::open(path, what, of_the_disk, prepared);
    let (connection, index) = opened.inspect_err(|_| remove_if_empty(path))?;
    Ok(Opened { connection, index })
}

/// Moves what the write-ahead log has into the file, at an orderly end. The connections that read live longer than the one that writes, so
/// SQLite does not do it by itself, and a copy of the file alone would have nothing. False: the log stays, and the next start reads it.
pub(crate) fn merge_log(connection: &Connection) -> bool {
    let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
        row.get::<_, bool>(0)
    });
    matches!(busy, Ok(false))
}

/// With the schema, and checked.
fn prepared(connection: Connection) -> Result<Connection, Problem> {
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)?;
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > SCHEMA {
        return Err(Problem::Newer(found));
    }
    if found == 0 {
        connection.execute_batch(CREATE)?;
    }
    connection.execute_batch(CREATE_MARKS)?;
    add_trigger(&connection)?;
    let said: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
    if said == "ok" {
        Ok(connection)
    } else {
        Err(Problem::Damaged(said.chars().take(200).collect()))
    }
}

/// What an invocation comes from. Added later, and NULL in what was stored before; an older Pilotlight neither reads nor writes it, so that
/// the schema keeps its number.
fn add_trigger(connection: &Connection) -> Result<(), rusqlite::Error> {
    if connection.column_exists(None, "records", "faas_trigger")? {
        return Ok(());
    }
    connection.execute_batch("ALTER TABLE records ADD COLUMN faas_trigger TEXT")
}

/// Renames the file and its logs, as far as they are there. Returns the new name of the file.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let suffix = format!(".damaged-{}", unix_ms(SystemTime::now()));
    let with = |path: &Path, end: &str| {
        let mut name = OsString::from(path);
        name.push(end);
        PathBuf::from(name)
    };
    let aside = with(path, &suffix);
    for end in ["-wal", "-shm", ""] {
        match std::fs::rename(with(path, end), with(&aside, end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(aside)
}

/// 16 MiB of pages.
const CHECKPOINT_PAGES: i64 = 4096;
const LOG_BYTES_MAX: i64 = 64 << 20;
const SCHEMA: i64 = 1;
/// `seq` is the order of acceptance. `due_ms` and the other times are Unix milliseconds. `file` is the name of a destination's
/// file; NULL: the function is invoked. `started`: an attempt of an invocation with a key has begun. `condition` is set in dead
/// letters. The `scope` of a key is OWNER/FUNCTION.
const CREATE: &str = "
    BEGIN IMMEDIATE;
    CREATE TABLE records (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        function TEXT NOT NULL,
        owner TEXT NOT NULL,
        qualifier TEXT,
        file TEXT,
        key TEXT,
        client_context TEXT,
        trace TEXT,
        hops INTEGER NOT NULL,
        accepted_ms INTEGER NOT NULL,
        due_ms INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        waits INTEGER NOT NULL,
        started INTEGER NOT NULL,
        condition TEXT,
        error TEXT,
        bytes INTEGER NOT NULL,
        payload BLOB NOT NULL
    ) STRICT;
    CREATE INDEX dead_letters ON records (seq) WHERE condition IS NOT NULL;
    CREATE TABLE keys (
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        id TEXT NOT NULL,
        digest BLOB NOT NULL,
        expires_ms INTEGER NOT NULL,
        PRIMARY KEY (scope, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX expiring_keys ON keys (expires_ms);
    PRAGMA user_version = 1;
    COMMIT;
";
/// What triggers remember. Added later; an older Pilotlight ignores it, so that the schema keeps its number.
const CREATE_MARKS: &str = "
    CREATE TABLE IF NOT EXISTS marks (
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (scope, key)
    ) STRICT, WITHOUT ROWID;
";

#[cfg(test)]
mod tests {
    use std::fs;

    use pilot_model::trigger::FaasTrigger;

    use super::*;

    #[test]
    fn a_damaged_file_is_set_aside_and_a_new_one_works() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("async.sqlite");
        for damage in [
            &b"this is no database, and long enough to be looked at as one"[..],
            &[7; 9000],
        ] {
            fs::write(&path, damage).unwrap();
            drop(open(&path).unwrap());
            let names: Vec<_> = fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.to_string_lossy().contains(".damaged-"))
                .collect();
            assert!(!names.is_empty(), "{names:?}");
            assert!(names.iter().any(|name| fs::read(name).unwrap() == damage));
        }
    }

    #[test]
    fn a_log_without_its_store_is_set_aside_and_not_removed() {
        for is_empty in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let scratch = tempfile::tempdir().unwrap();
            let path = folder.path().join("async.sqlite");
            if is_empty {
                fs::write(&path, "").unwrap();
            }
            fs::write(folder.path().join("async.sqlite-wal"), "accepted").unwrap();
            let examined = examine(&path, scratch.path()).unwrap();
            assert!(matches!(examined, Examined::Damaged(_)), "{examined:?}");
            drop(open(&path).unwrap());
            let aside: Vec<_> = fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.to_string_lossy().contains(".damaged-"))
                .collect();
            let log = aside
                .iter()
                .find(|path| path.to_string_lossy().ends_with("-wal"));
            assert_eq!(fs::read(log.unwrap()).unwrap(), b"accepted");
            assert_eq!(aside.len(), 1 + usize::from(is_empty), "{aside:?}");
            let examined = examine(&path, scratch.path()).unwrap();
            assert_eq!(examined, Examined::Usable);
        }
    }

    #[test]
    fn a_store_without_triggers_is_opened_and_its_records_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("async.sqlite");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(CREATE).unwrap();
        let stores = "INSERT INTO records (id, function, owner, hops, accepted_ms, due_ms, attempts, waits, started, bytes, payload)
                      VALUES (?1, 'f', 'us', 0, 1, 1, 0, 0, 0, 1, x'31')";
        old.execute(stores, ["before"]).unwrap();
        drop(old);
        for _ in 0..2 {
            let connection = open(&path).unwrap().connection;
            let record = crate::store::load(&connection, 1).unwrap().unwrap();
            assert_eq!(record.request.trigger, FaasTrigger::Other);
        }
        // An older Pilotlight goes on with it.
        let older = Connection::open(&path).unwrap();
        older.execute(stores, ["after"]).unwrap();
        drop(older);
        let connection = open(&path).unwrap().connection;
        assert!(crate::store::load(&connection, 2).unwrap().is_some());
    }

    #[test]
    fn a_newer_store_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("async.sqlite");
        let connection = open(&path).unwrap().connection;
        connection.pragma_update(None, "user_version", 9).unwrap();
        drop(connection);
        let error = open(&path).unwrap_err();
        assert!(
            matches!(error, OpenError::Newer { found: 9, .. }),
            "{error}"
        );
    }
}
