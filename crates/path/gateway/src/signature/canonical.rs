//! The canonical request: the text that client and server make from a request in the same way, and over which the signature is.

use std::borrow::Cow;

use http::{HeaderMap, Method, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::parse::incomplete;
use super::{Signature, SignatureError};
use crate::headers;

/// RFC 3986's unreserved characters stay.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// The canonical request.
///
/// # Errors
/// A header that must be signed is not, or a signed header is not there.
pub(super) fn request(
    signature: &Signature,
    method: &Method,
    uri: &Uri,
    from: &HeaderMap,
    payload_hash: &str,
) -> Result<String, SignatureError> {
    let signed = &signature.signed;
    let is_signed = |name: &str| signed.iter().any(|signed| signed == name);
    // They change what is done.
    let of_call = from
        .keys()
        .map(http::HeaderName::as_str)
        .filter(|name| name.starts_with("x-amz-") || name.starts_with("x-pilot-"));
    if let Some(unsigned) = ["host"]
        .into_iter()
        .chain(of_call)
        .find(|name| !is_signed(name))
    {
        return Err(incomplete(&format!("'{unsigned}' must be a signed header")));
    }
    let mut text = format!(
        "{method}\n{}\n{}\n",
        path(uri.path()),
        query(uri.query().unwrap_or_default())
    );
    for name in signed {
        let value = value(name, uri, from).ok_or_else(|| {
            incomplete(&format!("the signed header '{name}' is not in the request"))
        })?;
        text.push_str(name);
        text.push(':');
        text.push_str(&value);
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&signed.join(";"));
    text.push('\n');
    text.push_str(payload_hash);
    Ok(text)
}

/// Every service but S3 encodes the path as sent once more.
fn path(path: &str) -> Cow<'_, str> {
    utf8_percent_encode(path, ENCODED_IN_PATH).into()
}

/// Why usual signers do not sign this target as it is sent.
pub(super) fn signed_otherwise(uri: &Uri) -> Option<&'static str> {
    let path = uri.path();
    if path.contains("//") || path.split('/').any(|part| part == "." || part == "..") {
        return Some(
            "Signers remove '//', '/./' and '/../' from the path, and this daemon checks the path as sent: send one without them, \
             or use the token instead of a signature.",
        );
    }
    uri.query().filter(|query| query.contains('+')).map(|_| {
        "Signers disagree about '+' in a query: write %20 for a space and %2B for a plus, or use the token instead of a signature."
    })
}

/// Names and values, encoded in one way, sorted; without the signature itself.
fn query(query: &str) -> String {
    let encoded = |text: &str| {
        let decoded: Cow<'_, [u8]> = percent_decode_str(text).into();
        percent_encoding::percent_encode(&decoded, ENCODED).to_string()
    };
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(name, _)| *name != "X-Amz-Signature")
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join("&")
}

/// All values of a header, without spaces around them, and with one space where there are several.
fn value(name: &str, uri: &Uri, from: &HeaderMap) -> Option<String> {
    let values: Vec<String> = from
        .get_all(name)
        .iter()
        .map(|value| {
            let text = headers::text(value);
            let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
            words.join(" ")
        })
        .collect();
    if values.is_empty() {
        // HTTP/2 has the host in the URI.
        return uri
            .authority()
            .filter(|_| name == "host")
            .map(ToString::to_string);
    }
    Some(values.join(","))
}
