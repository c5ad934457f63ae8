//! The gateway on a real socket, with an invoker and functions that the test defines.

pub(crate) mod client;
pub(crate) mod upstream;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use pilot_gateway::{
    Control, ControlBody, Door, Drained, Gateway, GatewayConfig, Listener, RequestBody,
};
use pilot_invoke::{Invoker, Limits};
use pilot_model::ports::{
    Call, Local, NoInitscripts, NoInputs, PassedRequest, PassedResponse, Platform as _, WorkerFault,
};
use pilot_model::status::PoolStatus;
use pilot_model::{BoxFuture, FunctionConfig, Interface, InvocationRecord, Version};
use pilot_testkit::{
    FakeEngine, Reaction, RecordingSink, Served, TokioClock, version, version_with,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use client::{Answer, Client};

/// A deployed function and its behaviour.
pub(crate) struct Function {
    version: Arc<Version>,
    behaviour: Box<dyn Fn(&Call) -> Reaction + Send + Sync>,
    server: Option<Serves>,
}

/// How a function that is an HTTP server answers a request.
type Serves = Box<dyn Fn(PassedRequest) -> Served + Send + Sync>;

impl Function {
    pub(crate) fn event(
        name: &str,
        behaviour: impl Fn(&Call) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        Self::of(version(name, 1), behaviour)
    }

    pub(crate) fn application(
        name: &str,
        behaviour: impl Fn(&Call) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let version = version_with(name, 1, |config| config.interface = Interface::Asgi);
        Self::of(version, behaviour)
    }

    pub(crate) fn of(
        version: Arc<Version>,
        behaviour: impl Fn(&Call) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        Self {
            version,
            behaviour: Box::new(behaviour),
            server: None,
        }
    }

    /// A function that is an HTTP server. Through the Invoke API, it returns its event.
    pub(crate) fn server<F>(
        name: &str,
        server: impl Fn(PassedRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<PassedResponse, WorkerFault>> + Send + 'static,
    {
        Self::server_with(name, |_| (), server)
    }

    /// The same with another configuration.
    pub(crate) fn server_with<F>(
        name: &str,
        change: impl FnOnce(&mut FunctionConfig),
        server: impl Fn(PassedRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<PassedResponse, WorkerFault>> + Send + 'static,
    {
        let version = version_with(name, 1, |config| {
            config.interface = Interface::Http;
            config.timeout = Duration::from_secs(60);
            change(config);
        });
        let mut function = Self::of(version, |call| {
            Reaction::Return(Duration::ZERO, call.payload.clone(), Bytes::new())
        });
        function.server = Some(Box::new(move |request| Box::pin(server(request))));
        function
    }
}

/// The configuration of a gateway.
pub(crate) struct Setup {
    pub(crate) config: GatewayConfig,
    pub(crate) door: Door,
    pub(crate) limits: Limits,
    pub(crate) control: Control,
    pub(crate) functions: Vec<Function>,
}

impl Default for Setup {
    /// No functions, and control routes that echo.
    fn default() -> Self {
        Self {
            config: GatewayConfig::default(),
            door: Door::default(),
            limits: Limits::default(),
            control: control(|request| Box::pin(echo(request))),
            functions: Vec::new(),
        }
    }
}

/// A running gateway.
pub(crate) struct Daemon {
    pub(crate) addr: SocketAddr,
    pub(crate) engine: Arc<FakeEngine>,
    pub(crate) sink: Arc<RecordingSink>,
    invoker: Arc<Invoker>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Drained>,
}

impl Daemon {
    pub(crate) async fn with(functions: Vec<Function>) -> Self {
        Self::start(Setup {
            functions,
            ..Setup::default()
        })
        .await
    }

    pub(crate) async fn start(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let clock = Arc::new(TokioClock::new());
        let engine = FakeEngine::new(clock.clone());
        let sink = Arc::new(RecordingSink::default());
        let invoker = Invoker::new(
            engine.clone(),
            sink.clone(),
            clock,
            (Arc::new(NoInputs), Arc::new(NoInitscripts)),
            Arc::new(Local),
            |_| None,
            setup.limits,
        );
        let mut behaviours = HashMap::new();
        let mut servers = HashMap::new();
        for function in setup.functions {
            let name = function.version.config.name.to_string();
            servers.extend(function.server.map(|server| (name.clone(), server)));
            behaviours.insert(name, function.behaviour);
            invoker.activate(function.version);
        }
        engine.serve(move |call| behaviours[&function_of(call)](call));
        engine.serve_http(move |request| {
            let prefix = request.headers()["x-forwarded-prefix"].to_str().unwrap();
            servers[prefix.strip_prefix("/fn/").unwrap()](request)
        });
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let gateway = invoker.clone();
        let mut config = setup.config;
        config.hosts.extend(["x", "pilot.test"].map(str::to_owned));
        let listeners = vec![Listener::tcp(listener, setup.door)];
        let serving = Gateway::serve(listeners, config, gateway, setup.control, shutdown);
        Self {
            addr,
            engine,
            sink,
            invoker,
            stop,
            serving: tokio::spawn(serving),
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.client().await.ask(method, path, headers, body).await
    }

    /// A function's workers.
    pub(crate) fn workers(&self, name: &str) -> PoolStatus {
        self.invoker.status(&name.parse().unwrap()).unwrap()
    }

    /// The record of the first invocation that ends.
    pub(crate) async fn record(&self) -> Arc<InvocationRecord> {
        soon(async {
            loop {
                match self.sink.records().first() {
                    Some(record) => return record.clone(),
                    None => tokio::task::yield_now().await,
                }
            }
        })
        .await
    }

    /// Tells it to stop. The drain continues.
    pub(crate) fn stop(self) -> JoinHandle<Drained> {
        self.stop.send(()).unwrap();
        self.serving
    }
}

/// The name in a call's ARN.
fn function_of(call: &Call) -> String {
    meta(call)["arn"]
        .as_str()
        .unwrap()
        .split(':')
        .nth(6)
        .unwrap()
        .to_owned()
}

/// The head of a call for the worker, as JSON.
pub(crate) fn meta(call: &Call) -> serde_json::Value {
    let head = &call.head;
    let mut told = serde_json::json!({
        "id": head.id.as_str(),
        "arn": head.arn,
        "client_context": head.client_context,
        "trace": head.trace,
    });
    if let Some(http) = &head.http {
        told["method"] = http.method.as_str().into();
        told["path"] = http.path.as_str().into();
        told["query"] = http.query.as_str().into();
        told["root_path"] = http.root_path.as_str().into();
        told["headers"] = serde_json::json!(http.headers);
        told["client"] = serde_json::json!([http.client.ip(), http.client.port()]);
        told["scheme"] = http.scheme.into();
    }
    told
}

/// A control handler from a closure.
pub(crate) fn control<F>(handler: F) -> Control
where
    F: Fn(http::Request<RequestBody>) -> BoxFuture<'static, http::Response<ControlBody>>
        + Send
        + Sync
        + 'static,
{
    Arc::new(handler)
}

/// Returns the request: `METHOD PATH BODY`.
pub(crate) async fn echo(request: http::Request<RequestBody>) -> http::Response<ControlBody> {
    let asked = format!("{} {} ", request.method(), request.uri().path());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    text([asked.as_bytes(), &body].concat())
}

pub(crate) fn text(text: impl Into<Bytes>) -> http::Response<ControlBody> {
    http::Response::new(
        Full::new(text.into())
            .map_err(|never| match never {})
            .boxed_unsync(),
    )
}

/// Waits for something that another task does soon; fails the test if it does not.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what)
        .await
        .expect("it did not happen")
}
