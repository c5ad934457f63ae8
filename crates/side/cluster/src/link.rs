//! The socket of a link, and the limits of HTTP/2 on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::life::Signs;

/// What a sender may send of one call before it is taken, bytes: 130 ms of 1 Gbit/s, so that neither the delay of a link nor a busy
/// CPU makes the sender wait.
pub(crate) const STREAM_WINDOW: u32 = 16 << 20;
/// The same for all calls of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 32 << 20;
/// What the other node may send of one answer before it is taken. Answers are short, and what waits is memory of this daemon.
pub(crate) const ANSWER_WINDOW: u32 = 2 << 20;
/// The same for all answers of a connection.
pub(crate) const ANSWERS_WINDOW: u32 = 8 << 20;
/// Bytes of a frame.
pub(crate) const FRAME_LEN_MAX: u32 = 256 << 10;
/// Bytes of a call's headers.
pub(crate) const HEADERS_LEN_MAX: u32 = 16 << 10;

/// The kernel gives the connection up if nothing is acknowledged for this time, also while nothing is sent (tcp(7)). It counts progress
/// and not the time of a round trip through full buffers. It does not notice a process that is stopped: `life` does.
pub(crate) fn prepare(socket: &TcpStream, silence_max: Duration) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let ms = u32::try_from(silence_max.as_millis()).unwrap_or(u32::MAX);
    setsockopt(socket, sockopt::TcpUserTimeout, &ms)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    let probe_s = u32::try_from(silence_max.as_secs() / PROBES).unwrap_or(u32::MAX);
    let probe_s = probe_s.clamp(1, PROBE_S_MAX);
    setsockopt(socket, sockopt::TcpKeepIdle, &probe_s)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &probe_s)?;
    Ok(())
}

/// A connection that lets other tasks run after each part of what comes. What comes is read by one task and taken by others: heads
/// and frames without data do not count in any window of HTTP/2, so a node that sends them without end would fill the memory, and
/// keep the thread.
#[derive(Debug)]
pub(crate) struct InTurns<S> {
    stream: S,
    /// Bytes since others could run.
    read: usize,
    /// What shows that the other node lives is noted here.
    signs: Option<Signs>,
    /// Whether a write had to wait for room, and whether a flush had to.
    write_waits: bool,
    flush_waits: bool,
}

impl<S> InTurns<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            read: 0,
            signs: None,
            write_waits: false,
            flush_waits: false,
        }
    }

    /// As [`InTurns::new`], and notes the signs of the other node.
    pub(crate) fn noting(stream: S, signs: Signs) -> Self {
        Self {
            signs: Some(signs),
            ..Self::new(stream)
        }
    }

    fn sign(&self) {
        if let Some(signs) = &self.signs {
            signs.sign();
        }
    }

    /// Notes a sign if what was written had to wait.
    fn wrote<T>(&mut self, written: Poll<T>) -> Poll<T> {
        let waited = std::mem::replace(&mut self.write_waits, written.is_pending());
        if waited && written.is_ready() {
            self.sign();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InTurns<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read >= TURN_BYTES_MAX {
            self.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buf) else {
            self.read = 0;
            return Poll::Pending;
        };
        let came = buf.filled().len() - before;
        if came > 0 {
            self.sign();
        }
        self.read += came;
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InTurns<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        let waited = std::mem::replace(&mut self.flush_waits, flushed.is_pending());
        if waited && flushed.is_ready() {
            self.sign();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// What is read before other tasks run, bytes.
const TURN_BYTES_MAX: usize = 128 << 10;
const PROBES: u64 = 3;
/// The kernel takes no more.
const PROBE_S_MAX: u32 = 32_767;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn other_tasks_run_after_each_part_of_what_comes() {
        let mut endless = InTurns::new(tokio::io::repeat(7));
        let mut part = vec![0; TURN_BYTES_MAX / 2];
        for _ in 0..3 {
            for _ in 0..2 {
                let read = endless.read_exact(&mut part).now_or_never();
                assert_eq!(read.unwrap().unwrap(), part.len());
            }
            assert!(endless.read_exact(&mut part).now_or_never().is_none());
        }
    }
}
