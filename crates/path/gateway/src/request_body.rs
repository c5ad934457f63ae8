//! The body of a request, as it arrives. The pieces of a chunked body (RFC 9112, section 7.1) cost the daemon more than the client,
//! which puts thousands of them into one write(2). So those without end are read at a pace: that of their connection, since a
//! client may send the next request behind this one. Over HTTP/2, the frames of a connection have a pace as well
//! (`connection/frames`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pilot_protocols::PiecePace;
use tokio::time::{Sleep, sleep_until};

use crate::connection::line::Usage;
use crate::expectation::Silence;

/// The body of a request.
#[derive(Debug)]
pub struct RequestBody<B = Incoming> {
    body: B,
    usage: Arc<Usage>,
    /// A piece has come. Most bodies have one, which costs nothing.
    has_begun: bool,
    /// The client's pieces are too many: nothing is read before.
    resting: Option<Pin<Box<Sleep>>>,
    /// The client may wait in vain for `100 Continue`.
    silence: Option<Box<Silence>>,
}

impl<B> RequestBody<B> {
    pub(crate) fn new(body: B, usage: Arc<Usage>) -> Self {
        Self {
            body,
            usage,
            has_begun: false,
            resting: None,
            silence: None,
        }
    }

    /// What has not been read.
    pub(crate) fn into_rest(self) -> B {
        self.body
    }

    /// The client waits for `100 Continue`, and does not get it.
    pub(crate) fn with_silence(mut self, silence: Silence) -> Self {
        self.silence = Some(Box::new(silence));
        self
    }

    fn came(&mut self, len: usize) {
        if self.has_begun {
            let pace = self.usage.pieces();
            pace.came(PiecePace::cost_of_more(len.max(1)));
            self.resting = pace.next().map(|at| Box::pin(sleep_until(at)));
        }
        self.has_begun = true;
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(resting) = &mut self.resting {
            ready!(resting.as_mut().poll(cx));
            self.resting = None;
        }
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() && self.usage.waits_for_body(cx) {
            // The end may have come since.
            frame = Pin::new(&mut self.body).poll_frame(cx);
            if frame.is_pending() {
                self.usage.body_is_cut_off();
            }
        }
        match &mut self.silence {
            Some(silence) if frame.is_pending() => silence.goes_on(cx),
            _ => {}
        }
        let frame = ready!(frame);
        self.silence = None;
        if let Some(Ok(frame)) = &frame
            && let Some(piece) = frame.data_ref()
        {
            self.came(piece.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::time::Instant;

    use super::*;

    /// How long the bodies of some requests of one connection take.
    async fn reads(requests: usize, pieces: usize, len: usize) -> Duration {
        let usage = Arc::new(Usage::default());
        let begun = Instant::now();
        for _ in 0..requests {
            let piece = Bytes::from(vec![b'x'; len]);
            let frames = (0..pieces).map(move |_| Ok::<_, Infallible>(Frame::data(piece.clone())));
            let body = StreamBody::new(futures_util::stream::iter(frames));
            let mut body = RequestBody::new(body, Arc::clone(&usage));
            let mut read = 0;
            while let Some(frame) = body.frame().await {
                read += frame.unwrap().into_data().unwrap().len();
            }
            assert_eq!(read, pieces * len);
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_pieces_of_all_requests_of_a_connection_have_one_pace() {
        assert_eq!(reads(100_000, 1, 1).await, Duration::ZERO);
        for (requests, pieces, len) in [(1, 120_000, 1), (12, 10_001, 64), (12_000, 11, 0)] {
            let took = reads(requests, pieces, len).await;
            assert!((990..=1010).contains(&took.as_millis()), "{took:?}");
        }
    }
}
