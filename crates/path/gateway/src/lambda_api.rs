//! AWS Lambda's Invoke API: `POST /2015-03-31/functions/NAME/invocations`, and InvokeWithResponseStream,
//! `POST /2021-11-15/functions/NAME/response-streaming-invocations`. AWS SDKs and the aws CLI only need an endpoint URL. Where a
//! token is required, they may show its access key by their signature.
//!
//! Not here: every other operation of Lambda's API. Functions are deployed through the control API.

mod asynchronous;
mod chain;
mod name;
mod streaming;

use std::borrow::Cow;
use std::pin::pin;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use pilot_invoke::{HttpBody, Payload, Request, Response, ResponseBody, function_error};
use pilot_model::hint;
use pilot_model::ports::{CallAnswer, CallEnd, HttpHead};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{FunctionName, Interface, InvocationId, Version};
use pilot_protocols::{FREE_LEN, Reserved};
use serde_json::value::RawValue;

use crate::deadline;
use crate::errors::{self, RequestError};
use crate::headers;
use crate::reply::{Reply, ReplyBody};
use crate::request_context::{Presigned, RequestContext};
use crate::requested_inputs;
use crate::timing;
use crate::web_page;

pub(crate) use name::Named;

use chain::Answered;

/// The form of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A body, which is streamed if the function streams.
    Whole,
    /// A stream of events.
    EventStream,
}

/// Invokes a function. `name` is the path's segment and `query` the query, both as sent.
///
/// # Errors
/// See [`RequestError`]. An error of the function is a reply.
pub(crate) async fn invoke(
    mut context: RequestContext<'_>,
    name: &str,
    query: Option<&str>,
    form: Form,
) -> Result<Reply, RequestError> {
    let named = Named::parse(name, query)?;
    let targets = chain::targets(&context.head.headers)?;
    let mut functions = vec![named.name.as_str()];
    functions.extend(targets.iter().map(|target| target.name.as_str()));
    context.authorise(&functions, Presigned::Taken).await?;
    if context.gate.is_open_to_pages() {
        web_page::refuse(&context.head, &context.gate.config.hosts)?;
    }
    if context.head.method != Method::POST {
        return Err(RequestError::UnknownOperation {
            method: context.head.method.as_str().chars().take(20).collect(),
        });
    }
    let gate = context.gate;
    let version = gate.invoker.find(&named.name, named.qualifier.as_deref())?;
    let targets = chain::links(&targets, gate, form)?;
    let kind = InvocationType::of(&context.head.headers)?;
    let log = LogType::of(&context.head.headers)?;
    let client_context = client_context(&context.head.headers)?;
    refuse_unsupported(&context.head.headers)?;
    // A function that is an HTTP server gets the event as the body of a `POST /`.
    if matches!(version.config.interface, Interface::Asgi | Interface::Wsgi) {
        return Err(RequestError::NotSupported {
            feature: "Invoke on a function with interface asgi or wsgi",
            instead: "call its URL, /fn/NAME/",
        });
    }
    if kind == InvocationType::DryRun {
        return Ok(dry_run(&context, &version));
    }
    if kind == InvocationType::Event {
        asynchronous::check(!targets.is_empty(), form)?;
        let accepted = asynchronous::accept(context, &version, named.qualifier, client_context);
        return Box::pin(accepted).await;
    }
    if context
        .head
        .headers
        .contains_key(headers::PILOT_IDEMPOTENCY_KEY)
    {
        return Err(RequestError::InvalidContent {
            problem: "X-Pilot-Idempotency-Key needs X-Amz-Invocation-Type: Event".to_owned(),
        });
    }
    let inputs = requested_inputs::of(&context.head.headers, &version.config)?;
    let request = Request {
        id: context.id.clone(),
        arn: version.arn(named.qualifier.as_deref()),
        version,
        inputs,
        received: context.received,
        client_context,
        trace: Some(context.trace(INVOKE_ROUTE)),
        trigger: FaasTrigger::Http,
        urgency: deadline::of(&context.head.headers, context.received)?,
        chain: None,
    };
    let has_body_input = request.version.config.body_input().is_some();
    let payload = payload(&mut context, &named.name, has_body_input);
    let is_chain = !targets.is_empty();
    let response = if is_chain {
        let answered = Box::pin(chain::invoke(gate, request, payload, targets)).await;
        match answered.map_err(|error| context.known_body_fault(error))? {
            Answered::Here(response) => *response,
            Answered::There(name, answer) => return Ok(far_reply(&name, answer, &context.id)),
        }
    } else {
        let response = gate.invoker.invoke(request, pin!(payload)).await;
        response.map_err(|error| context.known_body_fault(error))?
    };
    let answered_by = response.version.config.name.clone();
    let mut reply = match form {
        Form::Whole => reply(response, log, &context).await,
        Form::EventStream => streaming::reply(response, log, &context),
    };
    if is_chain && let Ok(name) = HeaderValue::from_str(answered_by.as_str()) {
        reply.headers_mut().insert(headers::PILOT_TARGET, name);
    }
    Ok(reply)
}

