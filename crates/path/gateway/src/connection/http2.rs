//! A connection of HTTP/2. All of its requests run in the connection's task, as that of HTTP/1 does: dropping the task cancels them.
//!
//! What the client can make the daemon hold and do is limited:
//! - [`STREAMS_MAX`] requests at a time; each one beyond the first counts as a connection (`peers`);
//! - unread bodies: [`STREAM_WINDOW`] bytes per request;
//! - heads: [`HEAD_BYTES_MAX`], and h2 limits the number of CONTINUATION frames that bring it;
//! - responses that the client does not take: one piece is with h2 (`body`), the rest where it came from, and after a while the
//!   request is cancelled (`streams`);
//! - requests that the client cancels: after more than [`RESETS_FREE`] that were not answered, the connection is closed (rapid reset,
//!   CVE-2023-44487);
//! - a frame that does not end, and a connection without requests (`frames`, [`GatewayConfig::header_timeout`]).
//!
//! [`GatewayConfig::header_timeout`]: crate::GatewayConfig::header_timeout

mod body;
mod request;
mod streams;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

use self::body::Pieces;
use self::streams::{Progress, Streams};
use super::line::{Line, Scheme, Usage};
use super::opening::Opened;
use super::pace::Pace;
use super::socket::Socket;
use super::{DrainPhase, REQUEST_ON_THE_WAY};
use crate::dispatch;
use crate::errors::RequestError;
use crate::gate::Gate;
use crate::peers::{ConnectionPermit, Full, StreamPermit};
use crate::reply::{Reply, ReplyBody};

/// Serves it until either side closes it, or the daemon has drained it.
pub(super) async fn serve(
    gate: &Arc<Gate>,
    opened: Opened,
    peer: SocketAddr,
    usage: &Arc<Usage>,
    permit: &ConnectionPermit,
    mut phase: watch::Receiver<DrainPhase>,
) {
    let config = &gate.config;
    let socket = Socket::new(
        opened.stream,
        opened.ahead,
        Arc::clone(usage),
        config.head_time_max,
        Pace::new(config.read_pace, config.read_pace_wanted),
    )
    .with_frames();
    let scheme = opened.scheme;
    let mut streams = Streams::new(config.read_pace, config.read_pace_wanted);
    let entrance = streams.entrance();
    let service = service_fn(|request: Request<Incoming>| {
        usage.stream_began();
        let (progress, is_only_one) = entrance.begin();
        let room = match is_only_one {
            true => Ok(None),
            false => permit.another().map(Some),
        };
        let gate = Arc::clone(gate);
        async move {
            let answered = answer(&gate, request, peer, scheme, room, progress).await;
            Ok::<_, Infallible>(answered)
        }
    });
    let mut connection = pin!(
        http2::Builder::new(streams.entrance())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
            .max_header_list_size(HEAD_BYTES_MAX)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_WITHIN)
            .serve_connection(socket, service)
    );
    let mut idle = Idle::new(config.header_timeout);
    let mut closing = false;
    loop {
        let drains = phase.wait_for(DrainPhase::drains);
        let next = poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(Next::Ended(ended));
            }
            streams.poll(cx, usage.writes());
            if streams.has_too_many_resets() {
                return Poll::Ready(Next::Flooded);
            }
            idle.poll(cx, streams.is_empty()).map(|()| Next::Idle)
        });
        let next = tokio::select! {
            biased;
            next = next => next,
            _ = drains, if !closing => Next::Drains,
        };
        match next {
            Next::Ended(ended) => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended");
                }
                return;
            }
            Next::Flooded => {
                gate.refused.too_many_resets();
                tracing::debug!(%peer, "connection closed: the client cancels its requests");
                return;
            }
            // The client has been told, and had time to answer.
            Next::Idle if closing => return,
            Next::Idle | Next::Drains => {
                closing = true;
                connection.as_mut().graceful_shutdown();
                idle = Idle::new(REQUEST_ON_THE_WAY);
            }
        }
    }
}

/// What happens next on a connection.
enum Next {
    Ended(hyper::Result<()>),
    /// No request for too long.
    Idle,
    Drains,
    /// The client cancels too many requests.
    Flooded,
}

/// The time that a connection has had no request.
struct Idle {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    /// The timer runs.
    runs: bool,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            timer: Box::pin(sleep(limit)),
            runs: true,
        }
    }

    /// Resolves when the connection has had none for too long.
    fn poll(&mut self, cx: &mut Context<'_>, has_none: bool) -> Poll<()> {
        if !has_none {
            self.runs = false;
            return Poll::Pending;
        }
        if !self.runs {
            self.timer.as_mut().reset(Instant::now() + self.limit);
            self.runs = true;
        }
        self.timer.as_mut().poll(cx)
    }
}

async fn answer(
    gate: &Gate,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    scheme: Scheme,
    room: Result<Option<StreamPermit>, Full>,
    progress: Arc<Progress>,
) -> http::Response<Pieces> {
    let usage = Arc::clone(progress.usage());
    let is_head = request.method() == Method::HEAD;
    let line = Line::new(peer, scheme, usage);
    let reply = match (room, request::as_http1(&mut request)) {
        (Err(full), _) => {
            gate.refused.full(full);
            dispatch::refusal(RequestError::ConnectionsFull)
        }
        (_, Err(problem)) => dispatch::refusal(RequestError::Malformed {
            problem: problem.to_owned(),
        }),
        (Ok(room), Ok(())) => {
            progress.keep(room);
            dispatch::begin(&request, &line);
            dispatch::answer(gate, request, &line).await
        }
    };
    if line.usage().is_too_slow() {
        gate.refused.too_slow();
    }
    let reply = without_unwanted_body(reply, is_head);
    reply.map(|body| Pieces::new(body, progress))
}

/// hyper sends the body of any response over HTTP/2. Those to HEAD, and with some statuses, have none (RFC 9110 §6.4.1).
fn without_unwanted_body(mut reply: Reply, is_head: bool) -> Reply {
    let status = reply.status();
    if !is_head && status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        return reply;
    }
    let exact = http_body::Body::size_hint(reply.body()).exact();
    if let Some(length) = exact.filter(|length| is_head && *length > 0) {
        let length = http::HeaderValue::from(length);
        let headers = reply.headers_mut();
        headers
            .entry(crate::headers::CONTENT_LENGTH)
            .or_insert(length);
    }
    *reply.body_mut() = ReplyBody::empty();
    reply
}

/// Requests of one connection at a time. RFC 9113 §6.5.2 recommends no fewer.
const STREAMS_MAX: u32 = 100;
/// How much of a body one request may send before it is read, bytes.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The same for all requests of a connection. None has less because the bodies of others wait: a request that waits for a worker would stop
/// the one that has it (RFC 9113 §5.2.2). A proxy may have one connection for all its clients.
const CONNECTION_WINDOW: u32 = STREAMS_MAX * STREAM_WINDOW;
/// How much of a response is with h2 beyond the client's window, bytes.
const SEND_BUFFER_BYTES_MAX: usize = 32 * 1024;
/// Largest head, as RFC 9113 §6.5.2 counts its bytes.
const HEAD_BYTES_MAX: u32 = 32 * 1024;
/// How many requests a client may cancel, in addition to as many as were answered.
const RESETS_FREE: usize = 100;
/// How often a client is asked whether it is still there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);
