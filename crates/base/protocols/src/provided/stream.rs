//! A response that the runtime posts as a stream (`Lambda-Runtime-Function-Response-Mode: streaming`). The caller reads it from
//! the socket piece by piece, so a slow caller slows down the runtime.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use pilot_model::ports::HttpHead;
use tokio::sync::oneshot;

use super::prelude::{self, Prelude, PreludeError};
use super::times::Times;
use crate::error_body::as_error_body;
use crate::joined::Joined;
use crate::pace::PiecePace;

/// A streamed response that is being received.
#[derive(Debug)]
pub(super) struct Streamed {
    pub(super) times: Times,
    body: Incoming,
    /// The content type that the runtime sent.
    content_type: String,
    /// Lets the runtime's request be answered. Dropped unused: the caller is gone.
    over: Option<oneshot::Sender<Over>>,
    pace: Arc<PiecePace>,
    /// What came behind the parts that were joined.
    ahead: Option<Piece>,
}

/// How a streamed response ended, for the request that posted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// It was read to its end.
    Taken,
    /// It does not begin as its content type says.
    Invalid,
}

/// The next part of a body.
#[derive(Debug)]
pub(super) enum Piece {
    /// More follows; not empty.
    More(Bytes),
    /// The last part; may be empty.
    Last(Bytes),
    /// The function raised an exception: Lambda's error body.
    Raised(Bytes),
    /// The connection broke.
    Broken,
}

/// The beginning of a response.
#[derive(Debug)]
pub(super) enum Beginning {
    /// The head, with the first part of the body.
    Head(HttpHead, Piece),
    /// An invalid prelude.
    Invalid(PreludeError),
    /// The function raised an exception before its first byte.
    Raised(Bytes),
    /// The connection broke before the first byte.
    Broken,
}

impl Streamed {
    pub(super) fn new(
        times: Times,
        body: Incoming,
        content_type: String,
        (over, pace): (oneshot::Sender<Over>, Arc<PiecePace>),
    ) -> Self {
        Self {
            times,
            body,
            content_type,
            over: Some(over),
            pace,
            ahead: None,
        }
    }

    /// Reads the prelude, or up to the first part of the body. If the function raises an exception before that, the answer is
    /// that error.
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
                    is_prelude: false,
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

    /// The next part. After anything but [`Piece::More`] there are no more.
    pub(super) async fn piece(&mut self) -> Piece {
        let piece = self.frame().await;
        if matches!(piece, Piece::Last(_) | Piece::Raised(_)) {
            self.finish(Over::Taken);
        }
        piece
    }

    async fn frame(&mut self) -> Piece {
        if let Some(ahead) = self.ahead.take() {
            return ahead;
        }
        loop {
            self.pace.rest().await;
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            match self.piece_of(frame) {
                None => {}
                Some(Piece::More(chunk)) if Joined::is_short(&chunk) => {
                    return self.joined(chunk).await;
                }
                Some(piece) => return piece,
            }
        }
    }

    /// A short part, joined with those that follow at once.
    async fn joined(&mut self, first: Bytes) -> Piece {
        // Each of them takes two changes of tasks.
        let mut joined = Joined::new(first, PiecePace::cost);
        while joined.takes_more() {
            let frame = match self.body.frame().now_or_never() {
                Some(frame) => frame,
                None => {
                    // The task of the connection has another part as soon as it has run.
                    tokio::task::yield_now().await;
                    match self.body.frame().now_or_never() {
                        Some(frame) => frame,
                        None => break,
                    }
                }
            };
            match self.piece_of(frame) {
                None => {}
                Some(Piece::More(chunk)) => joined.add(&chunk),
                Some(other) => {
                    self.ahead = Some(other);
                    break;
                }
            }
        }
        Piece::More(joined.end(&self.pace))
    }

    /// `None`: it says nothing.
    fn piece_of(&self, frame: Option<Result<Frame<Bytes>, hyper::Error>>) -> Option<Piece> {
        let frame = match frame {
            None => return Some(Piece::Last(Bytes::new())),
            Some(Err(_)) => return Some(Piece::Broken),
            Some(Ok(frame)) => frame,
        };
        match frame.into_data() {
            Ok(chunk) if self.body.is_end_stream() => Some(Piece::Last(chunk)),
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => Some(Piece::More(chunk)),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                raised(&trailers).map(Piece::Raised)
            }
        }
    }

    fn finish(&mut self, how: Over) {
        if let Some(over) = self.over.take() {
            // The response is complete, even if the runtime is gone.
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

/// The error that trailers report, if they do.
pub(super) fn raised(trailers: &HeaderMap) -> Option<Bytes> {
    let kind = trailers
        .get(&ERROR_TYPE)
        .map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
    let body = trailers.get(&ERROR_BODY);
    if kind.is_none() && body.is_none() {
        return None;
    }
    let body = body.map_or_else(Bytes::new, |body| {
        // The body is base64; anything else is shown unchanged.
        STANDARD
            .decode(body.as_bytes())
            .map_or_else(|_| Bytes::copy_from_slice(body.as_bytes()), Bytes::from)
    });
    Some(as_error_body(body, kind.as_deref()))
}

/// The error's type: a header of posted errors, and a trailer of streamed responses.
pub(super) static ERROR_TYPE: HeaderName =
    HeaderName::from_static("lambda-runtime-function-error-type");

static ERROR_BODY: HeaderName = HeaderName::from_static("lambda-runtime-function-error-body");
