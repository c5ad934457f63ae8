//! Headers whose values are lists: what `Connection`, `Upgrade` and `TE` name, and the removal of what is only for one hop.

use http::{HeaderMap, HeaderName};

use crate::headers;

/// Whether the request is a WebSocket handshake.
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, &headers::UPGRADE, "websocket")
        && has_token(headers, &headers::CONNECTION, "upgrade")
}

/// Removes the hop-by-hop headers of the server's response.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    strip(headers, &headers::NOT_PASSED);
}

/// Removes hop-by-hop headers (RFC 9110, section 7.6.1): those that `Connection` names, and `known`.
pub(crate) fn strip(headers: &mut HeaderMap, known: &[HeaderName]) {
    let named: Vec<HeaderName> = tokens(headers, &headers::CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| *name != headers::HOST && *name != headers::CONTENT_LENGTH)
        .collect();
    for name in named.iter().chain(known) {
        headers.remove(name);
    }
}

/// Whether a list header has this element. Letters are equal in both cases, and parameters do not count.
pub(crate) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|given| {
        let given = given.split(';').next().unwrap_or(given);
        given.trim_end().eq_ignore_ascii_case(token)
    })
}

/// The elements of a list header, over all headers with this name.
pub(crate) fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}
