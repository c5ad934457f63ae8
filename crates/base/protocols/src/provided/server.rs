//! Accepts and runs the connections on the listener inside the worker's network. When the main process has ended, what it wrote
//! before is read before its callers are told. After a worker is released, its extensions (which may be separate processes) are
//! served until this future is dropped.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pilot_model::Seldom;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::api;
use super::socket::Socket;
use super::worksite::Worksite;
use crate::own_wakes::OwnWakes;

/// Serves the worker until it has ended, then closes its queue. Dropping the future closes every connection.
pub(super) async fn serve(site: Arc<Worksite>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    tokio::select! {
        _ = site.life.watch() => {}
        never = take_in(&site, &listener, &mut connections) => match never {},
    }
    if site.life.was_let_go() {
        site.queue.close();
        match take_in(&site, &listener, &mut connections).await {}
    }
    let drained = async {
        // Connections that are already established become visible when tokio next polls its sockets: that happens during this
        // yield.
        yield_now().await;
        while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
            connections.spawn(connection(Arc::clone(&site), stream));
        }
        while connections.join_next().await.is_some() {}
    };
    // Connections that are still open belong to other processes than the main one.
    drop(timeout(DRAIN_TIME_MAX, drained).await);
    site.queue.close();
}

/// Accepts connections and runs them forever.
async fn take_in(
    site: &Arc<Worksite>,
    listener: &TcpListener,
    connections: &mut JoinSet<()>,
) -> Infallible {
    let connections_max = site.version.config.concurrency as usize + CONNECTIONS_SPARE;
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < connections_max => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(Arc::clone(site), stream));
                }
                Err(error) => {
                    if let Some(left_out) = NOT_ACCEPTED.admit(Instant::now()) {
                        let function = &site.version.config.name;
                        tracing::warn!(worker = %site.id, %function, %error, left_out, "a worker's connection cannot be accepted");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(site: Arc<Worksite>, stream: TcpStream) {
    if let Some(own) = site.life.among_neighbours()
        && let Err(error) = own.check_client(&stream).await
    {
        // Closed without an answer. Not a warning: any process of the host's network can cause it.
        tracing::debug!(worker = %site.id, %error, "a connection to a worker's Runtime API is refused");
        return;
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(worker = %site.id, %error, "TCP_NODELAY");
    }
    let socket = Socket::new(stream);
    let service = service_fn(|request| {
        let (site, socket) = (Arc::clone(&site), socket.clone());
        async move { Ok::<_, Infallible>(api::answer(&site, &socket, request).await) }
    });
    let connection = http1::Builder::new()
        // As Lambda writes them: runtimes written as shell scripts search for this spelling.
        .title_case_headers(true)
        .auto_date_header(false)
        // A poll may wait without limit, and so may the pause before the next request.
        .header_read_timeout(None)
        .max_buf_size(BUFFER_LEN)
        // A client that posts its answer and exits is still served; polls check by themselves whether their client is there.
        .half_close(true)
        .serve_connection(TokioIo::new(socket.clone()), service);
    if let Err(error) = OwnWakes::new(connection, POLLS_MAX).await {
        tracing::debug!(worker = %site.id, %error, "a worker's connection broke");
    }
}

/// Connections beyond one per invocation: an answer may use another connection than its poll, and extensions have their own.
const CONNECTIONS_SPARE: usize = 32;

/// The memory of a connection for what it reads and writes: heads are no longer.
const BUFFER_LEN: usize = 64 * 1024;

/// How often a connection that wakes itself is polled in a row: once for each piece of a streamed answer that has arrived.
const POLLS_MAX: usize = 64;

/// Failed accepts that are logged per interval, of all workers.
static NOT_ACCEPTED: Seldom = Seldom::new(5);

/// Pause after a failed accept (for example out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What a dead process wrote is already in the socket's buffer, so reading it takes no time unless another process holds the
/// connection.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(50);
