//! `python`: CPython, forked from templates.

use serde::{Deserialize, Serialize};

use super::needs::minor_of;
use super::{
    CodeFiles, EngineKind, KeyValue, NO_SCRIPT_STARTS_WORKERS, NeededBy, PythonNeed,
    RequirementFiles, RuntimeKind, Trial,
};
use crate::checks::check_handler;
use crate::choices::Interface;
use crate::environment::Node;

/// CPython, forked from templates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PythonRuntime {
    /// `3.11`, or `None` for the daemon's default interpreter.
    pub minor: Option<String>,
}

impl RuntimeKind for PythonRuntime {
    fn name(&self) -> &'static str {
        "python"
    }

    fn spellings(&self) -> String {
        "\"python\" or \"python3.X\" (for example \"python3.11\")".to_owned()
    }

    fn parse(word: &str) -> Option<Self> {
        minor_of(word).map(|minor| Self { minor })
    }

    fn full_name(&self) -> String {
        format!("python{}", self.minor.as_deref().unwrap_or(""))
    }

    fn keys(&self) -> &'static [&'static str] {
        &["handler", "template"]
    }

    fn chosen(&self) -> Vec<(&'static str, KeyValue)> {
        let minor = self.minor.clone();
        minor
            .map(|minor| ("python", KeyValue::Text(minor)))
            .into_iter()
            .collect()
    }

    fn allow(&self, interface: Interface) -> Result<(), String> {
        if interface == Interface::Http {
            return Err(
                "is \"http\", which is a runtime: a server of its own is runtime = \"http\" with a command; a Python \
                 application is \"asgi\" or \"wsgi\""
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn default_handler(&self, interface: Interface) -> &'static str {
        match interface {
            Interface::Asgi | Interface::Wsgi => "app.app",
            Interface::Event | Interface::Http => "app.handler",
        }
    }

    fn handler(&self, given: Option<&str>, interface: Interface) -> Result<String, String> {
        let example = match interface {
            Interface::Asgi | Interface::Wsgi => "app:app",
            Interface::Event | Interface::Http => "app.handler",
        };
        let handler = given.unwrap_or(self.default_handler(interface));
        check_handler(handler, example)
    }

    fn engine(&self) -> EngineKind {
        EngineKind::Fork
    }

    fn python(&self) -> Option<PythonNeed> {
        Some(PythonNeed {
            minor: self.minor.clone(),
            always: Some(NeededBy::Runtime),
            files: RequirementFiles::All,
        })
    }

    fn instead_of_wrapper(&self) -> Option<&'static str> {
        Some(NO_SCRIPT_STARTS_WORKERS)
    }

    fn trial(&self, handler: &str) -> Trial {
        Trial {
            subject: format!("handler '{handler}'"),
            done: "imported",
            progress: format!("importing {handler} in its sandbox"),
        }
    }

    fn missing_module(
        &self,
        handler: &str,
        code: &dyn CodeFiles,
        _node: Option<&Node>,
    ) -> Option<String> {
        let (module, _) = handler.rsplit_once('.')?;
        let module = module.replace('.', "/");
        let top = module.split('/').next()?;
        if code.has(&format!("{top}.py")) || code.has(top) {
            return None;
        }
        let found = code.names(&|name| name.ends_with(".py"));
        Some(if found.is_empty() {
            format!(
                "there is no {module}.py in the code, nor any other .py file at its top: check path and handler"
            )
        } else {
            format!(
                "there is no {module}.py in the code (there is {}): set handler",
                found.join(", ")
            )
        })
    }
}
