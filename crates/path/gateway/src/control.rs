//! A request that is not on the data path: the control API, the metrics, health. This decides whether the listener serves it, and
//! who calls. What the caller may do is the control handler's decision.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode};
use pilot_model::access::{Caller, Grant};

use crate::connection::line::Usage;
use crate::errors::RequestError;
use crate::gate::Gate;
use crate::headers;
use crate::listener::Access;
use crate::reply::{Reply, ReplyBody};
use crate::request_body::RequestBody;
use crate::token::{self, TokenError};
use crate::web_page;

/// Answers it.
///
/// # Errors
/// [`RequestError::Foreign`].
pub(crate) async fn answer(
    gate: &Gate,
    mut head: Parts,
    body: RequestBody,
    usage: &Usage,
) -> Result<Reply, RequestError> {
    let path = head.uri.path();
    if path.starts_with("/_pilot/") && !gate.door.serves.control() {
        return Ok(elsewhere());
    }
    let caller = if path == "/metrics" && gate.door.metrics == Access::Open {
        web_page::refuse(&head, &gate.config.hosts)?;
        Caller::Known(Arc::new(Grant::admin("metrics")))
    } else {
        caller(gate, &mut head)
    };
    head.extensions.insert(caller);
    let response = (gate.control)(Request::from_parts(head, body)).await;
    if response.status().is_success() {
        // The handler has read it, or reads it for its response.
        usage.body_is_handed_over();
    }
    Ok(response.map(ReplyBody::Control))
}

fn caller(gate: &Gate, head: &mut Parts) -> Caller {
    if let Some(grant) = &gate.door.everyone {
        return Caller::Known(Arc::clone(grant));
    }
    match token::take(&*gate.config.tokens, &mut head.headers) {
        Ok(grant) => Caller::Known(grant),
        Err(TokenError::Missing) => Caller::Nobody,
        Err(TokenError::Wrong | TokenError::Denied(_)) => Caller::WrongToken,
    }
}

/// The answer of a listener for functions to a request for the control API, in the control API's form.
fn elsewhere() -> Reply {
    let mut reply = Reply::new(ReplyBody::Full(Bytes::from_static(ELSEWHERE)));
    *reply.status_mut() = StatusCode::NOT_FOUND;
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(headers::CONTENT_TYPE, json);
    reply
}

const ELSEWHERE: &[u8] = b"{\"code\":\"not_here\",\"message\":\"this address serves functions; the control API has a socket of its own, \
which pilot finds by itself on the daemon's machine if neither --endpoint nor PILOT_ENDPOINT is given (for other machines: \
control_listen in pilotd.toml)\",\"detail\":\"\"}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_is_an_error_of_the_control_api() {
        let error: serde_json::Value = serde_json::from_slice(ELSEWHERE).unwrap();
        assert_eq!(error["code"], "not_here");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("control_listen")
        );
    }
}
