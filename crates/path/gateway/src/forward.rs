//! A request's headers on their way to a function: what concerns this connection alone is taken out, and who asked, how and
//! under which prefix is put in (`X-Forwarded-For`, `-Proto`, `-Prefix`).

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::headers;

/// Whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed and added to. Anybody else's are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrustForwarded {
    /// Nobody's.
    Nobody,
    /// That of a reverse proxy on this machine.
    #[default]
    Loopback,
    /// Everybody's: the listener can be reached through a proxy alone.
    Everybody,
}

/// Who asks, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The client; behind a trusted proxy with port 0.
    pub(crate) client: SocketAddr,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
}

/// Makes `headers` those that a function sees. `body_len` is the length of the body as read, which a chunked request does
/// not tell.
pub(crate) fn prepare(
    headers: &mut HeaderMap,
    peer: SocketAddr,
    trust: TrustForwarded,
    prefix: &str,
    body_len: usize,
) -> Origin {
    strip(headers, body_len);
    let peer_ip = peer.ip().to_canonical();
    let trusted = match trust {
        TrustForwarded::Nobody => false,
        TrustForwarded::Loopback => peer_ip.is_loopback(),
        TrustForwarded::Everybody => true,
    };
    let mut origin = Origin {
        client: SocketAddr::new(peer_ip, peer.port()),
        scheme: "http",
    };
    let mut chain = peer_ip.to_string();
    if trusted {
        if let Some(before) = joined(headers, &headers::FORWARDED_FOR) {
            if let Some(ip) = last_address(&before) {
                origin.client = SocketAddr::new(ip, 0);
            }
            chain = format!("{before}, {chain}");
        }
        let proto = headers.get(headers::FORWARDED_PROTO);
        if proto.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"https")) {
            origin.scheme = "https";
        }
    }
    put(headers, headers::FORWARDED_FOR, &chain);
    put(headers, headers::FORWARDED_PREFIX, prefix);
    headers.insert(
        headers::FORWARDED_PROTO,
        HeaderValue::from_static(origin.scheme),
    );
    origin
}

/// Takes out what concerns this connection alone (RFC 9110, section 7.6.1), and says how long the body is.
fn strip(headers: &mut HeaderMap, body_len: usize) {
    let named: Vec<HeaderName> = headers
        .get_all(headers::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| *name != headers::HOST && *name != headers::CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in headers::HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(headers::EXPECT);
    if body_len > 0 || headers.contains_key(headers::CONTENT_LENGTH) {
        headers.insert(headers::CONTENT_LENGTH, HeaderValue::from(body_len));
    }
}

fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Vec<_> = headers.get_all(name).iter().map(headers::text).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn last_address(chain: &str) -> Option<IpAddr> {
    chain.rsplit(',').next()?.trim().parse().ok()
}

/// Text that is no header value is left out.
fn put(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    match HeaderValue::from_str(text) {
        Ok(value) => headers.insert(name, value),
        Err(_) => headers.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(
        pairs: &[(&'static str, &'static str)],
        peer: &str,
        trust: TrustForwarded,
    ) -> (HeaderMap, Origin) {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let origin = prepare(&mut headers, peer.parse().unwrap(), trust, "/fn/web", 3);
        (headers, origin)
    }

    #[test]
    fn what_concerns_the_connection_alone_is_taken_out() {
        let (headers, _) = prepared(
            &[
                ("connection", "keep-alive, X-Private, host"),
                ("x-private", "1"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("te", "trailers"),
                ("upgrade", "h2c"),
                ("expect", "100-continue"),
                ("host", "shop.local"),
                ("accept", "*/*"),
            ],
            "192.0.2.1:5",
            TrustForwarded::Nobody,
        );
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let kept = [
            "accept",
            "content-length",
            "host",
            "x-forwarded-for",
            "x-forwarded-prefix",
            "x-forwarded-proto",
        ];
        assert_eq!(names, kept);
        assert_eq!(headers["content-length"], "3");
        assert_eq!(headers["x-forwarded-prefix"], "/fn/web");
    }

    #[test]
    fn a_strangers_word_on_whom_he_speaks_for_is_replaced() {
        let claims = [
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "https"),
        ];
        let (headers, origin) = prepared(&claims, "192.0.2.1:5", TrustForwarded::Loopback);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(origin.client, "192.0.2.1:5".parse().unwrap());
    }

    #[test]
    fn a_proxys_word_is_believed_and_added_to() {
        let claims = [
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-for", "198.51.100.2"),
            ("x-forwarded-proto", "https"),
        ];
        let (headers, origin) = prepared(&claims, "[::ffff:127.0.0.1]:5", TrustForwarded::Loopback);
        assert_eq!(
            headers["x-forwarded-for"],
            "203.0.113.9, 198.51.100.2, 127.0.0.1"
        );
        assert_eq!(origin.scheme, "https");
        assert_eq!(origin.client, "198.51.100.2:0".parse().unwrap());
    }
}
