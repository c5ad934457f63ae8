//! The body of a response: in one piece, streamed from an application or from a function's server, or from the control side. It is
//! one type, so that the response of a warm invocation is neither boxed nor copied.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use pilot_invoke::{HttpBody, PassedBody};

/// A response.
pub(crate) type Reply = http::Response<ReplyBody>;

/// The error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a control response. An `axum::body::Body` becomes one by `UnsyncBoxBody::new(body.map_err(Into::into))`.
pub type ControlBody = UnsyncBoxBody<Bytes, BoxError>;

/// The body of any response.
pub(crate) enum ReplyBody {
    /// In one piece.
    Full(Bytes),
    /// A streamed response of a function's own server.
    Passed {
        /// The body.
        body: PassedBody,
        /// Why it was interrupted; returned at the next poll.
        broke: Option<BoxError>,
    },
    /// Streamed part by part.
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>),
    /// From the control side.
    Control(ControlBody),
}

impl ReplyBody {
    /// An empty body.
    pub(crate) fn empty() -> Self {
        Self::Full(Bytes::new())
    }

    /// The body of a response of a function's own server. Its failure closes the connection, too.
    pub(crate) fn passed(body: PassedBody) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self::Passed { body, broke: None }
    }

    /// Streamed part by part.
    pub(crate) fn stream(
        parts: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    ) -> Self {
        Self::Stream(Box::pin(parts))
    }

    /// An application's body. Its failure closes the connection, which is how HTTP/1.1 marks an incomplete body. What came before is
    /// sent first.
    pub(crate) fn application(body: HttpBody) -> Self {
        if let Some(whole) = body.complete() {
            return Self::Full(whole.clone());
        }
        Self::stream(futures_util::stream::unfold(body, |mut body| async {
            let part = body.next().await?;
            if part.is_err() {
                // hyper flushes its buffer, at least the head, when the body is not ready. So it is not ready once.
                tokio::task::yield_now().await;
            }
            Some((part.map_err(Into::into), body))
        }))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Passed { body, broke } => {
                if let Some(error) = broke.take() {
                    return Poll::Ready(Some(Err(error)));
                }
                match ready!(Pin::new(body).poll_frame(cx)) {
                    Some(Err(error)) => {
                        // As for an application's body: what came before is sent first.
                        *broke = Some(error.into());
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                    part => Poll::Ready(part.map(|part| part.map_err(Into::into))),
                }
            }
            Self::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|part| part.map(|part| part.map(Frame::data))),
            Self::Control(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_empty(),
            Self::Passed { body, broke } => broke.is_none() && body.is_end_stream(),
            Self::Stream(_) => false,
            Self::Control(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Passed { body, .. } => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
            Self::Control(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for ReplyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(bytes) => f.debug_tuple("Full").field(&bytes.len()).finish(),
            Self::Passed { .. } => f.write_str("Passed"),
            Self::Stream(_) => f.write_str("Stream"),
            Self::Control(_) => f.write_str("Control"),
        }
    }
}
