//! `provided`: any executable that polls the Lambda Runtime API.

use serde::{Deserialize, Serialize};

use super::{KeyProblem, KeyValue, RuntimeKind};
use crate::checks::check_command;
use crate::spec::FunctionSpec;

/// Any executable that polls the Lambda Runtime API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProvidedRuntime {
    /// Program and arguments, run in the code's folder.
    pub command: Vec<String>,
}

impl RuntimeKind for ProvidedRuntime {
    fn name(&self) -> &'static str {
        "provided"
    }

    fn parse(word: &str) -> Option<Self> {
        matches!(word, "provided" | "provided.al2" | "provided.al2023").then(Self::default)
    }

    fn keys(&self) -> &'static [&'static str] {
        &["command", "handler"]
    }

    fn read(&mut self, keys: &FunctionSpec) -> Result<(), KeyProblem> {
        let command = check_command(keys.command.as_deref())?;
        self.command = command.unwrap_or_else(|| vec![BOOTSTRAP.to_owned()]);
        Ok(())
    }

    fn chosen(&self) -> Vec<(&'static str, KeyValue)> {
        if self.is_default() {
            return Vec::new();
        }
        vec![("command", KeyValue::Words(self.command.clone()))]
    }

    fn command(&self) -> Option<&[String]> {
        Some(&self.command)
    }

    fn default_command(&mut self) -> Option<&mut Vec<String>> {
        self.is_default().then_some(&mut self.command)
    }
}

impl ProvidedRuntime {
    fn is_default(&self) -> bool {
        self.command == [BOOTSTRAP]
    }
}

/// Lambda's name for the program.
const BOOTSTRAP: &str = "./bootstrap";
