//! Runtimes: how the code of a version is run. [`Runtime`] is the table of them. Each has a file below `runtime/` with everything
//! about it: its names, its keys of `pilot.toml` with their defaults and checks, the engine of its workers, what it needs of an
//! environment, its part of the key of a kept runtime, and its name in messages ([`RuntimeKind`]).
//!
//! Not here: the code that starts a worker. That is in an engine, or in a host of the keyed pool.

pub mod container;
pub mod http;
mod keys;
mod needs;
pub mod node;
pub mod provided;
pub mod python;
pub mod wasm;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

pub use crate::checks::KeyProblem;
use crate::checks::check_label;
use crate::choices::Interface;
use crate::environment::{Environment, Node};
use crate::inputs::Form;
use crate::nearest::nearest;
use crate::runtime_key::RuntimeSpec;
use crate::spec::FunctionSpec;
pub use keys::KeyValue;
pub use needs::{NeededBy, NodeNeed, PythonNeed, RequirementFiles};

/// What starts the workers of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Workers are forked from templates.
    Fork,
    /// Workers are made from runtimes that are kept and reused by their key.
    Keyed,
}

macro_rules! runtimes {
    ($($(#[$doc:meta])* $variant:ident($type:ty),)*) => {
        /// How a version's code is run.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(rename_all = "lowercase")]
        pub enum Runtime {
            $($(#[$doc])* $variant($type),)*
        }

        impl Deref for Runtime {
            type Target = dyn RuntimeKind;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$variant(runtime) => runtime,)* }
            }
        }

        impl DerefMut for Runtime {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$variant(runtime) => runtime,)* }
            }
        }

        impl Runtime {
            /// One of each, without keys.
            fn all() -> Vec<Self> {
                vec![$(Self::$variant(<$type>::default()),)*]
            }

            fn parse(word: &str) -> Option<Self> {
                None$(.or_else(|| <$type>::parse(word).map(Self::$variant)))*
            }
        }
    };
}

runtimes! {
    /// CPython, forked from templates.
    Python(python::PythonRuntime),
    /// Node.js, specialised from a process that is already running.
    Node(node::NodeRuntime),
    /// Any executable that polls the Lambda Runtime API.
    Provided(provided::ProvidedRuntime),
    /// The function's own HTTP server.
    Http(http::HttpRuntime),
    /// A container of an image.
    Container(container::ContainerRuntime),
    /// A component of the world `wasi:http/proxy`.
    Wasm(wasm::WasmRuntime),
}

/// What the rest of Pilotlight asks of a runtime. [`Runtime`] dereferences to it.
pub trait RuntimeKind: fmt::Debug + Send + Sync {
    /// `node`. It is part of the ids of versions.
    fn name(&self) -> &'static str;

    /// The values of the key `runtime` that select it, for messages.
    fn spellings(&self) -> String {
        format!("\"{}\"", self.name())
    }

    /// The runtime that a value of the key `runtime` selects. Its keys are not read yet.
    fn parse(word: &str) -> Option<Self>
    where
        Self: Sized;

    /// Its name with the selected release: `nodejs20.x`.
    fn full_name(&self) -> String {
        self.name().to_owned()
    }

