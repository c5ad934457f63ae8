//! The registry: functions, versions and environments in SQLite. A restart, a `kill -9` or a power failure loses nothing that was
//! acknowledged: with a write-ahead log and `synchronous = FULL`, a commit is on disk when it returns.
//!
//! Invariant: a version's row is written after its files are on disk. Invocations do not read or write the registry.

mod environments;
mod folders;
mod open;

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::{FunctionConfig, FunctionName, FunctionSpec, Version, VersionId};
use rusqlite::{Connection, Row, params};

use crate::layers::merged::merged;

/// The registry of one data directory.
#[derive(Debug)]
pub struct Registry {
    /// Guards the connection; one statement or transaction at a time.
    connection: Mutex<Connection>,
    data_dir: PathBuf,
}

/// A version in the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredVersion {
    /// The version, with absolute paths.
    pub version: Version,
    /// The result of its trial start.
    pub template: TemplateReport,
    /// When it was deployed, Unix seconds.
    pub deployed_unix_s: u64,
    /// Why it cannot run; `None`: nothing is missing.
    pub problem: Option<String>,
}

/// A function with its kept versions.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFunction {
    /// The live version.
    pub live: StoredVersion,
    /// The older versions, newest first.
    pub older: Vec<StoredVersion>,
}

/// Why the registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It cannot be opened.
    #[error("the registry {path} cannot be opened: {problem}")]
    Open {
        /// Its file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// It was written by a newer Pilotlight.
    #[error(
        "the registry {path} has schema {found}, this Pilotlight knows up to {known}: use the newer Pilotlight again"
    )]
    Newer {
        /// Its file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema that this Pilotlight supports.
        known: i64,
    },
    /// SQLite failed.
    #[error("the registry failed: {problem}")]
    Sqlite {
        /// Its message.
        problem: String,
    },
}

impl RegistryError {
    /// Whether the disk had no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Sqlite { problem } if crate::reserve::says_full(problem))
    }
}

impl From<rusqlite::Error> for RegistryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite {
            problem: error.to_string(),
        }
    }
}

impl Registry {
    /// Opens the registry in a data directory. Creates or migrates it if necessary.
    ///
    /// # Errors
    /// [`RegistryError::Open`], [`RegistryError::Newer`].
    pub fn open(data_dir: &Path) -> Result<Self, RegistryError> {
        Self::open_in(data_dir, data_dir)
    }

    /// Opens the registry in a folder. What was deployed is in `data_dir`.
    fn open_in(folder: &Path, data_dir: &Path) -> Result<Self, RegistryError> {
        let path = folder.join(FILE);
        open::refuse_lost(&path, data_dir)?;
        let mut connection = open::connect(&path)?;
        migrate(&mut connection, &path, data_dir)?;
        Ok(Self {
            connection: Mutex::new(connection),
            data_dir: data_dir.to_owned(),
        })
    }

    /// What a daemon would find: the functions of a registry that no daemon has open. Reads a copy, which it makes in `scratch`, so that
    /// nothing is changed. `Ok(None)`: there is no registry.
    ///
    /// # Errors
    /// What [`Registry::open`] or [`Registry::functions`] would fail with.
    pub fn examine(
        data_dir: &Path,
        scratch: &Path,
    ) -> Result<Option<Vec<StoredFunction>>, RegistryError> {
        let path = data_dir.join(FILE);
        let named = |error| match error {
            RegistryError::Open { problem, .. } => RegistryError::Open {
                path: path.clone(),
                problem,
            },
            RegistryError::Newer { found, known, .. } => RegistryError::Newer {
                path: path.clone(),
                found,
                known,
            },
            other => other,
        };
        let copied = pilot_sqlite::copy(&path, scratch).map_err(|error| RegistryError::Open {
            path: path.clone(),
            problem: error.to_string(),
        })?;
        if copied.is_none() {
            open::refuse_lost(&path, data_dir)?;
            return Ok(None);
        }
        let registry = Self::open_in(scratch, data_dir).map_err(named)?;
        let functions = registry.functions();
        functions
            .map(Some)
            .map_err(|error| registry.unreadable(error))
    }

