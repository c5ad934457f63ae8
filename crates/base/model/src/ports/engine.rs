//! An engine starts the workers of one kind of runtime.

use std::fmt::Debug;
use std::sync::Arc;

use super::{BoxFuture, Worker};
use crate::deployment::TemplateReport;
use crate::ids::WorkerId;
use crate::status::RuntimeStatus;
use crate::version::Version;

/// Starts workers of one kind of runtime: forked Python now, containers and WASM later.
pub trait Engine: Send + Sync + Debug {
    /// Prepares what makes later starts fast (the template), starts and ends one worker as a test, and reports the result.
    /// Concurrent calls for one version share one build.
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>>;

    /// Starts a worker. Resolves when it is ready to be called. Dropping the future, or the worker, ends the process.
    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>>;

    /// Drops what [`Engine::prepare`] made for this version, and what only this version still used: it will not be started again soon.
    /// Its workers have ended before.
    fn forget(&self, version: &Arc<Version>);

    /// Drops the template of this version for lack of memory. It may be started again at any time, so what it shares with other
    /// versions stays, until [`Engine::relieve`] ends it or the version is forgotten. Its workers have ended before.
    fn evict(&self, version: &Arc<Version>) {
        self.forget(version);
    }

    /// Memory of the daemon's templates, for the memory budget.
    fn templates(&self) -> Vec<TemplateMemory>;

    /// How many runtimes have become ready and unused so far. If it has grown, [`Engine::templates`] may have more memory.
    fn kept_so_far(&self) -> u64 {
        0
    }

    /// Memory is short: ends what is ready and unused, the oldest first, until its memory adds up to `bytes` or none is left. These are
    /// kept runtimes, and templates that no version's template is forked from. Templates of versions are not ended; [`Engine::evict`]
    /// does that. Returns the freed bytes. Not for the path.
    fn relieve(&self, bytes: u64) -> u64 {
        let _ = bytes;
        0
    }

    /// How short the memory of all templates and workers together is. Not for the path.
    fn memory_pressure(&self) -> MemoryPressure {
        MemoryPressure::None
    }

    /// What is kept for a version that does not fork. `None`: it forks, or it is unknown.
    fn runtimes(&self, version: &Version) -> Option<RuntimeStatus> {
        let _ = version;
        None
    }
}

/// How short memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// There is enough, or it is not known.
    #[default]
    None,
    /// What nobody uses should be given back.
    High,
    /// Nothing should be started.
    Critical,
}

/// Why a worker or template did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// User code failed while it was imported; `body` is Lambda's error body, JSON.
    #[error("the handler could not be imported: {body}")]
    Import {
        /// `{"errorType", "errorMessage", "stackTrace"}`.
        body: String,
        /// What it printed.
        output: String,
    },
    /// It ended, or did not answer in time, before it was ready.
    #[error("the runtime did not come up: {problem}")]
    Runtime {
        /// What happened.
        problem: String,
        /// What it printed.
        output: String,
    },
    /// There is no room for another worker: of workers in total, descriptors or processes.
    #[error("no room for another worker: {problem}")]
    Full {
        /// Which limit, and what to do.
        problem: String,
    },
    /// It may not have the inputs that it declares.
    #[error("its inputs cannot be fetched: {problem}")]
    Inputs {
        /// Which input, and what to do.
        problem: String,
    },
    /// It may not have the triggers or destinations that it declares.
    #[error("its triggers and destinations cannot be used: {problem}")]
    Triggers {
        /// Which one, and what to do.
        problem: String,
    },
    /// Its initscript cannot be used.
    #[error("its initscript cannot be used: {problem}")]
    Initscript {
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The machine could not make a sandbox.
    #[error("no sandbox: {problem}")]
    Sandbox {
        /// Which step and why.
        problem: String,
    },
}

/// A template's memory.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TemplateMemory {
    /// `interpreter`, `environment` or `function`; `prewarmed`: a kept runtime without a function.
    pub level: String,
    /// Its interpreter, environment or function.
    pub name: String,
    /// PSS, bytes.
    pub memory_bytes: u64,
}
