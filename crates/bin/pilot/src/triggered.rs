//! Keeps the triggers and the queue at the versions that are live: the port of deployment, over the invoker.

use std::sync::Arc;

use pilot_invoke::Invoker;
use pilot_model::deployment::TemplateReport;
use pilot_model::ports::{Platform, Scaling, StartError, TriggerControl};
use pilot_model::status::{ForecastStatus, PoolStatus, RuntimeStatus};
use pilot_model::{BoxFuture, FunctionName, Version};
use pilot_queue::Queue;
use pilot_trigger::Triggers;

/// The invoker, the triggers and the queue, as deployment uses them.
#[derive(Debug)]
pub(crate) struct Triggered {
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) triggers: Arc<Triggers>,
    pub(crate) queue: Arc<Queue>,
}

impl Platform for Triggered {
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        if let Err(problem) = self.triggers.check(&version.config) {
            return Box::pin(async { Err(StartError::Triggers { problem }) });
        }
        self.invoker.try_version(version)
    }

    fn discard(&self, version: &Arc<Version>) {
        self.invoker.discard(version);
    }

    fn activate(&self, version: Arc<Version>) {
        // What a trigger hands on then finds the version.
        self.invoker.activate(Arc::clone(&version));
        self.triggers.set(&version.config);
    }

    fn mark_broken(&self, name: &FunctionName, problem: &str) {
        self.invoker.mark_broken(name, problem);
    }

    fn keep_versions(&self, name: &FunctionName, kept: &[u32]) {
        self.invoker.keep_versions(name, kept);
    }

    fn remove(&self, name: &FunctionName) {
        self.triggers.remove(name);
        self.invoker.remove(name);
        self.queue.forget_keys(name);
    }

    fn renew(&self, name: &FunctionName) {
        self.invoker.renew(name);
    }

    fn status(&self, name: &FunctionName) -> Option<PoolStatus> {
        self.invoker.status(name)
    }

    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus> {
        self.invoker.scale(name, scaling)
    }

    fn forecast(&self, name: &FunctionName) -> Option<ForecastStatus> {
        self.invoker.forecast(name)
    }

    fn runtimes(&self, name: &FunctionName) -> Option<RuntimeStatus> {
        self.invoker.runtimes(name)
    }
}
