//! A call as a request of HTTP, and its answer as a response. The request's body is the event and then the data; their lengths are in its
//! headers, so that the other node knows them before the first byte.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use pilot_model::calls::{Reason, Refusal};
use pilot_model::log_line::one_line;
use pilot_model::ports::{CallAnswer, CallEnd, CallHead, NodeCall, NodeFault, Ran};
use pilot_model::trace::{Cause, Recorded, TraceContext};
use pilot_model::{FunctionName, Trace};
use serde::{Deserialize, Serialize};

use crate::sent::SentBody;

/// The path that a node asks first on a connection. The answer says that this node does what the other one asks for.
pub(crate) const HELLO: &str = "/v1/hello";
const CALL_BEGIN: &str = "/v1/functions/";
const CALL_END: &str = "/call";

const CALLER: HeaderName = HeaderName::from_static("pilot-caller");
const OWNER: HeaderName = HeaderName::from_static("pilot-owner");
const DEPTH: HeaderName = HeaderName::from_static("pilot-depth");
const LEFT_MS: HeaderName = HeaderName::from_static("pilot-left-ms");
const EVENT_BYTES: HeaderName = HeaderName::from_static("pilot-event-bytes");
const DATA_BYTES: HeaderName = HeaderName::from_static("pilot-data-bytes");
const TRACE: HeaderName = HeaderName::from_static("x-amzn-trace-id");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");
/// How an answered call ended.
const END: HeaderName = HeaderName::from_static("pilot-end");

/// Longest event, bytes: as of every call.
pub(crate) const EVENT_LEN_MAX: u64 = 6 << 20;
/// Longest answer, bytes: Lambda's, with a margin for the error body.
pub(crate) const ANSWER_LEN_MAX: u64 = (6 << 20) + (64 << 10);
/// Longest refusal, bytes.
pub(crate) const REFUSAL_LEN_MAX: usize = 16 << 10;
/// Most characters of another node's problem.
const PROBLEM_CHARS_MAX: usize = 600;
/// No caller waits longer: the longest `timeout_s`.
const LEFT_MAX: Duration = Duration::from_secs(86_400);

/// The lengths of a call's payload, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) event: u64,
    pub(crate) data: Option<u64>,
}

/// The request for a call on the node `node`.
///
/// # Errors
/// A header of the call cannot be sent.
pub(crate) fn request(
    node: &str,
    call: &NodeCall,
    body: SentBody,
) -> Result<Request<SentBody>, http::Error> {
    let head = &call.head;
    let left_ms = u64::try_from(head.left.as_millis()).unwrap_or(u64::MAX);
    let path = format!("{CALL_BEGIN}{}{CALL_END}", head.function);
    let mut request = Request::post(format!("https://{node}{path}"))
        .header(CALLER, head.caller.as_str())
        .header(DEPTH, head.depth)
        .header(LEFT_MS, left_ms)
        .header(EVENT_BYTES, call.event.len());
    if let Some(data) = &call.data {
        request = request.header(DATA_BYTES, data.bytes());
    }
    if let Some(owner) = &head.owner {
        request = request.header(OWNER, owner);
    }
    // A client's own words, which may be no header.
    let text = |text: &str| HeaderValue::from_str(text).ok();
    if let Some(trace) = &head.trace {
        if let Some(header) = text(&trace.header) {
            request = request.header(TRACE, header);
        }
        if let Some(state) = trace.state.as_deref().and_then(text) {
            request = request.header(TRACE_STATE, state);
        }
    }
    request.body(body)
}

