//! A client's stream whose unfinished message is counted: what is longer than [`FREE_LEN`] has its memory reserved from the function's
//! share before more is read. The reservation lasts as long as the connection, because the reader of messages keeps its buffer.
//!
//! Its frames are read at a pace ([`Frames`]).

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pilot_protocols::Reserved;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Sleep, sleep_until, timeout};

use super::frames::Frames;

/// See the module.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    reserved: Reserved,
    gauge: Arc<Gauge>,
    frames: Frames,
    /// Until the next frames may be read.
    rest: Option<Pin<Box<Sleep>>>,
}

/// What the reader of the messages knows.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    /// Bytes read since the last message was complete.
    unfinished: AtomicUsize,
    /// There was no memory for a message. The stream then reads as broken.
    refused: AtomicBool,
}

impl Gauge {
    /// A message is complete.
    pub(super) fn finished(&self) {
        self.unfinished.store(0, Ordering::Relaxed);
    }

    /// So many of the bytes were no part of a message.
    pub(super) fn between(&self, len: usize) {
        let left = |unfinished: usize| Some(unfinished.saturating_sub(len));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        // Never an error: there is always a new value.
        let _ = self.unfinished.fetch_update(set, fetch, left);
    }

    pub(super) fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, reserved: Reserved) -> (Self, Arc<Gauge>) {
        let gauge = Arc::<Gauge>::default();
        let metered = Self {
            stream,
            reserved,
            gauge: Arc::clone(&gauge),
            frames: Frames::default(),
            rest: None,
        };
        (metered, gauge)
    }

    /// Ready when the client's next frames may be read.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(next) = self.frames.next() else {
            self.rest = None;
            return Poll::Ready(());
        };
        let rest = self.rest.get_or_insert_with(|| Box::pin(sleep_until(next)));
        ready!(rest.as_mut().poll(cx));
        self.rest = None;
        Poll::Ready(())
    }

    /// Counts what was read.
    fn count(&mut self, len: usize) -> io::Result<()> {
        let unfinished = self.gauge.unfinished.fetch_add(len, Ordering::Relaxed) + len;
        if unfinished <= FREE_LEN {
            return Ok(());
        }
        // In steps, because a reservation takes a lock that all functions share.
        if self.reserved.try_grow_to(unfinished.next_multiple_of(STEP)) {
            return Ok(());
        }
        self.gauge.refused.store(true, Ordering::Relaxed);
        Err(io::Error::other(
            "the function's memory for messages is used up",
        ))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Metered<S> {
    /// Ends the connection for the client, and discards what it sends until it has ended it, too, for a limited time. The kernel answers a
    /// close with unread bytes by RST, and the client may lose what it was sent last (RFC 9112, section 9.6).
    pub(super) async fn discard(mut self) {
        self.reserved.clear();
        let discarding = async {
            self.stream.shutdown().await?;
            let mut scratch = [0; 4096];
            let mut left = DISCARDED_BYTES_MAX;
            while left > 0 {
                match self.stream.read(&mut scratch).await? {
                    0 => break,
                    len => left = left.saturating_sub(len),
                }
            }
            io::Result::Ok(())
        };
        // Its errors are the client's.
        let _ = timeout(DISCARDING_TIME_MAX, discarding).await;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_pace(cx));
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        this.frames.read(read);
        Poll::Ready(this.count(read.len()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Messages up to this length need no reservation: what tungstenite reads at a time.
const FREE_LEN: usize = 128 * 1024;

const STEP: usize = 256 * 1024;

/// As for requests that are refused while their bodies arrive.
const DISCARDED_BYTES_MAX: usize = 64 << 20;
const DISCARDING_TIME_MAX: Duration = Duration::from_secs(2);
