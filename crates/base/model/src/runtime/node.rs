//! `node`: Node.js, specialised from a process that is already running.

mod execution;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CodeFiles, KeyValue, NO_SCRIPT_STARTS_WORKERS, NeededBy, NodeNeed, PythonNeed,
    RequirementFiles, RuntimeKind, RuntimeSpec, Trial, is_number,
};
use crate::checks::check_handler;
use crate::choices::Interface;
use crate::environment::{Environment, Node};
use crate::runtime_key::Base;

/// Node.js, specialised from a process that is already running.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeRuntime {
    /// `20`, or `None` for the daemon's.
    pub major: Option<u32>,
}

impl RuntimeKind for NodeRuntime {
    fn streams_inputs(&self) -> bool {
        true
    }

    fn invokes(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "node"
    }

    fn spellings(&self) -> String {
        "\"node\" or \"nodejsXX.x\"".to_owned()
    }

    fn parse(word: &str) -> Option<Self> {
        let version = word.strip_prefix("node")?;
        let version = version.strip_prefix("js").unwrap_or(version);
        if version.is_empty() {
            return Some(Self::default());
        }
        let major = version.strip_suffix(".x").unwrap_or(version);
        let major = Some(major).filter(is_number)?.parse().ok();
        Some(Self { major })
    }

    fn full_name(&self) -> String {
        match self.major {
            None => "node".to_owned(),
            Some(major) => format!("nodejs{major}.x"),
        }
    }

    fn keys(&self) -> &'static [&'static str] {
        &["handler"]
    }

    fn chosen(&self) -> Vec<(&'static str, KeyValue)> {
        let major = self.major.map(|major| ("node", KeyValue::Number(major)));
        major.into_iter().collect()
    }

    fn default_handler(&self, _interface: Interface) -> &'static str {
        "index.handler"
    }

    fn handler(&self, given: Option<&str>, interface: Interface) -> Result<String, String> {
        let default = self.default_handler(interface);
        check_handler(given.unwrap_or(default), default)
    }

    fn python(&self) -> Option<PythonNeed> {
        Some(PythonNeed {
            minor: None,
            always: None,
            files: RequirementFiles::Txt,
        })
    }

    fn node(&self) -> Option<NodeNeed> {
        Some(NodeNeed {
            major: self.major,
            always: Some(NeededBy::Runtime),
        })
    }

    /// The interpreter is started before the function is known, so variables that it reads only at its start are part of the key.
    fn shape(
        &self,
        spec: &mut RuntimeSpec,
        node: Option<&Node>,
        variables: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let node =
            node.ok_or("the function's environment has no Node.js; deploy the function again")?;
        if let Base::Native { interpreter, .. } = &mut spec.base {
            *interpreter = Some(node.executable.clone());
        }
        spec.execution = execution::of_node(variables);
        Ok(())
    }

    fn instead_of_wrapper(&self) -> Option<&'static str> {
        Some(NO_SCRIPT_STARTS_WORKERS)
    }

    fn trial(&self, handler: &str) -> Trial {
        Trial {
            subject: format!("handler '{handler}'"),
            done: "loaded",
            progress: format!("loading {handler} in its sandbox"),
        }
    }

    /// The worker looks for the file as Lambda does: `folder/file.nested.handler` is `nested.handler` of `folder/file`.
    fn missing_module(
        &self,
        handler: &str,
        code: &dyn CodeFiles,
        node: Option<&Node>,
    ) -> Option<String> {
        let file = handler.rfind('/').map_or(0, |at| at + 1);
        let end = file + handler[file..].find('.')?;
        let module = &handler[..end];
        let with = |ends: &[&str]| {
            ends.iter()
                .map(|end| format!("{module}{end}"))
                .find(|name| code.has_file(name))
        };
        if with(&["", ".js", ".mjs", ".cjs"]).is_some() {
            return None;
        }
        let missing = format!("there is no {module}.js, {module}.mjs or {module}.cjs in the code");
        if let Some(source) = with(&[".ts", ".mts", ".cts", ".tsx"]) {
            let version = node.map_or("", |node| &node.version);
            let major = version.split('.').next()?.parse::<u32>();
            let runs_it = major.is_ok_and(|major| major >= TYPESCRIPT_MAJOR);
            return (!runs_it)
                .then(|| format!("{missing}, but {source}: deploy the compiled JavaScript"));
        }
        let ends = [".js", ".mjs", ".cjs"];
        let found = code.names(&|name| ends.iter().any(|end| name.ends_with(end)));
        Some(if found.is_empty() {
            format!("{missing}, nor any other such file at its top: check path and handler")
        } else {
            format!("{missing} (there is {}): set handler", found.join(", "))
        })
    }

    fn remark(&self, environment: &Environment) -> String {
        let version = environment.node.as_ref().map_or("", |node| &node.version);
        format!("workers are made from a pre-warmed Node.js {version}")
    }
}

/// The locale of every process in a sandbox.
pub const LANG: (&str, &str) = ("LANG", "C.UTF-8");
/// From this release on Node.js runs TypeScript by itself.
const TYPESCRIPT_MAJOR: u32 = 22;
