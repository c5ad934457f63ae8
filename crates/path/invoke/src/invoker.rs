//! `Invoker`: what the gateway calls and the control side sees.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::api::PoolStatus;
use pilot_model::ports::{Clock, Engine, EventSink, Platform, StartError, TemplateReport};
use pilot_model::{BoxFuture, FunctionName, Instant, Version};

use crate::error::InvokeError;
use crate::limits::Limits;
use crate::request::Request;
use crate::response::Response;

/// The running functions. Shared as `Arc<Invoker>`.
#[derive(Debug)]
pub struct Invoker {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
}

impl Invoker {
    /// Starts with no function. Call it inside a tokio runtime: its timer and sampler run there.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        _sink: Arc<dyn EventSink>,
        clock: Arc<dyn Clock>,
        _limits: Limits,
    ) -> Arc<Self> {
        Arc::new(Self { engine, clock })
    }

    /// The version that NAME and a qualifier mean. `qualifier`: `None` or `$LATEST` for the live one, a version's number,
    /// or its id.
    ///
    /// # Errors
    /// [`InvokeError::FunctionNotFound`], [`InvokeError::VersionNotFound`].
    pub fn find(&self, name: &str, _qualifier: Option<&str>) -> Result<Arc<Version>, InvokeError> {
        Err(InvokeError::FunctionNotFound {
            name: name.chars().take(100).collect(),
        })
    }

    /// Invokes and waits for the answer, or for the head of a streamed one. Dropping the future cancels the invocation.
    ///
    /// # Errors
    /// See [`InvokeError`]. Whatever the function itself does wrong is a [`Response`].
    pub async fn invoke(&self, request: Request) -> Result<Response, InvokeError> {
        Err(InvokeError::FunctionNotFound {
            name: request.version.config.name.to_string(),
        })
    }

    /// Now, on the clock of all stamps.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Waits for the running invocations, at most `grace`, then retires every worker. It does not refuse new work while
    /// it waits: that is the gateway's.
    pub async fn drain(&self, _grace: Duration) {}
}

impl Platform for Invoker {
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        self.engine.prepare(version)
    }

    fn activate(&self, _version: Arc<Version>) {}

    fn remove(&self, _name: &FunctionName) {}

    fn status(&self, _name: &FunctionName) -> Option<PoolStatus> {
        None
    }

    fn scale(&self, _name: &FunctionName, _workers: u32) -> Option<PoolStatus> {
        None
    }
}
