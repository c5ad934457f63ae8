//! Which keys belong to which runtime: what each needs, what it takes, and what only another one does. A key that the runtime
//! would pass over is an error, so that nobody believes it to be in force.

use super::words::{check_command, check_handler, check_image, check_label, check_ready, one_of};
use super::{FunctionSpec, SpecError};
use crate::config::{Contract, Interface, Runtime, RuntimeWord};

impl FunctionSpec {
    /// The runtime with what it needs, and nothing that it does not take.
    pub(super) fn check_runtime(
        &self,
        word: RuntimeWord,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<Runtime, SpecError> {
        self.refuse_foreign(&word, fail)?;
        let command = self.command.as_deref().map(check_command).transpose();
        let command = command.map_err(|problem| fail("command", problem))?;
        let ready = self.ready.as_deref().map(check_ready).transpose();
        let ready = ready.map_err(|problem| fail("ready", problem))?;
        Ok(match word {
            RuntimeWord::Python(minor) => Runtime::Python { minor },
            RuntimeWord::Node(major) => Runtime::Node { major },
            RuntimeWord::Provided => Runtime::Provided {
                command: command.unwrap_or_else(|| vec![BOOTSTRAP.to_owned()]),
            },
            RuntimeWord::Http => {
                let missing = "is missing: runtime = \"http\" needs the command of the function's server, for example \
                               [\"node\", \"server.js\"]";
                let command = command.ok_or_else(|| fail("command", missing.to_owned()))?;
                Runtime::Http { command, ready }
            }
            RuntimeWord::Container => return self.check_container(command, ready, fail),
        })
    }

    /// Keys of other runtimes.
    fn refuse_foreign(
        &self,
        word: &RuntimeWord,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<(), SpecError> {
        use RuntimeWord as Word;
        let serves = "\"http\" or \"container\"";
        let keys = [
            (
                "command",
                self.command.is_some(),
                matches!(word, Word::Provided | Word::Http | Word::Container),
                "\"provided\", \"http\" or \"container\"",
            ),
            (
                "ready",
                self.ready.is_some(),
                matches!(word, Word::Http | Word::Container),
                serves,
            ),
            (
                "image",
                self.image.is_some(),
                *word == Word::Container,
                "\"container\"",
            ),
            (
                "contract",
                self.contract.is_some(),
                *word == Word::Container,
                "\"container\"",
            ),
            (
                "template",
                self.template.is_some(),
                matches!(word, Word::Python(_)),
                "\"python\"",
            ),
            (
                "handler",
                self.handler.is_some(),
                *word != Word::Http,
                "\"python\", \"node\", \"provided\" or \"container\"",
            ),
        ];
        let Some((key, _, _, of)) = keys.iter().find(|(_, given, takes, _)| *given && !takes)
        else {
            return Ok(());
        };
        let default = if self.runtime.is_none() {
            " (the default)"
        } else {
            ""
        };
        Err(fail(
            key,
            format!(
                "is not for runtime = \"{}\"{default}, only for {of}; leave it out, or set runtime",
                name(word)
            ),
        ))
    }

    fn check_container(
        &self,
        command: Option<Vec<String>>,
        ready: Option<String>,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<Runtime, SpecError> {
        let image = check_image(self.image.as_deref().unwrap_or_default())
            .map_err(|problem| fail("image", problem))?;
        let contract = one_of(self.contract.as_deref(), Contract::Http, Contract::ALL)
            .map_err(|problem| fail("contract", problem))?;
        if contract == Contract::Shim && command.is_none() {
            let missing = "is missing: contract = \"shim\" needs the command that is given each event, for example \
                           [\"/bin/sh\", \"handler.sh\"]";
            return Err(fail("command", missing.to_owned()));
        }
        let foreign = [
            (
                "ready",
                ready.is_some() && contract != Contract::Http,
                "\"http\"",
            ),
            (
                "handler",
                self.handler.is_some() && contract == Contract::Http,
                "\"provided\" or \"shim\"",
            ),
        ];
        if let Some((key, _, of)) = foreign.iter().find(|(_, wrong, _)| *wrong) {
            let default = match self.contract {
                Some(_) => "",
                None => " (the default)",
            };
            return Err(fail(
                key,
                format!(
                    "is not for contract = \"{}\"{default}, only for {of}; leave it out, or set contract",
                    contract.as_str()
                ),
            ));
        }
        Ok(Runtime::Container {
            image,
            contract,
            command,
            ready,
        })
    }

    /// What the handler is, where there is one.
    pub(super) fn check_interface(
        &self,
        runtime: &Runtime,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<Interface, SpecError> {
        let default = match runtime {
            Runtime::Http { .. }
            | Runtime::Container {
                contract: Contract::Http,
                ..
            } => Interface::Http,
            _ => Interface::Event,
        };
        let interface = one_of(self.interface.as_deref(), default, Interface::ALL)
            .map_err(|problem| fail("interface", problem))?;
        let problem = match (runtime, interface) {
            (Runtime::Python { .. }, Interface::Http) => {
                "is \"http\", which is a runtime: a server of its own is runtime = \"http\" with a command; a Python \
                 application is \"asgi\" or \"wsgi\""
                    .to_owned()
            }
            (Runtime::Python { .. }, _) => return Ok(interface),
            _ if interface == default => return Ok(interface),
            (Runtime::Container { contract, .. }, _) => format!(
                "is \"{}\", must be \"{}\" with contract = \"{}\"; leave it out",
                interface.as_str(),
                default.as_str(),
                contract.as_str()
            ),
            _ => format!(
                "is \"{}\", must be \"{}\" with runtime = \"{runtime}\"; leave it out",
                interface.as_str(),
                default.as_str()
            ),
        };
        Err(fail("interface", problem))
    }

    /// The handler; empty where the function has a server of its own.
    pub(super) fn check_handler(
        &self,
        runtime: &Runtime,
        interface: Interface,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<String, SpecError> {
        let given = self.handler.as_deref();
        let checked = match (runtime, interface) {
            (Runtime::Python { .. }, Interface::Asgi | Interface::Wsgi) => {
                check_handler(given.unwrap_or("app.app"), "app:app")
            }
            (Runtime::Python { .. }, _) => {
                check_handler(given.unwrap_or("app.handler"), "app.handler")
            }
            (Runtime::Node { .. }, _) => {
                check_handler(given.unwrap_or("index.handler"), "index.handler")
            }
            // What it means is the client's affair (`_HANDLER`); those with a server of their own have been refused one.
            _ => check_label(given.unwrap_or("")),
        };
        checked.map_err(|problem| fail("handler", problem))
    }
}

fn name(word: &RuntimeWord) -> &'static str {
    match word {
        RuntimeWord::Python(_) => "python",
        RuntimeWord::Node(_) => "node",
        RuntimeWord::Provided => "provided",
        RuntimeWord::Http => "http",
        RuntimeWord::Container => "container",
    }
}

/// Lambda's name for the program of `provided`.
const BOOTSTRAP: &str = "./bootstrap";
