//! ASGI and WSGI applications. The worker gets the HTTP request, and returns the HTTP response, which is streamed if the application
//! streams. Only hop-by-hop headers are removed from both.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Method, StatusCode};
use pilot_invoke::HttpBody;
use pilot_model::HttpRequestHead;
use pilot_model::ports::HttpHead;

use crate::errors::AnswerError;
use crate::forward::Origin;
use crate::headers;
use crate::reply::{Reply, ReplyBody};

/// The request's head for the application. `root` is where it is told to be, by default `/fn/NAME`, and `path` is the raw rest of the path.
pub(crate) fn request(
    head: &Parts,
    root: &str,
    path: &str,
    query: &str,
    origin: Origin,
) -> HttpRequestHead {
    HttpRequestHead {
        method: head.method.as_str().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        root_path: root.to_owned(),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), headers::application_text(value)))
            .collect(),
        client: origin.client,
        scheme: origin.scheme.as_str(),
    }
}

/// The application's response to a request with `method`. Its head is not kept waiting for a body that the client does not get: the
/// application sends that until it ends, as for `GET`.
///
/// # Errors
/// [`AnswerError::Malformed`] if the head is not valid HTTP.
pub(crate) fn reply(method: &Method, head: HttpHead, body: HttpBody) -> Result<Reply, AnswerError> {
    let status = match StatusCode::from_u16(head.status) {
        Ok(status) if (200..=599).contains(&head.status) => status,
        _ => {
            return Err(malformed(format!(
                "status {} is not one of 200 to 599",
                head.status
            )));
        }
    };
    if head.headers.len() > headers::COUNT_MAX {
        return Err(AnswerError::too_many_headers());
    }
    let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let whole_len = body.complete().map(Bytes::len);
    let body = if bodiless || *method == Method::HEAD {
        body.leave_unread();
        ReplyBody::empty()
    } else {
        ReplyBody::application(body)
    };
    let mut reply = Reply::new(body);
    *reply.status_mut() = status;
    let into = reply.headers_mut();
    into.reserve(head.headers.len() + OWN_HEADERS);
    for (name, text) in &head.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .zip(headers::application_value(text));
        let Some((name, value)) = parsed else {
            let shown: String = name.chars().take(100).collect();
            return Err(malformed(format!(
                "the header '{}' has an invalid name or value",
                shown.escape_debug()
            )));
        };
        if name == headers::CONTENT_LENGTH {
            if !bodiless && says_more_than_we_know(method, whole_len) && headers::is_length(&value)
            {
                into.insert(name, value);
            }
        } else if !headers::is_ours(&name) {
            into.append(name, value);
        }
    }
    Ok(reply)
}

/// Whether the application's `Content-Length` is used. hyper writes the length of a complete body. Only the application knows the
/// length of a streamed body, or of the body that a HEAD request leaves out.
fn says_more_than_we_know(method: &Method, whole_len: Option<usize>) -> bool {
    *method == Method::HEAD || whole_len.is_none()
}

fn malformed(problem: String) -> AnswerError {
    AnswerError::Malformed { problem }
}

/// Enough for the headers of every response of an invocation.
const OWN_HEADERS: usize = 4;
