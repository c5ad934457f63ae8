//! The table of engines: a version is started by the engine of its runtime's kind.

use std::sync::Arc;

use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{Engine, MemoryPressure, StartError, TemplateMemory, Worker};
use pilot_model::status::RuntimeStatus;
use pilot_model::{BoxFuture, EngineKind, Version, WorkerId};

/// One engine per kind; the table is itself an engine. Memory is freed from the last row to the first.
#[derive(Debug)]
pub struct EngineTable(pub Vec<(EngineKind, Arc<dyn Engine>)>);

impl EngineTable {
    fn of(&self, version: &Version) -> Option<&dyn Engine> {
        let kind = version.config.runtime.engine();
        let row = self.0.iter().find(|(of, _)| *of == kind);
        row.map(|(_, engine)| &**engine)
    }
}

impl Engine for EngineTable {
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        match self.of(version) {
            Some(engine) => engine.prepare(version),
            None => Box::pin(std::future::ready(Err(no_engine(version)))),
        }
    }

    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        match self.of(version) {
            Some(engine) => engine.start(version, id),
            None => Box::pin(std::future::ready(Err(no_engine(version)))),
        }
    }

    fn forget(&self, version: &Arc<Version>) {
        if let Some(engine) = self.of(version) {
            engine.forget(version);
        }
    }

    fn evict(&self, version: &Arc<Version>) {
        if let Some(engine) = self.of(version) {
            engine.evict(version);
        }
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        let engines = self.0.iter();
        engines.flat_map(|(_, engine)| engine.templates()).collect()
    }

    fn kept_so_far(&self) -> u64 {
        let engines = self.0.iter();
        engines.map(|(_, engine)| engine.kept_so_far()).sum()
    }

    fn relieve(&self, bytes: u64) -> u64 {
        let engines = self.0.iter().rev();
        engines.fold(0, |relieved, (_, engine)| {
            relieved + engine.relieve(bytes.saturating_sub(relieved))
        })
    }

    fn memory_pressure(&self) -> MemoryPressure {
        let engines = self.0.iter();
        let levels = engines.map(|(_, engine)| engine.memory_pressure());
        levels.max().unwrap_or_default()
    }

    fn runtimes(&self, version: &Version) -> Option<RuntimeStatus> {
        self.of(version)?.runtimes(version)
    }
}

fn no_engine(version: &Version) -> StartError {
    let runtime = &version.config.runtime;
    StartError::Sandbox {
        problem: format!("this daemon has no engine for runtime = \"{runtime}\""),
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::Runtime;
    use pilot_model::runtime::node::NodeRuntime;
    use pilot_testkit::{FakeEngine, TokioClock, version, version_with};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_version_goes_to_the_engine_of_its_runtime() {
        let engine = || FakeEngine::new(Arc::new(TokioClock::new()));
        let (forking, keyed) = (engine(), engine());
        let template = |level: &str| TemplateMemory {
            level: level.to_owned(),
            name: String::new(),
            memory_bytes: 1,
        };
        forking.templates_are(vec![template("function")]);
        keyed.templates_are(vec![template("prewarmed")]);
        let fork_only = EngineTable(vec![(EngineKind::Fork, Arc::clone(&forking) as _)]);
        let both = EngineTable(vec![
            (EngineKind::Fork, Arc::clone(&forking) as _),
            (EngineKind::Keyed, Arc::clone(&keyed) as _),
        ]);
        let python = version("python", 1);
        let node = version_with("node", 2, |config| {
            config.runtime = Runtime::Node(NodeRuntime { major: None });
        });
        both.start(&python, WorkerId(1)).await.unwrap();
        assert_eq!((forking.starts(), keyed.starts()), (1, 0));
        both.start(&node, WorkerId(2)).await.unwrap();
        assert_eq!((forking.starts(), keyed.starts()), (1, 1));
        both.forget(&node);
        assert_eq!(keyed.forgotten().first(), Some(&node.id));
        assert!(forking.forgotten().is_empty());
        let levels: Vec<_> = both.templates().into_iter().map(|one| one.level).collect();
        assert_eq!(levels, ["function", "prewarmed"]);
        let error = fork_only.start(&node, WorkerId(3)).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("no engine for runtime = \"node\"")
        );
    }
}
