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
mod instance;
mod node;
mod parts;
mod runtime;
mod start_limiter;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::deployment::TemplateReport;
use pilot_model::layer::LAYERS_INSIDE;
use pilot_model::ports::{BoxFuture, PrewarmedRuntime, RuntimeHost, StartError};
use pilot_model::runtime_key::{Access, Mount, RuntimeKey, RuntimeSpec};
use pilot_model::{Runtime, Version};

use crate::machine::Machine;
use crate::places::{CODE_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE, RESOLVER_INSIDE};
use crate::runtime_files::NODE_WORKER_INSIDE;
use crate::variables;
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
        !runtime.forks() && runtime.image().is_none()
    }

    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError> {
        let pids_max = self.parts.machine.config.pids_max;
        let mut spec = RuntimeSpec {
            working_dir: CODE_INSIDE.to_owned(),
            mounts: self.mounts(version)?,
            ..version.runtime_spec(pids_max).map_err(not_startable)?
        };
        if spec.has_interpreter() && variables::needs_libraries(version) {
            // A waiting interpreter has already started when code and layers are mounted.
            let path = variables::library_path();
            spec.execution
                .push((variables::LIBRARY_PATH.to_owned(), path));
        }
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
        let reason = version.config.runtime.remark(&version.environment);
        TemplateReport {
            reason: Some(reason),
            ..TemplateReport::default()
        }
    }
}

impl NativeHost {
    fn mounts(&self, version: &Version) -> Result<Vec<Mount>, StartError> {
        let environment = &version.environment;
        let shown = [
            (CODE_INSIDE, Some(version.code_dir.clone())),
            (
                LAYERS_INSIDE,
                version.layers.as_ref().map(|layers| layers.dir.clone()),
            ),
            // The layers hide that of the base sandbox.
            (
                NODE_WORKER_INSIDE,
                version
                    .layers
                    .as_ref()
                    .map(|_| self.parts.machine.files.node().to_owned()),
            ),
            (
                PACKAGES_INSIDE,
                environment.packages_dir().map(Path::to_owned),
            ),
            (
                NODE_MODULES_INSIDE,
                environment.modules_dir().map(Path::to_owned),
            ),
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

fn not_startable(problem: String) -> StartError {
    StartError::Runtime {
        problem,
        output: String::new(),
    }
}
