//! One connection to the function's server, driven by whoever uses it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use pilot_model::Instant;
use pilot_model::ports::StreamedBody;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection. It makes progress only while somebody drives it.
pub(super) struct Connection {
    sender: SendRequest<StreamedBody>,
    driver: Driver,
    heads: Arc<HeadBytes>,
    /// When it was last returned to the idle list.
    pub(super) kept_since: Instant,
}

/// The future that reads and writes. Boxed once per connection, so that it can move between its users.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// What became of a request.
#[derive(Debug)]
pub(super) enum Sent {
    /// The response's head has arrived. The connection carries its body; after status 101 the connection belongs to the
    /// upgrade.
    Answered(Response<Incoming>, Connection),
    /// Nothing was sent: the connection was already closed.
    Unused(Request<StreamedBody>, String),
    /// At least a part was sent, and the connection ended before a byte of a response came.
    Closed(String),
    /// At least a part was sent, and no response came.
    Lost(String),
    /// The request's body failed.
    BodyFailed,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) async fn new(stream: TcpStream) -> Result<Self, String> {
        stream
            .set_nodelay(true)
            .map_err(|error| format!("TCP_NODELAY: {error}"))?;
        let heads = Arc::new(HeadBytes::default());
        let stream = Bounded {
            stream,
            heads: Arc::clone(&heads),
        };
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(BUFFER_LEN)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self {
            sender,
            driver: Box::pin(driver.with_upgrades()),
            heads,
            kept_since: Instant(0),
        })
    }

    /// Sends a request and waits for the response's head.
    pub(super) async fn send(mut self, request: Request<StreamedBody>) -> Sent {
        if let Err(problem) = self.ready().await {
            return Sent::Unused(request, problem);
        }
        self.heads.begin();
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut over = false;
        let driver = &mut self.driver;
        let answered = poll_fn(|cx| {
            if !over && driver.as_mut().poll(cx).is_ready() {
                over = true;
            }
            match answer.as_mut().poll(cx) {
                // The connection is over, so no answer will come.
                Poll::Pending if over => Poll::Ready(None),
                answered => answered.map(Some),
            }
        })
        .await;
        let heads = self.heads.end();
        let lost = match heads {
            Heads::None => Sent::Closed,
            Heads::Some | Heads::TooLong => Sent::Lost,
        };
        match answered {
            _ if heads == Heads::TooLong => Sent::Lost(ENDLESS.to_owned()),
            None => lost(CLOSED.to_owned()),
            Some(Ok(response)) => {
                if response.status() == http::StatusCode::SWITCHING_PROTOCOLS && !over {
                    // The driver hands over the socket when it ends. Whoever takes the upgrade sees an error.
                    drop((&mut self.driver).await);
                }
                if over {
                    self.driver = Box::pin(std::future::ready(Ok(())));
                }
                Sent::Answered(response, self)
            }
            Some(Err(mut unsent)) => match unsent.take_message() {
                Some(request) => Sent::Unused(request, in_words(unsent.error())),
                None if unsent.error().is_user() => Sent::BodyFailed,
                None => lost(in_words(unsent.error())),
            },
        }
    }

    /// Waits until a request may be sent. Fails if the server has closed the connection.
    async fn ready(&mut self) -> Result<(), String> {
        poll_fn(|cx| {
            if self.drive(cx) == Driven::Over {
                return Poll::Ready(Err(CLOSED.to_owned()));
            }
            self.sender.poll_ready(cx).map_err(|error| in_words(&error))
        })
        .await
    }

    /// Reads and writes as much as possible without waiting.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> Driven {
        match self.driver.as_mut().poll(cx) {
            Poll::Pending => Driven::On,
            Poll::Ready(_) => {
                // A completed future must not be polled again.
                self.driver = Box::pin(std::future::ready(Ok(())));
                Driven::Over
            }
        }
    }

    /// After an exchange: whether the connection can carry another one.
    pub(super) fn is_free(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx) == Driven::On && self.sender.is_ready()
    }
}

/// The state of a connection after it was driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driven {
    /// It waits for its socket, or for its user.
    On,
    /// It is closed.
    Over,
}

/// hyper's error with its cause.
pub(super) fn in_words(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return CLOSED.to_owned();
    }
    if error.is_parse_too_large() {
        return format!(
            "the head of the response of the function's server has more than {HEADERS_MAX} headers or {} KiB",
            BUFFER_LEN >> 10
        );
    }
    match std::error::Error::source(error) {
        Some(source) => format!("the function's server: {error}: {source}"),
        None => format!("the function's server: {error}"),
    }
}

/// How much a server may send before the head of its response, that head included. Interim responses (RFC 9110, section 15.2) may
/// come without end, and each takes the daemon longer than the server.
#[derive(Debug)]
struct HeadBytes(AtomicUsize);

impl Default for HeadBytes {
    fn default() -> Self {
        Self(AtomicUsize::new(BODY))
    }
}

impl HeadBytes {
    /// A request is sent.
    fn begin(&self) {
        self.0.store(HEADS_LEN_MAX, Ordering::Relaxed);
    }

    /// The head has arrived, or none will.
    fn end(&self) -> Heads {
        match self.0.swap(BODY, Ordering::Relaxed) {
            HEADS_LEN_MAX => Heads::None,
            0 => Heads::TooLong,
            _ => Heads::Some,
        }
    }

    fn came(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Ordering::Relaxed);
        if left == BODY {
            return Ok(());
        }
        // Only the connection's own task counts.
        let left = left.saturating_sub(bytes);
        self.0.store(left, Ordering::Relaxed);
        match left {
            0 => Err(io::Error::other(ENDLESS)),
            _ => Ok(()),
        }
    }
}

/// What came of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heads {
    None,
    Some,
    TooLong,
}

/// Nothing is counted.
const BODY: usize = usize::MAX;
/// With what may come of the body before the head is noticed.
const HEADS_LEN_MAX: usize = 3 * BUFFER_LEN;
/// Headers of a response, as many as those of other interfaces may have. While hyper parses a head it takes 64 bytes for each,
/// which it gives back behind it.
const HEADERS_MAX: usize = 1000;
/// The memory of a connection for what it reads and writes.
const BUFFER_LEN: usize = 64 * 1024;

/// The socket.
struct Bounded {
    stream: TcpStream,
    heads: Arc<HeadBytes>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        Poll::Ready(read.and_then(|()| self.heads.came(buf.filled().len() - before)))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
}

const ENDLESS: &str = "the function's server sent too much before the head of its response";
const CLOSED: &str = "the function's server closed the connection before it answered";
