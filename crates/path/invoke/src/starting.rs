//! The engine of the pools: another engine, and the beginning of what a start needs besides a worker. A worker that the pool starts
//! ahead of its first invocation waits for nobody, so this is where the shared initscript of its function begins.
//!
//! An initscript of an invocation is none of this: see [`join`](crate::invoker).

use std::sync::Arc;

use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{
    Engine, InitRunner, InputSource, MemoryPressure, StartError, TemplateMemory, Worker,
};
use pilot_model::status::RuntimeStatus;
use pilot_model::{BoxFuture, Version, WorkerId};

/// See the module.
#[derive(Debug)]
pub(crate) struct Starting {
    engine: Arc<dyn Engine>,
    initscripts: Arc<dyn InitRunner>,
}

impl Starting {
    /// The engine itself, if nothing may overlap with a start.
    pub(crate) fn around(
        engine: Arc<dyn Engine>,
        (inputs, initscripts): &(Arc<dyn InputSource>, Arc<dyn InitRunner>),
    ) -> Arc<dyn Engine> {
        match inputs.overlaps() {
            true => Arc::new(Self {
                engine,
                initscripts: Arc::clone(initscripts),
            }),
            false => engine,
        }
    }
}

impl Engine for Starting {
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        self.engine.prepare(version)
    }

    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        if version.config.shared_initscript.is_some() {
            self.initscripts.worker_starts(version);
        }
        self.engine.start(version, id)
    }

    fn forget(&self, version: &Arc<Version>) {
        self.engine.forget(version);
    }

    fn evict(&self, version: &Arc<Version>) {
        self.engine.evict(version);
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        self.engine.templates()
    }

    fn kept_so_far(&self) -> u64 {
        self.engine.kept_so_far()
    }

    fn relieve(&self, bytes: u64) -> u64 {
        self.engine.relieve(bytes)
    }

    fn memory_pressure(&self) -> MemoryPressure {
        self.engine.memory_pressure()
    }

    fn runtimes(&self, version: &Version) -> Option<RuntimeStatus> {
        self.engine.runtimes(version)
    }
}
