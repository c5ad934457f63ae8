//! A response that the runtime posts in parts (`Lambda-Runtime-Function-Response-Mode: streaming`), read by whoever waits for
//! it: what nobody asks for is not read from the socket.

use std::future::poll_fn;
use std::pin::Pin;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body;
use hyper::body::Incoming;
use pilot_model::ports::HttpHead;
use tokio::sync::oneshot;

use super::prelude::{self, Prelude, PreludeError};
use super::queue::Times;
use crate::error_body::as_error_body;

/// A response under way.
#[derive(Debug)]
pub(super) struct Streamed {
    pub(super) times: Times,
    body: Incoming,
    /// As the runtime named it.
    content_type: String,
    /// Answers the runtime's request. Dropped before: whoever waited has gone away.
    over: Option<oneshot::Sender<Over>>,
}

/// How a streamed response ended, for the one who posted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// It was taken to its end.
    Taken,
    /// Its beginning was not what the content type says.
    Invalid,
}

/// What comes of a body.
#[derive(Debug)]
pub(super) enum Piece {
    /// More of it, not empty.
    More(Bytes),
    /// The last of it, may be empty.
    Last(Bytes),
    /// The function raised: Lambda's error body.
    Raised(Bytes),
    /// The connection broke.
    Broken,
}

/// How a response begins.
#[derive(Debug)]
pub(super) enum Beginning {
    /// With this head; the piece came along.
    Head(HttpHead, Piece),
    /// With something that is no prelude.
    Invalid(PreludeError),
    /// It raised before it said anything.
    Raised(Bytes),
    /// It broke off before it said anything.
    Broken,
}

impl Streamed {
    pub(super) fn new(
        times: Times,
        body: Incoming,
        content_type: String,
        over: oneshot::Sender<Over>,
    ) -> Self {
        Self {
            times,
            body,
            content_type,
            over: Some(over),
        }
    }

    /// Reads until it is known how the response begins: past the prelude, or to the first piece. A function that raises before
    /// that is heard as if it had not begun to answer.
    pub(super) async fn begin(&mut self) -> Beginning {
        if names_prelude(&self.content_type) {
            return self.begin_with_prelude().await;
        }
        match self.piece().await {
            Piece::Raised(body) => Beginning::Raised(body),
            Piece::Broken => Beginning::Broken,
            piece => {
                let content_type = std::mem::take(&mut self.content_type);
                let head = HttpHead {
                    status: 200,
                    headers: vec![("content-type".to_owned(), content_type)],
                };
                Beginning::Head(head, piece)
            }
        }
    }

    async fn begin_with_prelude(&mut self) -> Beginning {
        let mut prelude = Prelude::default();
        loop {
            let (chunk, last) = match self.frame().await {
                Piece::More(chunk) => (chunk, false),
                Piece::Last(chunk) => (chunk, true),
                Piece::Raised(body) => return Beginning::Raised(body),
                Piece::Broken => return Beginning::Broken,
            };
            let fed = prelude.feed(&chunk);
            if last {
                self.finish(if matches!(fed, Ok(Some(_))) {
                    Over::Taken
                } else {
                    Over::Invalid
                });
            }
            match fed {
                Ok(Some((head, body))) if last => return Beginning::Head(head, Piece::Last(body)),
                Ok(Some((head, body))) => return Beginning::Head(head, Piece::More(body)),
                Ok(None) if last => return Beginning::Invalid(PreludeError::Ended),
                Ok(None) => {}
                Err(error) => {
                    self.finish(Over::Invalid);
                    return Beginning::Invalid(error);
                }
            }
        }
    }

    /// The next piece. After anything but [`Piece::More`] there is no more.
    pub(super) async fn piece(&mut self) -> Piece {
        let piece = self.frame().await;
        if matches!(piece, Piece::Last(_) | Piece::Raised(_)) {
            self.finish(Over::Taken);
        }
        piece
    }

    async fn frame(&mut self) -> Piece {
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            let frame = match frame {
                None => return Piece::Last(Bytes::new()),
                Some(Err(_)) => return Piece::Broken,
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(chunk) if self.body.is_end_stream() => return Piece::Last(chunk),
                Ok(chunk) if chunk.is_empty() => {}
                Ok(chunk) => return Piece::More(chunk),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    if let Some(body) = raised(&trailers) {
                        return Piece::Raised(body);
                    }
                }
            }
        }
    }

    fn finish(&mut self, how: Over) {
        if let Some(over) = self.over.take() {
            // The runtime may have gone away meanwhile; the response is whole all the same.
            let _ = over.send(how);
        }
    }
}

/// Whether the content type says that the response begins with a prelude.
pub(super) fn has_prelude(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
    matches!(content_type, Some(Ok(content_type)) if names_prelude(content_type))
}

fn names_prelude(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type
        .trim()
        .eq_ignore_ascii_case(prelude::CONTENT_TYPE)
}

/// What the trailers say of an error that came in the middle.
pub(super) fn raised(trailers: &HeaderMap) -> Option<Bytes> {
    let kind = trailers
        .get(&ERROR_TYPE)
        .map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
    let body = trailers.get(&ERROR_BODY);
    if kind.is_none() && body.is_none() {
        return None;
    }
    let body = body.map_or_else(Bytes::new, |body| {
        // It is sent in base64. What is not is shown as it came.
        STANDARD
            .decode(body.as_bytes())
            .map_or_else(|_| Bytes::copy_from_slice(body.as_bytes()), Bytes::from)
    });
    Some(as_error_body(body, kind.as_deref()))
}

/// Names the error; a header of posted errors, and a trailer of streamed responses.
pub(super) static ERROR_TYPE: HeaderName =
    HeaderName::from_static("lambda-runtime-function-error-type");

static ERROR_BODY: HeaderName = HeaderName::from_static("lambda-runtime-function-error-body");