/// The body as the event, or as an input of the function. Then there is no event.
async fn payload(
    context: &mut RequestContext<'_>,
    function: &str,
    has_body_input: bool,
) -> Result<Payload, RequestError> {
    if has_body_input {
        return Ok(Payload {
            direct: Some(context.direct_body()),
            ..Payload::event(Bytes::from_static(NO_EVENT))
        });
    }
    let body = context.read_body(function).await?;
    checked_event(body).map(Payload::event)
}

/// Refuses the parameters that would change what happens, where ignoring them would do something else.
fn refuse_unsupported(headers: &HeaderMap) -> Result<(), RequestError> {
    let unsupported = [
        (
            &headers::TENANT_ID,
            "TenantId (tenant isolation)",
            "deploy one function per tenant",
        ),
        (
            &headers::DURABLE_EXECUTION_NAME,
            "DurableExecutionName (durable functions)",
            "leave it out",
        ),
    ];
    let given = unsupported
        .into_iter()
        .find(|(name, ..)| headers.contains_key(*name));
    given.map_or(Ok(()), |(_, feature, instead)| {
        Err(RequestError::NotSupported { feature, instead })
    })
}

/// The supported values of `X-Amz-Invocation-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InvocationType {
    RequestResponse,
    Event,
    DryRun,
}

impl InvocationType {
    fn of(headers: &HeaderMap) -> Result<Self, RequestError> {
        match word(headers, &headers::INVOCATION_TYPE).as_deref() {
            None | Some("RequestResponse") => Ok(Self::RequestResponse),
            Some("DryRun") => Ok(Self::DryRun),
            Some("Event") => Ok(Self::Event),
            Some(other) => Err(RequestError::InvalidMember {
                member: "invocationType",
                value: other.chars().take(140).collect(),
                allowed: "Event, RequestResponse, DryRun",
            }),
        }
    }
}

/// `X-Amz-Log-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogType {
    None,
    Tail,
}

impl LogType {
    fn of(headers: &HeaderMap) -> Result<Self, RequestError> {
        match word(headers, &headers::LOG_TYPE).as_deref() {
            None | Some("None") => Ok(Self::None),
            Some("Tail") => Ok(Self::Tail),
            Some(other) => Err(RequestError::InvalidMember {
                member: "logType",
                value: other.chars().take(140).collect(),
                allowed: "None, Tail",
            }),
        }
    }
}

fn word<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    headers
        .get(name)
        .map(headers::text)
        .filter(|text| !text.is_empty())
}

/// The client context's JSON, which is sent in base64.
fn client_context(headers: &HeaderMap) -> Result<Option<String>, RequestError> {
    let Some(encoded) = headers.get(headers::CLIENT_CONTEXT) else {
        return Ok(None);
    };
    let encoded = encoded.as_bytes();
    if encoded.len() > CLIENT_CONTEXT_LEN_MAX {
        return Err(RequestError::InvalidContent {
            problem: format!("Client context must be no more than {CLIENT_CONTEXT_LEN_MAX} bytes."),
        });
    }
    STANDARD
        .decode(encoded)
        .ok()
        .and_then(|json| String::from_utf8(json).ok())
        .filter(|json| json.trim_start().starts_with('{') && is_json(json.as_bytes()).is_ok())
        .map(Some)
        .ok_or_else(|| RequestError::InvalidContent {
            problem: "Client context must be a valid Base64-encoded JSON object.".to_owned(),
        })
}

/// The event, checked to be JSON. An empty body is the event `{}`, as in Lambda.
fn checked_event(body: Bytes) -> Result<Bytes, RequestError> {
    if body.is_empty() {
        return Ok(Bytes::from_static(NO_EVENT));
    }
    match is_json(&body) {
        Ok(()) => Ok(body),
        Err(error) => Err(RequestError::InvalidContent {
            problem: format!("Could not parse request body into json: {error}"),
        }),
    }
}

