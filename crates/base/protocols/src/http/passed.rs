//! A response that is passed through to the client. Reading its body drives the connection. At the body's end the connection is
//! kept for reuse. If the body is dropped earlier, the connection is closed, which tells the server that the client is gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use pilot_model::ports::{BodyError, PassedResponse, StreamedBody};

use super::connection::{Connection, Driven};
use super::hops;
use super::site::Site;
use crate::HeldFiles;

/// A response's body and the connection that carries it.
#[derive(Debug)]
pub(super) struct PassedBody {
    incoming: Incoming,
    /// `None` once the body has been read.
    connection: Option<Connection>,
    site: Arc<Site>,
    /// The inputs, which the server may read until its response is complete.
    _held: Option<HeldFiles>,
}

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
        hops::strip(&mut head.headers);
        let mut body = Self {
            incoming,
            connection: Some(connection),
            site: Arc::clone(site),
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

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        // Polling the body first signals free space; only then does the connection read more.
        let mut frame = Pin::new(&mut this.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Some(connection) = &mut this.connection
        {
            if connection.drive(cx) == Driven::Over {
                this.connection = None;
            }
            frame = Pin::new(&mut this.incoming).poll_frame(cx);
        }
        match frame {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => {
                if this.incoming.is_end_stream() {
                    this.release(cx);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.connection = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                this.release(cx);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
