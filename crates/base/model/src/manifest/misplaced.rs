//! A key that a manifest has in the wrong table: where it belongs. Used only after an error. Which tables have which keys is not written
//! down here: serde lists the keys of a table in its error about one that no table has.

use crate::nearest::unknown_key;
use crate::spec::FunctionSpec;

/// No table has this key.
const NOBODYS: &str = "no key has this name";

/// Where the unknown key of serde's message belongs. `path` is that of the table it is in, as `serde_path_to_error` writes it. `None`: no
/// table of a function has such a key.
pub(super) fn hint(path: &str, message: &str) -> Option<String> {
    let (unknown, _) = unknown_key(message)?;
    let function = path
        .strip_prefix("functions.")
        .map_or("NAME", |rest| rest.split('.').next().unwrap_or(rest));
    let own = keys_of(&format!("\"{NOBODYS}\" = 0"));
    if own.iter().any(|key| key == unknown) {
        return Some(format!("it is a key of [functions.{function}]"));
    }
    let has_it = |table: &&String| {
        let keys = keys_of(&format!("{table} = {{ \"{NOBODYS}\" = 0 }}"));
        keys.iter().any(|key| key == unknown)
    };
    let tables: Vec<String> = own
        .iter()
        .filter(has_it)
        .map(|table| format!("[functions.{function}.{table}]"))
        .collect();
    (!tables.is_empty()).then(|| format!("it is a key of {}", tables.join(" and of ")))
}

/// Whether the value of a function's key is a table with keys of its own.
pub(super) fn is_table(key: &str) -> bool {
    let quoted = toml::Value::from(key);
    !keys_of(&format!("{quoted} = {{ \"{NOBODYS}\" = 0 }}")).is_empty()
}

/// The keys that are known where this part of a function's table has an unknown one.
fn keys_of(part: &str) -> Vec<String> {
    let error = toml::from_str::<FunctionSpec>(part).err();
    let message = error.as_ref().map_or("", toml::de::Error::message);
    let (_, known) = unknown_key(message).unwrap_or_default();
    known.into_iter().map(str::to_owned).collect()
}
