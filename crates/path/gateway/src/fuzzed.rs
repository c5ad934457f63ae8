//! Fuzz targets: what clients and functions send. Built for tests and with `--cfg fuzzing` only.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use pilot_model::Instant;
use pilot_model::trace::TraceContext;

use crate::function_url::fuzzed::{EventSource, parse};
use crate::lambda_api::Named;
use crate::reply::ReplyBody;
use crate::route::{Route, route};
use crate::signature::Signature;
use crate::{deadline, event_stream, host, list_headers};

/// Lines of a request: a path, a query, headers as `name: value`, an empty line, a body.
struct Request<'a> {
    path: &'a str,
    query: &'a str,
    headers: HeaderMap,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// `None`: hyper would not pass it on.
    fn of(data: &'a [u8]) -> Option<Self> {
        let end = data.windows(2).position(|pair| pair == b"\n\n");
        let (head, body) = data.split_at(end.unwrap_or(data.len()));
        let body = body.get(2..).unwrap_or_default();
        let mut lines = head.split(|byte| *byte == b'\n');
        let target = std::str::from_utf8(lines.next()?).ok()?;
        // What hyper takes as a target.
        let uri: http::Uri = target.parse().ok()?;
        if uri.path() != target.split('?').next()? {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut headers = HeaderMap::new();
        for line in lines.take(100) {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            let name = HeaderName::from_bytes(name).ok()?;
            let value = value.get(1..)?.trim_ascii();
            headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some(Self {
            path,
            query,
            headers,
            body,
        })
    }
}

/// A request to a function URL becomes an event: JSON, with the body as it was sent.
///
/// # Panics
/// It is not.
pub fn events(data: &[u8]) {
    let Some(request) = Request::of(data) else {
        return;
    };
    let event = EventSource {
        id: "an id",
        name: "name",
        method: "POST",
        protocol: Version::HTTP_11,
        path: request.path,
        query: request.query,
        headers: &request.headers,
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        body: request.body,
        unix_ms: 1_700_000_000_000,
    };
    let event: serde_json::Value = serde_json::from_slice(&event.build()).expect("it is JSON");
    let sent = event["body"].as_str().map_or_else(Vec::new, |body| {
        if event["isBase64Encoded"] == true {
            STANDARD.decode(body).expect("it is base64")
        } else {
            body.as_bytes().to_vec()
        }
    });
    assert_eq!(sent, request.body);
    assert_eq!(event["rawPath"], request.path);
}

/// What the gateway reads of a request before it knows who calls: its route, names, signature, deadline and trace.
///
/// # Panics
/// A date that was accepted has no day.
pub fn heads(data: &[u8]) {
    let Some(request) = Request::of(data) else {
        return;
    };
    let query = (!request.query.is_empty()).then_some(request.query);
    match route(request.path) {
        Route::Invoke { name } | Route::InvokeStreaming { name } => {
            let _ = Named::parse(name, query);
        }
        Route::FunctionUrl { name, root, path } => {
            let _ = Named::parse(name, None);
            assert!(path.starts_with('/') && request.path.starts_with(root));
        }
        Route::Unsupported { .. } | Route::UnknownOperation | Route::Control => {}
    }
    if let Ok(Some(signature)) = Signature::of(&request.headers, query) {
        let _ = signature.check_scope(1_700_000_000);
    }
    let _ = deadline::of(&request.headers, Instant(u64::MAX / 2));
    for value in request.headers.values() {
        if let Ok(text) = value.to_str() {
            let _ = TraceContext::of_traceparent(text);
            let _ = TraceContext::of_xray(text);
        }
    }
    let _ = list_headers::wants_websocket(&request.headers);
    let mut headers = request.headers;
    list_headers::strip_response(&mut headers);
    assert!(!headers.contains_key("connection"));
}

/// The host of a request, whose first line is a target and whose others are values of `Host`: one host or an error, and the same one
/// for everything behind.
///
/// # Panics
/// It is not.
pub fn hosts(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let uri = lines.next().and_then(|line| http::Uri::try_from(line).ok());
    let values: Result<Vec<HeaderValue>, _> = lines.take(4).map(HeaderValue::from_bytes).collect();
    let (Some(uri), Ok(values)) = (uri, values) else {
        return;
    };
    let count = values.len();
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.uri = uri;
    head.headers
        .extend(values.into_iter().map(|value| (HOST, value)));
    if host::settle(&mut head).is_err() {
        return;
    }
    assert!(count == 1, "{count} headers were accepted");
    let settled: Vec<HeaderValue> = head.headers.get_all(HOST).iter().cloned().collect();
    assert_eq!(settled.len(), 1);
    if let Some(authority) = head.uri.authority() {
        assert_eq!(settled[0].as_bytes(), authority.as_str().as_bytes());
    }
    assert!(!settled[0].as_bytes().contains(&b'@') && !settled[0].as_bytes().contains(&b','));
    host::settle(&mut head).expect("what was settled is a host");
}

/// What a handler returns becomes a response, or an error that names the key.
pub fn answers(data: &[u8]) {
    let Ok(reply) = parse(Bytes::copy_from_slice(data)) else {
        return;
    };
    assert!((100..1000).contains(&reply.status().as_u16()));
    for value in reply.headers().values() {
        assert!(!value.as_bytes().contains(&b'\n') && !value.as_bytes().contains(&b'\r'));
    }
    assert!(matches!(reply.body(), ReplyBody::Full(_)));
}

/// Events of a streamed response: lengths and checksums fit, and the payload comes back.
///
/// # Panics
/// They do not.
pub fn event_streams(data: &[u8]) {
    let payload = &data[..data.len().min(event_stream::PAYLOAD_LEN_MAX)];
    for kind in [
        event_stream::EventKind::PayloadChunk,
        event_stream::EventKind::InvokeComplete,
    ] {
        let message = event_stream::event(kind, payload);
        let number = |at: usize| {
            let bytes = message[at..].first_chunk().expect("it is long enough");
            u32::from_be_bytes(*bytes) as usize
        };
        let end = message.len() - 4;
        assert_eq!(number(0), message.len());
        assert_eq!(number(8), crc32fast::hash(&message[..8]) as usize);
        assert_eq!(number(end), crc32fast::hash(&message[..end]) as usize);
        assert_eq!(&message[12 + number(4)..end], payload);
    }
}

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    #[test]
    fn every_request_becomes_an_event_with_its_body() {
        corpus("events", super::events);
    }

    #[test]
    fn no_head_of_a_request_panics() {
        corpus("heads", super::heads);
    }

    #[test]
    fn a_request_has_one_host_or_is_refused() {
        corpus("hosts", super::hosts);
    }

    #[test]
    fn whatever_a_handler_returns_is_a_response_or_an_error() {
        corpus("answers", super::answers);
    }

    #[test]
    fn events_of_a_stream_have_fitting_lengths_and_checksums() {
        corpus("event-streams", super::event_streams);
    }
}
