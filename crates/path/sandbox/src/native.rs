//! Runtimes in sandboxes of this machine, for languages that cannot fork. A pre-warmed sandbox is empty or has an interpreter that
//! waits for its function. It is specialised for a function's worker, cleaned after the use, and reused; the keyed pool
//! (`path/pool`) decides which one.
//!
//! ```text
//! base sandbox: a sandbox with a root, nothing in it ── nest ──▶ sandbox of a runtime: its own network, limits, code, /tmp
//!   one per set of folders shown                                 └─ node (waiting) | bootstrap | server
//! ```
//! Code, packages and `resolv.conf` are mounted into a running sandbox (`Control::show`), so that a pre-warmed one can be
//! specialised for any function.

mod base_sandbox;
mod execution;
mod instance;
mod node;
mod parts;
mod runtime;
mod start_limiter;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{BoxFuture, PrewarmedRuntime, RuntimeHost, StartError};
use pilot_model::runtime_key::{Access, Base, Ipc, Limits, Mount, RuntimeKey, RuntimeSpec};
use pilot_model::{Runtime, Version};

use crate::machine::Machine;
use crate::places::{CODE_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE, RESOLVER_INSIDE};
use parts::NativeParts;
use runtime::NativeRuntime;

/// Starts runtimes in sandboxes.
#[derive(Debug)]
pub struct NativeHost {
    parts: Arc<NativeParts>,
}

impl NativeHost {
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn new(machine: Arc<Machine>) -> Self {
        Self {
            parts: Arc::new(NativeParts::new(machine)),
        }
    }

    /// Ends every base sandbox. All runtimes must have ended before. See [`Machine::vacated`].
    pub fn close(&self) {
        self.parts.base_sandboxes.clear();
    }
}

impl RuntimeHost for NativeHost {
    fn hosts(&self, runtime: &Runtime) -> bool {
        matches!(
            runtime,
            Runtime::Node { .. } | Runtime::Provided { .. } | Runtime::Http { .. }
        )
    }

    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError> {
        let config = &version.config;
        let environment = &version.environment;
        let node = environment.node.as_ref();
        let interpreter = match &config.runtime {
            Runtime::Node { .. } => Some(node.ok_or_else(no_node)?.executable.clone()),
            _ => None,
        };
        let shown = environment
            .python
            .iter()
            .flat_map(|python| python.folders())
            .chain(node.map(|node| node.prefix.as_path()))
            .filter(|folder| !folder.starts_with("/usr"))
            .map(Path::to_owned)
            .collect();
        let command = match &config.runtime {
            Runtime::Provided { command } | Runtime::Http { command, .. } => command.clone(),
            Runtime::Node { .. } | Runtime::Python { .. } | Runtime::Container { .. } => Vec::new(),
        };
        let spec = RuntimeSpec {
            base: Base::Native { interpreter, shown },
            owner: Some(config.owner().to_owned()),
            network: config.network,
            host_name: String::new(),
            ipc: Ipc::Private,
            command,
            working_dir: CODE_INSIDE.to_owned(),
            environment: config.environment.clone().into_iter().collect(),
            execution: match &config.runtime {
                Runtime::Node { .. } => execution::of_node(&config.environment),
                // Nothing runs in it before its program, which gets all of its variables at its start.
                _ => Vec::new(),
            },
            mounts: self.mounts(version)?,
            limits: Limits {
                memory_bytes: config.memory_bytes,
                cpu_milli: config.cpu_milli,
                pids: self.parts.machine.config.pids_max,
            },
            user: None,
        };
        Ok(spec.canonical())
    }

    fn start(
        &self,
        key: &Arc<RuntimeKey>,
    ) -> BoxFuture<'static, Result<Arc<dyn PrewarmedRuntime>, StartError>> {
        let (parts, key) = (Arc::clone(&self.parts), Arc::clone(key));
        Box::pin(async move {
            let runtime = NativeRuntime::start(parts, key).await?;
            Ok(Arc::new(runtime) as Arc<dyn PrewarmedRuntime>)
        })
    }

    fn report(&self, version: &Version) -> TemplateReport {
        let reason = match (&version.config.runtime, &version.environment.node) {
            (Runtime::Node { .. }, Some(node)) => format!(
                "workers are made from a pre-warmed Node.js {}",
                node.version
            ),
            (runtime, _) => {
                format!("runtime = \"{runtime}\": workers are made from pre-warmed sandboxes")
            }
        };
        TemplateReport {
            python: String::new(),
            imports: Vec::new(),
            failed_imports: Vec::new(),
            memory_bytes: 0,
            forkable: false,
            reason: Some(reason),
            took: std::time::Duration::ZERO,
        }
    }
}

impl NativeHost {
    fn mounts(&self, version: &Version) -> Result<Vec<Mount>, StartError> {
        let environment = &version.environment;
        let modules = environment
            .node
            .as_ref()
            .and_then(|node| node.modules_dir.clone());
        let shown = [
            (CODE_INSIDE, Some(version.code_dir.clone())),
            (PACKAGES_INSIDE, environment.packages_dir.clone()),
            (NODE_MODULES_INSIDE, modules),
            (RESOLVER_INSIDE, self.parts.machine.resolver(version)?),
        ];
        let mount = |(inside, host): (&str, Option<PathBuf>)| {
            Some(Mount {
                inside: PathBuf::from(inside),
                host: host?,
                access: Access::Read,
            })
        };
        Ok(shown.into_iter().filter_map(mount).collect())
    }
}

fn no_node() -> StartError {
    StartError::Runtime {
        problem: "the function's environment has no Node.js; deploy the function again".to_owned(),
        output: String::new(),
    }
}
