//! The result of an event function as an HTTP response: AWS Lambda's payload format 2.0.
//!
//! An object with `statusCode` describes the response. Any other result *is* the body: status 200, `application/json`, the JSON as it
//! is. A string is sent as its text, without quotes and escapes, although that is not JSON: AWS interprets the output
//! `"Hello, world!"` as `{"statusCode": 200, "headers": {"content-type": "application/json"}, "body": "Hello, world!"}`, and sends a
//! `body` that is a string as its text (Lambda Developer Guide, "Invoking function URLs", table of interpreted responses). An invalid
//! description is an error that names the key.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::errors::AnswerError;
use crate::headers;
use crate::reply::{Reply, ReplyBody};

/// Parses the function's output. A half of a UTF-16 pair, as JavaScript makes by cutting a string within an emoji, is sent as
/// U+FFFD, as Node's own server does.
///
/// # Errors
/// [`AnswerError::Malformed`], with the key and the valid values.
pub(crate) fn parse(output: Bytes) -> Result<Reply, AnswerError> {
    parse_valid(output.clone()).or_else(|error| match with_halves_replaced(&output) {
        // The body must not keep the copy of the output, whose memory is not counted.
        Some(output) => parse_valid(output).map(|reply| {
            reply.map(|body| match body {
                ReplyBody::Full(body) => ReplyBody::Full(Bytes::copy_from_slice(&body)),
                other => other,
            })
        }),
        None => Err(error),
    })
}

/// The same JSON with the escape of U+FFFD in place of those that are one half of a pair. `None`: it has no such escape. Costs
/// one pass and one copy, however many there are.
fn with_halves_replaced(output: &[u8]) -> Option<Bytes> {
    let mut replaced: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(next) = output[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        let following = output.get(at + ESCAPE_LEN..).unwrap_or_default();
        at += match (unit(&output[at..]), unit(following)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE_LEN,
            (Some(0xd800..=0xdfff), _) => {
                let replaced = replaced.get_or_insert_with(|| output.to_vec());
                replaced[at..at + ESCAPE_LEN].copy_from_slice(REPLACEMENT);
                ESCAPE_LEN
            }
            (Some(_), _) => ESCAPE_LEN,
            // Another escape, such as one of a backslash.
            (None, _) => 2.min(output.len() - at),
        };
    }
    replaced.map(Bytes::from)
}

/// The UTF-16 code unit that the text begins with, if that is an escaped one.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

const ESCAPE_LEN: usize = REPLACEMENT.len();
const REPLACEMENT: &[u8] = b"\\ufffd";

fn parse_valid(output: Bytes) -> Result<Reply, AnswerError> {
    match output.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        Some(b'"') => {
            let text: Text<'_> = serde_json::from_slice(&output).map_err(not_json)?;
            return Ok(bare(text.into_bytes_of(&output)));
        }
        _ => return Ok(bare(output)),
    }
    let described: Described<'_> = serde_json::from_slice(&output).map_err(not_json)?;
    match described.status_code {
        None => Ok(bare(output)),
        Some(status) => described.reply(status, &output),
    }
}

/// The keys of an object that describes a response, each as raw JSON, so that an error can name the key.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    status_code: Option<&'a RawValue>,
    #[serde(borrow, default)]
    headers: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cookies: Option<&'a RawValue>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
    #[serde(borrow, default)]
    is_base64_encoded: Option<&'a RawValue>,
}

/// A JSON string. Without escapes it is a part of the output, and not copied.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Text<'_> {
    fn into_bytes_of(self, output: &Bytes) -> Bytes {
        match self.0 {
            Cow::Borrowed(part) => output.slice_ref(part.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        }
    }
}

