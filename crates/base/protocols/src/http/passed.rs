//! The response as it passes through. Reading its body drives the connection; its end gives the connection back, and dropping it
//! before closes it, which is how the server hears that nobody waits any more.

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
use super::{Site, hops};

/// A response's body and the connection that carries it.
#[derive(Debug)]
pub(super) struct PassedBody {
    incoming: Incoming,
    /// Gone once the body has been read.
    connection: Option<Connection>,
    site: Arc<Site>,
}

impl PassedBody {
    /// The response with its body streamed. After status 101 the connection belongs to whoever takes `hyper::upgrade::OnUpgrade`
    /// out of the response's extensions.
    pub(super) fn response(
        site: &Arc<Site>,
        response: Response<Incoming>,
        connection: Connection,
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
        };
        if body.incoming.is_end_stream() {
            // Nobody will read it.
            body.release(&mut Context::from_waker(Waker::noop()));
        }
        Response::from_parts(head, StreamedBody::new(body))
    }

    /// Gives the connection back, if it can be used again.
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
        // Asking first says that there is room; only then does the connection read on.
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
