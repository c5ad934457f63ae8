//! A request's body that is not read here: it passes through to the function's server, which takes it at its own pace. Until
//! that asks for the first part the client is not asked for it either (`100 Continue` included).
//!
//! Bounded by the time between two parts alone: what is in flight is one part, of what the client sends into this connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pilot_model::ports::BodyError;
use tokio::time::{Instant, Sleep, sleep};

use crate::connection::line::Usage;

/// A request's body on its way through.
#[derive(Debug)]
pub(crate) struct Upload<B> {
    body: B,
    usage: Arc<Usage>,
    /// The longest wait for the next part, once somebody asks for it.
    patience: Duration,
    /// Made when a part has to be waited for, and then once for all parts.
    timer: Option<Pin<Box<Sleep>>>,
    /// Somebody waits, and the timer runs for it.
    waits: bool,
}

impl<B> Upload<B> {
    pub(crate) fn new(body: B, usage: Arc<Usage>, patience: Duration) -> Self {
        Self {
            body,
            usage,
            patience,
            timer: None,
            waits: false,
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

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(part) => {
                self.waits = false;
                if part.is_none() || self.body.is_end_stream() {
                    self.usage.body_was_read();
                }
                Poll::Ready(part.map(|part| part.map_err(Into::into)))
            }
            Poll::Pending => self.poll_patience(cx).map(|()| {
                let after = self.patience.as_secs_f32();
                Some(Err(format!("nothing came for {after} s").into()))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