/// The value of a key that is present, even if it is `null`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl Described<'_> {
    fn reply(&self, status: &RawValue, output: &Bytes) -> Result<Reply, AnswerError> {
        let status = parse_status(status.get())?;
        let mut into = HeaderMap::with_capacity(HEADERS_LEN);
        self.write_headers(&mut into)?;
        self.write_cookies(&mut into)?;
        if !into.contains_key(headers::CONTENT_TYPE) {
            into.insert(
                headers::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            );
        }
        let body = self.body_bytes(output)?;
        let empty = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let mut reply = Reply::new(ReplyBody::Full(if empty { Bytes::new() } else { body }));
        *reply.status_mut() = status;
        *reply.headers_mut() = into;
        Ok(reply)
    }

    fn write_headers(&self, into: &mut HeaderMap) -> Result<(), AnswerError> {
        let Some(raw) = self.headers else {
            return Ok(());
        };
        let pairs: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get())
            .map_err(|_| wrong("headers", raw.get(), "an object of names and texts"))?;
        if pairs.len() > headers::COUNT_MAX {
            return Err(AnswerError::too_many_headers());
        }
        for (key, raw) in pairs {
            let name = HeaderName::from_bytes(key.as_bytes())
                .map_err(|_| wrong("a name in headers", &key, "a header name"))?;
            if raw.get() == "null" || headers::is_ours(&name) {
                continue;
            }
            let value = scalar(raw.get())
                .and_then(|text| headers::value(&text))
                .ok_or_else(|| wrong(&format!("headers.{key}"), raw.get(), "a text on one line"))?;
            into.insert(name, value);
        }
        Ok(())
    }

    fn write_cookies(&self, into: &mut HeaderMap) -> Result<(), AnswerError> {
        let Some(raw) = self.cookies else {
            return Ok(());
        };
        let cookies: Vec<Cow<'_, str>> = serde_json::from_str(raw.get())
            .map_err(|_| wrong("cookies", raw.get(), "an array of texts"))?;
        if cookies.len() > headers::COUNT_MAX {
            return Err(AnswerError::too_many_headers());
        }
        for cookie in cookies {
            let value = headers::value(&cookie)
                .ok_or_else(|| wrong("an entry of cookies", &cookie, "a text on one line"))?;
            into.append(headers::SET_COOKIE, value);
        }
        Ok(())
    }

    /// A string is the body, which may be base64. Any other JSON is the body as it is.
    fn body_bytes(&self, output: &Bytes) -> Result<Bytes, AnswerError> {
        let encoded = match self.is_base64_encoded.map(RawValue::get) {
            None | Some("false" | "null") => false,
            Some("true") => true,
            Some(other) => return Err(wrong("isBase64Encoded", other, "true or false")),
        };
        let Some(raw) = self.body else {
            return Ok(Bytes::new());
        };
        if !raw.get().starts_with('"') {
            if encoded {
                return Err(wrong(
                    "body",
                    raw.get(),
                    "a base64 text, as isBase64Encoded is true",
                ));
            }
            return Ok(output.slice_ref(raw.get().as_bytes()));
        }
        let text: Text<'_> =
            serde_json::from_str(raw.get()).map_err(|_| wrong("body", raw.get(), "a text"))?;
        if !encoded {
            return Ok(text.into_bytes_of(output));
        }
        // Many encoders break lines (RFC 2045).
        let mut encoded = text.0;
        if encoded.contains(['\r', '\n']) {
            encoded = encoded.replace(['\r', '\n'], "").into();
        }
        match BASE64.decode(encoded.as_bytes()) {
            Ok(bytes) => Ok(Bytes::from(bytes)),
            Err(error) => Err(AnswerError::Malformed {
                problem: format!("body is not base64, although isBase64Encoded is true: {error}"),
            }),
        }
    }
}

fn parse_status(raw: &str) -> Result<StatusCode, AnswerError> {
    scalar(raw)
        .and_then(|text| {
            // Some JSON libraries write 200 as 200.0.
            let whole = text.strip_suffix(".0").unwrap_or(&text);
            whole.parse().ok()
        })
        .filter(|status: &u16| (200..=599).contains(status))
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or_else(|| wrong("statusCode", raw, "200 to 599"))
}

/// The text of a string, a number or a boolean; `None` for anything else.
fn scalar(raw: &str) -> Option<Cow<'_, str>> {
    match raw.as_bytes().first()? {
        b'"' => serde_json::from_str::<String>(raw).ok().map(Cow::Owned),
        b'{' | b'[' | b'n' => None,
        _ => Some(Cow::Borrowed(raw)),
    }
}

fn bare(body: Bytes) -> Reply {
    let mut reply = Reply::new(ReplyBody::Full(body));
    let mut into = HeaderMap::with_capacity(HEADERS_LEN);
    into.insert(
        headers::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    *reply.headers_mut() = into;
    reply
}

fn wrong(key: &str, found: &str, wanted: &str) -> AnswerError {
    let found: String = found.chars().take(100).collect();
    AnswerError::Malformed {
        problem: format!("{key} is {}, must be {wanted}", found.escape_debug()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn not_json(error: serde_json::Error) -> AnswerError {
    AnswerError::Malformed {
        problem: format!("its output cannot be read: {error}"),
    }
}

/// Padding is optional, because not every encoder writes it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Enough for our headers and a few of the function's.
const HEADERS_LEN: usize = 12;

#[cfg(test)]
mod tests;
