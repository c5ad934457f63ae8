//! A response that the runtime posts as a stream (`Lambda-Runtime-Function-Response-Mode: streaming`). The task of the runtime's
//! connection reads it, as far as its caller takes it and a little ahead, so a slow caller slows down the runtime. What arrives
//! together, or while the caller is busy with the part before, becomes one part.

use std::future::poll_fn;
use std::task::Poll;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use pilot_model::ports::HttpHead;
use tokio::sync::{mpsc, oneshot};

use super::prelude::{self, Prelude, PreludeError};
use super::times::Times;
use crate::error_body::as_error_body;
use crate::joined::Joined;
use crate::pace::PiecePace;

/// A streamed response that is being received.
#[derive(Debug)]
pub(super) struct Streamed {
    pub(super) times: Times,
    /// Closes without a last part if the runtime's connection breaks.
    pieces: mpsc::Receiver<Piece>,
    /// The content type that the runtime sent.
    content_type: String,
    /// Lets the runtime's request be answered. Dropped unused: the caller is gone.
    over: Option<oneshot::Sender<Over>>,
}

/// The runtime's end of a streamed response.
#[derive(Debug)]
pub(super) struct Posting {
    pieces: mpsc::Sender<Piece>,
    over: oneshot::Receiver<Over>,
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

/// Both ends of a streamed response with this content type.
pub(super) fn streamed(times: Times, content_type: String) -> (Streamed, Posting) {
    let (sender, receiver) = mpsc::channel(1);
    let (over, ended) = oneshot::channel();
    let streamed = Streamed {
        times,
        pieces: receiver,
        content_type,
        over: Some(over),
    };
    let posting = Posting {
        pieces: sender,
        over: ended,
    };
    (streamed, posting)
}

impl Posting {
    /// Passes the body on at this pace, and waits until its caller has read all of it. `None`: the caller is gone, or the body broke off.
    pub(super) async fn pass_on(self, body: Incoming, pace: &PiecePace) -> Option<Over> {
        let Self { pieces, over } = self;
        pass_on(body, pieces, pace).await?;
        over.await.ok()
    }
}

/// `None`: nobody reads the body any more.
async fn pass_on(mut body: Incoming, pieces: mpsc::Sender<Piece>, pace: &PiecePace) -> Option<()> {
    // What has come since the caller took a part.
    let mut held = Joined::default();
    let last = loop {
        let frame = tokio::select! {
            biased;
            frame = next(&mut body, pace), if held.takes_more() => frame,
            free = pieces.reserve(), if !held.is_empty() => {
                free.ok()?.send(Piece::More(std::mem::take(&mut held).end()));
                continue;
            }
            () = pieces.closed(), if held.is_empty() => return None,
        };
        match piece_of(&body, frame) {
            None => {}
            Some(Piece::More(chunk)) => {
                pace.came(match held.is_empty() {
                    true => PiecePace::cost(chunk.len()),
                    false => PiecePace::cost_of_more(chunk.len()),
                });
                held.add(chunk);
                polled_again().await;
            }
            Some(last) => break last,
        }
    };
    if !held.is_empty() {
        pieces.send(Piece::More(held.end())).await.ok()?;
    }
    pieces.send(last).await.ok()
}

/// Lets the connection be polled, which then has the next piece if that has arrived.
async fn polled_again() {
    let mut was_polled = false;
    poll_fn(|cx| {
        if was_polled {
            return Poll::Ready(());
        }
        was_polled = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn next(body: &mut Incoming, pace: &PiecePace) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    pace.rest().await;
    body.frame().await
}

/// `None`: it says nothing.
fn piece_of(body: &Incoming, frame: Option<Result<Frame<Bytes>, hyper::Error>>) -> Option<Piece> {
    let frame = match frame {
        None => return Some(Piece::Last(Bytes::new())),
        Some(Err(_)) => return Some(Piece::Broken),
        Some(Ok(frame)) => frame,
    };
    match frame.into_data() {
        Ok(chunk) if body.is_end_stream() => Some(Piece::Last(chunk)),
        Ok(chunk) if chunk.is_empty() => None,
        Ok(chunk) => Some(Piece::More(chunk)),
        Err(frame) => {
            let trailers = frame.into_trailers().unwrap_or_default();
            raised(&trailers).map(Piece::Raised)
        }
    }
}

impl Streamed {
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
        self.pieces.recv().await.unwrap_or(Piece::Broken)
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
