//! A client's connection for hyper, with four features that hyper does not have:
//! - The connection of a client that does not read its response, or too slowly, is closed after a while ([`pace`](super::pace)).
//! - A connection that closes while the client still sends lingers for a moment, as with nginx's `lingering_close`. If the kernel
//!   has unread bytes in its buffer, it answers a close with RST, and the client may lose the response (tcp(7), RFC 9112 §9.6).
//! - An interrupted HTTP/1.0 response ends with RST, because an orderly close would mean that it is complete (RFC 9112 §6.3).
//! - Interim responses are written before the final one (`interim`).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::client_stream::ClientStream;
use super::line::Usage;
use super::pace::Pace;
use super::stream::Stream;

/// See the module.
pub(super) struct Socket {
    io: TokioIo<ClientStream>,
    usage: Arc<Usage>,
    pace: Pace,
    linger: Option<Linger>,
}

/// The end of a connection: our side is closed, and incoming bytes are discarded.
struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Socket {
    /// `ahead`: bytes that were read already. `head_time_max`: the longest time from the first byte of a head to its end. `pace`:
    /// how fast the client must read.
    pub(super) fn new(
        stream: Stream,
        ahead: Bytes,
        usage: Arc<Usage>,
        head_time_max: Duration,
        pace: Pace,
    ) -> Self {
        let stream = ClientStream::new(stream, ahead, Arc::clone(&usage), head_time_max);
        Self {
            io: TokioIo::new(stream),
            usage,
            pace,
            linger: None,
        }
    }

    /// The client speaks HTTP/2.
    pub(super) fn with_frames(mut self) -> Self {
        self.io.inner_mut().has_frames();
        self
    }

    /// Returns the result of a write, or an error if it has waited too long.
    fn patient(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = written {
            self.pace.took(*result.as_ref().unwrap_or(&0));
            return Poll::Ready(result);
        }
        ready!(self.pace.poll_too_slow(cx, &self.usage));
        self.usage.was_too_slow();
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not take its response",
        )))
    }

    /// Writes the interim responses that wait.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.usage.interim().is_empty() {
            return Poll::Ready(Ok(()));
        }
        let written = self.usage.interim().poll_write_to(cx, self.io.inner_mut());
        self.patient(cx, written.map_ok(|()| 0)).map_ok(drop)
    }

    /// Discards incoming bytes until the client closes the connection, or a limit of time or bytes is reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Linger {
            until: Box::pin(tokio::time::sleep(LINGER)),
            bytes_left: LINGER_BYTES,
        });
        let mut scratch = [0; 4096];
        while linger.bytes_left > 0 {
            let mut buffer = ReadBuf::new(&mut scratch);
            match self.io.inner_mut().poll_read_all(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    linger.bytes_left = linger.bytes_left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return linger.until.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_pending() {
            self.usage.nothing_follows();
        }
        read
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(cx))?;
        self.usage.interim().hyper_writes(true);
        self.usage.set_writes(true);
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.patient(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(cx))?;
        self.usage.interim().hyper_writes(true);
        self.usage.set_writes(true);
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.patient(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes when it has written everything.
        self.usage.interim().hyper_writes(false);
        ready!(self.poll_interim(cx))?;
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_ready() {
            self.usage.set_writes(false);
        }
        self.patient(cx, flushed.map_ok(|()| 0)).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let shut = Pin::new(&mut self.io).poll_shutdown(cx);
            let shut = ready!(self.patient(cx, shut.map_ok(|()| 0)));
            let still_sends = self.usage.must_linger() || self.io.inner().current_head().is_some();
            if shut.is_err() || !still_sends {
                return Poll::Ready(shut.map(drop));
            }
        }
        self.poll_linger(cx).map(Ok)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.usage.must_reset() {
            self.io.inner().reset_on_drop();
        }
    }
}

/// The limits of discarded bytes: their time and their number.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
