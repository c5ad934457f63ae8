//! Headers that are valid for a single connection (RFC 9110, 7.6.1) and are not forwarded.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING,
};

/// Removes them from a response.
pub(super) fn strip(headers: &mut HeaderMap) {
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
    ] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;

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
        strip(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-end"]);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        strip(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-end"]);
    }
}
