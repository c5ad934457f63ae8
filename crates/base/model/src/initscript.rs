//! Initscripts: what `[functions.NAME.initscript]` declares. A small WebAssembly program of the function runs while its worker starts.
//! Running it is behind the port [`InitRunner`](crate::ports::InitRunner).

mod place;

use serde::{Deserialize, Serialize};

use crate::checks::in_range;

pub use place::{Allowed, Place, check_target};

/// The `[functions.NAME.initscript]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InitscriptSpec {
    /// The WebAssembly module: a file of the function's folder.
    pub module: String,
    /// A text for the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// What it may connect to: `s3://STORE`, `https://HOST`, `redis://HOST:PORT`, each with `/` and the beginning of keys if it may not use
    /// all of them. Default: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Memory of the script, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// An invocation waits at most so long for the script, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
}

/// A checked initscript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InitscriptConfig {
    /// The module, relative to the function's folder.
    pub module: String,
    /// A text for the script.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// What it may connect to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub allow: Vec<Allowed>,
    /// Memory of the script, MiB.
    pub memory_mb: u32,
    /// An invocation waits at most so long for the script, milliseconds.
    pub timeout_ms: u32,
}

impl InitscriptConfig {
    /// Whether it may connect to a place.
    #[must_use]
    pub fn allows(&self, place: &Place) -> bool {
        self.allow
            .iter()
            .any(|allowed| allowed.place().is_same(place))
    }

    /// Whether it may ask a place for this key, or this path of a URL without its first `/`.
    #[must_use]
    pub fn allows_key(&self, place: &Place, key: &str) -> bool {
        let mut here = self
            .allow
            .iter()
            .filter(|allowed| allowed.place().is_same(place));
        here.any(|allowed| key.starts_with(allowed.prefix()))
    }
}

/// Checks the table, if there is one. `takes_inputs`: what a script fetched can be given to the function.
pub(crate) fn check(
    spec: Option<&InitscriptSpec>,
    takes_inputs: bool,
) -> Result<Option<InitscriptConfig>, String> {
    spec.map(|spec| spec.check(takes_inputs)).transpose()
}

impl InitscriptSpec {
    fn check(&self, takes_inputs: bool) -> Result<InitscriptConfig, String> {
        if !takes_inputs {
            return Err(TAKES_NONE.to_owned());
        }
        check_module(&self.module)?;
        let input = self.input.clone().unwrap_or_default();
        if input.len() > INPUT_BYTES_MAX {
            return Err(format!(
                "input has {} bytes, may have at most {INPUT_BYTES_MAX}",
                input.len()
            ));
        }
        if self.allow.len() > ALLOW_MAX {
            return Err(format!(
                "allow has {} entries, may have at most {ALLOW_MAX}",
                self.allow.len()
            ));
        }
        let allow = self.allow.iter().map(|entry| entry.parse());
        let allow: Result<Vec<Allowed>, String> = allow.collect();
        let memory_mb = in_range(self.memory_mb.unwrap_or(2), 1, 64)
            .map_err(|problem| format!("memory_mb {problem}"))?;
        let timeout_ms = in_range(self.timeout_ms.unwrap_or(2000), 1, 60_000)
            .map_err(|problem| format!("timeout_ms {problem}"))?;
        Ok(InitscriptConfig {
            module: self.module.clone(),
            input,
            allow: allow.map_err(|problem| format!("allow: {problem}"))?,
            memory_mb,
            timeout_ms,
        })
    }
}

/// The module is a file below the function's folder.
fn check_module(module: &str) -> Result<(), String> {
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    let fits = module.len() <= MODULE_PATH_MAX
        && !module.split('/').any(is_odd)
        && !module.contains(char::is_control);
    if fits {
        return Ok(());
    }
    Err(format!(
        "module is \"{}\", must be the path of a file below the function's folder, for example \"init.wasm\"",
        module.escape_default()
    ))
}

/// The name under which the function has what the script sent as message `id`. No input that a user declares has a dot in its name.
#[must_use]
pub fn message_name(id: u64) -> String {
    format!("init.{id}")
}

/// The name of the script itself among the transfers of an invocation.
pub const SCRIPT_NAME: &str = "init.script";
/// Messages that a script sends. A call carries at most [`INPUTS_MAX`](crate::ports::INPUTS_MAX) descriptors, inputs and others included.
pub const MESSAGES_MAX: usize = 16;
const INPUT_BYTES_MAX: usize = 64 << 10;
const MODULE_PATH_MAX: usize = 1024;
const ALLOW_MAX: usize = 32;
const TAKES_NONE: &str = "needs runtime = \"python\" and interface = \"event\": other functions cannot take what a script fetched yet";

#[cfg(test)]
mod tests {
    use crate::ids::FunctionName;
    use crate::spec::FunctionSpec;

    use super::*;

    fn checked(toml: &str) -> Result<InitscriptConfig, String> {
        let spec: FunctionSpec = toml::from_str(toml).map_err(|error| error.to_string())?;
        let name: FunctionName = "resize".parse().unwrap();
        let config = spec.check(&name).map_err(|error| error.to_string())?;
        config.initscript.ok_or_else(|| "there is none".to_owned())
    }

    #[test]
    fn a_table_has_defaults_and_allows_nothing_by_itself() {
        let script = checked("handler = \"a.b\"\n[initscript]\nmodule = \"init.wasm\"").unwrap();
        assert_eq!((script.memory_mb, script.timeout_ms), (2, 2000));
        assert!(!script.allows(&"s3://photos".parse().unwrap()));
    }

    #[test]
    fn a_prefix_bounds_the_keys() {
        let script = checked(
            "handler = \"a.b\"\n[initscript]\nmodule = \"init.wasm\"\nallow = [\"s3://photos/public/\", \"https://example.com\"]",
        )
        .unwrap();
        let photos: Place = "s3://photos".parse().unwrap();
        assert!(script.allows(&photos));
        assert!(script.allows_key(&photos, "public/a.png"));
        assert!(!script.allows_key(&photos, "private/a.png"));
        assert!(script.allows_key(&"https://EXAMPLE.com:443".parse().unwrap(), "any"));
        for other in [
            "http://example.com",
            "https://example.com:444",
            "https://a.example.com",
        ] {
            assert!(!script.allows(&other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn a_bad_table_says_what_to_write() {
        for (table, problem) in [
            (
                "module = \"../init.wasm\"",
                "must be the path of a file below",
            ),
            (
                "module = \"/init.wasm\"",
                "must be the path of a file below",
            ),
            (
                "module = \"a.wasm\"\nmemory_mb = 65",
                "memory_mb is 65, must be from 1 to 64",
            ),
            (
                "module = \"a.wasm\"\ntimeout_ms = 0",
                "timeout_ms is 0, must be from 1",
            ),
            ("module = \"a.wasm\"\nallow = [\"ftp://a\"]", "allow: "),
            ("module = \"a.wasm\"\nalow = []", "unknown field"),
            ("", "missing field"),
        ] {
            let toml = format!("handler = \"a.b\"\n[initscript]\n{table}");
            let found = checked(&toml).unwrap_err();
            assert!(found.contains(problem), "{table}: {found}");
        }
        let found =
            checked("runtime = \"node\"\nhandler = \"a.b\"\n[initscript]\nmodule = \"a.wasm\"")
                .unwrap_err();
        assert!(
            found.contains("functions.resize.initscript: needs runtime"),
            "{found}"
        );
    }
}
