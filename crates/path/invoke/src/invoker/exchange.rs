//! One exchange with a leased worker: sends the call, waits at most for the timeout, and converts the result to an answer.
//!
//! The timeout counts from the call, as in Lambda; a start before it and the queue have limits of their own. A worker that timed
//! out is killed at once. With `concurrency` above 1, it is killed when its other invocations have ended. If the caller hangs up,
//! the worker is killed as well, except an HTTP server: its connection is closed, and it can still be used; and except a worker of
//! several that can be told: it ends this exchange, and serves the others.
//!
//! A worker may end before it has read its call. Then the call was not executed, and another worker gets it, once.

use std::io;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use pilot_model::calendar::unix_ms;
use pilot_model::ports::{
    Answer, Call, Done, HttpHead, Input, InputKind, StreamedBody, WorkerFault,
};
use pilot_model::{EndReason, HttpRequestHead, Interface, InvocationHead, Outcome, Trace};
use pilot_pool::{Lease, Refusal};
use tokio::time::{Instant as Deadline, timeout, timeout_at};

use super::Invoker;
use super::calls::{self, Caller};
use super::{join, refused};
use crate::body::{HttpBody, Streaming};
use crate::error::InvokeError;
use crate::fault::{Failure, LAST_WORDS, output_of};
use crate::invocation::{Invocation, Serving};
use crate::request::{Payload, Request};
use crate::response::{Response, ResponseBody};
use crate::task::Task;
use crate::upload::Upload;

/// Sends the request to the worker and waits for the answer.
pub(super) async fn exchange(
    invoker: &Invoker,
    mut request: Request,
    payload: Payload,
    mut invocation: Invocation,
    mut lease: Lease,
) -> Result<Response, InvokeError> {
    let http = payload.http.as_ref();
    let ignores_body = http.is_some_and(|http| http.method.eq_ignore_ascii_case("HEAD"));
    let head = head_of(&mut request, payload.http, &invocation);
    let config = &request.version.config;
    let patience = config.timeout;
    let stream = invocation.use_worker(&mut lease);
    if config.interface == Interface::Http {
        lease.outlives_exchange();
        invocation.begins();
    }
    let is_websocket = payload.websocket.is_some();
    let streams = (payload.rest, payload.websocket);
    let sent = inputs(streams, &mut invocation, &lease)
        .and_then(|sent| with_calls(invoker, (&request, &head), &mut invocation, &lease, sent));
    let inputs = match sent {
        Ok(inputs) => inputs,
        Err(error) => {
            let fault = WorkerFault::Protocol {
                problem: format!("pass on the request's body or inputs: {error}"),
                output: Bytes::new(),
            };
            return Ok(fail(invocation, lease, Failure::fault(&request.id, &fault)));
        }
    };
    let mut call = Call {
        stream,
        head: Arc::new(head),
        payload: payload.body,
        inputs,
        paths: Vec::new(),
    };
    let mut spare = may_be_repeated(&call).then(|| call.clone());
    let (deadline, result) = loop {
        let deadline = invocation.called() + patience;
        let result = match ask(&mut invocation, &lease, call, deadline).await {
            Ok(result) => result,
            Err(printed) => {
                let failure = Failure::timeout(&request.id, patience, &printed);
                return Ok(fail(invocation, lease, failure));
            }
        };
        match (result, spare.take()) {
            (Err(WorkerFault::NotTaken(fault)), Some(again)) => {
                let another = Box::pin(another(invoker, &mut invocation, lease, *fault));
                lease = match another.await {
                    Ok(lease) => lease,
                    Err(refusal) => return refused(invocation, refusal),
                };
                let stream = invocation.use_worker(&mut lease);
                call = Call { stream, ..again };
            }
            (result, _) => break (deadline, result),
        }
    };
    let now = invocation.now();
    let (outcome, body, done) = match result {
        Ok(Answer::Result(json, done)) => (Outcome::Ok, ResponseBody::Result(json), done),
        Ok(Answer::Error(json, done)) => (
            Outcome::FunctionError,
            ResponseBody::FunctionError(json),
            done,
        ),
        Ok(Answer::Http {
            head,
            first,
            done: Some(done),
        }) => {
            let body = HttpBody::whole(first);
            (Outcome::Ok, ResponseBody::Http { head, body }, done)
        }
        Ok(Answer::Http {
            head,
            first,
            done: None,
        }) => {
            invocation.answers(now);
            let deadline = (!is_websocket).then_some(deadline);
            let streaming = Streaming::new(invocation, lease, stream, deadline);
            return Ok(stream_on(streaming, head, first, ignores_body));
        }
        Err(fault) => {
            let failure = Failure::fault(&request.id, &fault);
            return Ok(fail(invocation, lease, failure));
        }
    };
    Ok(finish(invocation, lease, outcome, body, done))
}

