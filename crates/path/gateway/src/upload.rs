//! A request's body that is streamed: to the function's server, or into an input. Who reads it sets the pace: until the first part is asked
//! for, nothing is read from the client, and no `100 Continue` is sent. If the client waits for that, the server decides (`expectation`).
//!
//! Only the time between two parts is limited. At most one part is in memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pilot_model::ports::BodyError;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::malformed;
use crate::connection::line::Usage;
use crate::expectation::Expectation;
use crate::leftover;
use crate::request_body::RequestBody;

/// A streamed request body.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Taken when this is dropped.
    body: Option<RequestBody>,
    usage: Arc<Usage>,
    /// Longest wait for the next part, when the server asks for it.
    patience: Duration,
    /// Created at the first wait for a part, and then reused.
    timer: Option<Pin<Box<Sleep>>>,
    /// The server waits, and the timer runs.
    waits: bool,
    /// The client waits for permission to send, which is the server's to give.
    expects: Option<Expectation>,
}

impl Upload {
    pub(crate) fn new(
        body: RequestBody,
        usage: Arc<Usage>,
        patience: Duration,
        expects: Option<Expectation>,
    ) -> Self {
        Self {
            body: Some(body),
            usage,
            patience,
            timer: None,
            waits: false,
            expects,
        }
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        if !self.waits {
            timer.as_mut().reset(Instant::now() + patience);
            self.waits = true;
        }
        timer.as_mut().poll(cx)
    }
}

/// A server need not read the whole body, and reads no further than the announced length. Over HTTP/2, the end of the stream may come later.
impl Drop for Upload {
    fn drop(&mut self) {
        // Without its permission, a client sends nothing.
        let may_come = self.expects.is_none() && self.usage.is_multiplexed();
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        if let Some(unread) = unread.filter(|_| may_come) {
            leftover::read_meanwhile(unread, Arc::clone(&self.usage));
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(expects) = &mut self.expects {
            ready!(expects.poll(cx));
            self.expects = None;
        }
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(part) => {
                let is_last = match &part {
                    None => true,
                    Some(part) => part.as_ref().is_ok_and(Frame::is_trailers),
                };
                let is_read = is_last || body.is_end_stream();
                self.waits = false;
                if is_read {
                    self.usage.body_was_read();
                }
                Poll::Ready(part.map(|part| {
                    part.map_err(|error| {
                        self.usage.body_is_malformed();
                        malformed(&error).to_string().into()
                    })
                }))
            }
            Poll::Pending => self.poll_patience(cx).map(|()| {
                let after = self.patience.as_secs_f32();
                Some(Err(format!("no data for {after} s").into()))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
