//! The body of a response over HTTP/1, which notes in the connection's state while its parts are being sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::line::Usage;
use crate::reply::{BoxError, ReplyBody};

/// See the module.
pub(super) struct Sent {
    body: ReplyBody,
    /// Nothing for a body in one piece, which hyper has at once.
    _streams: Option<Streams>,
}

impl Sent {
    pub(super) fn new(body: ReplyBody, usage: &Arc<Usage>) -> Self {
        let in_parts = !matches!(body, ReplyBody::Full(_));
        Self {
            body,
            _streams: in_parts.then(|| Streams::begin(usage)),
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// As long as it lives, parts of a response are sent.
struct Streams(Arc<Usage>);

impl Streams {
    fn begin(usage: &Arc<Usage>) -> Self {
        usage.set_streams_response(true);
        Self(Arc::clone(usage))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.0.set_streams_response(false);
    }
}
