//! `InvocationType: Event`: the answer is 202 once the invocation is on the disk. It runs later, from the queue.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use pilot_model::Version;
use pilot_model::ports::AsyncRequest;
use pilot_model::trace::{Hop, HopKind};
use pilot_model::trigger::FaasTrigger;

use super::{Form, INVOKE_ROUTE, checked_event};
use crate::errors::RequestError;
use crate::headers;
use crate::reply::{Reply, ReplyBody};
use crate::request_context::RequestContext;
use crate::timing;
use crate::trace::Recording;

/// What cannot be asynchronous.
pub(super) fn check(is_chain: bool, form: Form) -> Result<(), RequestError> {
    if is_chain {
        return Err(RequestError::Target {
            problem:
                "a chain cannot be asynchronous: leave out X-Amz-Invocation-Type, or X-Pilot-Target"
                    .to_owned(),
        });
    }
    if form == Form::EventStream {
        return Err(RequestError::InvalidMember {
            member: "invocationType",
            value: "Event".to_owned(),
            allowed: "RequestResponse, DryRun",
        });
    }
    Ok(())
}

/// Stores the invocation.
///
/// # Errors
/// See [`RequestError`]. Nothing is stored then.
pub(super) async fn accept(
    mut context: RequestContext<'_>,
    version: &Arc<Version>,
    qualifier: Option<String>,
    client_context: Option<String>,
) -> Result<Reply, RequestError> {
    if context.head.headers.contains_key(headers::PILOT_INPUT) {
        return Err(RequestError::NotSupported {
            feature: "X-Pilot-Input with InvocationType Event",
            instead: "declare the input in pilot.toml",
        });
    }
    if version.config.body_input().is_some() {
        return Err(RequestError::NotSupported {
            feature: "InvocationType Event on a function that has the request's body as an input",
            instead: "put the data into a store, declare the input from there, and send its key as the event",
        });
    }
    let key = idempotency_key(&context.head.headers)?;
    let body = context.read_body(version.config.name.as_str()).await?;
    let payload = within_limit(checked_event(body)?)?;
    let trace = context.trace(INVOKE_ROUTE);
    let recording = Recording::of(context.gate, &trace, |span| Hop {
        span,
        id: context.id.clone(),
        version: Arc::clone(version),
        kind: HopKind::Accepted,
        began: context.received,
        ended: context.received,
        error: None,
    });
    let request = AsyncRequest {
        id: context.id.clone(),
        function: version.config.name.clone(),
        owner: version.config.owner().to_owned(),
        // `$LATEST` is the live version of each attempt.
        qualifier: qualifier.filter(|qualifier| qualifier != "$LATEST"),
        payload,
        client_context,
        trace: trace.to_text(),
        key,
        trigger: FaasTrigger::Http,
    };
    let accepted = context.gate.config.queue.accept(request).await;
    if let Some(recording) = recording {
        recording.ended((accepted.as_ref().err()).map(ToString::to_string));
    }
    let accepted = accepted?;
    let mut reply = Reply::new(ReplyBody::empty());
    *reply.status_mut() = StatusCode::ACCEPTED;
    let into = reply.headers_mut();
    timing::write_id(into, &accepted.id);
    if accepted.repeated {
        into.insert(headers::PILOT_DUPLICATE, HeaderValue::from_static("true"));
    }
    Ok(reply)
}

/// The event, if it is not larger than Lambda permits for this invocation type.
fn within_limit(event: Bytes) -> Result<Bytes, RequestError> {
    if event.len() > PAYLOAD_BYTES_MAX {
        return Err(RequestError::TooLarge {
            limit: PAYLOAD_BYTES_MAX,
        });
    }
    Ok(event)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, RequestError> {
    let Some(value) = headers.get(headers::PILOT_IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let fits = (1..=KEY_LEN_MAX).contains(&value.len())
        && value
            .as_bytes()
            .iter()
            .all(|byte| (0x20..0x7f).contains(byte));
    if fits {
        return Ok(Some(headers::text(value).into_owned()));
    }
    Err(RequestError::InvalidContent {
        problem: format!(
            "X-Pilot-Idempotency-Key must be 1 to {KEY_LEN_MAX} printable characters of ASCII"
        ),
    })
}

/// Lambda's limit for asynchronous invocations.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
const KEY_LEN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_printable_text() {
        let read = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            idempotency_key(&HeaderMap::from_iter([(
                headers::PILOT_IDEMPOTENCY_KEY,
                value,
            )]))
        };
        assert_eq!(read("order 7").unwrap().as_deref(), Some("order 7"));
        assert!(read(&"x".repeat(256)).is_ok());
        for wrong in ["", &"x".repeat(257), "\u{fc}"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn an_event_of_one_mebibyte_is_the_largest() {
        assert!(within_limit(Bytes::from(vec![b'1'; 1 << 20])).is_ok());
        let error = within_limit(Bytes::from(vec![b'1'; (1 << 20) + 1])).unwrap_err();
        assert!(error.to_string().contains("1048576"), "{error}");
    }
}