    /// The keys that it takes and that not all runtimes take.
    fn keys(&self) -> &'static [&'static str];

    /// Reads its keys.
    ///
    /// # Errors
    /// The first key that is missing or has a wrong value.
    fn read(&mut self, _keys: &FunctionSpec) -> Result<(), KeyProblem> {
        Ok(())
    }

    /// Its keys whose values differ from the default. A version's id is a hash over them: neither their form nor a default may
    /// change.
    fn chosen(&self) -> Vec<(&'static str, KeyValue)>;

    /// The interface if the key `interface` is missing.
    fn interface(&self) -> Interface {
        Interface::Event
    }

    /// Whether this interface is allowed.
    ///
    /// # Errors
    /// Why not, in words.
    fn allow(&self, interface: Interface) -> Result<(), String> {
        Err(format!(
            "is \"{}\", must be \"{}\" with {}; leave it out",
            interface.as_str(),
            self.interface().as_str(),
            self.setting()
        ))
    }

    /// The setting that determines its interface.
    fn setting(&self) -> String {
        format!("runtime = \"{}\"", self.full_name())
    }

    /// The handler if none is given. It is part of the ids of versions, as `chosen`.
    fn default_handler(&self, _interface: Interface) -> &'static str {
        ""
    }

    /// The handler, checked. Empty: there is none.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn handler(&self, given: Option<&str>, _interface: Interface) -> Result<String, String> {
        // Only the function's program knows its meaning (`_HANDLER`).
        check_label(given.unwrap_or(""))
    }

    /// What starts its workers.
    fn engine(&self) -> EngineKind {
        EngineKind::Keyed
    }

    /// Whether workers are forked from templates.
    fn forks(&self) -> bool {
        self.engine() == EngineKind::Fork
    }

    /// Program and arguments that start the function, if the configuration has them.
    fn command(&self) -> Option<&[String]> {
        None
    }

    /// The program of the command, if it is on this machine or in the code.
    fn program(&self) -> Option<&str> {
        Some(self.command()?.first()?)
    }

    /// Its command if that is the program that Lambda would run: a layer may contain it.
    fn default_command(&mut self) -> Option<&mut Vec<String>> {
        None
    }

    /// The image of its containers, as written. `None`: it does not run in containers.
    fn image(&self) -> Option<&str> {
        None
    }

    /// The path of the function's server that answers 2xx when it is ready.
    fn ready(&self) -> Option<&str> {
        None
    }

    /// Invocations that a worker serves at the same time, if the key `concurrency` is missing. It is part of the ids of versions.
    fn concurrency(&self) -> u32 {
        1
    }

    /// The WebAssembly component that its workers run, relative to the code's folder. A deployment compiles it.
    fn component(&self) -> Option<&str> {
        None
    }

    /// The header with which its workers mark a response that they made because the function failed (`error`) or did not answer in
    /// time (`timeout`). `None`: the function makes every response.
    fn failure_header(&self) -> Option<&'static str> {
        None
    }

    /// What to do instead of setting Lambda's `AWS_LAMBDA_EXEC_WRAPPER`. `None`: it may have an effect.
    fn instead_of_wrapper(&self) -> Option<&'static str> {
        Some("the command is started without it. Name the script first in command")
    }

    /// Whether the function needs code to be deployed.
    fn needs_code(&self) -> bool {
        true
    }

    /// Why it cannot have layers, in words. `None`: it can.
    fn no_layers(&self) -> Option<String> {
        None
    }

    /// Why its workers cannot have inputs, in words. `None`: they can.
    fn no_inputs(&self) -> Option<String> {
        None
    }

    /// Whether its workers can read inputs while they arrive.
    fn streams_inputs(&self) -> bool {
        self.forks()
    }

    /// Whether its handlers can invoke other functions.
    fn invokes(&self) -> bool {
        self.forks()
    }

    /// How its workers take inputs that were decoded.
    fn decoded_form(&self) -> Form {
        match self.forks() {
            true => Form::Memory,
            false => Form::File,
        }
    }

    /// Why its workers cannot have secrets as files, in words. `None`: they can.
    fn no_secret_files(&self) -> Option<String> {
        None
    }

    /// Why `cpu_limit` does not apply to its workers. `None`: it does.
    fn no_cpu_limit(&self) -> Option<&'static str> {
        None
    }

    /// Why its workers cannot rest between invocations. `None`: they can.
    fn no_rest(&self) -> Option<&'static str> {
        None
    }

    /// What of it gets no signals. `None`: its workers do.
    fn no_signals(&self) -> Option<&'static str> {
        None
    }

    /// What it needs of CPython. `None`: no Python, whatever files the code contains.
    fn python(&self) -> Option<PythonNeed> {
        Some(PythonNeed::of_program(self.program()))
    }

    /// What it needs of Node.js. `None`: no Node.js, whatever files the code contains.
    fn node(&self) -> Option<NodeNeed> {
        Some(NodeNeed::of_program(self.program()))
    }

    /// Writes its part of the key of a kept runtime. `node` and `variables` are the version's.
    ///
    /// # Errors
    /// What of the version is missing, in words.
    fn shape(
        &self,
        _spec: &mut RuntimeSpec,
        _node: Option<&Node>,
        _variables: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// What `pilot describe` shows of it besides the handler: names and values.
    fn details(&self) -> Vec<(&'static str, String)> {
        let command = self.command().map(|words| ("command", words.join(" ")));
        command.into_iter().collect()
    }

    /// What a deployment tries of it.
    fn trial(&self, _handler: &str) -> Trial {
        let command = shown(self.command().unwrap_or_default());
        Trial {
            subject: format!("command '{command}'"),
            done: "started",
            progress: format!("starting it once: {command}"),
        }
    }

    /// What to change when the handler's module is not in the code.
    fn missing_module(
        &self,
        _handler: &str,
        _code: &dyn CodeFiles,
        _node: Option<&Node>,
    ) -> Option<String> {
        None
    }

    /// The process of a worker, in error messages.
    fn process(&self) -> String {
        match self.command() {
            Some(command) => format!("`{}`", command.join(" ")),
            None => "the runtime".to_owned(),
        }
    }

    /// The remark in a report about a worker that is made from a sandbox of this machine.
    fn remark(&self, _environment: &Environment) -> String {
        format!(
            "{}: workers are made from pre-warmed sandboxes",
            self.setting()
        )
    }
}

