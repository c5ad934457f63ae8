//! One request, from its head to its reply: the dispatch to the routes. It runs inside the connection's task, because handing a
//! request to another thread costs more than serving it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::{Body as _, Incoming};

use crate::connection::line::Line;
use crate::control;
use crate::errors::RequestError;
use crate::expectation::{Silence, Unsaid};
use crate::forward;
use crate::function_url::{self, UrlParts};
use crate::gate::Gate;
use crate::headers;
use crate::host;
use crate::lambda_api::{self, Form};
use crate::leftover;
use crate::reply::{Reply, ReplyBody};
use crate::request_body::RequestBody;
use crate::request_context::{RequestContext, new_id};
use crate::route::{Route, route};

/// A request's head was read. Not a part of [`answer`], because hyper may read on before it polls that for the first time.
pub(crate) fn begin(request: &Request<Incoming>, line: &Line) {
    let has_body = !request.body().is_end_stream();
    line.usage().request_began(request.version(), has_body);
}

/// Answers one request, after [`begin`].
pub(crate) async fn answer(gate: &Gate, request: Request<Incoming>, line: &Line) -> Reply {
    let usage = line.usage();
    let has_body = !request.body().is_end_stream();
    usage.turn().await;
    let may_follow = has_body && !request.headers().contains_key(headers::EXPECT);
    let length = request.body().size_hint().upper();
    let is_small = may_follow && length.is_some_and(|length| length <= leftover::WITH_HEAD_MAX);
    let (head, body) = request.into_parts();
    let body = RequestBody::new(body, Arc::clone(usage));
    let expects = has_body && forward::expects_continue(&head.headers);
    let (mut body, mut reply) = if expects && usage.is_multiplexed() {
        Box::pin(reply_to_waiting(gate, head, body, line)).await
    } else {
        let mut body = Some(body);
        let reply = reply(gate, head, &mut body, line).await;
        (body, reply)
    };
    // `None` if it has been begun.
    if usage.leaves_body()
        && let Some(unread) = body.take()
    {
        let rest = match may_follow {
            true => leftover::read(unread, usage).await,
            // It will not come without being asked for.
            false => Some(unread),
        };
        if let Some(rest) = rest.filter(|_| usage.is_multiplexed()) {
            usage.keeps_rest(rest.into_rest());
        }
    }
    usage.response_begins();
    let leaves_body = usage.leaves_body() || (usage.may_leave_body() && !is_small);
    let is_last = usage.is_half_closed()
        || leaves_body
        || (usage.is_http_1_0() && has_unknown_length(&reply));
    if is_last && !usage.is_multiplexed() {
        // No other request can come. hyper would close the connection, too, but not say so: a client would send its next request.
        let close = HeaderValue::from_static("close");
        reply.headers_mut().insert(headers::CONNECTION, close);
    }
    reply
}

/// The reply to a client of HTTP/2 that may wait for `100 Continue`, and the body, unless it was taken.
async fn reply_to_waiting(
    gate: &Gate,
    head: Parts,
    body: RequestBody,
    line: &Line,
) -> (Option<RequestBody>, Reply) {
    let unsaid = Arc::<Unsaid>::default();
    let silence = Silence::new(Arc::clone(&unsaid), gate.config.body_timeout);
    let mut body = Some(body.with_silence(silence));
    let reply = tokio::select! {
        biased;
        reply = reply(gate, head, &mut body, line) => reply,
        () = unsaid.is_awaited() => refusal(RequestError::Expectation),
    };
    (body, reply)
}

/// Whether the body has no length in the head. In HTTP/1.0, it then ends with the connection.
fn has_unknown_length(reply: &Reply) -> bool {
    reply.body().size_hint().exact().is_none()
        && !reply.headers().contains_key(headers::CONTENT_LENGTH)
}

