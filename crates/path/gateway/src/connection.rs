//! One connection, from its first byte to its close: hyper's HTTP/1.1 over our socket, a tunnel if it is upgraded, and what a
//! drain means for it.

mod socket;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Version;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::Gate;
use crate::request_context;
use crate::tunnel::Tunnel;
use socket::Socket;

/// What the daemon is at, as connections need to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Serving.
    Open,
    /// Finishing what has begun.
    Draining,
}

/// What has become of a connection so far. Shared by the side that serves requests and the side that closes the socket; both
/// run in the connection's task, so that nothing but the compiler asks for the atomics.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: AtomicBool,
    body_unread: AtomicBool,
    ends_by_closing: AtomicBool,
    broke_off: AtomicBool,
    upgraded: AtomicBool,
}

impl Usage {
    /// A request's head was read.
    pub(crate) fn request_began(&self, version: Version, has_body: bool) {
        self.used.store(true, Ordering::Relaxed);
        self.body_unread.store(has_body, Ordering::Relaxed);
        self.ends_by_closing
            .store(version < Version::HTTP_11, Ordering::Relaxed);
    }

    /// Its body was read to the end.
    pub(crate) fn body_was_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// A response's body failed in the middle.
    fn response_broke_off(&self) {
        self.broke_off.store(true, Ordering::Relaxed);
    }

    /// Whether an orderly close would make half a response look whole: HTTP/1.0 knows no other end of a stream.
    fn must_reset(&self) -> bool {
        self.broke_off.load(Ordering::Relaxed) && self.ends_by_closing.load(Ordering::Relaxed)
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether the client may still be sending when the connection closes: the body of its last request, or a first request so
    /// malformed that it never came to an answer of ours.
    fn must_linger(&self) -> bool {
        // What comes through a tunnel is its server's to read.
        !self.upgraded.load(Ordering::Relaxed)
            && (self.body_unread.load(Ordering::Relaxed) || !self.is_used())
    }
}

/// A connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Line {
    peer: SocketAddr,
    usage: Arc<Usage>,
    /// What the connection becomes once it has said so. Not in `usage`: that is shared with the socket, which the tunnel holds.
    tunnel: Mutex<Option<Tunnel>>,
}

impl Line {
    /// Who is at the other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// With the response that is under way HTTP ends here.
    pub(crate) fn becomes(&self, tunnel: Tunnel) {
        self.usage.upgraded.store(true, Ordering::Relaxed);
        *self.slot() = Some(tunnel);
    }

    fn take_tunnel(&self) -> Option<Tunnel> {
        self.slot().take()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Tunnel>> {
        // Nothing panics while it is held: only a tunnel is moved in or out.
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one connection until either side closes it, as a tunnel too. Dropping the future cancels what runs in it.
pub(crate) async fn serve(
    gate: Arc<Gate>,
    stream: TcpStream,
    peer: SocketAddr,
    phase: watch::Receiver<Phase>,
) {
    let line = Line {
        peer,
        usage: Arc::default(),
        tunnel: Mutex::default(),
    };
    serve_http(&gate, stream, &line, phase).await;
    if let Some(tunnel) = line.take_tunnel() {
        tunnel.run(gate.config.tunnel_idle).await;
    }
}

/// Until the connection ends, or ends to be HTTP's.
async fn serve_http(
    gate: &Gate,
    stream: TcpStream,
    line: &Line,
    mut phase: watch::Receiver<Phase>,
) {
    let (peer, usage) = (line.peer, &line.usage);
    let socket = Socket::new(stream, usage.clone(), gate.config.write_timeout);
    let service = service_fn(|request| {
        let answer = request_context::answer(gate, request, line);
        async { Ok::<_, Infallible>(answer.await) }
    });
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
        // An error means that the listener is gone, which is the same.
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            if !usage.is_used() {
                // Connected and silent so far: hyper would wait for the first request.
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

/// How long a drain leaves a connection that has not asked for anything.
const FIRST_REQUEST: Duration = Duration::from_millis(250);
