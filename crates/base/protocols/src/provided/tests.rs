//! A fake runtime on loopback that writes bytes, against the real worker.

mod answers;
mod beside;
mod lifecycle;
mod streaming;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::FunctionConfig;

use super::*;
use pilot_testkit::event_call as call;

use crate::testing::{FakeInstance, Message, Peer, start};

const API: &str = "/2018-06-01/runtime";

/// A worker that is ready, and its runtime, which has polled once.
struct Rig {
    worker: Arc<ProvidedWorker>,
    instance: Arc<FakeInstance>,
    address: SocketAddr,
    runtime: Peer,
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// `runtime` writes to the socket before the worker starts to read from it.
async fn rig_with(change: impl FnOnce(&mut FunctionConfig)) -> Rig {
    let (listener, address) = listener().await;
    let instance = FakeInstance::new();
    let mut runtime = Peer::connect(address).await;
    runtime.poll().await;
    let dynamic: Arc<dyn Instance> = Arc::clone(&instance) as _;
    let worker = ProvidedWorker::when_ready(start(change), listener, dynamic)
        .await
        .unwrap();
    Rig {
        worker: Arc::new(worker),
        instance,
        address,
        runtime,
    }
}

async fn rig() -> Rig {
    rig_with(|_| ()).await
}

impl Rig {
    /// Starts a call with request id `id`.
    fn call(&self, id: &str, event: &str) -> tokio::task::JoinHandle<Result<Answer, WorkerFault>> {
        let worker = Arc::clone(&self.worker);
        let call = call(id, event);
        tokio::spawn(async move { worker.call(call).await })
    }

    async fn peer(&self) -> Peer {
        Peer::connect(self.address).await
    }
}

impl Peer {
    async fn poll(&mut self) {
        self.ask("GET", &format!("{API}/invocation/next"), "", "")
            .await;
    }

    /// The request id of the event that the current poll gets.
    async fn event(&mut self) -> String {
        let event = self.read().await;
        assert_eq!(event.status(), 200, "{event:?}");
        event
            .header("Lambda-Runtime-Aws-Request-Id")
            .unwrap()
            .to_owned()
    }

    async fn respond(&mut self, id: &str, headers: &str, body: &str) -> Message {
        let path = format!("{API}/invocation/{id}/response");
        self.exchange("POST", &path, headers, body).await
    }
}

fn result(answer: Result<Result<Answer, WorkerFault>, tokio::task::JoinError>) -> String {
    match answer.unwrap() {
        Ok(Answer::Result(body, _)) => String::from_utf8(body.to_vec()).unwrap(),
        other => panic!("no result: {other:?}"),
    }
}

/// Type and message of a Lambda error body.
fn error(answer: Answer) -> (String, String) {
    let Answer::Error(body, _) = answer else {
        panic!("no error: {answer:?}");
    };
    told(&body)
}

fn told(body: &[u8]) -> (String, String) {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    (text("errorType"), text("errorMessage"))
}
