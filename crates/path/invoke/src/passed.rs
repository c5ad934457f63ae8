//! The body of a response of the function's own HTTP server, and what an exchange with such a server holds. Both bodies of an
//! exchange are streams: nothing is buffered here, and each side is read only as fast as the other accepts data.
//!
//! A passed body owns the invocation's lease, as a streamed body of an application does. The difference: dropping it ends the
//! exchange, but not the worker. Closing the connection tells an HTTP server that nobody waits, and the server can still be used.
//!
//! Invariants: each exchange has one record, however it ends; the record counts the bytes that passed until then; after the
//! exchange has ended, no more of the request's body is passed.

pub(crate) mod held;
pub(crate) mod tunnel;
pub(crate) mod upload;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pilot_model::Outcome;
use pilot_model::ports::{BodyError, StreamedBody, WorkerFault};
use tokio::time::{Instant as Deadline, Sleep, sleep_until};

use crate::error::InvokeError;
use crate::fault::{Failure, LastOutput};
use held::{Held, Then};

/// The body of a response of the function's own server, passed on as it arrives, including trailers.
///
/// After its end or an error, there is no more.
#[derive(Debug)]
pub struct PassedBody(Option<Box<Passing>>);

/// An exchange whose response is still arriving.
#[derive(Debug)]
struct Passing {
    /// Declared before `held`: the server's connection is closed before the worker is free.
    body: StreamedBody,
    /// Created once, at the first wait for the body.
    timer: Option<Pin<Box<Sleep>>>,
    deadline: Deadline,
    held: Held,
}

impl PassedBody {
    /// A response without a body, or with an empty one.
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    /// The rest of an exchange, which ends at `deadline`.
    pub(crate) fn new(body: StreamedBody, deadline: Deadline, held: Held) -> Self {
        Self(Some(Box::new(Passing {
            body,
            timer: None,
            deadline,
            held,
        })))
    }
}

impl Body for PassedBody {
    type Data = Bytes;
    type Error = InvokeError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InvokeError>>> {
        let Some(passing) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let polled = match Pin::new(&mut passing.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                passing.held.sent(frame.data_ref().map_or(0, Bytes::len));
                if frame.is_trailers() || passing.body.is_end_stream() {
                    Ok(Some(frame))
                } else if Deadline::now() < passing.deadline {
                    return Poll::Ready(Some(Ok(frame)));
                } else {
                    // If a server sends without pause, the timer is never polled; so check the time here.
                    Err(passing.timed_out())
                }
            }
            Poll::Ready(Some(Err(error))) => Err(passing.broke(error)),
            Poll::Ready(None) => Ok(None),
            Poll::Pending => {
                let deadline = passing.deadline;
                let timer = passing
                    .timer
                    .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                Err(passing.timed_out())
            }
        };
        if polled.is_ok() {
            let held = &mut passing.held;
            held.end(Then::ServesOn, held.outcome(), LastOutput::default());
        }
        self.0 = None;
        Poll::Ready(polled.transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), |rest| rest.body.size_hint())
    }
}

impl Passing {
    /// The server broke its response off. That alone does not end the worker: many servers do this when a handler panics, and can
    /// still be used.
    fn broke(&mut self, error: BodyError) -> InvokeError {
        let fault = match error.downcast::<WorkerFault>() {
            Ok(fault) => *fault,
            Err(error) => WorkerFault::Protocol {
                problem: error.to_string(),
                output: Bytes::new(),
            },
        };
        let invocation = self.held.invocation();
        let failure = Failure::server(&invocation.version.config.name, &invocation.id, &fault);
        let lives = self.held.worker().is_some_and(|worker| worker.is_alive());
        let (then, outcome) = match fault {
            WorkerFault::Protocol { .. } if lives => (Then::ServesOn, Outcome::FunctionError),
            _ => (Then::Ends(failure.reason), failure.outcome),
        };
        self.held.end(then, outcome, failure.output);
        InvokeError::BodyBroken { fault }
    }

    /// A response that has begun but takes too long does not show that the server is stuck, so the worker is not ended.
    fn timed_out(&mut self) -> InvokeError {
        let invocation = self.held.invocation();
        let after = invocation.version.config.timeout;
        let failure = Failure::timeout(&invocation.id, after, b"");
        self.held
            .end(Then::ServesOn, failure.outcome, failure.output);
        InvokeError::BodyTimedOut { after }
    }
}

impl Drop for PassedBody {
    /// An HTTP server drops a body without reading its end once all announced bytes have been sent.
    fn drop(&mut self) {
        if let Some(passing) = self.0.as_mut().filter(|rest| rest.body.is_end_stream()) {
            passing
                .held
                .end(Then::ServesOn, Outcome::Ok, LastOutput::default());
        }
    }
}