    /// All functions, by name. A function whose row is invalid or whose files are missing has a problem.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn functions(&self) -> Result<Vec<StoredFunction>, RegistryError> {
        let connection = self.connection.lock();
        let mut statement = connection.prepare_cached(
            "SELECT v.name, v.number, v.id, v.deployed_unix_s, v.config, v.template,
                    v.environment, f.live = v.number, e.id IS NOT NULL, e.python, e.python_prefix, e.packages,
                    e.imports, e.node, e.node_prefix, e.node_version, e.modules
             FROM functions f JOIN versions v ON v.name = f.name
             LEFT JOIN environments e ON e.id = v.environment
             ORDER BY v.name, f.live = v.number DESC, v.number DESC",
        )?;
        let mut functions: Vec<StoredFunction> = Vec::new();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let Some(stored) = self.stored_version(row)? else {
                continue;
            };
            if row.get::<_, bool>(7)? {
                functions.push(StoredFunction {
                    live: stored,
                    older: Vec::new(),
                });
            } else if let Some(function) = functions
                .last_mut()
                .filter(|function| function.live.version.config.name == stored.version.config.name)
            {
                function.older.push(stored);
            }
        }
        Ok(functions)
    }

    /// What is wrong when a registry that was opened cannot be read.
    pub(crate) fn unreadable(&self, error: RegistryError) -> RegistryError {
        match error {
            RegistryError::Sqlite { problem } => RegistryError::Open {
                path: self.data_dir.join(FILE),
                problem: format!("{problem}: {}", open::DAMAGED),
            },
            other => other,
        }
    }

    /// A version's configuration as stored: the JSON from which earlier builds made its id.
    pub(crate) fn stored_config(&self, version: &Version) -> Result<String, RegistryError> {
        Ok(self.connection.lock().query_row(
            "SELECT config FROM versions WHERE name = ?1 AND number = ?2",
            params![version.config.name.as_str(), version.number],
            |row| row.get(0),
        )?)
    }

    /// Makes a new version the live one of its function, and removes all versions except it and those with the numbers `kept`. On disk
    /// when it returns.
    ///
    /// # Errors
    /// Those of SQLite; then nothing has changed.
    pub fn commit(&self, stored: &StoredVersion, kept: &[u32]) -> Result<(), RegistryError> {
        let version = &stored.version;
        let environment = &version.environment;
        let name = version.config.name.as_str();
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        environments::insert(&transaction, environment)?;
        transaction.execute(
            "INSERT INTO functions (name, live, newest) VALUES (?1, ?2, ?2)
             ON CONFLICT (name) DO UPDATE SET live = ?2, newest = max(newest, ?2)",
            params![name, version.number],
        )?;
        transaction.execute(
            "INSERT INTO versions (name, number, id, deployed_unix_s, config, template, environment)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                name,
                version.number,
                version.id.as_str(),
                i64::try_from(stored.deployed_unix_s).unwrap_or(i64::MAX),
                json(&version.config)?,
                json(&stored.template)?,
                environment.id.as_str(),
            ],
        )?;
        let numbers = std::iter::once(version.number).chain(kept.iter().copied());
        let kept: Vec<u32> = numbers.collect();
        transaction.execute(
            "DELETE FROM versions WHERE name = ?1 AND number NOT IN (SELECT value FROM json_each(?2))",
            params![name, json(&kept)?],
        )?;
        environments::forget_unused(&transaction)?;
        transaction.commit()?;
        Ok(())
    }

    /// Removes all versions of a function except the live one and those with the numbers `kept`. On disk when it returns.
    ///
    /// # Errors
    /// Those of SQLite; then nothing has changed.
    pub fn keep_versions(&self, name: &FunctionName, kept: &[u32]) -> Result<(), RegistryError> {
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        transaction.execute(
            "DELETE FROM versions WHERE name = ?1 AND number NOT IN (SELECT value FROM json_each(?2))
             AND number NOT IN (SELECT live FROM functions WHERE name = ?1)",
            params![name.as_str(), json(&kept)?],
        )?;
        environments::forget_unused(&transaction)?;
        transaction.commit()?;
        Ok(())
    }

    /// Makes a version that is in the registry the live one of its function. On disk when it returns. False: it is not there.
    ///
    /// # Errors
    /// Those of SQLite; then nothing has changed.
    pub fn make_live(&self, name: &FunctionName, number: u32) -> Result<bool, RegistryError> {
        let changed = self.connection.lock().execute(
            "UPDATE functions SET live = ?2 WHERE name = ?1
             AND EXISTS (SELECT 1 FROM versions WHERE name = ?1 AND number = ?2)",
            params![name.as_str(), number],
        )?;
        Ok(changed > 0)
    }

    /// The number of the function's next version. It is above that of every version that the function has had, also of those that cannot
    /// run or are removed: a number never means other code. A function that was removed begins again.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn next_number(&self, name: &FunctionName) -> Result<u32, RegistryError> {
        Ok(self.connection.lock().query_row(
            "SELECT coalesce(max(newest), 0) + 1 FROM functions WHERE name = ?1",
            [name.as_str()],
            |row| row.get(0),
        )?)
    }

    /// Removes a function with all its versions. False: there was none.
    ///
    /// # Errors
    /// Those of SQLite; then nothing has changed.
    pub fn remove(&self, name: &FunctionName) -> Result<bool, RegistryError> {
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        let removed =
            transaction.execute("DELETE FROM functions WHERE name = ?1", [name.as_str()])?;
        environments::forget_unused(&transaction)?;
        transaction.commit()?;
        Ok(removed > 0)
    }

    /// `None`: the name is invalid.
    fn stored_version(&self, row: &Row<'_>) -> Result<Option<StoredVersion>, rusqlite::Error> {
        let Ok(name) = row.get::<_, String>(0)?.parse::<FunctionName>() else {
            return Ok(None);
        };
        let mut damage = None;
        let text: String = row.get(4)?;
        let config: FunctionConfig = match serde_json::from_str(&text) {
            Ok(config) => config,
            Err(error) => {
                damage = Some(format!(
                    "its configuration in the registry cannot be read ({error})"
                ));
                let Ok(mut config) = FunctionSpec::default().check(&name) else {
                    return Ok(None);
                };
                folders::keep_readable(&text, &mut config);
                config
            }
        };
        let id = VersionId::from_hex(&row.get::<_, String>(2)?);
        let template: TemplateReport =
            serde_json::from_str(&row.get::<_, String>(5)?).unwrap_or_else(|_| no_report());
        let environment = environments::read(&self.data_dir, row)?;
        let damage = match damage {
            None => environments::damage(row)?,
            damage => damage,
        };
        let version = Version {
            code_dir: self.data_dir.join("code").join(id.as_str()),
            layers: merged(&self.data_dir.join("layers"), &config, &environment),
            environment,
            id,
            number: row.get(1)?,
            config,
            own_imports: template.own_imports.clone(),
            modules: template.modules.clone(),
        };
        let problem = damage.or_else(|| environments::missing(&version));
        Ok(Some(StoredVersion {
            template,
            deployed_unix_s: row.get::<_, i64>(3)?.try_into().unwrap_or(0),
            problem,
            version,
        }))
    }
}

