//! The registry's rows of environments, and the check for missing files of a version.

use std::path::{Path, PathBuf};

use pilot_model::runtime::NeededBy;
use pilot_model::{Environment, EnvironmentId, Node, Python, Version};
use rusqlite::{Row, Transaction, params};

use super::{RegistryError, json, path_text};
use crate::environment::program;

pub(super) fn insert(
    transaction: &Transaction<'_>,
    environment: &Environment,
) -> Result<(), RegistryError> {
    fn text(path: Option<&PathBuf>) -> Result<Option<&str>, RegistryError> {
        path.map(|path| path_text(path)).transpose()
    }
    let python = environment.python.as_ref();
    let node = environment.node.as_ref();
    let packages = environment.packages_dir();
    let modules = environment.modules_dir();
    let imports = python.map_or(&[][..], |python| &python.imports);
    transaction.execute(
        "INSERT OR REPLACE INTO environments
         (id, python, python_prefix, packages, imports, node, node_prefix, node_version, modules)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            environment.id.as_str(),
            text(python.map(|python| &python.executable))?,
            text(python.map(|python| &python.prefix))?,
            packages.map(part_of).transpose()?,
            json(&imports)?,
            text(node.map(|node| &node.executable))?,
            text(node.map(|node| &node.prefix))?,
            node.map(|node| node.version.as_str()),
            modules.map(part_of).transpose()?,
        ],
    )?;
    Ok(())
}

/// The name of the folder under `environments/` that something is installed in.
fn part_of(installed: &Path) -> Result<&str, RegistryError> {
    let part = installed.parent().and_then(Path::file_name);
    path_text(part.map_or(Path::new(""), Path::new))
}

/// The environment in a row of `Registry::functions`.
pub(super) fn read(data_dir: &Path, row: &Row<'_>) -> Result<Environment, rusqlite::Error> {
    let id = EnvironmentId::from_hex(&row.get::<_, String>(6)?);
    let environments = data_dir.join("environments");
    if !row.get::<_, bool>(8)? {
        // There is no row: the version cannot run. The folder is kept, if there is one with this name.
        let folder = environments.join(id.as_str());
        let python = Python {
            executable: folder.join("python"),
            prefix: PathBuf::new(),
            packages_dir: Some(folder.join("packages")),
            imports: Vec::new(),
        };
        return Ok(Environment {
            id,
            python: Some(python),
            node: None,
        });
    }
    let text = |column| row.get::<_, Option<String>>(column);
    let path = |column| Ok::<_, rusqlite::Error>(text(column)?.map(PathBuf::from));
    let part = |column, folder: &str| {
        let name = text(column)?;
        Ok::<_, rusqlite::Error>(name.map(|name| environments.join(name).join(folder)))
    };
    let python = match path(9)? {
        Some(executable) => Some(Python {
            executable,
            prefix: path(10)?.unwrap_or_default(),
            packages_dir: part(11, "packages")?,
            // If it cannot be read, the version has a problem (`damage`).
            imports: serde_json::from_str(&text(12)?.unwrap_or_default()).unwrap_or_default(),
        }),
        None => None,
    };
    let node = match path(13)? {
        Some(executable) => Some(Node {
            executable,
            prefix: path(14)?.unwrap_or_default(),
            version: text(15)?.unwrap_or_default(),
            modules_dir: part(16, "node_modules")?,
        }),
        None => None,
    };
    Ok(Environment { id, python, node })
}

/// What is wrong with the row of a version's environment, which [`read`] has read.
pub(super) fn damage(row: &Row<'_>) -> Result<Option<String>, rusqlite::Error> {
    let json: Option<String> = row.get(12)?;
    let imports = json.map(|json| serde_json::from_str::<Vec<String>>(&json));
    Ok(imports
        .and_then(Result::err)
        .map(|error| format!("its environment's imports in the registry cannot be read ({error})")))
}

pub(super) fn forget_unused(transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
    transaction
        .execute(
            "DELETE FROM environments WHERE id NOT IN (SELECT environment FROM versions)",
            [],
        )
        .map(drop)
}

/// A file or interpreter that a version needs and that is missing on this machine.
pub(super) fn missing(version: &Version) -> Option<String> {
    let environment = &version.environment;
    let node = environment.node.as_ref();
    let folders = [
        (Some(version.code_dir.as_path()), "code", "is"),
        (
            version.layers.as_ref().map(|layers| layers.dir.as_path()),
            "layers",
            "are",
        ),
        (environment.packages_dir(), "packages", "are"),
        (environment.modules_dir(), "Node.js packages", "are"),
    ];
    for (folder, what, verb) in folders {
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Some(format!("its {what} {} {verb} gone", folder.display()));
        }
    }
    let python = environment.python.as_ref();
    let programs = [
        python.map(|python| ("interpreter", &python.executable)),
        node.map(|node| ("Node.js", &node.executable)),
    ];
    for (what, executable) in programs.into_iter().flatten() {
        if !program::is_there(executable) {
            return Some(format!("its {what} {} is gone", executable.display()));
        }
    }
    let runtime = &version.config.runtime;
    let always = Some(NeededBy::Runtime);
    if python.is_none() && runtime.python().is_some_and(|need| need.always == always) {
        return unknown("interpreter");
    }
    if node.is_none() && runtime.node().is_some_and(|need| need.always == always) {
        return unknown("Node.js");
    }
    None
}

fn unknown(what: &str) -> Option<String> {
    Some(format!("its {what} is not in the registry"))
}
