//! An upgraded connection, joined to the connection of the function's server. It copies bytes in both directions until both sides
//! have closed, one side fails, or there is no traffic for too long. It runs in its connection's task, so a drain waits for it and
//! closes it like any request.
//!
//! A close affects only one direction. The other direction stays open until it is closed, too (tcp(7)'s half-close).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use pilot_invoke::{TunnelEnd, TunnelTraffic};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};

/// Two connections to be joined.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// The client's connection. Available after the head of the 101 response is sent.
    client: OnUpgrade,
    server: OnUpgrade,
    invocation: pilot_invoke::Tunnel,
}

impl Tunnel {
    pub(crate) fn new(
        client: OnUpgrade,
        server: OnUpgrade,
        invocation: pilot_invoke::Tunnel,
    ) -> Self {
        Self {
            client,
            server,
            invocation,
        }
    }

    /// Copies bytes until the end. Dropping the future closes the tunnel.
    ///
    /// `idle_max`: longest time without traffic; at most [`HALF_CLOSED_MAX`] after one side has closed.
    pub(crate) async fn run(self, idle_max: Duration) {
        let Self {
            client,
            server,
            invocation,
        } = self;
        let traffic = Arc::clone(invocation.traffic());
        let half_closed = AtomicBool::new(false);
        let end = tokio::select! {
            end = join(client, server, &traffic, &half_closed) => end,
            after = silence(&traffic, &half_closed, idle_max) => TunnelEnd::Silent(after),
        };
        invocation.end(end);
    }
}

async fn join(
    client: OnUpgrade,
    server: OnUpgrade,
    traffic: &TunnelTraffic,
    half_closed: &AtomicBool,
) -> TunnelEnd {
    let Ok((client, server)) = tokio::try_join!(client, server) else {
        return TunnelEnd::Broken;
    };
    let mut client = Side::new(client, &traffic.bytes_in, half_closed);
    let mut server = Side::new(server, &traffic.bytes_out, half_closed);
    match copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_LEN, BUFFER_LEN).await {
        Ok(_) => TunnelEnd::Closed,
        Err(_) => TunnelEnd::Broken,
    }
}

/// Resolves after too long a time without traffic, with the precision of a tick, because traffic does not reset a timer.
async fn silence(
    traffic: &TunnelTraffic,
    half_closed: &AtomicBool,
    idle_max: Duration,
) -> Duration {
    let tick = idle_max.min(HALF_CLOSED_MAX) / TICKS;
    let mut silent = Duration::ZERO;
    let mut known = (0, 0, false);
    loop {
        tokio::time::sleep(tick).await;
        let passed = (
            traffic.bytes_in.load(Ordering::Relaxed),
            traffic.bytes_out.load(Ordering::Relaxed),
            half_closed.load(Ordering::Relaxed),
        );
        silent = if passed == known {
            silent + tick
        } else {
            Duration::ZERO
        };
        known = passed;
        let max = match passed {
            (_, _, true) => idle_max.min(HALF_CLOSED_MAX),
            (_, _, false) => idle_max,
        };
        if silent >= max {
            return silent;
        }
    }
}

/// One side of a tunnel, which counts its bytes.
struct Side<'a> {
    io: TokioIo<Upgraded>,
    said: &'a AtomicU64,
    closed: &'a AtomicBool,
}

impl<'a> Side<'a> {
    fn new(io: Upgraded, said: &'a AtomicU64, closed: &'a AtomicBool) -> Self {
        Self {
            io: TokioIo::new(io),
            said,
            closed,
        }
    }
}

impl AsyncRead for Side<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = read {
            match buf.filled().len() - before {
                0 => self.closed.store(true, Ordering::Relaxed),
                said => {
                    self.said.fetch_add(said as u64, Ordering::Relaxed);
                }
            }
        }
        read
    }
}

impl AsyncWrite for Side<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Longest time without traffic after one side has closed: the other side knows of it.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(30);

/// How often the traffic is checked within the longest time without traffic.
const TICKS: u32 = 3;

/// Each direction's buffer.
const BUFFER_LEN: usize = 16 * 1024;
