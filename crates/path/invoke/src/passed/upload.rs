//! The body of a request on its way to the function's server: counted while it passes, and cut off when its exchange ends. A
//! request without a body costs nothing; each part of a body costs one uncontended lock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pilot_model::ports::{BodyError, PassedRequest, StreamedBody};

/// The state of a request's body, shared by its exchange and by the body that the server reads.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<UploadState>);

#[derive(Debug, Default)]
struct UploadState {
    bytes: u64,
    /// Why it broke off.
    broke: Option<String>,
    /// The exchange has ended.
    closed: bool,
    /// The server has read all that has come, and waits for the client.
    awaits_client: bool,
    /// The task that waits for the next part.
    reader: Option<Waker>,
}

/// The body that the server reads.
struct Upload {
    body: StreamedBody,
    watch: Arc<Watch>,
}

/// The request with its body wrapped, if it has one.
pub(crate) fn watched_request(request: PassedRequest) -> (PassedRequest, Option<Arc<Watch>>) {
    if request.body().is_end_stream() {
        return (request, None);
    }
    let (head, body) = request.into_parts();
    let (body, watch) = watched(body);
    (PassedRequest::from_parts(head, body), Some(watch))
}

/// A body that is watched.
pub(crate) fn watched(body: StreamedBody) -> (StreamedBody, Arc<Watch>) {
    let watch = Arc::<Watch>::default();
    let theirs = Arc::clone(&watch);
    let body = Upload {
        body,
        watch: theirs,
    };
    (StreamedBody::new(body), watch)
}

impl Watch {
    /// Why the body broke off, if it did.
    pub(super) fn broke(&self) -> Option<String> {
        self.0.lock().broke.clone()
    }

    /// Whether the server has read all that has come of the body, and waits for the client.
    pub(super) fn awaits_client(&self) -> bool {
        self.0.lock().awaits_client
    }

    /// The exchange has ended: the rest of the body is not passed. Returns the bytes that were.
    pub(crate) fn close(&self) -> u64 {
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

    /// Records a part.
    fn came(&self, part: Result<&Frame<Bytes>, &BodyError>) {
        let mut state = self.0.lock();
        state.awaits_client = false;
        match part {
            Ok(frame) => state.bytes += frame.data_ref().map_or(0, Bytes::len) as u64,
            Err(error) => state.broke = Some(error.to_string()),
        }
    }

    /// Wakes `reader` when the exchange ends. False: it has ended.
    fn wait(&self, reader: &Waker) -> bool {
        let mut state = self.0.lock();
        match &mut state.reader {
            Some(known) => known.clone_from(reader),
            none => *none = Some(reader.clone()),
        }
        state.awaits_client = true;
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
        // In this order, also after a wake-up: a part that is ready when the exchange ends may still pass.
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

/// The error that a server's connection gets instead of the rest of the body.
const OVER: &str = "the exchange is over before its request was read to the end";
