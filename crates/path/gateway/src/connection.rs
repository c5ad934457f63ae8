//! One connection, from its first byte to its close: the TLS handshake (`opening`), hyper's HTTP/1.1 over our socket, a tunnel if it is
//! upgraded, and its drain. HTTP/2 is in `http2`.

mod client_stream;
mod frames;
mod http2;
mod interim;
pub(crate) mod line;
mod opening;
pub(crate) mod pace;
mod sent;
mod socket;
pub(crate) mod stream;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use pilot_protocols::OwnWakes;
use tokio::sync::watch;

use self::line::{Line, Scheme, Usage};
use self::opening::Opened;
use self::pace::Pace;
use self::sent::Sent;
use self::socket::Socket;
use self::stream::Stream;
use crate::dispatch;
use crate::gate::Gate;
use crate::listener::{Serves, Transport};
use crate::peers::ConnectionPermit;

/// Whether the daemon drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainPhase {
    /// Serving.
    Open,
    /// The daemon finishes the running requests.
    Draining,
    /// What still runs is cut off soon. WebSockets are closed properly.
    Ending,
}

impl DrainPhase {
    pub(crate) fn drains(&self) -> bool {
        *self != Self::Open
    }
}

/// Serves one connection, also as a tunnel, until either side closes it. Dropping the future cancels its requests.
pub(crate) async fn serve(
    gate: Arc<Gate>,
    stream: Stream,
    peer: SocketAddr,
    usage: Arc<Usage>,
    permit: &ConnectionPermit,
    mut phase: watch::Receiver<DrainPhase>,
) {
    let opened = match gate.door.transport {
        Transport::Plain => Opened {
            stream,
            ahead: Bytes::new(),
            scheme: Scheme::Http,
            is_http2: false,
        },
        Transport::PlainWithHttp2 | Transport::Tls(_) => {
            let opened = tokio::select! {
                biased;
                opened = Box::pin(opening::open(&gate, stream, peer, &usage)) => opened,
                () = drained(&mut phase) => return,
            };
            match opened {
                Some(opened) => opened,
                None => {
                    if usage.is_too_slow() {
                        gate.refused.too_slow();
                    }
                    return;
                }
            }
        }
    };
    if opened.is_http2 {
        usage.is_http2();
        Box::pin(http2::serve(&gate, opened, peer, &usage, permit, phase)).await;
        if usage.is_too_slow() {
            gate.refused.too_slow();
        }
        return;
    }
    let line = Line::new(peer, opened.scheme, usage);
    let mut ending = phase.clone();
    serve_http1(&gate, opened.stream, opened.ahead, &line, phase).await;
    if line.usage().is_too_slow() {
        gate.refused.too_slow();
    }
    if line.usage().has_spoken_tls() {
        opening::tell_of_tls(peer);
    }
    if let Some(upgraded) = line.take_upgraded() {
        let ending = async {
            let _ = ending.wait_for(|phase| *phase == DrainPhase::Ending).await;
        };
        upgraded.run(gate.config.tunnel_idle, ending).await;
    }
}

/// Resolves when the daemon drains and a connection has had time for its first request.
async fn drained(phase: &mut watch::Receiver<DrainPhase>) {
    // An error means that the listener is closed, which is the same.
    let _ = phase.wait_for(DrainPhase::drains).await;
    tokio::time::sleep(REQUEST_ON_THE_WAY).await;
}

/// Serves HTTP/1 until the connection ends or is upgraded.
async fn serve_http1(
    gate: &Gate,
    stream: Stream,
    ahead: Bytes,
    line: &Line,
    mut phase: watch::Receiver<DrainPhase>,
) {
    let (peer, usage) = (line.peer(), line.usage());
    let socket = Socket::new(
        stream,
        ahead,
        usage.clone(),
        gate.config.head_time_max,
        Pace::new(gate.config.read_pace, gate.config.read_pace_wanted),
    );
    // Not an async block: it would be twice as large as the future in it, and hyper moves it for every request.
    let drains = phase.clone();
    let service = service_fn(|request: Request<Incoming>| {
        dispatch::begin(&request, line);
        dispatch::answer(gate, request, line).map(|mut response| {
            // So that the client sends no further request on a connection that will be closed.
            let is_last = drains.borrow().drains();
            if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            let connection = response.headers().get(CONNECTION);
            if line.usage().is_http_1_0() && connection.is_some_and(|value| value == "close") {
                // hyper adds `keep-alive` to a response of HTTP/1.1 if the client wants it.
                *response.version_mut() = Version::HTTP_10;
            }
            Ok::<_, Infallible>(response.map(|body| Sent::new(body, line.usage())))
        })
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(gate.config.header_timeout)
        // hyper answers a larger one with 431.
        .max_header_size(HEAD_BYTES_MAX)
        .serve_connection(socket, service)
        .with_upgrades();
    let mut connection = pin!(OwnWakes::new(connection, POLLS_MAX));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        // An error means that the listener is closed, which is the same.
        _ = phase.wait_for(DrainPhase::drains) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            // Followers of logs whose terminal is stopped, for example. Callers at the address for functions have the whole grace period.
            if gate.door.serves == Serves::Control {
                usage.is_not_waited_for();
            }
            // The client of a kept connection may be sending its next request just now, and one that has just connected its first. It
            // gets an answer. (hyper's shutdown closes a connection without a request at once, so it comes afterwards.) An answer that
            // is under way can end just before the look at it.
            let mut rested = !usage.is_answering();
            loop {
                match tokio::time::timeout(REQUEST_ON_THE_WAY, connection.as_mut()).await {
                    Ok(ended) => break ended,
                    Err(_) if !usage.is_used() => return,
                    // The head of a stream may have been sent before the drain, and did not say that the connection closes. So its
                    // client has the same time afterwards.
                    Err(_) if usage.is_answering() => rested = false,
                    Err(_) if !rested => rested = true,
                    Err(_) => {
                        connection.as_mut().inner().graceful_shutdown();
                        break connection.await;
                    }
                }
            }
        }
    };
    if let Err(error) = ended {
        if error.is_user() {
            usage.response_broke_off();
        }
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// Largest head of a request of HTTP/1, and largest trailers. A worker gets the head as JSON in one frame, which carries 256 KiB of it
/// (`META_LEN_MAX` of `pilot_wire`), and JSON needs two bytes for a quotation mark or for a byte beyond ASCII.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long a drain waits for a request that may be on its way: the next one of a kept connection, or the first one of a
/// connection. As long as [`crate::peers`] waits where connections are short: on a busy machine or a slow line a request takes its
/// time.
const REQUEST_ON_THE_WAY: Duration = Duration::from_secs(1);

/// How often a connection that wakes itself is polled in a row. A request with a body that came with its head needs three.
const POLLS_MAX: usize = 4;
