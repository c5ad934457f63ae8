//! The keys of `pilot.toml` that belong to runtimes. A key that the runtime would ignore is an error, so that nobody believes
//! that it has an effect.

use serde::Serialize;

use super::{Runtime, either};
use crate::checks::{KeyProblem, one_of};
use crate::choices::Interface;
use crate::spec::FunctionSpec;

/// The value of a key in the canonical form of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KeyValue {
    /// A number.
    Number(u32),
    /// A text.
    Text(String),
    /// A list of texts.
    Words(Vec<String>),
}

impl FunctionSpec {
    /// The runtime with its keys, its interface and the handler.
    ///
    /// # Errors
    /// The first key that is missing, belongs to another runtime or has a wrong value.
    pub(crate) fn runtime(&self) -> Result<(Runtime, Interface, String), KeyProblem> {
        let named = Runtime::named(self.runtime.as_deref().unwrap_or("python"));
        let mut runtime = named.map_err(|problem| ("runtime", problem))?;
        self.refuse_foreign(&runtime)?;
        runtime.read(self)?;
        let default = runtime.interface();
        let interface = one_of(self.interface.as_deref(), default, &self.choices(&runtime))
            .and_then(|interface| match interface == default {
                true => Ok(interface),
                false => runtime.allow(interface).map(|()| interface),
            })
            .map_err(|problem| ("interface", problem))?;
        let handler = runtime.handler(self.handler.as_deref(), interface);
        let handler = handler.map_err(|problem| ("handler", problem))?;
        Ok((runtime, interface, handler))
    }

    /// The interfaces that are found by their names. For a name that does not exist, only those that the runtime has.
    fn choices(&self, runtime: &Runtime) -> Vec<(&'static str, Interface)> {
        let is_known = |word| Interface::ALL.iter().any(|(name, _)| *name == word);
        let is_unknown = !self.interface.as_deref().is_none_or(is_known);
        let fits = |one: Interface| one == runtime.interface() || runtime.allow(one).is_ok();
        let all = Interface::ALL.iter().copied();
        all.filter(|(_, one)| !is_unknown || fits(*one)).collect()
    }

    /// Rejects keys of other runtimes.
    fn refuse_foreign(&self, runtime: &Runtime) -> Result<(), KeyProblem> {
        let given = [
            ("command", self.command.is_some()),
            ("ready", self.ready.is_some()),
            ("image", self.image.is_some()),
            ("contract", self.contract.is_some()),
            ("root", self.root.is_some()),
            ("volume_mb", self.volume_mb.is_some()),
            ("component", self.component.is_some()),
            ("template", self.template.is_some()),
            ("handler", self.handler.is_some()),
        ];
        let is_foreign = |(key, given): &(&str, bool)| *given && !runtime.keys().contains(key);
        let Some((key, _)) = given.into_iter().find(is_foreign) else {
            return Ok(());
        };
        let all = Runtime::all();
        let takers = all.iter().filter(|one| one.keys().contains(&key));
        let takers: Vec<String> = takers.map(|one| format!("\"{}\"", one.name())).collect();
        let default = if self.runtime.is_none() {
            " (the default)"
        } else {
            ""
        };
        Err((
            key,
            format!(
                "is not for runtime = \"{}\"{default}, only for {}; leave it out, or set runtime",
                runtime.name(),
                either(&takers, " or ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::FunctionSpec;

    #[test]
    fn an_unknown_interface_lists_those_of_the_runtime() {
        let problem = |keys: &str| {
            let spec: FunctionSpec = toml::from_str(keys).unwrap();
            let checked = spec.check(&"f".parse().unwrap());
            checked.unwrap_err().to_string()
        };
        let python = problem("handler = \"a.b\"\ninterface = \"x\"");
        assert!(
            python.contains("must be one of event, asgi, wsgi") && !python.contains("http"),
            "{python}"
        );
        let known = problem("handler = \"a.b\"\ninterface = \"http\"");
        assert!(known.contains("is \"http\", which is a runtime"), "{known}");
    }
}
