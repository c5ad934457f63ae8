//! Function URLs: `ANY /fn/NAME/path?query`. Event functions get an event in AWS Lambda's payload format 2.0 and return or stream
//! a response. ASGI and WSGI applications get the request itself. Requests to functions that are HTTP servers are streamed to the
//! server.

mod answer;
mod event;
mod passing;

/// What fuzz targets call.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    pub(crate) use super::answer::parse;
    pub(crate) use super::event::EventSource;
}

use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use pilot_invoke::{InvokeError, Payload, Request, Response, ResponseBody};
use pilot_model::calendar::unix_ms;
use pilot_model::ports::StreamedBody;
use pilot_model::trigger::FaasTrigger;
use pilot_model::{Interface, Version};
use pilot_protocols::FREE_LEN;

use crate::application;
use crate::cors::Sharing;
use crate::deadline;
use crate::errors::{AnswerError, RequestError};
use crate::forward;
use crate::lambda_api::Named;
use crate::reply::{Reply, ReplyBody};
use crate::request_context::{Presigned, RequestContext};
use crate::requested_inputs;
use crate::timing;
use crate::websocket::Handshake;
use event::EventSource;

/// The parts of a request's URL, all raw, as sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UrlParts<'a> {
    /// `NAME` or `NAME:QUALIFIER`.
    pub(crate) name: &'a str,
    /// `/fn/NAME`.
    pub(crate) root: &'a str,
    /// The rest of the path; begins with `/`.
    pub(crate) path: &'a str,
    /// Without `?`; empty if there is none.
    pub(crate) query: &'a str,
    /// Everything after `root`; may be empty.
    pub(crate) path_and_query: &'a str,
}

/// Invokes the function, or answers a preflight.
///
/// # Errors
/// See [`RequestError`]. An error of the function is a reply with status 502.
pub(crate) async fn call(
    context: RequestContext<'_>,
    url: UrlParts<'_>,
) -> Result<Reply, RequestError> {
    let named = Named::parse(url.name, None)?;
    let invoker = &context.gate.invoker;
    let found = invoker.find(&named.name, named.qualifier.as_deref());
    let sharing = found.as_ref().ok();
    let sharing = sharing.and_then(|version| Sharing::of(version, &context.head));
    let Some(sharing) = sharing else {
        return invoke(context, url, &named, found).await;
    };
    if let Some(reply) = sharing.preflight(&context.head) {
        return Ok(reply);
    }
    let id = context.id.clone();
    let reply = Box::pin(invoke(context, url, &named, found)).await;
    let mut reply = reply.unwrap_or_else(|error| error.into_reply(&id));
    sharing.mark(reply.headers_mut());
    Ok(reply)
}

async fn invoke(
    mut context: RequestContext<'_>,
    url: UrlParts<'_>,
    named: &Named,
    found: Result<Arc<Version>, InvokeError>,
) -> Result<Reply, RequestError> {
    context.authorise(&[&named.name], Presigned::No).await?;
    let gate = context.gate;
    // Whoever may not call functions is not told which there are.
    let version = found?;
    let interface = version.config.interface;
    let has_body_input = version.config.body_input().is_some();
    let root_path = version.config.root_path.clone();
    let inputs = requested_inputs::of(&context.head.headers, &version.config)?;
    if interface == Interface::Http {
        return passing::call(context, url, named, version).await;
    }
    let request = Request {
        id: context.id.clone(),
        arn: version.arn(named.qualifier.as_deref()),
        version,
        inputs,
        received: context.received,
        client_context: None,
        trace: Some(context.trace(ROUTE)),
        trigger: FaasTrigger::Http,
        urgency: deadline::of(&context.head.headers, context.received)?,
        chain: None,
    };
    let websocket = match interface {
        Interface::Asgi => Handshake::of(&mut context.head)?,
        _ => None,
    };
    let (handshake, messages) = websocket.unzip();
    let root = root_path.as_deref().unwrap_or(url.root);
    let payload = async {
        let direct = has_body_input.then(|| context.direct_body());
        Ok::<_, RequestError>(match (interface, direct) {
            (Interface::Event, Some(direct)) => Payload {
                direct: Some(direct),
                ..event_payload(&mut context, url, &named.name, None)
            },
            (Interface::Event, None) => {
                let body = context.read_body(&named.name).await?;
                event_payload(&mut context, url, &named.name, Some(&body))
            }
            (_, Some(direct)) => Payload {
                websocket: messages,
                direct: Some(direct),
                ..application_payload(&mut context, url, root, Bytes::new(), None)
            },
            (_, None) => {
                let (body, rest) = context.read_front(&named.name).await?;
                Payload {
                    websocket: messages,
                    ..application_payload(&mut context, url, root, body, rest)
                }
            }
        })
    };
    let response = gate.invoker.invoke(request, pin!(payload)).await;
    let response = response.map_err(|error| context.known_body_fault(error))?;
    Ok(reply(response, handshake, &context))
}

