//! A request that is passed through to the function's own HTTP server: one exchange, until the head of its response.
//!
//! The worker ends only if it fails before the response's head, or if there is no head within the timeout. If nothing of the request was
//! sent to it, because its server is gone and only a program around it runs, another worker gets the request, once.

use std::sync::Arc;

use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, StatusCode};
use http_body::Body as _;
use pilot_model::ports::{PassedRequest, PassedResponse, Unpassed, WorkerFault};
use pilot_model::{InvocationId, InvocationRecord, Outcome, StartKind, Timeline, Version};
use pilot_pool::Lease;
use tokio::time::{Instant as Deadline, timeout_at};

use super::Invoker;
use super::exchange::another;
use crate::error::InvokeError;
use crate::fault::{Failure, LastOutput};
use crate::invocation::Invocation;
use crate::passed::PassedBody;
use crate::passed::held::{Held, Then};
use crate::passed::tunnel::Tunnel;
use crate::passed::upload::watched_request;
use crate::response::{Response, ResponseBody};

/// Passes the request to the leased worker's server; resolves at the response's head.
///
/// # Errors
/// [`InvokeError::UploadBroken`]: the request's body broke off before there was a response.
pub(super) async fn pass(
    invoker: &Invoker,
    request: PassedRequest,
    mut invocation: Invocation,
    mut lease: Lease,
) -> Result<Response, InvokeError> {
    invocation.use_worker(&mut lease);
    let patience = invocation.version.config.timeout;
    let wants_no_body = *request.method() == Method::HEAD;
    let wants_upgrade = request.headers().contains_key(UPGRADE);
    let (request, upload) = watched_request(request);
    // Declared before the exchange's future, so that it is dropped after it: a worker is free only when nothing of the exchange
    // is left.
    let mut held = Held::new(lease, invocation, upload);
    let mut deadline = Deadline::now() + patience;
    let worker = held.worker().expect("the exchange has only begun");
    let mut answer = timeout_at(deadline, worker.pass(request)).await;
    if let Ok(Err(Unpassed { fault, unsent })) = &mut answer
        && let Some(request) = unsent.take()
    {
        let (lease, invocation) = held.leaves().expect("the exchange has only begun");
        match Box::pin(another(invoker, invocation, lease, fault.clone())).await {
            Ok(lease) => held.goes_to(lease),
            Err(refusal) => {
                tracing::debug!(%refusal, "no other worker for a request that was not sent");
                return Ok(failed(held, fault));
            }
        }
        deadline = Deadline::now() + patience;
        let worker = held.worker().expect("it has another one");
        answer = timeout_at(deadline, worker.pass(*request)).await;
    }
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
        Ok(Err(unpassed)) => Ok(failed(held, &unpassed.fault)),
        Err(_) => {
            let failure = Failure::timeout(&held.invocation().id, patience, b"");
            let then = match held.awaits_client() {
                true => Then::ServesOn,
                false => Then::Ends(failure.reason),
            };
            Ok(refused(held, failure, then))
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
    let (mut head, body) = response.into_parts();
    let failure_header = held.invocation().version.config.runtime.failure_header();
    if let Some(how) = failure_header.and_then(|name| head.headers.remove(name)) {
        held.says(match how.as_bytes() {
            b"timeout" => Outcome::Timeout,
            _ => Outcome::FunctionError,
        });
    }
    let outcome = held.outcome();
    let passed = |body| ResponseBody::Passed(http::Response::from_parts(head, body));
    if no_body || body.is_end_stream() {
        drop(body);
        let record = held.end(Then::ServesOn, outcome, LastOutput::default());
        return Shown::of(&held).response(outcome, record, passed(PassedBody::empty()));
    }
    let shown = Shown::of(&held);
    let body = PassedBody::new(body, deadline, held);
    shown.response(outcome, None, passed(body))
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
    // A server that closes a connection may serve on others.
    let then = match fault {
        WorkerFault::Unanswered { .. } => Then::ServesOn,
        _ => Then::Ends(failure.reason),
    };
    refused(held, failure, then)
}

/// There is no response.
fn refused(mut held: Held, failure: Failure, then: Then) -> Response {
    held.sent(failure.body.len());
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