/// Calls the worker and waits for its answer.
///
/// # Errors
/// The timeout. The worker is killed if the call was its only one. What it printed.
async fn ask(
    invocation: &mut Invocation,
    lease: &Lease,
    call: Call,
    deadline: Deadline,
) -> Result<Result<Answer, WorkerFault>, Bytes> {
    let mut answer = lease.worker().call(call);
    let serving = Serving(invocation, lease);
    let answered = timeout_at(deadline, &mut answer).await;
    serving.ends();
    if let Ok(result) = answered {
        return Ok(result);
    }
    invocation.stopped(invocation.now());
    if invocation.version.config.concurrency > 1 {
        // The pool publishes it, because others may have printed it.
        return Err(Bytes::new());
    }
    // Afterwards there is nothing to read.
    invocation.measure(lease, invocation.now());
    lease.worker().kill();
    drop(answer);
    let printed = timeout(LAST_WORDS, lease.worker().last_output()).await;
    Err(printed.unwrap_or_default())
}

/// Whether another worker can take the call if this one ends without it: its descriptors can be read more than once.
fn may_be_repeated(call: &Call) -> bool {
    call.inputs.iter().all(Input::can_be_read_again)
}

/// Another worker for a call that this one has not taken: it ended between two calls, as programs do after an error that nobody
/// caught, or its server did.
pub(super) async fn another(
    invoker: &Invoker,
    invocation: &mut Invocation,
    lease: Lease,
    fault: WorkerFault,
) -> Result<Lease, Refusal> {
    let (worker, function) = (lease.worker().id(), &invocation.version.config.name);
    tracing::debug!(%worker, %function, %fault, "a worker ended between two calls; another one gets the call");
    invocation.printed_before(output_of(fault));
    lease.lose(invocation.now(), EndReason::Crash);
    let pool = invoker.pool(&invocation.version);
    let pool = pool.map_err(|_| Refusal::Closed)?;
    let mut lease = join::lease(&pool, invocation, None).await?;
    if invocation.version.config.interface == Interface::Http {
        lease.outlives_exchange();
    }
    Ok(lease)
}

/// What the worker gets of the request, except the payload. The deadline counts from now.
fn head_of(
    request: &mut Request,
    http: Option<HttpRequestHead>,
    invocation: &Invocation,
) -> InvocationHead {
    InvocationHead {
        id: request.id.clone(),
        version: request.version.number,
        deadline_unix_ms: unix_ms(SystemTime::now() + time_left(request)),
        arn: take(&mut request.arn),
        client_context: request.client_context.take(),
        trace: (request.trace.as_mut()).map(|trace| take(&mut trace.header)),
        trace_state: (request.trace.as_ref()).and_then(|trace| trace.state.clone()),
        failed_inputs: invocation.failed_inputs(),
        http,
    }
}

/// How long the handler may run: its timeout, and no longer than the function that waits for it.
fn time_left(request: &Request) -> Duration {
    let timeout = request.version.config.timeout;
    request.chain.map_or(timeout, |chain| {
        timeout.min(chain.deadline.saturating_duration_since(Deadline::now()))
    })
}

