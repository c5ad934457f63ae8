//! Replies to the runtime and its extensions, with the messages and status codes of Lambda's own endpoint.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

/// A reply: always in one piece, so that it takes one write.
pub(super) type Reply = Response<Full<Bytes>>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Problem<'a> {
    error_message: &'a str,
    error_type: &'a str,
}

/// 202 `{"status":"OK"}`.
pub(super) fn accepted() -> Reply {
    json(
        StatusCode::ACCEPTED,
        Bytes::from_static(b"{\"status\":\"OK\"}\n"),
    )
}

/// 200 with an event for the handler or an extension.
pub(super) fn event(body: Bytes) -> Reply {
    json(StatusCode::OK, body)
}

/// 200 with text, which may be empty.
pub(super) fn text(body: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    reply
}

/// An error reply.
pub(super) fn problem(status: StatusCode, kind: &str, message: &str) -> Reply {
    let problem = Problem {
        error_message: message,
        error_type: kind,
    };
    let body = serde_json::to_vec(&problem).expect("text is always JSON");
    json(status, body.into())
}

/// 400: no invocation with this id waits for an answer.
pub(super) fn invalid_request_id() -> Reply {
    problem(
        StatusCode::BAD_REQUEST,
        "InvalidRequestID",
        "Invalid request ID",
    )
}

/// 403: the runtime's state does not allow the request.
pub(super) fn invalid_state(message: &str) -> Reply {
    problem(StatusCode::FORBIDDEN, "InvalidStateTransition", message)
}

/// 413: the answer is too large.
pub(super) fn too_large() -> Reply {
    problem(
        StatusCode::PAYLOAD_TOO_LARGE,
        "RequestEntityTooLarge",
        &format!(
            "Exceeded maximum allowed payload size ({} bytes).",
            crate::RESPONSE_LEN_MAX
        ),
    )
}

/// 400: the request is incomplete.
pub(super) fn truncated() -> Reply {
    problem(
        StatusCode::BAD_REQUEST,
        "TruncatedHTTPRequest",
        "HTTP request detected as truncated",
    )
}

/// Adds a header to a reply.
pub(super) fn with(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
    reply
}

fn json(status: StatusCode, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
