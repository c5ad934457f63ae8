//! One connection, from its first byte to its close: hyper's HTTP/1.1 over our socket, a tunnel if it is upgraded, and its drain.

mod client_stream;
mod interim;
pub(crate) mod line;
mod socket;
pub(crate) mod stream;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::sync::watch;

use self::line::{Line, Usage};
use self::socket::Socket;
use self::stream::Stream;
use crate::dispatch;
use crate::gate::Gate;

/// Whether the daemon drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainPhase {
    /// Serving.
    Open,
    /// The daemon finishes the running requests.
    Draining,
}

/// Serves one connection, also as a tunnel, until either side closes it. Dropping the future cancels its request.
pub(crate) async fn serve(
    gate: Arc<Gate>,
    stream: Stream,
    peer: SocketAddr,
    usage: Arc<Usage>,
    phase: watch::Receiver<DrainPhase>,
) {
    let line = Line::new(peer, usage);
    serve_http(&gate, stream, &line, phase).await;
    if line.usage().is_too_slow() {
        gate.refused.too_slow();
    }
    if let Some(upgraded) = line.take_upgraded() {
        upgraded.run(gate.config.tunnel_idle).await;
    }
}

/// Serves HTTP until the connection ends or is upgraded.
async fn serve_http(
    gate: &Gate,
    stream: Stream,
    line: &Line,
    mut phase: watch::Receiver<DrainPhase>,
) {
    let (peer, usage) = (line.peer(), line.usage());
    let socket = Socket::new(
        stream,
        usage.clone(),
        gate.config.head_time_max,
        gate.config.write_timeout,
    );
    // Not an async block: it would be twice as large as the future in it, and hyper moves it for every request.
    let service =
        service_fn(|request| dispatch::answer(gate, request, line).map(Ok::<_, Infallible>));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(gate.config.header_timeout)
            .serve_connection(socket, service)
            .with_upgrades()
    );
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        // An error means that the listener is closed, which is the same.
        _ = phase.wait_for(|phase| *phase == DrainPhase::Draining) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            if !usage.is_used() {
                // No request so far: hyper would wait for the first one.
                let first = tokio::time::timeout(FIRST_REQUEST, connection.as_mut()).await;
                if first.is_ok() || !usage.is_used() {
                    return;
                }
            }
            connection.await
        }
    };
    if let Err(error) = ended {
        if error.is_user() {
            usage.response_broke_off();
        }
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// How long a drain waits for the first request of a connection.
const FIRST_REQUEST: Duration = Duration::from_millis(250);
