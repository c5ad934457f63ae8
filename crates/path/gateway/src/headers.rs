//! Header names that are not in the `http` crate, and the text of header values.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue};

pub(crate) use http::header::{
    ALLOW, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST,
    RETRY_AFTER, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT, VARY,
};

macro_rules! names {
    ($($name:ident = $text:literal,)*) => {
        $(pub(crate) const $name: HeaderName = HeaderName::from_static($text);)*
    };
}

names! {
    ALLOW_CREDENTIALS = "access-control-allow-credentials",
    ALLOW_HEADERS = "access-control-allow-headers",
    ALLOW_METHODS = "access-control-allow-methods",
    ALLOW_ORIGIN = "access-control-allow-origin",
    AMZ_DATE = "x-amz-date",
    CLIENT_CONTEXT = "x-amz-client-context",
    CONTENT_SHA256 = "x-amz-content-sha256",
    ERROR_TYPE = "x-amzn-errortype",
    EXECUTED_VERSION = "x-amz-executed-version",
    EXPOSE_HEADERS = "access-control-expose-headers",
    FORWARDED = "forwarded",
    FORWARDED_FOR = "x-forwarded-for",
    FORWARDED_HOST = "x-forwarded-host",
    FORWARDED_PORT = "x-forwarded-port",
    FORWARDED_PREFIX = "x-forwarded-prefix",
    FORWARDED_PROTO = "x-forwarded-proto",
    FUNCTION_ERROR = "x-amz-function-error",
    INVOCATION_TYPE = "x-amz-invocation-type",
    KEEP_ALIVE = "keep-alive",
    LOG_RESULT = "x-amz-log-result",
    LOG_TYPE = "x-amz-log-type",
    MAX_AGE = "access-control-max-age",
    ORIGIN = "origin",
    PILOT_HINT = "x-pilot-hint",
    PILOT_DEADLINE_MS = "x-pilot-deadline-ms",
    PILOT_DUPLICATE = "x-pilot-duplicate",
    PILOT_IDEMPOTENCY_KEY = "x-pilot-idempotency-key",
    PILOT_INPUT = "x-pilot-input",
    PILOT_START = "x-pilot-start",
    PILOT_TARGET = "x-pilot-target",
    PILOT_TOKEN = "x-pilot-token",
    PREFER = "prefer",
    PROXY_AUTHENTICATE = "proxy-authenticate",
    PROXY_AUTHORIZATION = "proxy-authorization",
    PROXY_CONNECTION = "proxy-connection",
    REAL_IP = "x-real-ip",
    REQUEST_HEADERS = "access-control-request-headers",
    REQUEST_ID = "x-amzn-requestid",
    REQUEST_METHOD = "access-control-request-method",
    SECURITY_TOKEN = "x-amz-security-token",
    SERVER_TIMING = "server-timing",
    TENANT_ID = "x-amz-tenant-id",
    DURABLE_EXECUTION_NAME = "x-amz-durable-execution-name",
    WEBSOCKET_ACCEPT = "sec-websocket-accept",
    WEBSOCKET_KEY = "sec-websocket-key",
    WEBSOCKET_VERSION = "sec-websocket-version",
    TRACE_ID = "x-amzn-trace-id",
    TRACEPARENT = "traceparent",
    TRACESTATE = "tracestate",
}

/// Hop-by-hop headers (RFC 9110, section 7.6.1).
pub(crate) const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The hop-by-hop headers that are removed from streamed requests and responses. `Trailer` stays, because trailers are passed on.
pub(crate) const NOT_PASSED: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Highest number of headers that a function may set. `HeaderMap` panics above some 24,000, and no client accepts as many.
pub(crate) const COUNT_MAX: usize = 1000;

/// Whether a function may not set this header, because the gateway sets it for the connection or the body.
pub(crate) fn is_ours(name: &HeaderName) -> bool {
    *name == CONTENT_LENGTH || HOP_BY_HOP.contains(name)
}

/// Whether a value is a valid length of a body.
pub(crate) fn is_length(value: &HeaderValue) -> bool {
    let digits = value.as_bytes();
    (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
}

/// A value as text: UTF-8 if it is valid, otherwise Latin-1, which is always valid.
pub(crate) fn text(value: &HeaderValue) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(latin1(bytes)),
    }
}

/// A value for applications: each byte becomes one character (PEP 3333's native string; ASGI encodes it back).
pub(crate) fn application_text(value: &HeaderValue) -> String {
    let bytes = value.as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.is_ascii() => text.to_owned(),
        _ => latin1(bytes),
    }
}

/// The reverse of [`application_text`], without blanks around the value, which make a response of HTTP/2 malformed (RFC 9113 §8.2.1). Text
/// beyond Latin-1 becomes UTF-8. `None`: it contains a control character.
pub(crate) fn application_value(text: &str) -> Option<HeaderValue> {
    let text = text.trim_matches(BLANKS);
    if text.is_ascii() {
        return HeaderValue::from_str(text).ok();
    }
    let bytes: Option<Vec<u8>> = text
        .chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect();
    match bytes {
        Some(bytes) => HeaderValue::from_maybe_shared(bytes::Bytes::from(bytes)).ok(),
        None => HeaderValue::from_bytes(text.as_bytes()).ok(),
    }
}

/// Text as a value, in UTF-8, without blanks around it. `None`: it contains a control character.
pub(crate) fn value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_bytes(text.trim_matches(BLANKS).as_bytes()).ok()
}

const BLANKS: [char; 2] = [' ', '\t'];

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_comes_back_from_an_application_byte_by_byte(bytes in any::<Vec<u8>>()) {
            // hyper gives values without blanks around them.
            if let Ok(value) = HeaderValue::from_bytes(bytes.trim_ascii()) {
                prop_assert_eq!(application_value(&application_text(&value)), Some(value));
            }
        }

        #[test]
        fn no_text_of_an_application_is_too_odd(text in any::<String>()) {
            application_value(&text);
        }
    }

    #[test]
    fn blanks_around_a_value_are_not_sent() {
        let sent = HeaderValue::from_static("a=1; Path=/");
        // Django's WSGI handler gives cookies so.
        assert_eq!(application_value(" a=1; Path=/"), Some(sent.clone()));
        assert_eq!(value("\ta=1; Path=/ "), Some(sent));
        assert_eq!(value(" \t "), Some(HeaderValue::from_static("")));
    }

    #[test]
    fn values_are_read_as_utf8_and_otherwise_as_latin1() {
        let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).unwrap();
        assert_eq!(text(&value("é".as_bytes())), "é");
        assert_eq!(text(&value(&[0xe9])), "é");
    }
}
