//! `http`: the function's own HTTP server.

use serde::{Deserialize, Serialize};

use super::{KeyProblem, KeyValue, RuntimeKind, Trial, shown};
use crate::checks::{check_command, check_ready};
use crate::choices::Interface;
use crate::spec::FunctionSpec;

/// The function's own HTTP server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HttpRuntime {
    /// Program and arguments, run in the code's folder.
    pub command: Vec<String>,
    /// The path that answers 2xx once it is ready; `None`: it is ready when its port accepts.
    pub ready: Option<String>,
}

impl RuntimeKind for HttpRuntime {
    fn name(&self) -> &'static str {
        "http"
    }

    fn parse(word: &str) -> Option<Self> {
        (word == "http").then(Self::default)
    }

    fn keys(&self) -> &'static [&'static str] {
        &["command", "ready"]
    }

    fn read(&mut self, keys: &FunctionSpec) -> Result<(), KeyProblem> {
        let command = check_command(keys.command.as_deref())?;
        self.ready = check_ready(keys.ready.as_deref())?;
        self.command = command.ok_or_else(|| {
            let missing = "is missing: runtime = \"http\" needs the command of the function's server, for example \
                           [\"node\", \"server.js\"]";
            ("command", missing.to_owned())
        })?;
        Ok(())
    }

    fn chosen(&self) -> Vec<(&'static str, KeyValue)> {
        let mut chosen = vec![("command", KeyValue::Words(self.command.clone()))];
        let ready = self.ready.clone();
        chosen.extend(ready.map(|ready| ("ready", KeyValue::Text(ready))));
        chosen
    }

    fn interface(&self) -> Interface {
        Interface::Http
    }

    fn command(&self) -> Option<&[String]> {
        Some(&self.command)
    }

    fn ready(&self) -> Option<&str> {
        self.ready.as_deref()
    }

    fn trial(&self, _handler: &str) -> Trial {
        let until = self.ready().unwrap_or("its port");
        let command = shown(&self.command);
        Trial {
            subject: format!("command '{command}'"),
            done: "started",
            progress: format!("starting it once, until {until} answers: {command}"),
        }
    }
}
