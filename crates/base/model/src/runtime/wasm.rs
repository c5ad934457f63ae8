//! `wasm`: a component of the world `wasi:http/proxy`. Its workers are processes of Pilotlight's own binary in a sandbox, which make an
//! instance per request (`side/component`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{KeyProblem, KeyValue, NodeNeed, PythonNeed, RuntimeKind, Trial};
use crate::checks::check_component;
use crate::choices::{Interface, Network};
use crate::spec::FunctionSpec;

/// A component of the world `wasi:http/proxy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WasmRuntime {
    /// The component's file, relative to the code's folder.
    pub component: String,
}

/// The header of a response that the worker makes because the component failed (`error`) or did not answer in time (`timeout`). It does not
/// leave the daemon, and a component cannot set it.
pub const FAILED: &str = "pilot-component-failed";

impl RuntimeKind for WasmRuntime {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn parse(word: &str) -> Option<Self> {
        (word == "wasm").then(Self::default)
    }

    fn keys(&self) -> &'static [&'static str] {
        &["component"]
    }

    fn read(&mut self, keys: &FunctionSpec) -> Result<(), KeyProblem> {
        self.component = check_component(keys.component.as_deref())?;
        Ok(())
    }

    fn chosen(&self) -> Vec<(&'static str, KeyValue)> {
        vec![("component", KeyValue::Text(self.component.clone()))]
    }

    fn interface(&self) -> Interface {
        Interface::Http
    }

    /// Requests do not meet in memory, and waiting ones cost little.
    fn concurrency(&self) -> u32 {
        16
    }

    fn component(&self) -> Option<&str> {
        Some(&self.component)
    }

    fn failure_header(&self) -> Option<&'static str> {
        Some(FAILED)
    }

    fn no_signals(&self) -> Option<&'static str> {
        Some("runtime = \"wasm\": a component gets no signals")
    }

    fn no_layers(&self) -> Option<String> {
        let reason = "is not for runtime = \"wasm\": a component has no files; compose what it needs into it";
        Some(reason.to_owned())
    }

    fn no_inputs(&self) -> Option<String> {
        let reason =
            "is not for runtime = \"wasm\": a component has no files in which inputs could be";
        Some(reason.to_owned())
    }

    fn no_secret_files(&self) -> Option<String> {
        let reason =
            "is not for runtime = \"wasm\": a component has no files; let the secret be a variable";
        Some(reason.to_owned())
    }

    fn python(&self) -> Option<PythonNeed> {
        None
    }

    fn node(&self) -> Option<NodeNeed> {
        None
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        vec![("component", self.component.clone())]
    }

    fn trial(&self, _handler: &str) -> Trial {
        Trial {
            subject: format!("component '{}'", self.component),
            done: "started",
            progress: format!("starting a worker of {} once", self.component),
        }
    }

    fn process(&self) -> String {
        format!("the worker of component {}", self.component)
    }
}

/// The verb of `pilot` that runs a worker. Its argument is a [`WorkerSettings`].
pub const WORKER_VERB: &str = "wasm-worker";

/// The verb of `pilot` that compiles a component. Its arguments are the component's file and the file to write.
pub const COMPILE_VERB: &str = "wasm-compile";

/// The compiled component, in the code's folder. A deployment writes it, whatever was uploaded under this name.
pub const COMPILED: &str = ".pilot-component.cwasm";

/// The beginning of the names of a worker's variables that are the component's. So no variable of a function changes how the worker itself
/// runs (`LD_PRELOAD`).
pub const VARIABLE: &str = "PILOT_COMPONENT_";

/// What a worker is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSettings {
    /// The component's file, relative to the working directory.
    pub component: String,
    /// The port of loopback to listen on.
    pub port: u16,
    /// The memory of the worker's process, bytes.
    pub memory_bytes: u64,
    /// Requests at the same time.
    pub concurrency: u32,
    /// CPUs that it may use, thousandths.
    pub cpu_milli: u32,
    /// The longest time of one request.
    pub timeout: Duration,
    /// What a component can connect to.
    pub network: Network,
    /// Where the code's folder is mounted; its processes find the compiled component there.
    pub folder: String,
}
