//! A request that is passed through to the function's own HTTP server, and its response. Both bodies are streams: nothing is
//! buffered here, and each side is read only as fast as the other accepts data.
//!
//! A passed body owns the invocation's lease, as a streamed body of an application does. The difference: dropping it ends the
//! exchange, but not the worker. Closing the connection tells an HTTP server that nobody waits, and the server can still be used.
//! The worker ends only if it fails before the response's head, or if there is no head within the timeout.
//!
//! Invariants: each exchange has one record, however it ends; the record counts the bytes that passed until then; after the
//! exchange has ended, no more of the request's body is passed.

mod held;
mod tunnel;
mod upload;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pilot_model::ports::{BodyError, PassedRequest, PassedResponse, StreamedBody, WorkerFault};
use pilot_model::{InvocationId, InvocationRecord, Outcome, StartKind, Timeline, Version};
use pilot_pool::Lease;
use tokio::time::{Instant as Deadline, Sleep, sleep_until, timeout_at};

use crate::error::InvokeError;
use crate::fault::{Failure, LastOutput};
use crate::invocation::Invocation;
use crate::response::{Response, ResponseBody};
use held::{Held, Then};

pub(crate) use upload::{Watch, watched};

pub use tunnel::{Tunnel, TunnelEnd, TunnelTraffic};

/// Passes the request to the leased worker's server; resolves at the response's head.
///
/// # Errors
/// [`InvokeError::UploadBroken`]: the request's body broke off before there was a response.
pub(crate) async fn pass(
    request: PassedRequest,
    mut invocation: Invocation,
    mut lease: Lease,
) -> Result<Response, InvokeError> {
    invocation.use_worker(&mut lease);
    let patience = invocation.version.config.timeout;
    let wants_no_body = *request.method() == Method::HEAD;
    let wants_upgrade = request.headers().contains_key(UPGRADE);
    let (request, upload) = upload::watched_request(request);
    // Declared before the exchange's future, so that it is dropped after it: a worker is free only when nothing of the exchange
    // is left.
    let mut held = Held::new(lease, invocation, upload);
    let deadline = Deadline::now() + patience;
    let worker = held.worker().expect("the exchange has only begun");
    let answer = timeout_at(deadline, worker.pass(request)).await;
    if let (Ok(_), Some(problem)) = (&answer, held.upload_broke()) {
        // Only the client could receive this result, and the client has hung up. The worker is not at fault.
        drop(answer);
        held.end(Then::ServesOn, Outcome::Cancelled, LastOutput::default());
        return Err(InvokeError::UploadBroken { problem });
    }
    match answer {
        Ok(Ok(response)) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
            Ok(answered(held, response, wants_no_body, deadline))
        }
        Ok(Ok(response)) if wants_upgrade => Ok(upgraded(held, response)),
        Ok(Ok(_)) => Ok(failed(held, &unasked_upgrade())),
        Ok(Err(fault)) => Ok(failed(held, &fault)),
        Err(_) => {
            let failure = Failure::timeout(&held.invocation().id, patience, b"");
            Ok(refused(held, failure))
        }
    }
}

/// The head has arrived; the body owns the rest.
fn answered(
    mut held: Held,
    response: PassedResponse,
    wants_no_body: bool,
    deadline: Deadline,
) -> Response {
    held.head_came();
    let no_body = wants_no_body
        || matches!(
            response.status(),
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    let (head, body) = response.into_parts();
    let passed = |body| ResponseBody::Passed(http::Response::from_parts(head, body));
    if no_body || body.is_end_stream() {
        drop(body);
        let record = held.end(Then::ServesOn, Outcome::Ok, LastOutput::default());
        return Shown::of(&held).response(Outcome::Ok, record, passed(PassedBody(None)));
    }
    let shown = Shown::of(&held);
    let passing = Passing {
        body,
        timer: None,
        deadline,
        held,
    };
    let body = PassedBody(Some(Box::new(passing)));
    shown.response(Outcome::Ok, None, passed(body))
}

/// The connection no longer speaks HTTP; the tunnel owns the rest.
fn upgraded(mut held: Held, response: PassedResponse) -> Response {
    held.head_came();
    let shown = Shown::of(&held);
    let response = response.map(|_no_body| Tunnel::new(held));
    shown.response(Outcome::Ok, None, ResponseBody::Upgraded(response))
}

fn failed(held: Held, fault: &WorkerFault) -> Response {
    let Invocation { id, version, .. } = held.invocation();
    let failure = Failure::server(&version.config.name, id, fault);
    refused(held, failure)
}

/// There is no response, and the worker must not be used again.
fn refused(mut held: Held, failure: Failure) -> Response {
    held.sent(failure.body.len());
    let then = Then::Ends(failure.reason);
    let record = held.end(then, failure.outcome, failure.output);
    let body = ResponseBody::FunctionError(failure.body);
    Shown::of(&held).response(failure.outcome, record, body)
}

fn unasked_upgrade() -> WorkerFault {
    WorkerFault::Protocol {
        problem: "the backend switched protocols without being asked".to_owned(),
        output: Bytes::new(),
    }
}

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
            held.end(Then::ServesOn, Outcome::Ok, LastOutput::default());
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

/// The fields of a response that come from its invocation.
struct Shown {
    id: InvocationId,
    version: Arc<Version>,
    start: StartKind,
    timeline: Timeline,
}

impl Shown {
    fn of(held: &Held) -> Self {
        let invocation = held.invocation();
        Self {
            id: invocation.id.clone(),
            version: Arc::clone(&invocation.version),
            start: invocation.start,
            timeline: invocation.timeline,
        }
    }

    fn response(
        self,
        outcome: Outcome,
        record: Option<Arc<InvocationRecord>>,
        body: ResponseBody,
    ) -> Response {
        Response {
            id: self.id,
            version: self.version,
            start: self.start,
            outcome,
            timeline: self.timeline,
            transfers: Vec::new(),
            body,
            record,
        }
    }
}
