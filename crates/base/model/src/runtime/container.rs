//! `container`: a container of an image.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{KeyProblem, KeyValue, NodeNeed, PythonNeed, RuntimeKind, RuntimeSpec, Trial};
use crate::checks::{check_command, check_image, check_ready, in_range, one_of};
use crate::choices::{Contract, Interface, RootAccess};
use crate::environment::Node;
use crate::runtime_key::{Base, ContainerDisk};
use crate::spec::FunctionSpec;

/// A container of an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContainerRuntime {
    /// The image, as written.
    pub image: String,
    /// How the daemon talks to it.
    pub contract: Contract,
    /// Program and arguments; `None`: the image's own.
    pub command: Option<Vec<String>>,
    /// As for `http`.
    pub ready: Option<String>,
    /// What it may write.
    #[serde(default)]
    pub disk: ContainerDisk,
}

impl Default for ContainerRuntime {
    fn default() -> Self {
        Self {
            image: String::new(),
            contract: Contract::Http,
            command: None,
            ready: None,
            disk: ContainerDisk::default(),
        }
    }
}

impl RuntimeKind for ContainerRuntime {
    fn name(&self) -> &'static str {
        "container"
    }

    fn parse(word: &str) -> Option<Self> {
        (word == "container").then(Self::default)
    }

    fn full_name(&self) -> String {
        format!("container {}", self.image)
    }

    fn keys(&self) -> &'static [&'static str] {
        &[
            "command",
            "ready",
            "image",
            "contract",
            "handler",
            "root",
            "volume_mb",
        ]
    }

    fn read(&mut self, keys: &FunctionSpec) -> Result<(), KeyProblem> {
        self.command = check_command(keys.command.as_deref())?;
        self.ready = check_ready(keys.ready.as_deref())?;
        self.image = check_image(keys.image.as_deref().unwrap_or_default())
            .map_err(|problem| ("image", problem))?;
        self.contract = one_of(keys.contract.as_deref(), Contract::Http, Contract::ALL)
            .map_err(|problem| ("contract", problem))?;
        self.disk.root = one_of(keys.root.as_deref(), RootAccess::Writable, RootAccess::ALL)
            .map_err(|problem| ("root", problem))?;
        self.disk.volume_mb = keys
            .volume_mb
            .map(|size| in_range(size, VOLUME_MB_LEAST, VOLUME_MB_MOST))
            .transpose()
            .map_err(|problem| ("volume_mb", problem))?;
        if self.contract == Contract::Shim && self.command.is_none() {
            let missing = "is missing: contract = \"shim\" needs the command that is given each event, for example \
                           [\"/bin/sh\", \"handler.sh\"]";
            return Err(("command", missing.to_owned()));
        }
        let serves = self.contract == Contract::Http;
        let (key, of) = match (&keys.ready, &keys.handler) {
            (Some(_), _) if !serves => ("ready", "\"http\""),
            (_, Some(_)) if serves => ("handler", "\"provided\" or \"shim\""),
            _ => return Ok(()),
        };
        let default = match &keys.contract {
            Some(_) => "",
            None => " (the default)",
        };
        let problem = format!(
            "is not for {}{default}, only for {of}; leave it out, or set contract",
            self.setting()
        );
        Err((key, problem))
    }

    fn chosen(&self) -> Vec<(&'static str, KeyValue)> {
        let (command, ready) = (self.command.clone(), self.ready.clone());
        let mut chosen = vec![("image", KeyValue::Text(self.image.clone()))];
        if self.contract != Contract::Http {
            let contract = self.contract.as_str().to_owned();
            chosen.push(("contract", KeyValue::Text(contract)));
        }
        chosen.extend(command.map(|command| ("command", KeyValue::Words(command))));
        chosen.extend(ready.map(|ready| ("ready", KeyValue::Text(ready))));
        if self.disk.root != RootAccess::Writable {
            let root = self.disk.root.as_str().to_owned();
            chosen.push(("root", KeyValue::Text(root)));
        }
        let volume = self.disk.volume_mb.map(KeyValue::Number);
        chosen.extend(volume.map(|size| ("volume_mb", size)));
        chosen
    }

    fn interface(&self) -> Interface {
        match self.contract {
            Contract::Http => Interface::Http,
            Contract::Provided | Contract::Shim => Interface::Event,
        }
    }

    fn no_cpu_limit(&self) -> Option<&'static str> {
        Some("is not for runtime = \"container\": the container engine limits it")
    }

    fn no_rest(&self) -> Option<&'static str> {
        Some(
            "is not for runtime = \"container\": the container engine owns its processes; leave it out",
        )
    }

    fn no_signals(&self) -> Option<&'static str> {
        let reason = "contract = \"shim\": nothing runs between two invocations";
        (self.contract == Contract::Shim).then_some(reason)
    }

    fn setting(&self) -> String {
        format!("contract = \"{}\"", self.contract.as_str())
    }

    fn image(&self) -> Option<&str> {
        Some(&self.image)
    }

    /// The entry point of an image runs in its container as on Lambda, and may use it.
    fn instead_of_wrapper(&self) -> Option<&'static str> {
        None
    }

    fn command(&self) -> Option<&[String]> {
        self.command.as_deref()
    }

    /// The program is in the image.
    fn program(&self) -> Option<&str> {
        None
    }

    fn ready(&self) -> Option<&str> {
        self.ready.as_deref()
    }

    /// The image may contain all the code.
    fn no_layers(&self) -> Option<String> {
        let reason = "is not for runtime = \"container\", as on Lambda: an image has its own /opt; copy the layer's files into the \
                      image (COPY ffmpeg/ /opt/)";
        Some(reason.to_owned())
    }

    fn needs_code(&self) -> bool {
        false
    }

    /// The image brings its interpreters.
    fn python(&self) -> Option<PythonNeed> {
        None
    }

    fn node(&self) -> Option<NodeNeed> {
        None
    }

    fn shape(
        &self,
        spec: &mut RuntimeSpec,
        _node: Option<&Node>,
        _variables: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        spec.base = Base::Container {
            image: self.image.clone(),
            disk: self.disk,
        };
        Ok(())
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let own = || "the image's own".to_owned();
        let command = self.command().map_or_else(own, |words| words.join(" "));
        let contract = self.contract.as_str().to_owned();
        let root = self.disk.root.as_str().to_owned();
        let volume = self.disk.volume_mb.map(|mb| ("volume", format!("{mb} MB")));
        let shown = [("contract", contract), ("command", command), ("root", root)];
        shown.into_iter().chain(volume).collect()
    }

    fn trial(&self, _handler: &str) -> Trial {
        Trial {
            subject: format!("image '{}'", self.image),
            done: "started",
            progress: format!("starting a container of {} once", self.image),
        }
    }

    fn process(&self) -> String {
        match self.command() {
            Some(command) => format!("`{}`", command.join(" ")),
            None => format!("the command of image {}", self.image),
        }
    }
}

/// The smallest file system that has room for its own structures, MiB.
const VOLUME_MB_LEAST: u32 = 16;
const VOLUME_MB_MOST: u32 = 1 << 20;
