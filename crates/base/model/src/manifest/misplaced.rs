//! A key that a manifest has in the wrong table: where it belongs. Used only after an error. Which tables have which keys is not written
//! down here: serde lists the keys of a table in its error about one that no table has.

use crate::spec::FunctionSpec;

/// No table has this key.
const NOBODYS: &str = "no key has this name";

/// Where the unknown key of serde's message belongs. `path` is that of the table it is in, as `serde_path_to_error` writes it. `None`: no
/// table of a function has such a key.
pub(super) fn hint(path: &str, message: &str) -> Option<String> {
    let unknown = message.strip_prefix("unknown field `")?.split('`').next()?;
    let function = path
        .strip_prefix("functions.")
        .map(|rest| rest.split('.').next().unwrap_or(rest));
    let table = format!("[functions.{}]", function.unwrap_or("NAME"));
    let own = keys_of(&format!("\"{NOBODYS}\" = 0"));
    if own.iter().any(|key| key == unknown) {
        return Some(format!("it is a key of {table}"));
    }
    let tables: Vec<String> = own
        .iter()
        .filter(|key| {
            keys_of(&format!("{key} = {{ \"{NOBODYS}\" = 0 }}")).contains(&unknown.to_owned())
        })
        .map(|key| format!("[functions.{}.{key}]", function.unwrap_or("NAME")))
        .collect();
    (!tables.is_empty()).then(|| format!("it is a key of {}", tables.join(" and of ")))
}

/// The keys that are known where this part of a function's table has an unknown one.
fn keys_of(part: &str) -> Vec<String> {
    let error = toml::from_str::<FunctionSpec>(part).err();
    let message = error.as_ref().map_or("", toml::de::Error::message);
    match message.strip_prefix("unknown field `") {
        // Between two quoted words is ", " or " expected …", so every second piece is a name.
        Some(rest) => rest
            .split('`')
            .skip(2)
            .step_by(2)
            .map(str::to_owned)
            .collect(),
        None => Vec::new(),
    }
}
