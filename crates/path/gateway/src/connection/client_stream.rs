//! The client's socket, as bytes. A client may close its direction of the connection after its request and still read the response
//! (RFC 9112 §9.6; `nc -N`). On the wire this looks the same as a client that has hung up. So hyper, which would cancel the request,
//! does not see this end between the head of a request and that of its response. If the response takes long, the client gets
//! `100 Continue`, which a waiting client ignores (RFC 9110 §15.2): the system of a client that is gone answers with RST, and then the
//! request is cancelled.
//!
//! hyper must see the end within a request's body. It reads ahead, so only the reader of the body knows whether the body is complete
//! (`request_body`). hyper sees the end, too, while a response is streamed: then nobody can ask the client.
//!
//! A client of HTTP/1.0 cannot be asked, because that version has no interim responses. It gets its response in any case.

use std::future::Future;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{io, net};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, StatusCode};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::frames::Frames;
use super::line::Usage;
use super::stream::Stream;

/// See the module.
pub(super) struct ClientStream {
    stream: Stream,
    /// Its first bytes, if they were read already, to find out which protocol it is.
    ahead: Bytes,
    usage: Arc<Usage>,
    /// Longest time from the first byte of a head to its end.
    head_time_max: Duration,
    /// The number of heads that were read when bytes last came, apart from those of a body: those bytes belong to the next head.
    bytes_after: Option<u32>,
    /// Created when a head first comes in more than one piece, and then reused.
    head_timer: Option<Pin<Box<Sleep>>>,
    /// The head that the timer runs for.
    timed: Option<u32>,
    /// Of HTTP/2.
    frames: Option<Frames>,
    /// Runs while the client's frames have come faster than they are read.
    frame_timer: Option<Pin<Box<Sleep>>>,
    /// After the end of the client's direction: resolves when the client is gone.
    gone: Option<Pin<Box<dyn Future<Output = io::Error> + Send>>>,
}

impl ClientStream {
    pub(super) fn new(
        stream: Stream,
        ahead: Bytes,
        usage: Arc<Usage>,
        head_time_max: Duration,
    ) -> Self {
        Self {
            stream,
            ahead,
            usage,
            head_time_max,
            bytes_after: None,
            head_timer: None,
            timed: None,
            frames: None,
            frame_timer: None,
            gone: None,
        }
    }

    /// The client speaks HTTP/2.
    pub(super) fn has_frames(&mut self) {
        self.frames = Some(Frames::new());
    }

    /// The number of the head that the client is sending.
    pub(super) fn current_head(&self) -> Option<u32> {
        if let Some(frames) = &self.frames {
            return frames.within();
        }
        let current = self.usage.requests();
        (self.bytes_after == Some(current) && self.usage.expects_head()).then_some(current)
    }

    /// Bytes have come.
    fn came(&mut self, bytes: &[u8]) {
        if self.bytes_after.is_none() && bytes.first() == Some(&TLS_HANDSHAKE) {
            self.usage.client_spoke_tls();
        }
        if !self.usage.expects_body() {
            self.bytes_after = Some(self.usage.requests());
        }
        if let Some(frames) = &mut self.frames {
            frames.read(bytes);
        }
    }

    /// Closes with RST instead of an orderly end when it is dropped.
    pub(super) fn reset_on_drop(&self) {
        self.stream.reset_on_drop();
    }

    /// Fails when a head has begun to arrive and is not complete in time. hyper's own limit includes the time before its first byte,
    /// so it is longer.
    fn poll_head_timer(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let current = self.current_head();
        if current.is_none() {
            self.timed = None;
            return Poll::Pending;
        }
        let due = || Instant::now() + self.head_time_max;
        let timer = self
            .head_timer
            .get_or_insert_with(|| Box::pin(sleep_until(due())));
        if self.timed != current {
            timer.as_mut().reset(due());
            self.timed = current;
        }
        ready!(timer.as_mut().poll(cx));
        self.usage.was_too_slow();
        Poll::Ready(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not finish the request's head",
        ))
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let (Some(frames), Poll::Ready(Ok(bytes))) = (&mut self.frames, &written) {
            frames.wrote(*bytes);
        }
        written
    }

    /// Ready when the client's next frames may be read.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(next) = self.frames.as_ref().and_then(Frames::next) else {
            self.frame_timer = None;
            return Poll::Ready(());
        };
        let timer = self
            .frame_timer
            .get_or_insert_with(|| Box::pin(sleep_until(next)));
        ready!(timer.as_mut().poll(cx));
        self.frame_timer = None;
        Poll::Ready(())
    }

    /// The bytes as they come. Nothing is read at the end.
    pub(super) fn poll_read_all(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let len = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..len]);
            self.ahead.advance(len);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gone.is_none() || this.usage.is_upgraded() {
            ready!(this.poll_pace(cx));
            let before = buf.filled().len();
            match this.poll_read_all(cx, buf) {
                Poll::Ready(result) => result?,
                Poll::Pending => return this.poll_head_timer(cx).map(Err),
            }
            if buf.filled().len() > before {
                this.came(&buf.filled()[before..]);
                return Poll::Ready(Ok(()));
            }
            if !this.usage.awaits_response() {
                // hyper closes at once when it sees the end, also before it has written everything.
                if this.usage.finishes_response() && !this.usage.must_show_end(cx) {
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(()));
            }
            let socket = this.stream.duplicate()?;
            this.usage.client_half_closed();
            this.gone = Some(match this.stream {
                Stream::Tcp(_) | Stream::Tls(_) => {
                    Box::pin(gone(socket.into(), Arc::clone(&this.usage)))
                }
                Stream::Unix(_) => Box::pin(hung_up(socket)),
            });
        }
        if this.usage.must_show_end(cx) {
            return Poll::Ready(Ok(()));
        }
        match &mut this.gone {
            Some(gone) => gone.as_mut().poll(cx).map(Err),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Waits for a while, asks, and returns when the client's system answers that the client is gone. `socket` is a duplicate.
async fn gone(socket: net::TcpStream, usage: Arc<Usage>) -> io::Error {
    tokio::time::sleep(ASK_AFTER).await;
    if usage.takes_interim() {
        usage
            .interim()
            .push(StatusCode::CONTINUE, &HeaderMap::new());
    }
    let socket = match TcpStream::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return error,
    };
    match socket.ready(Interest::ERROR).await {
        Ok(_) => io::ErrorKind::ConnectionReset.into(),
        Err(error) => error,
    }
}

/// Returns when the other end of a Unix socket is closed in both directions: the kernel says so, and nobody need be asked (unix(7)).
async fn hung_up(socket: OwnedFd) -> io::Error {
    loop {
        tokio::time::sleep(ASK_AFTER).await;
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return io::ErrorKind::ConnectionReset.into(),
            Err(error) => return error.into(),
        }
    }
}

/// The first byte of a TLS connection: the type of its first record (RFC 8446 §5.1). No request begins with it.
pub(super) const TLS_HANDSHAKE: u8 = 0x16;

/// How long after the end of its direction a client is asked whether it still waits. Most responses have begun by then.
const ASK_AFTER: Duration = Duration::from_millis(500);
