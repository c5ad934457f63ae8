//! What every test needs: an invoker, its engine, its sink, and short functions for requests.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_invoke::{
    InvokeError, Invoker, Limits, Payload, Request, Response, ResponseBody, Urgency,
};
use pilot_model::forecast::MakeForecaster;
use pilot_model::ports::{
    Clock, InitRunner, Local, NoInitscripts, NoInputs, PassedRequest, Platform, Scaling,
};
use pilot_model::{FunctionConfig, InvocationId, Version};
use pilot_testkit::{FakeEngine, RecordingSink, TokioClock};
use tokio::task::JoinHandle;

pub(crate) type Answer = Result<Response, InvokeError>;

pub(crate) struct Fixture {
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) engine: Arc<FakeEngine>,
    pub(crate) sink: Arc<RecordingSink>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        Self::build(|_| None, limits)
    }

    pub(crate) fn predicted(forecaster: MakeForecaster) -> Self {
        Self::build(forecaster, Limits::default())
    }

    pub(crate) fn running(initscripts: Arc<dyn InitRunner>) -> Self {
        Self::assemble(|_| None, Limits::default(), initscripts)
    }

    fn build(forecaster: MakeForecaster, limits: Limits) -> Self {
        Self::assemble(forecaster, limits, Arc::new(NoInitscripts))
    }

    fn assemble(
        forecaster: MakeForecaster,
        limits: Limits,
        initscripts: Arc<dyn InitRunner>,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let engine = FakeEngine::new(Arc::clone(&clock));
        let sink = Arc::new(RecordingSink::default());
        let invoker = Invoker::new(
            engine.clone(),
            sink.clone(),
            clock,
            (Arc::new(NoInputs), initscripts),
            Arc::new(Local),
            forecaster,
            limits,
        );
        Self {
            invoker,
            engine,
            sink,
        }
    }

    /// Deploys version 1 of `f`.
    pub(crate) fn deploy(&self, change: impl FnOnce(&mut FunctionConfig)) -> Arc<Version> {
        let version = pilot_testkit::version_with("f", 1, change);
        self.invoker.activate(Arc::clone(&version));
        version
    }

    /// Deploys version 1 of a function with this name.
    pub(crate) fn deploy_as(
        &self,
        name: &str,
        change: impl FnOnce(&mut FunctionConfig),
    ) -> Arc<Version> {
        let version = pilot_testkit::version_with(name, 1, change);
        self.invoker.activate(Arc::clone(&version));
        version
    }

    /// Invokes the live version of this function in a task, as urgently as this.
    pub(crate) fn begin_of(&self, name: &str, urgency: Urgency) -> JoinHandle<Answer> {
        let invoker = Arc::clone(&self.invoker);
        let version = invoker.find(name, None).unwrap();
        let request = Request {
            urgency,
            ..request(&invoker, version)
        };
        tokio::spawn(async move { invoker.invoke(request, event()).await })
    }

    /// Invokes the live version of `f` with `{}`.
    pub(crate) fn call(&self) -> impl Future<Output = Answer> + Send + 'static {
        let version = self.invoker.find("f", None).unwrap();
        self.call_version(version)
    }

    pub(crate) fn call_version(
        &self,
        version: Arc<Version>,
    ) -> impl Future<Output = Answer> + Send + 'static {
        let invoker = Arc::clone(&self.invoker);
        let request = request(&invoker, version);
        async move { invoker.invoke(request, event()).await }
    }

    /// As `call`, with an event that is there after this time.
    pub(crate) async fn call_late(&self, time: Duration) -> Answer {
        let version = self.invoker.find("f", None).unwrap();
        let request = request(&self.invoker, version);
        let event = async {
            tokio::time::sleep(time).await;
            event().await
        };
        self.invoker.invoke(request, event).await
    }

    /// Ends workers until this many are left.
    pub(crate) async fn scale(&self, workers: u32) {
        self.invoker.scale(&"f".parse().unwrap(), to(workers));
        pass(ms(1)).await;
    }

    /// Passes a request through to the live version of `f`.
    pub(crate) fn pass(
        &self,
        passed: PassedRequest,
    ) -> impl Future<Output = Answer> + Send + 'static {
        let invoker = Arc::clone(&self.invoker);
        let version = invoker.find("f", None).unwrap();
        let request = request(&invoker, version);
        async move { invoker.pass(request, passed).await }
    }

    /// As `call`, in a task.
    pub(crate) fn begin(&self) -> JoinHandle<Answer> {
        tokio::spawn(self.call())
    }

    /// Invokes `count` times at one instant; resolves at the last answer.
    pub(crate) async fn burst(&self, count: usize) -> Vec<Answer> {
        let calls: Vec<_> = (0..count).map(|_| self.begin()).collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        answers
    }

    /// Invokes over HTTP.
    pub(crate) async fn http(&self, method: &str) -> Answer {
        let version = self.invoker.find("f", None)?;
        let mut head = pilot_testkit::http_head();
        head.method = method.to_owned();
        let payload = Payload {
            rest: None,
            direct: None,
            websocket: None,
            data: None,
            http: Some(head),
            body: Bytes::from_static(b"body"),
        };
        let request = request(&self.invoker, version);
        self.invoker.invoke(request, ready(Ok(payload))).await
    }

    pub(crate) fn workers(&self) -> pilot_model::status::PoolStatus {
        self.invoker.status(&"f".parse().unwrap()).unwrap()
    }
}

/// The event `{}`, ready at once.
fn event() -> Ready<Result<Payload, InvokeError>> {
    ready(Ok(Payload::event(Bytes::from_static(b"{}"))))
}

pub(crate) fn request(invoker: &Invoker, version: Arc<Version>) -> Request {
    let arn = format!(
        "arn:aws:lambda:us-east-1:000000000000:function:{}",
        version.config.name
    );
    Request {
        id: InvocationId::new("52fdfc07-2182-454f-963f-5f0f9a621d72"),
        version,
        received: invoker.now(),
        client_context: None,
        trace: None,
        trigger: pilot_model::trigger::FaasTrigger::Http,
        arn,
        inputs: BTreeMap::new(),
        urgency: pilot_invoke::Urgency::CALLER,
        chain: None,
    }
}

/// The JSON of an error answer.
pub(crate) fn function_error(answer: Answer) -> serde_json::Value {
    match answer.unwrap().body {
        ResponseBody::FunctionError(json) => serde_json::from_slice(&json).unwrap(),
        other => panic!("not an error: {other:?}"),
    }
}

pub(crate) fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Advances the paused time by `time` and runs the tasks that become ready.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A scaling to `workers` workers.
pub(crate) fn to(workers: u32) -> Scaling {
    Scaling {
        workers: Some(workers),
        policy: None,
    }
}
