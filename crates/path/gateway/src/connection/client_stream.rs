//! The client's socket, as bytes. A client may close its direction of the connection after its request and still read the response
//! (RFC 9112 §9.6; `nc -N`). On the wire this looks the same as a client that has hung up. So hyper, which would cancel the request,
//! does not see this end. If the response takes long, the client gets `100 Continue`, which a waiting client ignores
//! (RFC 9110 §15.2): the system of a client that is gone answers with RST, and then the request is cancelled.
//!
//! A client of HTTP/1.0 cannot be asked, because that version has no interim responses. It gets its response in any case.

use std::future::Future;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{io, net};

use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::line::Usage;

/// See the module.
pub(super) struct ClientStream {
    stream: TcpStream,
    usage: Arc<Usage>,
    /// After the end of the client's direction: resolves when the client is gone.
    gone: Option<Pin<Box<dyn Future<Output = io::Error> + Send>>>,
}

impl ClientStream {
    pub(super) fn new(stream: TcpStream, usage: Arc<Usage>) -> Self {
        Self {
            stream,
            usage,
            gone: None,
        }
    }

    /// Closes with RST instead of an orderly end when it is dropped.
    pub(super) fn reset_on_drop(&self) {
        // Fails only if the socket is already closed.
        let _ = self.stream.set_zero_linger();
    }

    /// The bytes as they come. Nothing is read at the end.
    pub(super) fn poll_read_all(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
            let before = buf.filled().len();
            ready!(this.poll_read_all(cx, buf))?;
            if buf.filled().len() > before || !this.usage.awaits_response() {
                return Poll::Ready(Ok(()));
            }
            let socket = this.stream.as_fd().try_clone_to_owned()?.into();
            this.usage.client_half_closed();
            this.gone = Some(Box::pin(gone(socket, Arc::clone(&this.usage))));
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
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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

/// How long after the end of its direction a client is asked whether it still waits. Most responses have begun by then.
const ASK_AFTER: Duration = Duration::from_millis(500);
