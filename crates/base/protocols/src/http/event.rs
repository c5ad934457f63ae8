//! The Invoke API on an HTTP function: the event is the body of a `POST /`, and the response becomes the result.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use pilot_model::Instant;
use pilot_model::ports::{Answer, Done, StreamedBody, WorkerFault};
use serde::de::IgnoredAny;

use super::passed::PassedBody;
use super::site::{Site, Unanswered, now};
use crate::error_body::{error_body, too_large, truncated};
use crate::{FREE_LEN, FunctionBudget, RESPONSE_LEN_MAX};

/// Posts the event. A 2xx response is the result: its body if that is JSON, otherwise the body as a JSON string, and `null` if
/// there is none. Any other status is an error of type `Runtime.HttpStatus`.
/// `headers` are further headers of the request.
pub(super) async fn call(
    site: &Arc<Site>,
    event: Bytes,
    headers: HeaderMap,
) -> Result<Answer, WorkerFault> {
    let started = now();
    let body = Full::new(event).map_err(|never| match never {});
    let mut request = Request::new(StreamedBody::new(body));
    *request.method_mut() = Method::POST;
    *request.headers_mut() = headers;
    request.headers_mut().insert(HOST, site.host.clone());
    request
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (response, connection) = match site.while_alive(site.exchange(request)).await {
        Ok(answered) => answered,
        Err(Unanswered::Server(problem)) => return Err(site.fault(problem).await),
        Err(Unanswered::Unsent(_, problem)) => {
            let fault = site.fault(problem).await;
            return Err(WorkerFault::NotTaken(Box::new(fault)));
        }
        Err(Unanswered::Closed(problem)) => match site.closed(problem).await {
            WorkerFault::Unanswered { problem, output } => {
                let body = error_body("Runtime.ServerError", &problem);
                return Ok(Answer::Error(body, done(started, now(), output)));
            }
            fault => return Err(fault),
        },
        Err(Unanswered::RequestBody) => return Err(site.life.fault("the event was not sent")),
    };
    let first_byte = now();
    let response = PassedBody::response(site, response, connection, None);
    let status = response.status();
    let read = site
        .while_alive(async { Ok(read(response.into_body(), &site.answers).await) })
        .await;
    let done = || done(started, first_byte, Bytes::new());
    match read {
        Ok(Ok(body)) if status.is_success() => Ok(Answer::Result(as_json(body), done())),
        Ok(Ok(body)) => Ok(Answer::Error(status_error(status, &body), done())),
        Ok(Err(Unread::TooLarge)) => Ok(Answer::Error(too_large(), done())),
        Ok(Err(Unread::Broken)) | Err(_) => match site.life.ended_soon().await {
            Some(end) => Err(site.life.fault_of(end)),
            None => Ok(Answer::Error(truncated(), done())),
        },
    }
}

fn done(started: Instant, first_byte: Instant, output: Bytes) -> Done {
    Done {
        started,
        returned: first_byte,
        first_byte,
        output,
        is_last: false,
    }
}

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    TooLarge,
    Broken,
}

async fn read(mut body: StreamedBody, memory: &FunctionBudget) -> Result<Bytes, Unread> {
    let mut memory = memory.nothing();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Unread::Broken)?;
        if let Some(chunk) = frame.data_ref() {
            if all.len() + chunk.len() > RESPONSE_LEN_MAX {
                return Err(Unread::TooLarge);
            }
            if all.len() + chunk.len() > FREE_LEN {
                memory.grow_to(RESPONSE_LEN_MAX).await;
            }
            all.extend_from_slice(chunk);
        }
    }
    Ok(memory.keep(all.freeze()))
}

fn as_json(body: Bytes) -> Bytes {
    if body.is_empty() {
        return Bytes::from_static(b"null");
    }
    if serde_json::from_slice::<IgnoredAny>(&body).is_ok() {
        return body;
    }
    serde_json::to_vec(&String::from_utf8_lossy(&body))
        .expect("text is always JSON")
        .into()
}

fn status_error(status: StatusCode, body: &[u8]) -> Bytes {
    let begins = String::from_utf8_lossy(&body[..body.len().min(SHOWN_LEN_MAX)]);
    error_body(
        "Runtime.HttpStatus",
        &format!("The function's server answered {status}: {begins}"),
    )
}

/// Longest part of a body that an error message quotes, bytes.
const SHOWN_LEN_MAX: usize = 512;
