//! The real worker against servers on loopback that write raw bytes.

mod events;
mod passing;
mod readiness;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use pilot_model::FunctionConfig;
use tokio::net::TcpListener;

use super::*;
use crate::testing::{FakeInstance, FakeReach, Peer, start};

/// A worker whose server the test plays.
struct Rig {
    worker: Arc<HttpWorker>,
    instance: Arc<FakeInstance>,
    reach: Arc<FakeReach>,
    listener: TcpListener,
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn rig() -> Rig {
    rig_with(|_| ()).await
}

async fn rig_with(change: impl FnOnce(&mut FunctionConfig)) -> Rig {
    let (listener, address) = listener().await;
    let instance = FakeInstance::new();
    let reach = FakeReach::to(Some(address));
    let worker = HttpWorker::when_ready(
        start(|config| {
            config.concurrency = 2;
            change(config);
        }),
        8080,
        None,
        Arc::clone(&reach) as _,
        Arc::clone(&instance) as _,
    )
    .await
    .unwrap();
    Rig {
        worker: Arc::new(worker),
        instance,
        reach,
        listener,
    }
}

impl Rig {
    /// The server's end of the next connection.
    async fn accept(&self) -> Peer {
        Peer::over(self.listener.accept().await.unwrap().0)
    }

    fn pass(
        &self,
        request: PassedRequest,
    ) -> tokio::task::JoinHandle<Result<PassedResponse, WorkerFault>> {
        let worker = Arc::clone(&self.worker);
        tokio::spawn(async move {
            worker
                .pass(request)
                .await
                .map_err(|unpassed| unpassed.fault)
        })
    }
}

/// Waits until the worker knows of connections that were closed: when this connection is accepted, their ends have arrived, too.
async fn closes_arrive() {
    let (listener, address) = listener().await;
    let (_there, _here) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
}

fn streamed(body: &'static str) -> StreamedBody {
    StreamedBody::new(
        Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}),
    )
}

fn get(path: &str) -> PassedRequest {
    Request::get(path)
        .header("host", "example.com")
        .body(streamed(""))
        .unwrap()
}

async fn text(response: PassedResponse) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}
