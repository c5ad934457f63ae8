//! The listener inside the worker's network: accepts, and runs a connection until it ends. When the main process has ended,
//! what it wrote last is read before its callers are told. Of a worker that was let go its extensions are served on, which may be
//! processes of their own, until whoever ends it drops this.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::socket::Socket;
use super::{Worksite, api};

/// Serves the worker until it has ended, and then closes its queue. Dropping the future closes every connection.
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
        // The runtime hears of a connection when it next looks at its sockets, which is while this yields.
        yield_now().await;
        while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
            connections.spawn(connection(Arc::clone(&site), stream));
        }
        while connections.join_next().await.is_some() {}
    };
    // What is still open after that belongs to others than the main process.
    drop(timeout(DRAIN_TIME_MAX, drained).await);
    site.queue.close();
}

/// Accepts connections and runs them, for ever.
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
                    tracing::warn!(worker = %site.id, %error, "a worker's connection cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(site: Arc<Worksite>, stream: TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(worker = %site.id, %error, "TCP_NODELAY");
    }
    let socket = Socket::new(stream);
    let service = service_fn(|request| {
        let (site, socket) = (Arc::clone(&site), socket.clone());
        async move { Ok::<_, Infallible>(api::answer(&site, &socket, request).await) }
    });
    let served = http1::Builder::new()
        // As Lambda writes them: runtimes made of shell scripts look for them so.
        .title_case_headers(true)
        .auto_date_header(false)
        // A poll may take for ever, and so may the pause before the next one.
        .header_read_timeout(None)
        // Who posts its answer and exits is heard; polls look for themselves whether anybody is there.
        .half_close(true)
        .serve_connection(TokioIo::new(socket.clone()), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(worker = %site.id, %error, "a worker's connection broke");
    }
}

/// Connections beyond one per invocation: an answer may come on another one than its poll, and extensions have theirs.
const CONNECTIONS_SPARE: usize = 32;

/// Before the next try, when a connection could not be accepted (for want of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What a dead process wrote is there already: reading it takes no time, unless somebody else has its connections.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(50);
