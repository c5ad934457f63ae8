//! Initscripts: what `[functions.NAME.initscript]` and `[functions.NAME.shared_initscript]` declare. A small WebAssembly program of the
//! function runs while its worker starts, or once for all workers of the node. Running it is behind the port
//! [`InitRunner`](crate::ports::InitRunner).

mod endpoint;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checks::{in_range, one_of};

pub use endpoint::{Allowed, Endpoint, check_target};

/// The command of this binary that compiles a module on trial, with limits.
pub const TRIAL_VERB: &str = "initscript-trial";

/// The `[functions.NAME.initscript]` table, and the `[functions.NAME.shared_initscript]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InitscriptSpec {
    /// The WebAssembly module: a file of the function's folder.
    pub module: String,
    /// The folder of the crate of which the command line builds the module before it uploads the function. The daemon ignores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// A text for the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// What it may connect to: `s3://STORE`, `sqs://CONNECTION`, `https://HOST`, `redis://HOST:PORT`, `grpc://HOST:PORT`, each with
    /// `/` and the beginning of keys if it may not use all of them, and `tcp://HOST:PORT`. Default: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Memory of the script, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// An invocation waits at most this long for the script, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// `start`: the handler is called when the script has ended. `invocation`: the handler is called as soon as there is a worker,
    /// and waits for a message when it asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub during: Option<String>,
    /// Only of a shared one: the node uses its messages for this long before it runs the script again, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<u32>,
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
    /// An invocation waits at most this long for the script, milliseconds.
    pub timeout_ms: u32,
    /// What it runs beside.
    #[serde(default, skip_serializing_if = "During::is_start")]
    pub during: During,
    /// `Some`: it is shared, and its messages are used for this long, seconds. `None`: it runs for each invocation that waits for a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<u32>,
}

/// What a script runs beside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum During {
    /// The start of the worker. The handler is called when it has ended.
    #[default]
    Start,
    /// The start and the handler, which waits for a message when it asks for it.
    Invocation,
}

impl During {
    fn is_start(&self) -> bool {
        *self == Self::Start
    }
}

/// Which of a function's scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptKind {
    /// `initscript`.
    Own,
    /// `shared_initscript`.
    Shared,
}

impl ScriptKind {
    /// Its key in `pilot.toml`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Own => "initscript",
            Self::Shared => "shared_initscript",
        }
    }

    /// Most messages that it sends. A call carries them with declared inputs and a few other descriptors.
    #[must_use]
    pub fn messages_max(self) -> usize {
        match self {
            Self::Own => MESSAGES_MAX,
            Self::Shared => SHARED_MESSAGES_MAX,
        }
    }

    /// Its name among the transfers of an invocation.
    #[must_use]
    pub fn transfer_name(self) -> &'static str {
        match self {
            Self::Own => SCRIPT_NAME,
            Self::Shared => SHARED_NAME,
        }
    }
}

/// One run of an initscript, for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptRun {
    /// How it ended.
    pub end: ScriptEnd,
    /// How long it took, with the replies that it handed over.
    pub took: Duration,
}

/// How a run of an initscript ended. The function is called in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptEnd {
    /// It returned, and all its messages are here.
    Ok,
    /// It exited with a status other than 0.
    Exit,
    /// It trapped: for example `unreachable`, or an address outside of its memory.
    Trap,
    /// It computed or called for longer than it may.
    Limit,
    /// It was not ready at its time.
    Timeout,
    /// It ended well, and a reply that it handed over failed.
    Message,
    /// It did not run: there was no room, or its module was not compiled.
    LeftOut,
}

impl ScriptEnd {
    /// All, for the metrics.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Exit,
        Self::Trap,
        Self::Limit,
        Self::Timeout,
        Self::Message,
        Self::LeftOut,
    ];

    /// The word used in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Exit => "exit",
            Self::Trap => "trap",
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Message => "message",
            Self::LeftOut => "left_out",
        }
    }
}