/// What a deployment tries, in words.
#[derive(Debug, Clone)]
pub struct Trial {
    /// `handler 'app.f'`.
    pub subject: String,
    /// What is done with it: `imported`.
    pub done: &'static str,
    /// What a deployment says while it tries.
    pub progress: String,
}

/// The files of a version's code.
pub trait CodeFiles {
    /// Whether there is a file or folder with this path.
    fn has(&self, path: &str) -> bool;

    /// Whether there is a file with this path.
    fn has_file(&self, path: &str) -> bool;

    /// The first few of the wanted names at the top.
    fn names(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<String>;
}

impl Runtime {
    /// Reads the value of `runtime`, which may be one of Lambda's names. The keys of the runtime are not read.
    ///
    /// # Errors
    /// The values that are allowed, in words.
    pub fn named(word: &str) -> Result<Self, String> {
        Self::parse(word).ok_or_else(|| {
            let spellings: Vec<String> = Self::all().iter().map(|one| one.spellings()).collect();
            format!(
                "is \"{}\", must be {}{}",
                word.escape_default(),
                either(&spellings, ", or "),
                hint(word)
            )
        })
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full_name())
    }
}

/// The suggestion after an unknown word.
fn hint(word: &str) -> String {
    if OTHER_LANGUAGES.iter().any(|name| word.starts_with(name)) {
        return "; other languages run as \"provided\" (with the language's Lambda runtime client), as \"http\", or compiled to \"wasm\""
            .to_owned();
    }
    let names = Runtime::all().into_iter().map(|runtime| runtime.name());
    nearest(word, names).map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
}

/// `a, b or c`, where `last` is ` or `.
fn either(words: &[String], last: &str) -> String {
    match words {
        [others @ .., end] if !others.is_empty() => format!("{}{last}{end}", others.join(", ")),
        _ => words.concat(),
    }
}

/// One or two digits.
fn is_number(text: &&str) -> bool {
    matches!(text.len(), 1..=2) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A command as it would be typed, shortened to one line.
#[must_use]
pub fn shown(command: &[String]) -> String {
    let mut text = command.join(" ").escape_debug().to_string();
    if text.chars().count() > COMMAND_CHARS_MAX {
        text = text.chars().take(COMMAND_CHARS_MAX).collect();
        text.push('…');
    }
    text
}

/// What to do instead, where Pilotlight's own workers run the handler.
const NO_SCRIPT_STARTS_WORKERS: &str = "workers are not started by a script. Import the instrumentation in the code, or set \
     what the script sets (PYTHONPATH, NODE_OPTIONS) in environment. For Lambda Web Adapter: runtime = \"http\"";
const COMMAND_CHARS_MAX: usize = 80;
/// The beginnings of Lambda's runtime names that Pilotlight does not have.
const OTHER_LANGUAGES: [&str; 6] = ["go", "java", "ruby", "dotnet", "rust", "deno"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut_to_a_line() {
        assert_eq!(
            shown(&["./server".to_owned(), "-p\n".to_owned()]),
            "./server -p\\n"
        );
        let long = shown(&["x".repeat(100)]);
        assert_eq!(long.chars().count(), COMMAND_CHARS_MAX + 1);
    }

    #[test]
    fn no_two_runtimes_have_one_name() {
        let mut names: Vec<_> = Runtime::all().iter().map(|one| one.name()).collect();
        for (name, runtime) in names.iter().zip(Runtime::all()) {
            assert_eq!(Runtime::named(name), Ok(runtime));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Runtime::all().len());
    }
}