/// A function URL, for traces.
const ROUTE: &str = "/fn/{name}";
/// The status by which an application accepts a WebSocket.
const SWITCHING: u16 = 101;

/// An event without `body`: the function has that as an input.
fn event_payload(
    context: &mut RequestContext<'_>,
    url: UrlParts<'_>,
    name: &str,
    body: Option<&[u8]>,
) -> Payload {
    let origin = prepare(context, url, body.map(<[u8]>::len));
    let source = EventSource {
        id: context.id.as_str(),
        name,
        method: context.head.method.as_str(),
        protocol: context.head.version,
        path: url.path,
        query: url.query,
        headers: &context.head.headers,
        client: origin.client.ip(),
        body: body.unwrap_or_default(),
        unix_ms: unix_ms(SystemTime::now()),
    };
    Payload::event(source.build())
}

fn application_payload(
    context: &mut RequestContext<'_>,
    url: UrlParts<'_>,
    root: &str,
    body: Bytes,
    rest: Option<StreamedBody>,
) -> Payload {
    let whole_len = rest.is_none().then_some(body.len());
    let origin = prepare(context, url, whole_len);
    let head = application::request(&context.head, root, url.path, url.query, origin);
    Payload {
        http: Some(head),
        body,
        rest,
        direct: None,
        websocket: None,
        data: None,
    }
}

fn prepare(
    context: &mut RequestContext<'_>,
    url: UrlParts<'_>,
    body_len: Option<usize>,
) -> forward::Origin {
    let trust = context.gate.config.trust_forwarded;
    forward::prepare(
        &mut context.head.headers,
        context.line,
        trust,
        url.root,
        body_len,
    )
}

fn reply(response: Response, handshake: Option<Handshake>, context: &RequestContext<'_>) -> Reply {
    let limit = context.gate.config.result_bytes_max;
    let answer = match (response.body, handshake) {
        (ResponseBody::Result(output), _) if output.len() > limit => {
            Err(AnswerError::TooLarge { limit })
        }
        (ResponseBody::Result(output), _) if output.len() > FREE_LEN => {
            let memory = context.holds_answer_of(&response.version.config.name);
            answer::parse(output.clone()).map(|reply| {
                reply.map(|body| match body {
                    // The body is a part of the output, or was made of it.
                    ReplyBody::Full(body) => ReplyBody::Full(memory.in_place_of(output, body)),
                    other => other,
                })
            })
        }
        (ResponseBody::Result(output), _) => answer::parse(output),
        (ResponseBody::FunctionError(error), _) => Err(AnswerError::raised(&error)),
        (ResponseBody::Http { head, body }, Some(handshake)) if head.status == SWITCHING => {
            let name = &response.version.config.name;
            let memory = context.gate.config.answers.of(name);
            let (reply, websocket) = handshake.accepted(&head, body, memory);
            context.line.becomes(websocket);
            Ok(reply)
        }
        (ResponseBody::Http { head, body }, _) => {
            context.holds_answer_of(&response.version.config.name);
            application::reply(&context.head.method, head, body)
        }
        // Calls never have such a response.
        (ResponseBody::Passed(_) | ResponseBody::Upgraded(_), _) => Err(AnswerError::unfit()),
    };
    let mut reply = answer.unwrap_or_else(|error| error.into_reply(&context.id));
    timing::write(
        reply.headers_mut(),
        &response.id,
        Some(response.start),
        &response.timeline,
        &response.transfers,
        context.gate.invoker.now(),
    );
    reply
}
