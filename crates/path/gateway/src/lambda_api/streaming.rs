//! InvokeWithResponseStream: the response as events, in the encoding of `event_stream`. Each piece of the response is an event. The
//! last event says that the response is complete, or contains the error, so the connection stays intact. A response that is not
//! streamed is one piece.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use http::{HeaderMap, HeaderValue};
use pilot_invoke::{HttpBody, InvokeError, Response, ResponseBody, function_error};
use pilot_model::ports::HttpHead;
use pilot_model::{Exception, InvocationId};
use serde::Serialize;

use super::{LogType, TOO_LARGE, log_result, too_large_message, write_common};
use crate::errors;
use crate::event_stream::{EventKind, MEDIA_TYPE, PAYLOAD_LEN_MAX, event};
use crate::headers;
use crate::reply::{BoxError, Reply, ReplyBody};
use crate::request_context::RequestContext;

/// The response as a stream of events.
pub(super) fn reply(response: Response, log: LogType, context: &RequestContext<'_>) -> Reply {
    let mut into = HeaderMap::with_capacity(super::HEADERS_LEN);
    into.insert(headers::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    write_common(&mut into, &response, context);
    let tail = (log == LogType::Tail).then(|| response.log_tail());
    let limit = context.gate.config.result_bytes_max;
    let memory = context.holds_answer_of(&response.version.config.name);
    let (payload, mut complete) = match response.body {
        ResponseBody::Http { head, body } => {
            let prelude = prelude(&head);
            let Some(whole) = body.complete() else {
                let mut reply =
                    Reply::new(ReplyBody::stream(events(body, prelude, log, response.id)));
                *reply.headers_mut() = into;
                return reply;
            };
            let both = Bytes::from([&prelude[..], &whole[..]].concat());
            (
                Some(memory.in_place_of(whole.clone(), both)),
                Complete::default(),
            )
        }
        ResponseBody::Result(result) if result.len() > limit => {
            (None, Complete::failed(TOO_LARGE, too_large_message(limit)))
        }
        ResponseBody::Result(result) => (Some(result), Complete::default()),
        ResponseBody::FunctionError(error) => (None, Complete::raised(&error)),
        // Calls never have such a response.
        ResponseBody::Passed(_) | ResponseBody::Upgraded(_) => (None, Complete::default()),
    };
    complete.log_result = tail.map(|tail| log_result(&tail));
    let payload = payload.unwrap_or_default();
    let mut body: Vec<u8> = Vec::with_capacity(payload.len() + OVERHEAD_LEN);
    for piece in payload.chunks(PAYLOAD_LEN_MAX) {
        body.extend_from_slice(&event(EventKind::PayloadChunk, piece));
    }
    body.extend_from_slice(&complete.event());
    let body = memory.in_place_of(payload, body.into());
    let mut reply = Reply::new(ReplyBody::Full(body));
    *reply.headers_mut() = into;
    reply
}

/// Status, headers and cookies that the function has set, as Lambda puts them before the body: JSON and eight NUL bytes. Empty if the
/// function has set none.
pub(super) fn prelude(head: &HttpHead) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Prelude<'a> {
        status_code: u16,
        headers: BTreeMap<&'a str, String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        cookies: Vec<&'a str>,
    }
    if !head.is_prelude {
        return Bytes::new();
    }
    let mut prelude = Prelude {
        status_code: head.status,
        headers: BTreeMap::new(),
        cookies: Vec::new(),
    };
    for (name, value) in &head.headers {
        if name.eq_ignore_ascii_case(headers::SET_COOKIE.as_str()) {
            prelude.cookies.push(value);
            continue;
        }
        let all = prelude.headers.entry(name).or_default();
        let comma = if all.is_empty() { "" } else { ", " };
        all.push_str(comma);
        all.push_str(value);
    }
    let mut bytes = serde_json::to_vec(&prelude).unwrap_or_default();
    bytes.extend_from_slice(&[0; 8]);
    Bytes::from(bytes)
}

/// The events of a streamed response.
fn events(
    body: HttpBody,
    prelude: Bytes,
    log: LogType,
    id: InvocationId,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    let begin = Some((body, prelude, id));
    unfold(begin, move |state| async move {
        let (mut body, mut left, id) = state?;
        if left.is_empty() {
            left = match body.next().await {
                Some(Ok(part)) => part,
                ended => {
                    let mut complete = match ended {
                        Some(Err(error)) => Complete::broke(&error, &id),
                        _ => Complete::default(),
                    };
                    if log == LogType::Tail {
                        complete.log_result = Some(log_result(&body.log_tail()));
                    }
                    return Some((Ok(complete.event()), None));
                }
            };
        }
        let piece = left.split_to(left.len().min(PAYLOAD_LEN_MAX));
        let event = event(EventKind::PayloadChunk, &piece);
        Some((Ok(event), Some((body, left, id))))
    })
}

/// Lambda's `InvokeWithResponseStreamCompleteEvent`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Complete {
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_details: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_result: Option<String>,
}

impl Complete {
    fn failed(code: &str, details: String) -> Self {
        Self {
            error_code: Some(code.to_owned()),
            error_details: Some(details),
            log_result: None,
        }
    }

    /// With the function's own error, from Lambda's error body.
    fn raised(body: &[u8]) -> Self {
        let raised = Exception::read(body).unwrap_or_default();
        let code = match raised.error_type.as_str() {
            "" => "Unhandled",
            named => named,
        };
        Self::failed(code, String::from_utf8_lossy(body).into_owned())
    }

    /// After an error in the middle of the response.
    fn broke(error: &InvokeError, id: &InvocationId) -> Self {
        match function_error(error, id) {
            Some(body) => Self::raised(&body),
            None => Self::failed(errors::name(error), error.to_string()),
        }
    }

    fn event(&self) -> Bytes {
        let json = serde_json::to_vec(self).expect("texts are always JSON");
        event(EventKind::InvokeComplete, &json)
    }
}

/// Enough for two events without their payload.
const OVERHEAD_LEN: usize = 512;
