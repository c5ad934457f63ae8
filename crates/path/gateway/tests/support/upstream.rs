//! A function's own server: a listener on loopback with a handler from the test, and the hyper client that a worker uses.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pilot_model::ports::{PassedRequest, PassedResponse, StreamedBody, WorkerFault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Listens, and gives each connection to `serve`.
pub async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream));
        }
    });
    addr
}

/// One exchange with the server at `addr`, over its own connection.
pub async fn pass(addr: SocketAddr, request: PassedRequest) -> Result<PassedResponse, WorkerFault> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| fault(&error))?;
    Ok(response.map(|body| StreamedBody::new(body.map_err(Into::into))))
}

pub fn fault(error: &dyn std::error::Error) -> WorkerFault {
    WorkerFault::Protocol {
        problem: error.to_string(),
        output: Bytes::new(),
    }
}

/// Reads a request's head.
pub async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Answers the first request of every connection with these bytes, and closes.
pub async fn saying(bytes: &'static str) -> SocketAddr {
    listen(async move |mut stream: TcpStream| {
        head(&mut stream).await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
    })
    .await
}

/// A whole response.
pub fn response(body: impl Into<Bytes>) -> PassedResponse {
    Response::new(StreamedBody::new(
        Full::new(body.into()).map_err(|never| match never {}),
    ))
}