/// Parses without building a value. It uses a raw value, which must be UTF-8, unlike an ignored one.
fn is_json(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<&RawValue>(bytes).map(|_| ())
}

fn dry_run(context: &RequestContext<'_>, version: &Version) -> Reply {
    let mut reply = Reply::new(ReplyBody::empty());
    *reply.status_mut() = StatusCode::NO_CONTENT;
    let into = reply.headers_mut();
    into.insert(headers::EXECUTED_VERSION, HeaderValue::from(version.number));
    timing::write_id(into, &context.id);
    reply
}

/// The answer of a function on another node, at the end of a chain.
fn far_reply(name: &FunctionName, answer: CallAnswer, id: &InvocationId) -> Reply {
    let mut reply = Reply::new(ReplyBody::Full(answer.body));
    let into = reply.headers_mut();
    let json = HeaderValue::from_static("application/json");
    into.insert(headers::CONTENT_TYPE, json);
    if answer.end == CallEnd::FunctionError {
        let unhandled = HeaderValue::from_static("Unhandled");
        into.insert(headers::FUNCTION_ERROR, unhandled);
    }
    if let Ok(name) = HeaderValue::from_str(name.as_str()) {
        into.insert(headers::PILOT_TARGET, name);
    }
    timing::write_id(into, id);
    reply
}

async fn reply(response: Response, log: LogType, context: &RequestContext<'_>) -> Reply {
    let mut into = HeaderMap::with_capacity(HEADERS_LEN);
    into.insert(
        headers::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    write_common(&mut into, &response, context);
    let limit = context.gate.config.result_bytes_max;
    let wants_tail = log == LogType::Tail;
    let mut tail = (wants_tail && response.is_complete()).then(|| response.log_tail());
    let (body, failed) = match response.body {
        ResponseBody::Result(result) if result.len() > limit => (too_large(limit), true),
        ResponseBody::Result(result) => {
            if result.len() > FREE_LEN {
                context.holds_answer_of(&response.version.config.name);
            }
            (result, false)
        }
        ResponseBody::FunctionError(error) => (error, true),
        ResponseBody::Http { head, mut body } => {
            let memory = context.holds_answer_of(&response.version.config.name);
            let prelude = streaming::prelude(&head);
            let whole = Box::pin(collect(
                &mut body,
                &response.id,
                &prelude,
                limit,
                memory.nothing(),
            ));
            let (whole, failed) = match whole.await {
                Ok(whole) => {
                    into.insert(headers::CONTENT_TYPE, media_type(&head));
                    (whole, false)
                }
                Err(error) => (error, true),
            };
            tail = wants_tail.then(|| body.log_tail());
            (whole, failed)
        }
        // Calls never have such a response.
        ResponseBody::Passed(_) | ResponseBody::Upgraded(_) => (Bytes::from_static(b"null"), true),
    };
    if failed {
        into.insert(
            headers::FUNCTION_ERROR,
            HeaderValue::from_static("Unhandled"),
        );
        if let Some(hint) = hint::of_error(&response.version, &body)
            && let Ok(value) = HeaderValue::from_str(&hint)
        {
            into.insert(headers::PILOT_HINT, value);
        }
    }
    if let Some(tail) = tail
        && let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(log_result(&tail)))
    {
        into.insert(headers::LOG_RESULT, value);
    }
    let mut reply = Reply::new(ReplyBody::Full(body));
    *reply.headers_mut() = into;
    reply
}

/// A streamed response in one piece, after its prelude, for callers that want no stream. So what fails after its first byte is still an
/// error of the function.
///
/// # Errors
/// Lambda's error body.
async fn collect(
    body: &mut HttpBody,
    id: &InvocationId,
    prelude: &[u8],
    limit: usize,
    mut memory: Reserved,
) -> Result<Bytes, Bytes> {
    let mut whole = BytesMut::from(prelude);
    while let Some(part) = body.next().await {
        let part = part.map_err(|error| {
            function_error(&error, id)
                .unwrap_or_else(|| error_body(errors::name(&error), &error.to_string()))
        })?;
        if whole.len() + part.len() > limit {
            return Err(too_large(limit));
        }
        if whole.len() + part.len() > FREE_LEN {
            memory.grow_to(limit).await;
        }
        whole.extend_from_slice(&part);
    }
    Ok(memory.keep(whole.freeze()))
}