fn no_report() -> TemplateReport {
    TemplateReport {
        reason: Some("the findings of its deployment cannot be read from the registry".to_owned()),
        ..TemplateReport::default()
    }
}

/// Migrates the schema, step by step in one transaction.
fn migrate(connection: &mut Connection, path: &Path, data_dir: &Path) -> Result<(), RegistryError> {
    let fail = |error: rusqlite::Error| open::failed(path, &error);
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let transaction = connection.transaction().map_err(fail)?;
    let found: i64 = transaction
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(fail)?;
    if found > known {
        return Err(RegistryError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    // A start on a full disk must not write.
    if found == known {
        return Ok(());
    }
    if found == 0 {
        // A file that was copied without its log can be so, too.
        open::refuse_new(path, data_dir, "it has no tables")?;
    }
    for step in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(step).map_err(fail)?;
    }
    transaction
        .pragma_update(None, "user_version", known)
        .map_err(fail)?;
    transaction.commit().map_err(fail)
}

fn json(value: &impl serde::Serialize) -> Result<String, RegistryError> {
    serde_json::to_string(value).map_err(|error| RegistryError::Sqlite {
        problem: format!("a value cannot be written as JSON: {error}"),
    })
}

fn path_text(path: &Path) -> Result<&str, RegistryError> {
    path.to_str().ok_or_else(|| RegistryError::Sqlite {
        problem: format!("the path {} is not UTF-8; use one that is", path.display()),
    })
}

const FILE: &str = "registry.sqlite";
/// Step N migrates from schema N to N + 1. Never change a released step; add a new one.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE functions (
        name TEXT PRIMARY KEY,
        live INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE versions (
        name TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        id TEXT NOT NULL,
        deployed_unix_s INTEGER NOT NULL,
        config TEXT NOT NULL,
        template TEXT NOT NULL,
        environment TEXT NOT NULL,
        PRIMARY KEY (name, number)
    ) STRICT;
    CREATE TABLE environments (
        id TEXT PRIMARY KEY,
        python TEXT NOT NULL,
        python_prefix TEXT NOT NULL,
        has_packages INTEGER NOT NULL,
        imports TEXT NOT NULL
    ) STRICT;
    ",
    // Environments without Python, and with Node.js. `packages` and `modules` are the names of their folders under `environments/`,
    // which may differ from the environment's id.
    "
    CREATE TABLE environments_2 (
        id TEXT PRIMARY KEY,
        python TEXT,
        python_prefix TEXT,
        packages TEXT,
        imports TEXT NOT NULL,
        node TEXT,
        node_prefix TEXT,
        node_version TEXT,
        modules TEXT
    ) STRICT;
    INSERT INTO environments_2 (id, python, python_prefix, packages, imports)
        SELECT id, python, python_prefix, CASE WHEN has_packages THEN id END, imports FROM environments;
    DROP TABLE environments;
    ALTER TABLE environments_2 RENAME TO environments;
    ",
    // `newest` is the highest number that a version of the function has had. Its row may be removed.
    "
    ALTER TABLE functions ADD COLUMN newest INTEGER NOT NULL DEFAULT 0;
    UPDATE functions SET newest = coalesce((SELECT max(number) FROM versions WHERE versions.name = functions.name), 0);
    ",
];

#[cfg(test)]
mod tests;
