//! Headers that are valid for a single connection (RFC 9110, 7.6.1) and are not forwarded.

use http::StatusCode;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING,
    UPGRADE,
};

/// Longest part of a header of the server in a message, characters.
const SHOWN_MAX: usize = 100;

/// Checks that a response has no other transfer coding than chunks. The daemon takes the chunks apart, and decodes nothing else. It
/// must not pass on bytes in another coding (`gzip, chunked`) without the coding's name (RFC 9112, section 6.1). Nobody has asked
/// the server for one (section 7.4).
///
/// # Errors
/// What is wrong with the response.
pub(super) fn check_coding(headers: &HeaderMap) -> Result<(), String> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        (Some(coding), _) => {
            let shown: String = coding
                .as_bytes()
                .escape_ascii()
                .map(char::from)
                .take(SHOWN_MAX)
                .collect();
            Err(format!(
                "it answered with \"Transfer-Encoding: {shown}\", and nobody asked for another coding than chunked: use \
                 Content-Encoding for compression"
            ))
        }
    }
}

/// Removes them from a response. The protocols that a 426 asks for stay: its client is to read them (section 15.5.22).
pub(super) fn strip(status: StatusCode, headers: &mut HeaderMap) {
    let wanted = match status {
        StatusCode::UPGRADE_REQUIRED => headers.get(UPGRADE).cloned(),
        _ => None,
    };
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // The body has the length that its chunks have (RFC 9112 §6.3), and the client must not see another one.
        headers.remove(CONTENT_LENGTH);
    }
    for name in [
        CONNECTION,
        TE,
        TRANSFER_ENCODING,
        PROXY_AUTHENTICATE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        UPGRADE,
    ] {
        headers.remove(name);
    }
    if let Some(wanted) = wanted {
        headers.insert(UPGRADE, wanted);
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;

    #[test]
    fn chunks_are_the_only_transfer_coding() {
        let checked = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRANSFER_ENCODING, HeaderValue::from_static(value));
            }
            check_coding(&headers)
        };
        for values in [&[][..], &["chunked"], &["Chunked"]] {
            assert_eq!(checked(values), Ok(()), "{values:?}");
        }
        for values in [
            &["gzip, chunked"][..],
            &["gzip"],
            &["chunked", "chunked"],
            &["identity"],
        ] {
            let problem = checked(values).unwrap_err();
            assert!(problem.contains(values[0]), "{problem}");
        }
    }

    #[test]
    fn what_concerns_one_connection_goes_and_the_rest_stays() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("content-length", "3"),
            ("x-end", "2"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        strip(StatusCode::OK, &mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-end"]);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        strip(StatusCode::OK, &mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-end"]);
    }

    #[test]
    fn only_a_426_says_to_which_protocols_to_upgrade() {
        for (status, stays) in [
            (StatusCode::UPGRADE_REQUIRED, true),
            (StatusCode::OK, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            strip(status, &mut headers);
            assert_eq!(headers.contains_key(UPGRADE), stays, "{status}");
            assert!(!headers.contains_key(CONNECTION), "{status}");
        }
    }
}