impl InitscriptConfig {
    /// Whether it may connect to an endpoint.
    #[must_use]
    pub fn allows(&self, endpoint: &Endpoint) -> bool {
        self.allow
            .iter()
            .any(|allowed| allowed.endpoint().is_same(endpoint))
    }

    /// Whether it may ask an endpoint for this key, or this path of a URL without its first `/`.
    #[must_use]
    pub fn allows_key(&self, endpoint: &Endpoint, key: &str) -> bool {
        let mut here = self
            .allow
            .iter()
            .filter(|allowed| allowed.endpoint().is_same(endpoint));
        here.any(|allowed| key.starts_with(allowed.prefix()))
    }
}

/// Checks the table, if there is one. `refusal`: why the function cannot be given what a script fetched.
pub(crate) fn check(
    spec: Option<&InitscriptSpec>,
    kind: ScriptKind,
    refusal: Option<String>,
) -> Result<Option<InitscriptConfig>, String> {
    let Some(spec) = spec else { return Ok(None) };
    match refusal {
        Some(refusal) => Err(refusal),
        None => spec.check(kind).map(Some),
    }
}

impl InitscriptSpec {
    fn check(&self, kind: ScriptKind) -> Result<InitscriptConfig, String> {
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
        let during = one_of(
            self.during.as_deref(),
            During::Start,
            &[("start", During::Start), ("invocation", During::Invocation)],
        );
        let during = during.map_err(|problem| format!("during {problem}"))?;
        if kind == ScriptKind::Shared && during == During::Invocation {
            return Err(NOT_OWN.to_owned());
        }
        let max_age_s = match kind {
            ScriptKind::Own if self.max_age_s.is_some() => return Err(NOT_SHARED.to_owned()),
            ScriptKind::Own => None,
            ScriptKind::Shared => {
                let max_age_s = in_range(self.max_age_s.unwrap_or(60), 1, 86_400);
                Some(max_age_s.map_err(|problem| format!("max_age_s {problem}"))?)
            }
        };
        Ok(InitscriptConfig {
            module: self.module.clone(),
            input,
            allow: allow.map_err(|problem| format!("allow: {problem}"))?,
            memory_mb,
            timeout_ms,
            during,
            max_age_s,
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

/// The name of the input that carries the script's message `id` to the function. Inputs that a user declares have no dot in their names.
#[must_use]
pub fn message_name(id: u64) -> String {
    format!("init.{id}")
}

/// The name of a connection for a worker that takes paths: its id and its address. Without an address: of a connection that could not be
/// made.
#[must_use]
pub fn connection_name(id: u64, address: Option<&str>) -> String {
    match address {
        Some(address) => format!("{MESSAGE_PREFIX}conn.{id}={address}"),
        None => format!("{MESSAGE_PREFIX}conn.{id}"),
    }
}

/// The name of the script itself among the transfers of an invocation.
pub const SCRIPT_NAME: &str = "init.script";
/// The name of the shared script.
pub const SHARED_NAME: &str = "init.shared";
/// What the names of messages, and of the scripts, begin with.
pub const MESSAGE_PREFIX: &str = "init.";
/// Messages that a script sends. A call carries at most [`INPUTS_MAX`](crate::ports::INPUTS_MAX) descriptors, inputs and others included.
pub const MESSAGES_MAX: usize = 16;
/// Connections that a script hands over.
pub const HANDED_MAX: usize = 4;
/// Messages that a shared script sends.
pub const SHARED_MESSAGES_MAX: usize = 8;
const INPUT_BYTES_MAX: usize = 64 << 10;
const MODULE_PATH_MAX: usize = 1024;
const ALLOW_MAX: usize = 32;
const NOT_OWN: &str = "during belongs to initscript: the messages of a shared_initscript are there before the handler is called";
const NOT_SHARED: &str = "max_age_s belongs to shared_initscript: the messages of an initscript end with their invocation";
/// Why a function that is no handler of events has no initscript.
pub(crate) const EVENTS_ONLY: &str = "needs a function that gets events (interface = \"event\", which servers and applications do not have): \
     others cannot take what a script fetched";

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
    fn a_call_has_room_for_the_messages_of_both_scripts() {
        // Handed data, a body, the socket for calls, and either that of a script that goes on or the paths of connections.
        let others = 3 + HANDED_MAX.max(1);
        let most = crate::inputs::DECLARED_MAX + MESSAGES_MAX + SHARED_MESSAGES_MAX + others;
        assert!(most <= crate::ports::INPUTS_MAX, "{most}");
    }

    #[test]
    fn a_prefix_bounds_the_keys() {
        let script = checked(
            "handler = \"a.b\"\n[initscript]\nmodule = \"init.wasm\"\nallow = [\"s3://photos/public/\", \"https://example.com\"]",
        )
        .unwrap();
        let photos: Endpoint = "s3://photos".parse().unwrap();
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
            (
                "module = \"a.wasm\"\nduring = \"starts\"",
                "during is \"starts\", must be one of start, invocation; did you mean \"start\"?",
            ),
            (
                "module = \"a.wasm\"\nmax_age_s = 5",
                "max_age_s belongs to shared_initscript",
            ),
            ("", "missing field"),
        ] {
            let toml = format!("handler = \"a.b\"\n[initscript]\n{table}");
            let found = checked(&toml).unwrap_err();
            assert!(found.contains(problem), "{table}: {found}");
        }
        let found =
            checked("handler = \"a:b\"\ninterface = \"asgi\"\n[initscript]\nmodule = \"a.wasm\"")
                .unwrap_err();
        assert!(
            found.contains("functions.resize.initscript: needs a function that gets events"),
            "{found}"
        );
    }

    #[test]
    fn every_runtime_that_gets_events_may_have_a_script() {
        for function in [
            "handler = \"a.b\"",
            "runtime = \"node\"\nhandler = \"a.b\"",
            "runtime = \"provided\"",
        ] {
            let toml = format!("{function}\n[initscript]\nmodule = \"a.wasm\"");
            assert!(checked(&toml).is_ok(), "{toml}: {:?}", checked(&toml));
        }
    }

    #[test]
    fn a_script_goes_on_beside_every_function_that_gets_events() {
        let going = "[initscript]\nmodule = \"a.wasm\"\nduring = \"invocation\"";
        for function in [
            "handler = \"a.b\"",
            "runtime = \"node\"\nhandler = \"a.b\"",
            "runtime = \"provided\"",
            "runtime = \"container\"\nimage = \"a:1\"\ncontract = \"shim\"\ncommand = [\"a\"]",
        ] {
            let script = checked(&format!("{function}\n{going}")).unwrap();
            assert_eq!(script.during, During::Invocation);
        }
        let server = format!("runtime = \"http\"\ncommand = [\"a\"]\n{going}");
        let found = checked(&server).unwrap_err();
        assert!(found.contains("interface = \"event\""), "{found}");
    }

    #[test]
    fn a_shared_script_has_an_age() {
        let spec = |table: &str| -> FunctionSpec {
            let toml =
                format!("handler = \"a.b\"\n[shared_initscript]\nmodule = \"a.wasm\"\n{table}");
            toml::from_str(&toml).unwrap()
        };
        let name: FunctionName = "resize".parse().unwrap();
        for (table, age) in [("", 60), ("max_age_s = 5", 5)] {
            let config = spec(table).check(&name).unwrap();
            assert_eq!(config.shared_initscript.unwrap().max_age_s, Some(age));
            assert_eq!(config.initscript, None);
        }
        let found = spec("max_age_s = 0").check(&name).unwrap_err().to_string();
        assert!(
            found.contains("functions.resize.shared_initscript: max_age_s is 0"),
            "{found}"
        );
    }
}