/// Writes the headers of both forms.
fn write_common(into: &mut HeaderMap, response: &Response, context: &RequestContext<'_>) {
    into.insert(
        headers::EXECUTED_VERSION,
        HeaderValue::from(response.version.number),
    );
    timing::write(
        into,
        &response.id,
        Some(response.start),
        &response.timeline,
        &response.transfers,
        context.gate.invoker.now(),
    );
}

/// The content type of a streamed response. With a prelude, the payload is what the function has sent to Lambda.
fn media_type(head: &HttpHead) -> HeaderValue {
    if head.is_prelude {
        return HeaderValue::from_static("application/vnd.awslambda.http-integration-response");
    }
    head.headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(headers::CONTENT_TYPE.as_str()))
        .and_then(|(_, text)| headers::application_value(text))
        .unwrap_or(HeaderValue::from_static("application/octet-stream"))
}

fn log_result(tail: &Bytes) -> String {
    STANDARD.encode(&tail[tail.len().saturating_sub(LOG_TAIL_LEN)..])
}

/// Lambda's function error for a result that is too large.
fn too_large(limit: usize) -> Bytes {
    error_body(TOO_LARGE, &too_large_message(limit))
}

fn error_body(error_type: &str, message: &str) -> Bytes {
    let error = serde_json::json!({
        "errorType": error_type,
        "errorMessage": message,
    });
    Bytes::from(error.to_string())
}

fn too_large_message(limit: usize) -> String {
    format!("Response payload size exceeded maximum allowed payload size ({limit} bytes).")
}

/// The event of an invocation that has none.
const NO_EVENT: &[u8] = b"{}";
/// The Invoke API, for traces.
const INVOKE_ROUTE: &str = "/2015-03-31/functions/{name}/invocations";
/// Lambda's name of the error for a result that is too large.
const TOO_LARGE: &str = "Function.ResponseSizeTooLarge";
/// Lambda's limit for the base64 text.
const CLIENT_CONTEXT_LEN_MAX: usize = 3583;
/// Lambda's limit for the text before base64.
const LOG_TAIL_LEN: usize = 4096;
/// Enough for all headers of a response.
const HEADERS_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn no_body_is_an_empty_object() {
        assert_eq!(checked_event(Bytes::new()).unwrap(), "{}");
    }

    #[test]
    fn a_body_that_is_no_json_is_refused_in_lambdas_words() {
        for body in [&b"{"[..], b"{} {}", b"nonsense", b"NaN", b"\"\xff\""] {
            let error = checked_event(Bytes::copy_from_slice(body)).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("Could not parse request body into json: "),
                "{error}"
            );
        }
        assert!(checked_event(Bytes::from_static(b" [1, 2]\n")).is_ok());
    }

    #[test]
    fn a_client_context_is_a_json_object_in_base64() {
        let read = |value| client_context(&with(headers::CLIENT_CONTEXT, value));
        assert_eq!(read("eyJhIjoxfQ==").unwrap().as_deref(), Some("{\"a\":1}"));
        assert!(client_context(&HeaderMap::new()).unwrap().is_none());
        for wrong in ["", "?", "W10=", "eyJ"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn invocation_and_log_types_are_lambdas_words() {
        let kind = |value| InvocationType::of(&with(headers::INVOCATION_TYPE, value));
        assert_eq!(kind("DryRun").unwrap(), InvocationType::DryRun);
        assert_eq!(kind("Event").unwrap(), InvocationType::Event);
        assert!(matches!(
            kind("event"),
            Err(RequestError::InvalidMember { .. })
        ));
        let log = |value| LogType::of(&with(headers::LOG_TYPE, value));
        assert_eq!(log("Tail").unwrap(), LogType::Tail);
        assert!(matches!(
            log("All"),
            Err(RequestError::InvalidMember { .. })
        ));
    }

    proptest! {
        #[test]
        fn every_body_that_passes_is_json(body in any::<Vec<u8>>()) {
            if let Ok(event) = checked_event(Bytes::from(body)) {
                prop_assert!(serde_json::from_slice::<serde_json::Value>(&event).is_ok()
                    || event.len() > 100, "deep nesting or a number out of range only");
            }
        }
    }
}
