//! The folders that rows name, whatever else is wrong with these rows. The sweep leaves them: a row that this daemon cannot use
//! may be one that another can, and what a version needs may come back.

use std::collections::HashSet;
use std::path::PathBuf;

use pilot_model::{FunctionConfig, FunctionName};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Registry, RegistryError};

impl Registry {
    /// The folders of code and environments that versions name, except for the versions in `without`. Those of layers are in the
    /// versions' configurations.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(crate) fn folders(
        &self,
        without: &HashSet<(FunctionName, u32)>,
    ) -> Result<HashSet<PathBuf>, RegistryError> {
        let connection = self.connection.lock();
        let mut statement = connection.prepare_cached(
            "SELECT v.name, v.number, v.id, v.environment, e.packages, e.modules
             FROM versions v LEFT JOIN environments e ON e.id = v.environment",
        )?;
        let code = self.data_dir.join("code");
        let environments = self.data_dir.join("environments");
        let mut folders = HashSet::new();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (name, number) = (row.get::<_, String>(0)?, row.get(1)?);
            if let Ok(name) = name.parse()
                && without.contains(&(name, number))
            {
                continue;
            }
            folders.insert(code.join(row.get::<_, String>(2)?));
            for column in [3, 4, 5] {
                let part: Option<String> = row.get(column)?;
                folders.extend(part.map(|part| environments.join(part)));
            }
        }
        Ok(folders)
    }
}

/// Takes what names the folders of layers from a configuration that cannot be read as a whole.
pub(super) fn keep_readable(text: &str, config: &mut FunctionConfig) {
    fn read<T: DeserializeOwned>(all: &Value, key: &str) -> Option<T> {
        serde_json::from_value(all.get(key)?.clone()).ok()
    }
    let all: Value = serde_json::from_str(text).unwrap_or_default();
    if let Some(layers) = read(&all, "layers") {
        config.layers = layers;
    }
    // The folder of merged layers depends on it.
    if let Some(runtime) = read(&all, "runtime") {
        config.runtime = runtime;
    }
}
