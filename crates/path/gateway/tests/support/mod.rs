//! The gateway on a real socket, an invoker behind it, and functions that do what the test says.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "for tests alone, and shared by several files of them"
)]

pub mod client;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use pilot_gateway::{Control, ControlBody, Drained, Gateway, GatewayConfig};
use pilot_invoke::{Invoker, Limits};
use pilot_model::ports::{Call, Platform as _};
use pilot_model::{BoxFuture, Interface, Version};
use pilot_testkit::{Deed, FakeEngine, RecordingSink, TokioClock, version, version_with};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use client::{Answer, Client};

/// A deployed function and what a call of it does.
pub struct Function {
    version: Arc<Version>,
    behaviour: Box<dyn Fn(&Call) -> Deed + Send + Sync>,
}

impl Function {
    pub fn event(name: &str, behaviour: impl Fn(&Call) -> Deed + Send + Sync + 'static) -> Self {
        Self::of(version(name, 1), behaviour)
    }

    pub fn application(
        name: &str,
        behaviour: impl Fn(&Call) -> Deed + Send + Sync + 'static,
    ) -> Self {
        let version = version_with(name, 1, |config| config.interface = Interface::Asgi);
        Self::of(version, behaviour)
    }

    pub fn of(
        version: Arc<Version>,
        behaviour: impl Fn(&Call) -> Deed + Send + Sync + 'static,
    ) -> Self {
        let behaviour = Box::new(behaviour);
        Self { version, behaviour }
    }
}

/// What a gateway is started with.
pub struct Setup {
    pub config: GatewayConfig,
    pub limits: Limits,
    pub control: Control,
    pub functions: Vec<Function>,
}

impl Default for Setup {
    /// No functions, and control routes that echo.
    fn default() -> Self {
        Self {
            config: GatewayConfig::default(),
            limits: Limits::default(),
            control: control(|request| Box::pin(echo(request))),
            functions: Vec::new(),
        }
    }
}

/// A running gateway.
pub struct Daemon {
    pub addr: SocketAddr,
    pub engine: Arc<FakeEngine>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Drained>,
}

impl Daemon {
    pub async fn with(functions: Vec<Function>) -> Self {
        Self::start(Setup {
            functions,
            ..Setup::default()
        })
        .await
    }

    pub async fn start(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let clock = Arc::new(TokioClock::new());
        let engine = FakeEngine::new(clock.clone());
        let sink = Arc::new(RecordingSink::default());
        let invoker = Invoker::new(engine.clone(), sink, clock, |_| None, setup.limits);
        let mut behaviours = HashMap::new();
        for function in setup.functions {
            behaviours.insert(function.version.config.name.to_string(), function.behaviour);
            invoker.activate(function.version);
        }
        engine.serve(move |call| behaviours[&function_of(call)](call));
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let serving = Gateway::serve(listener, setup.config, invoker, setup.control, shutdown);
        Self {
            addr,
            engine,
            stop,
            serving: tokio::spawn(serving),
        }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// One request on a connection of its own.
    pub async fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.client().await.ask(method, path, headers, body).await
    }

    /// Tells it to stop; the drain goes on.
    pub fn stop(self) -> JoinHandle<Drained> {
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

/// A call's meta.
pub fn meta(call: &Call) -> serde_json::Value {
    serde_json::from_slice(&call.meta).unwrap()
}

/// A control handler from a closure.
pub fn control<F>(handler: F) -> Control
where
    F: Fn(http::Request<Incoming>) -> BoxFuture<'static, http::Response<ControlBody>>
        + Send
        + Sync
        + 'static,
{
    Arc::new(handler)
}

/// Says what was asked: `METHOD PATH BODY`.
pub async fn echo(request: http::Request<Incoming>) -> http::Response<ControlBody> {
    let asked = format!("{} {} ", request.method(), request.uri().path());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    text([asked.as_bytes(), &body].concat())
}

pub fn text(text: impl Into<Bytes>) -> http::Response<ControlBody> {
    http::Response::new(
        Full::new(text.into())
            .map_err(|never| match never {})
            .boxed_unsync(),
    )
}

/// Waits for something that another task does at once; fails the test when it does not.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what)
        .await
        .expect("it did not happen")
}
