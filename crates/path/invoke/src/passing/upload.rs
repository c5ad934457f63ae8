//! The body of a request on its way to the function's server: counted while it passes, and cut off once its exchange is over.
//! Costs a request without a body nothing, and one with a body nothing per part but a lock that nobody contends for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pilot_model::ports::{BodyError, PassedRequest, StreamedBody};

/// What is known of a request's body. Its exchange has one end, the body that the server reads the other.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Why it broke off.
    broke: Option<String>,
    /// Nobody waits for the exchange any more.
    closed: bool,
    /// Who waits for the next part.
    reader: Option<Waker>,
}

/// The body that the server reads.
struct Upload {
    body: StreamedBody,
    watch: Arc<Watch>,
}

/// The request with a body that is watched, if it has one.
pub(super) fn watched(request: PassedRequest) -> (PassedRequest, Option<Arc<Watch>>) {
    if request.body().is_end_stream() {
        return (request, None);
    }
    let watch = Arc::new(Watch::default());
    let theirs = Arc::clone(&watch);
    let request = request.map(|body| {
        StreamedBody::new(Upload {
            body,
            watch: theirs,
        })
    });
    (request, Some(watch))
}

impl Watch {
    /// Why the body broke off, if it did.
    pub(super) fn broke(&self) -> Option<String> {
        self.0.lock().broke.clone()
    }

    /// The exchange is over: what has not passed yet does not pass any more. Gives the bytes that did.
    pub(super) fn close(&self) -> u64 {
        let (bytes, reader) = {
            let mut state = self.0.lock();
            state.closed = true;
            (state.bytes, state.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        bytes
    }

    /// Notes what came.
    fn came(&self, part: Result<&Frame<Bytes>, &BodyError>) {
        let mut state = self.0.lock();
        match part {
            Ok(frame) => state.bytes += frame.data_ref().map_or(0, Bytes::len) as u64,
            Err(error) => state.broke = Some(error.to_string()),
        }
    }

    /// Has `reader` woken when the exchange is over. False: it is.
    fn wait(&self, reader: &Waker) -> bool {
        let mut state = self.0.lock();
        match &mut state.reader {
            Some(known) => known.clone_from(reader),
            none => *none = Some(reader.clone()),
        }
        !state.closed
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, watch } = &mut *self;
        // Looked at in this order, and again by whoever is woken: a part that is there when the exchange ends may still pass.
        match Pin::new(body).poll_frame(cx) {
            Poll::Ready(Some(part)) => {
                watch.came(part.as_ref());
                Poll::Ready(Some(part))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if watch.wait(cx.waker()) => Poll::Pending,
            Poll::Pending => Poll::Ready(Some(Err(OVER.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a server's connection is told of the rest of a body that nobody waits for.
const OVER: &str = "the exchange is over before its request was read to the end";