/// Reads the head of a call. `records`: this node records traces.
///
/// # Errors
/// It is no call.
pub(crate) fn read(parts: &Parts, records: bool) -> Result<(CallHead, Lengths), Refusal> {
    let invalid = |problem: &str| Refusal::new(Reason::Invalid, problem);
    let path = parts.uri.path();
    let function = (path.strip_prefix(CALL_BEGIN)).and_then(|rest| rest.strip_suffix(CALL_END));
    let Some(function) = function.filter(|_| parts.method == Method::POST) else {
        return Err(invalid(
            "it is not a request of this version of Pilotlight: do both nodes have the same version?",
        ));
    };
    let headers = &parts.headers;
    let function: FunctionName = function
        .parse()
        .map_err(|_| invalid("the function's name is not valid"))?;
    let caller: FunctionName = text(headers, &CALLER)
        .and_then(|name| name.parse().ok())
        .ok_or_else(|| invalid("it does not say which function calls"))?;
    let whole = |name: &HeaderName| text(headers, name).and_then(|number| number.parse().ok());
    let needed = |name: &HeaderName| {
        let missing = || invalid(&format!("{name} is missing or no number"));
        whole(name).ok_or_else(missing)
    };
    let lengths = Lengths {
        event: needed(&EVENT_BYTES)?,
        data: match headers.contains_key(&DATA_BYTES) {
            true => Some(needed(&DATA_BYTES)?),
            false => None,
        },
    };
    if lengths.event > EVENT_LEN_MAX {
        let problem = "the event is longer than 6 MB";
        return Err(Refusal::new(Reason::TooLarge, problem));
    }
    let sum = lengths.event.checked_add(lengths.data.unwrap_or(0));
    let said = whole(&CONTENT_LENGTH);
    if said.is_some_and(|said| Some(said) != sum) {
        return Err(invalid("its lengths contradict each other"));
    }
    let head = CallHead {
        function,
        owner: text(headers, &OWNER).map(str::to_owned),
        depth: u32::try_from(needed(&DEPTH)?)
            .map_err(|_| invalid("the chain of functions is too long"))?,
        left: Duration::from_millis(needed(&LEFT_MS)?).min(LEFT_MAX),
        trace: trace(headers, &caller, records),
        caller,
    };
    Ok((head, lengths))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The trace of a call, below the handler that calls.
fn trace(headers: &HeaderMap, caller: &FunctionName, records: bool) -> Option<Trace> {
    let header = text(headers, &TRACE)?;
    let state = text(headers, &TRACE_STATE).map(std::sync::Arc::from);
    let context = TraceContext::of_xray(header);
    let recorded = context.filter(|context| records && context.recorded == Recorded::Yes);
    Some(match recorded {
        Some(context) => {
            let context = TraceContext { state, ..context };
            Trace::recorded(&context, Cause::Function(caller.clone()))
        }
        None => Trace {
            state,
            ..Trace::of_header(header.to_owned())
        },
    })
}

/// The body of a refusal.
#[derive(Debug, Serialize, Deserialize)]
struct Refused {
    reason: Reason,
    problem: String,
    /// Whether the function may have run.
    ran: bool,
}

/// The response to a call.
pub(crate) fn response(end: Result<CallAnswer, NodeFault>) -> Response<Bytes> {
    let fault = match end {
        Ok(CallAnswer { end, body }) => {
            let mut response = Response::new(body);
            let word = HeaderValue::from_static(word(end));
            response.headers_mut().insert(END, word);
            return response;
        }
        Err(fault) => fault,
    };
    let Refusal { reason, problem } = fault.refusal;
    let body = serde_json::to_vec(&Refused {
        reason,
        problem: problem.chars().take(PROBLEM_CHARS_MAX).collect(),
        ran: fault.ran == Ran::Perhaps,
    });
    let mut response = Response::new(body.unwrap_or_default().into());
    *response.status_mut() = status(reason);
    response
}

/// The answer that a response is.
///
/// # Errors
/// The other node's refusal, or what it sends is no answer.
pub(crate) fn answer(
    status: StatusCode,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<CallAnswer, NodeFault> {
    let end = text(headers, &END);
    for known in [CallEnd::Done, CallEnd::FunctionError] {
        if status == StatusCode::OK && end == Some(word(known)) {
            return Ok(CallAnswer { end: known, body });
        }
    }
    let Ok(refused) = serde_json::from_slice::<Refused>(&body) else {
        let problem =
            format!("its answer, with status {status}, is not one that this version knows");
        return Err(NodeFault {
            refusal: Refusal::new(Reason::Unavailable, problem),
            ran: Ran::Perhaps,
        });
    };
    let problem = one_line(&refused.problem, PROBLEM_CHARS_MAX);
    Err(NodeFault {
        refusal: Refusal::new(refused.reason, problem),
        ran: if refused.ran { Ran::Perhaps } else { Ran::No },
    })
}

/// Whether an answer of this head is one of a function, and not a refusal.
pub(crate) fn is_answer(headers: &HeaderMap) -> bool {
    headers.contains_key(END)
}

fn word(end: CallEnd) -> &'static str {
    match end {
        CallEnd::Done => "done",
        CallEnd::FunctionError => "function-error",
    }
}

fn status(reason: Reason) -> StatusCode {
    match reason {
        Reason::Forbidden => StatusCode::FORBIDDEN,
        Reason::NotFound => StatusCode::NOT_FOUND,
        Reason::TooDeep => StatusCode::LOOP_DETECTED,
        Reason::Throttled => StatusCode::TOO_MANY_REQUESTS,
        Reason::NotSupported => StatusCode::UNPROCESSABLE_ENTITY,
        Reason::Invalid | Reason::StillMapped => StatusCode::BAD_REQUEST,
        Reason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Reason::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
        Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> CallHead {
        CallHead {
            function: "next".parse().unwrap(),
            caller: "first".parse().unwrap(),
            owner: Some("us".to_owned()),
            depth: 3,
            left: Duration::from_millis(1500),
            trace: Some(Trace::of_header(
                "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=b7ad6b7169203331;Sampled=1"
                    .to_owned(),
            )),
        }
    }

    fn parts() -> Parts {
        let call = NodeCall {
            head: head(),
            event: "{}".into(),
            data: None,
        };
        let (body, _) = SentBody::new(call.event.clone(), 0, &crate::sent::Ahead::default());
        request("b", &call, body).unwrap().into_parts().0
    }

    #[test]
    fn a_call_is_read_as_it_was_sent() {
        for records in [false, true] {
            let (read, lengths) = read(&parts(), records).unwrap();
            let sent = head();
            assert_eq!((read.function, read.caller), (sent.function, sent.caller));
            assert_eq!(
                (read.owner, read.depth, read.left),
                (sent.owner, 3, sent.left)
            );
            assert_eq!(
                lengths,
                Lengths {
                    event: 2,
                    data: None
                }
            );
            let trace = read.trace.unwrap();
            assert_eq!(trace.span.is_some(), records);
            assert!(
                trace
                    .header
                    .starts_with("Root=1-5759e988-bd862e3fe1be46a994272793")
            );
        }
    }

    #[test]
    fn what_is_no_call_is_refused() {
        let with = |change: &dyn Fn(&mut Parts)| {
            let mut parts = parts();
            change(&mut parts);
            read(&parts, true).map(drop).unwrap_err()
        };
        let set = |name: HeaderName, value: &'static str| {
            with(&|parts| drop(parts.headers.insert(&name, HeaderValue::from_static(value))))
        };
        let too_long = set(EVENT_BYTES, "6291457");
        assert_eq!(too_long.reason, Reason::TooLarge);
        for refusal in [
            with(&|parts| parts.method = Method::GET),
            with(&|parts| parts.uri = http::Uri::from_static("https://b/v1/functions/a%2Fb/call")),
            with(&|parts| parts.uri = http::Uri::from_static("https://b/v2/functions/next/call")),
            with(&|parts| drop(parts.headers.remove(EVENT_BYTES))),
            set(EVENT_BYTES, "-1"),
            set(DATA_BYTES, "18446744073709551616"),
            set(DATA_BYTES, "x"),
            set(DEPTH, "4294967296"),
            set(CALLER, "a b"),
            // What was announced and what follows.
            set(CONTENT_LENGTH, "3"),
            with(&|parts| {
                let most = HeaderValue::from_static("18446744073709551615");
                parts.headers.insert(DATA_BYTES, most);
                parts
                    .headers
                    .insert(CONTENT_LENGTH, HeaderValue::from_static("1"));
            }),
        ] {
            assert_eq!(refusal.reason, Reason::Invalid, "{refusal:?}");
        }
        let far = HeaderValue::from_static("18446744073709551615");
        let mut parts = parts();
        parts.headers.insert(LEFT_MS, far);
        assert_eq!(read(&parts, true).unwrap().0.left, LEFT_MAX);
    }

    #[test]
    fn an_answer_or_a_refusal_comes_back() {
        let fault = |ran| NodeFault {
            refusal: Refusal::new(Reason::NoRoom, "no room"),
            ran,
        };
        let answered = |end| {
            Ok(CallAnswer {
                end,
                body: "[1]".into(),
            })
        };
        for end in [
            answered(CallEnd::Done),
            answered(CallEnd::FunctionError),
            Err(fault(Ran::No)),
            Err(fault(Ran::Perhaps)),
        ] {
            let sent = response(end.clone());
            let (parts, body) = sent.into_parts();
            assert_eq!(is_answer(&parts.headers), end.is_ok());
            assert_eq!(answer(parts.status, &parts.headers, body), end);
        }
        // A proxy's page, or that of a later version.
        let odd = answer(StatusCode::OK, &HeaderMap::new(), "<html>".into()).unwrap_err();
        assert_eq!(odd.ran, Ran::Perhaps);
    }
}