async fn reply(gate: &Gate, mut head: Parts, body: &mut Option<RequestBody>, line: &Line) -> Reply {
    let received = gate.invoker.now();
    if head.method == Method::CONNECT {
        // The daemon is not a proxy, and hyper would start a tunnel after a 2xx response.
        let mut reply = Reply::new(ReplyBody::Full(Bytes::from_static(NO_CONNECT)));
        *reply.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        let allowed = HeaderValue::from_static(METHODS);
        reply.headers_mut().insert(headers::ALLOW, allowed);
        return reply;
    }
    if let Err(error) = host::settle(&mut head).and_then(|()| check_coding(&head)) {
        let mut reply = error.into_reply(&new_id());
        // Another program may see another request behind this one.
        let close = HeaderValue::from_static("close");
        reply.headers_mut().insert(headers::CONNECTION, close);
        return reply;
    }
    if head.method == Method::OPTIONS && head.uri.path() == "*" {
        // A ping of the server (RFC 9110, section 9.3.7).
        let mut reply = Reply::new(ReplyBody::empty());
        let allowed = HeaderValue::from_static(METHODS);
        reply.headers_mut().insert(headers::ALLOW, allowed);
        return reply;
    }
    let uri = std::mem::take(&mut head.uri);
    let target = route(uri.path());
    if target == Route::Control
        && let Some(body) = body.take()
    {
        head.uri = uri;
        return Box::pin(control::answer(gate, head, body, line.usage()))
            .await
            .unwrap_or_else(|error| error.into_reply(&new_id()));
    }
    let recorded = OnceLock::new();
    let context = RequestContext {
        gate,
        id: new_id(),
        received,
        head,
        line,
        uri: &uri,
        body,
        held: None,
        recorded: &recorded,
    };
    let id = context.id.clone();
    let result = match target {
        Route::Invoke { name } => lambda_api::invoke(context, name, uri.query(), Form::Whole).await,
        Route::InvokeStreaming { name } => {
            lambda_api::invoke(context, name, uri.query(), Form::EventStream).await
        }
        Route::FunctionUrl { .. } if !gate.door.serves.function_urls() => {
            Err(RequestError::NotSupported {
                feature: "a function URL on the control API's address",
                instead: "call it on the address for functions (listen)",
            })
        }
        Route::FunctionUrl { name, root, path } => {
            let whole = uri.path_and_query().map_or("", PathAndQuery::as_str);
            let url = UrlParts {
                name,
                root,
                path,
                query: uri.query().unwrap_or(""),
                path_and_query: whole.strip_prefix(root).unwrap_or("/"),
            };
            function_url::call(context, url).await
        }
        Route::Unsupported { operation } => Err(RequestError::NotSupported {
            feature: operation,
            instead: "use Invoke, POST /2015-03-31/functions/NAME/invocations",
        }),
        Route::UnknownOperation | Route::Control => Err(RequestError::UnknownOperation {
            method: context.head.method.as_str().chars().take(20).collect(),
        }),
    };
    let reply = result.unwrap_or_else(|error| error.into_reply(&id));
    if let Some(span) = recorded.get() {
        span.answered(reply.status().as_u16());
    }
    reply
}

/// The reply to a request that is not looked at.
pub(crate) fn refusal(error: RequestError) -> Reply {
    error.into_reply(&new_id())
}

/// `chunked` is the only transfer coding. hyper looks at the last one alone, and passes a body on as if nothing came before it; another
/// program could see other ends of requests (RFC 9112, section 6.1).
fn check_coding(head: &Parts) -> Result<(), RequestError> {
    let mut codings = head.headers.get_all(headers::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(RequestError::Malformed {
            problem: "the only supported Transfer-Encoding is chunked".to_owned(),
        }),
    }
}

/// The methods that some target has.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Over HTTP/2, a client may ask for a WebSocket in this way (RFC 8441), although the daemon's settings do not offer it.
const NO_CONNECT: &[u8] =
    b"CONNECT is not served: the daemon is not a proxy, and a WebSocket needs HTTP/1.1\n";
