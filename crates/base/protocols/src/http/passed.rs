//! A response that is passed through to the client. Reading its body drives the connection. At the body's end the connection is
//! kept for reuse. If the body is dropped earlier, the connection is closed, which tells the server that the client is gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use pilot_model::ports::{BodyError, PassedResponse, StreamedBody};
use tokio::time::{Sleep, sleep_until};

use super::connection::{Connection, Driven};
use super::hops;
use super::site::Site;
use crate::joined::Joined;
use crate::{HeldFiles, PiecePace};

/// A response's body and the connection that carries it.
#[derive(Debug)]
pub(super) struct PassedBody {
    incoming: Incoming,
    /// `None` once the body has been read.
    connection: Option<Connection>,
    site: Arc<Site>,
    /// What came behind the pieces of the last frame.
    ahead: Option<Polled>,
    /// The server's pieces are too many: nothing is read before.
    resting: Option<Pin<Box<Sleep>>>,
    /// The inputs, which the server may read until its response is complete.
    _held: Option<HeldFiles>,
}

/// What a body returns.
type Polled = Option<Result<Frame<Bytes>, BodyError>>;

impl PassedBody {
    /// The response with a streamed body. After status 101, whoever takes `hyper::upgrade::OnUpgrade` out of the response's
    /// extensions owns the connection.
    pub(super) fn response(
        site: &Arc<Site>,
        response: Response<Incoming>,
        connection: Connection,
        held: Option<HeldFiles>,
    ) -> PassedResponse {
        let (mut head, incoming) = response.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let body = Empty::new().map_err(|never| match never {});
            return Response::from_parts(head, StreamedBody::new(body));
        }
        hops::strip(head.status, &mut head.headers);
        let mut body = Self {
            incoming,
            connection: Some(connection),
            site: Arc::clone(site),
            ahead: None,
            resting: None,
            _held: held,
        };
        if body.incoming.is_end_stream() {
            // There is no body to read.
            body.release(&mut Context::from_waker(Waker::noop()));
        }
        Response::from_parts(head, StreamedBody::new(body))
    }

    /// Keeps the connection if it can be used again.
    fn release(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take()
            && connection.is_free(cx)
        {
            self.site.keep(connection);
        }
    }
}

impl Body for PassedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        let this = self.get_mut();
        if let Some(resting) = &mut this.resting {
            ready!(resting.as_mut().poll(cx));
            this.resting = None;
        }
        if let Some(ahead) = this.ahead.take() {
            return Poll::Ready(ahead);
        }
        let polled = ready!(this.poll_piece(cx));
        Poll::Ready(this.joined(polled, cx))
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl PassedBody {
    /// A piece, joined with those that have arrived behind it.
    fn joined(&mut self, first: Polled, cx: &mut Context<'_>) -> Polled {
        let Some(Ok(frame)) = first else { return first };
        let piece = match frame.into_data() {
            Ok(piece) => piece,
            Err(frame) => return Some(Ok(frame)),
        };
        let mut cost = PiecePace::cost(piece.len());
        let mut joined = Joined::default();
        joined.add(piece);
        while joined.takes_more() && !self.incoming.is_end_stream() {
            match self.poll_piece(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(next))) => match next.into_data() {
                    Ok(next) => {
                        cost += PiecePace::cost_of_more(next.len());
                        joined.add(next);
                    }
                    Err(trailers) => {
                        self.ahead = Some(Some(Ok(trailers)));
                        break;
                    }
                },
                Poll::Ready(other) => {
                    self.ahead = Some(other);
                    break;
                }
            }
        }
        self.site.pieces.came(cost);
        self.resting = self.site.pieces.next().map(|at| Box::pin(sleep_until(at)));
        Some(Ok(Frame::data(joined.end())))
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        // Polling the body first signals free space; only then does the connection read more.
        let mut frame = Pin::new(&mut self.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Some(connection) = &mut self.connection
        {
            if connection.drive(cx) == Driven::Over {
                self.connection = None;
            }
            frame = Pin::new(&mut self.incoming).poll_frame(cx);
        }
        match frame {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => {
                if self.incoming.is_end_stream() {
                    self.release(cx);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.connection = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.release(cx);
                Poll::Ready(None)
            }
        }
    }
}
