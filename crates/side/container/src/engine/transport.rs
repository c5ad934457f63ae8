//! How calls reach the engine: one connection each, on which only so much may come. What a function does can make an answer long: the
//! changes of a container's layer have a line for each of its files.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as Cause;
use bollard::{BollardRequest, Docker};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Response, body::Body};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use pilot_dial::Capped;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::address::Address;

/// A client of the engine at this address. It connects when it is used.
///
/// # Errors
/// The library's, if it cannot make a client.
pub(super) fn client(address: &Address, time_max: Duration) -> Result<Docker, Cause> {
    let socket = address.socket().to_owned();
    let connections = Connections::default();
    let transport = move |request: BollardRequest| {
        let (socket, connections) = (socket.clone(), connections.clone());
        async move { send(&socket, request, &connections).await }
    };
    Docker::connect_with_custom_transport(
        transport,
        Some("http://engine"),
        time_max.as_secs(),
        bollard::API_DEFAULT_VERSION,
    )
}

/// Whether an answer was longer than it may be.
pub(super) fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut inner = Some(error);
    while let Some(error) = inner {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData) {
            return true;
        }
        inner = error.source();
    }
    false
}

/// The open ones. They end with their calls, or with the client.
#[derive(Debug, Clone, Default)]
struct Connections(Arc<Mutex<JoinSet<()>>>);

async fn send<B>(
    socket: &str,
    mut request: hyper::Request<B>,
    connections: &Connections,
) -> Result<Response<Incoming>, Cause>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Cause::SocketNotFoundError(socket.to_owned()),
        _ => Cause::from(error),
    })?;
    let stream = Capped::new(stream, ANSWER_BYTES_MAX, TOO_LONG);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    {
        let mut open = connections.0.lock();
        while open.try_join_next().is_some() {}
        // Its error is the call's.
        open.spawn(async move { drop(connection.await) });
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    Ok(sender.send_request(request).await?)
}

/// What may come on a connection, bytes. An ordinary answer has some kilobytes. Events beyond it come on the next connection.
const ANSWER_BYTES_MAX: usize = 4 << 20;
const TOO_LONG: &str = "the answer is longer than 4 MB";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;
    use crate::engine::{Engine, EngineError};

    /// An engine that says this and then more and more of `then`.
    fn engine(folder: &std::path::Path, says: &'static str, then: &'static str) -> Engine {
        let socket = folder.join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    let len = stream.read(&mut request).await.unwrap_or(0);
                    let version =
                        b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{\"ApiVersion\":\"1.43\"}";
                    if request[..len].windows(8).any(|bytes| bytes == b"/version") {
                        let _ = stream.write_all(version).await;
                        return;
                    }
                    let _ = stream.write_all(says.as_bytes()).await;
                    while !then.is_empty() && stream.write_all(then.as_bytes()).await.is_ok() {}
                    // The client ends the connection.
                    let _ = stream.read(&mut request).await;
                });
            }
        });
        Engine::new(Address::parse(&format!("unix://{}", socket.display())).map_err(Into::into))
    }

    #[tokio::test]
    async fn an_answer_without_end_is_an_error() {
        for says in [
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n[",
            "HTTP/1.1 200 OK\r\n\r\n[",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let engine = engine(folder.path(), says, "{\"Path\":\"/a\",\"Kind\":1},");
            let error = engine.changes("c").await.unwrap_err();
            assert!(
                matches!(&error, EngineError::Other { .. })
                    && error.to_string().contains("longer than 4 MB"),
                "{error:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_come_ends_the_call() {
        let folder = tempfile::tempdir().unwrap();
        let says = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[";
        let engine = engine(folder.path(), says, "");
        for _ in 0..20 {
            let error = engine.changes("c").await.unwrap_err();
            assert!(matches!(error, EngineError::TooSlow { .. }), "{error:?}");
        }
    }
}