/// The same inputs, and the handler's way to invoke other functions, if it may invoke some.
fn with_calls(
    invoker: &Invoker,
    asked: (&Request, &InvocationHead),
    invocation: &mut Invocation,
    lease: &Lease,
    mut sent: Vec<Input>,
) -> io::Result<Vec<Input>> {
    if let Some((calls, input)) = serve_calls(invoker, asked, invocation, lease, &sent)? {
        invocation.calls = Some(calls);
        sent.push(input);
    }
    Ok(sent)
}

/// The handler's way to invoke other functions, if it may invoke some.
fn serve_calls(
    invoker: &Invoker,
    (request, head): (&Request, &InvocationHead),
    invocation: &Invocation,
    lease: &Lease,
    inputs: &[Input],
) -> io::Result<Option<(Task, Input)>> {
    if request.version.config.invokes.is_empty() {
        return Ok(None);
    }
    let caller = Caller {
        invoker: invoker.itself.clone(),
        source: Arc::clone(&invocation.context().inputs),
        version: Arc::clone(&request.version),
        depth: request.chain.map_or(1, |chain| chain.depth),
        deadline: Deadline::now() + time_left(request),
        // The header was taken for the worker.
        trace: (request.trace.clone()).map(|trace| Trace {
            header: head.trace.clone().unwrap_or_default(),
            ..trace
        }),
        events: invoker.events.of(&request.version.config.name),
        inputs: invocation.memory_of(inputs),
    };
    let takes_paths = !request.version.config.runtime.forks();
    let paths = takes_paths.then(|| Arc::downgrade(lease.worker()));
    calls::start(caller, paths).map(Some)
}

/// The descriptors that go with the call: the function's inputs, the rest of a large body, which begins to pass, the messages of a
/// WebSocket, how far the inputs are that still arrive, and what still comes of the initscript.
fn inputs(
    (rest, websocket): (Option<StreamedBody>, Option<OwnedFd>),
    invocation: &mut Invocation,
    lease: &Lease,
) -> io::Result<Vec<Input>> {
    let mut inputs = take(&mut invocation.inputs);
    if let Some(rest) = rest {
        let (upload, input) = Upload::start(rest)?;
        invocation.upload = Some(upload);
        inputs.push(input);
    }
    inputs.extend(websocket.map(|messages| Input {
        name: "websocket".to_owned(),
        kind: InputKind::WebSocket,
        descriptor: Arc::new(messages),
        object: None,
        decoded: None,
    }));
    inputs.append(&mut invocation.more);
    inputs.extend(invocation.send_script(lease.worker())?);
    Ok(inputs)
}

/// A complete answer. The worker goes back before the record is made, so that the next request need not wait for the record.
fn finish(
    mut invocation: Invocation,
    lease: Lease,
    outcome: Outcome,
    body: ResponseBody,
    done: Done,
) -> Response {
    let now = invocation.now();
    invocation.measure(&lease, now);
    let output = invocation.printed(done.output.clone());
    let output = invocation.output(&lease, output);
    lease.over(now, &done);
    invocation.done(&done, now);
    Response::complete(invocation, now, outcome, output, body)
}

fn fail(mut invocation: Invocation, lease: Lease, failure: Failure) -> Response {
    let now = invocation.now();
    invocation.measure(&lease, now);
    let output = invocation.output(&lease, failure.output);
    lease.fail(now, failure.reason);
    let body = ResponseBody::FunctionError(failure.body);
    Response::complete(invocation, now, failure.outcome, output, body)
}

/// The head of a streamed answer: the body owns the rest.
fn stream_on(streaming: Streaming, head: HttpHead, first: Bytes, ignores_body: bool) -> Response {
    let invocation = streaming.invocation();
    let ignores_body = ignores_body || matches!(head.status, 204 | 304);
    Response {
        id: invocation.id.clone(),
        version: Arc::clone(&invocation.version),
        start: invocation.start,
        outcome: Outcome::Ok,
        timeline: invocation.timeline,
        transfers: invocation.transfers.clone(),
        record: None,
        body: ResponseBody::Http {
            body: HttpBody::streaming(streaming, first, &head, ignores_body),
            head,
        },
    }
}
