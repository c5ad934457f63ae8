//! One engine of two: versions whose runtime forks go to the fork engine, all others to the keyed pool.

use std::sync::Arc;

use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{Engine, StartError, TemplateMemory, Worker};
use pilot_model::status::RuntimeStatus;
use pilot_model::{BoxFuture, Version, WorkerId};

/// Sends each version to its engine.
#[derive(Debug)]
pub struct ByRuntime {
    /// Of versions whose runtime forks.
    pub forking: Arc<dyn Engine>,
    /// Of all others.
    pub keyed: Arc<dyn Engine>,
}

impl ByRuntime {
    fn engine(&self, version: &Version) -> &dyn Engine {
        if version.config.runtime.forks() {
            &*self.forking
        } else {
            &*self.keyed
        }
    }
}

impl Engine for ByRuntime {
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        self.engine(version).prepare(version)
    }

    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        self.engine(version).start(version, id)
    }

    fn forget(&self, version: &Arc<Version>) {
        self.engine(version).forget(version);
    }

    fn templates(&self) -> Vec<TemplateMemory> {
        let mut templates = self.forking.templates();
        templates.extend(self.keyed.templates());
        templates
    }

    fn relieve(&self, bytes: u64) -> u64 {
        let relieved = self.keyed.relieve(bytes);
        relieved + self.forking.relieve(bytes.saturating_sub(relieved))
    }

    fn runtimes(&self, version: &Version) -> Option<RuntimeStatus> {
        self.engine(version).runtimes(version)
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::Runtime;
    use pilot_testkit::{FakeEngine, TokioClock, version, version_with};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_forks_goes_to_the_one_and_all_else_to_the_other() {
        let engine = || FakeEngine::new(Arc::new(TokioClock::new()));
        let (forking, keyed) = (engine(), engine());
        let template = |level: &str| TemplateMemory {
            level: level.to_owned(),
            name: String::new(),
            memory_bytes: 1,
        };
        forking.templates_are(vec![template("function")]);
        keyed.templates_are(vec![template("prewarmed")]);
        let both = ByRuntime {
            forking: Arc::clone(&forking) as Arc<dyn Engine>,
            keyed: Arc::clone(&keyed) as Arc<dyn Engine>,
        };
        let python = version("python", 1);
        let node = version_with("node", 2, |config| {
            config.runtime = Runtime::Node { major: None };
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
    }
}
