//! The body of a response over HTTP/2, in small pieces. hyper gives a piece to h2 as soon as the client's window has room for one byte
//! beyond the earlier ones, and is done when it has given the last one. So what is with h2 is small, and does not keep a large response
//! in memory. The last piece is one byte: when hyper gives it to h2, the window has room for everything before it, so nothing waits for
//! the client's window when hyper is done.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::streams::Progress;
use crate::reply::{BoxError, ReplyBody};

/// See the module.
pub(super) struct Pieces {
    body: ReplyBody,
    /// The rest of the part that is being cut.
    rest: Bytes,
    progress: Arc<Progress>,
}

impl Pieces {
    pub(super) fn new(body: ReplyBody, progress: Arc<Progress>) -> Self {
        if body.is_end_stream() {
            progress.ended();
        }
        Self {
            body,
            rest: Bytes::new(),
            progress,
        }
    }

    /// The next piece of `rest`, which is not empty.
    fn cut(&mut self) -> Bytes {
        let piece = if self.rest.len() > PIECE_BYTES {
            self.rest.split_to(PIECE_BYTES)
        } else if self.rest.len() > LAST_BYTES_MAX {
            let len = self.rest.len() - 1;
            let piece = self.rest.split_to(len);
            self.rest = Bytes::copy_from_slice(&self.rest);
            // It may be a small part of a large allocation, which would stay as long as h2 has it.
            Bytes::copy_from_slice(&piece)
        } else {
            std::mem::take(&mut self.rest)
        };
        self.progress.gave(piece.len());
        if self.is_end_stream() {
            self.progress.ended();
        }
        piece
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.progress.asked();
        if !self.rest.is_empty() {
            let piece = self.cut();
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let next = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let data = match next {
            Some(Ok(frame)) => frame.into_data(),
            Some(Err(error)) => {
                self.progress.ended();
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                self.progress.ended();
                return Poll::Ready(None);
            }
        };
        Poll::Ready(Some(Ok(match data {
            Ok(data) if data.is_empty() => Frame::data(data),
            Ok(data) => {
                self.rest = data;
                Frame::data(self.cut())
            }
            Err(trailers) => {
                self.progress.ended();
                trailers
            }
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

/// Largest piece, bytes: the largest frame that every client takes (RFC 9113 §4.2).
const PIECE_BYTES: usize = 16 * 1024;

/// Largest last piece, bytes. Not one byte for all responses, because most of them are small.
const LAST_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn a_large_response_is_cut_and_the_last_piece_does_not_keep_it() {
        let whole: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let large = Bytes::from(whole.clone());
        let range = large.as_ptr_range();
        let progress = Arc::new(Progress::default());
        let mut body = Pieces::new(ReplyBody::Full(large.clone()), Arc::clone(&progress));
        assert_eq!(body.size_hint().exact(), Some(100_000));
        let mut came = Vec::new();
        let mut last = Bytes::new();
        while let Some(frame) = body.frame().now_or_never().unwrap() {
            last = frame.unwrap().into_data().unwrap();
            assert!(last.len() <= PIECE_BYTES);
            came.extend_from_slice(&last);
            let left = 100_000 - came.len() as u64;
            assert_eq!(body.size_hint().exact(), Some(left));
            if body.is_end_stream() {
                break;
            }
        }
        assert_eq!(came, whole);
        assert!(!range.contains(&last.as_ptr()), "a copy");
        assert!(progress.has_ended());
    }
}
