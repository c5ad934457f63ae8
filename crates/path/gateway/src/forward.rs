//! A request's headers on their way to a function: hop-by-hop headers are removed, and headers about the client, its scheme and
//! the prefix are added (`X-Forwarded-For`, `-Proto`, `-Prefix`).

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::connection::line::{Line, Scheme};
use crate::headers;
use crate::list_headers::{has_token, strip};

/// Whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted and extended. Those of others are replaced, and what else they say as
/// proxies do ([`ONLY_OF_PROXIES`]) is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrustForwarded {
    /// Nobody's.
    Nobody,
    /// Those of a reverse proxy on this machine.
    #[default]
    Loopback,
    /// Everybody's: the listener can be reached only through a proxy.
    Everybody,
}

/// The origin of a request, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The client's address; behind a trusted proxy its port is 0.
    pub(crate) client: SocketAddr,
    /// How it reached the first of us.
    pub(crate) scheme: Scheme,
}

/// Whether a request may upgrade its connection to a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrades {
    /// The request asks for an upgrade.
    Pass,
    /// It does not, or for an upgrade that is not supported.
    No,
}

/// Prepares the headers for a function that gets the whole request at once. `body_len` is the length of the body as read, because
/// a chunked request does not have it in its headers. `None`: the body is streamed, and its announced length, if any, stays.
pub(crate) fn prepare(
    headers: &mut HeaderMap,
    client: &Line,
    trust: TrustForwarded,
    prefix: &str,
    body_len: Option<usize>,
) -> Origin {
    strip(headers, &headers::HOP_BY_HOP);
    headers.remove(headers::EXPECT);
    if let Some(len) =
        body_len.filter(|len| *len > 0 || headers.contains_key(headers::CONTENT_LENGTH))
    {
        headers.insert(headers::CONTENT_LENGTH, HeaderValue::from(len));
    }
    introduce(headers, client, trust, prefix)
}

/// Whether the client waits for `100 Continue` before it sends its body.
pub(crate) fn expects_continue(headers: &HeaderMap) -> bool {
    has_token(headers, &headers::EXPECT, "100-continue")
}

/// Prepares the headers for the function's own server. An upgrade and `TE: trailers` are added again, because the gateway requests
/// them on its own connection.
pub(crate) fn pass_on(
    headers: &mut HeaderMap,
    client: &Line,
    trust: TrustForwarded,
    prefix: &str,
) -> Upgrades {
    let upgrade = wanted_upgrade(headers);
    let trailers = has_token(headers, &headers::TE, "trailers");
    strip(headers, &headers::NOT_PASSED);
    headers.remove(headers::EXPECT);
    introduce(headers, client, trust, prefix);
    if trailers {
        headers.insert(headers::TE, HeaderValue::from_static("trailers"));
        headers.insert(headers::CONNECTION, HeaderValue::from_static("te"));
    }
    if !headers.contains_key(headers::HOST) {
        // HTTP/1.0 has no host header, and HTTP/1.1 requires one.
        headers.insert(headers::HOST, HeaderValue::from_static("localhost"));
    }
    if !headers.contains_key(headers::FORWARDED_HOST) {
        let host = headers[headers::HOST].clone();
        headers.insert(headers::FORWARDED_HOST, host);
    }
    let Some(upgrade) = upgrade else {
        return Upgrades::No;
    };
    headers.insert(headers::UPGRADE, upgrade);
    headers.append(headers::CONNECTION, HeaderValue::from_static("upgrade"));
    Upgrades::Pass
}

/// Headers in which proxies say what the client sees. Applications build links from them.
const ONLY_OF_PROXIES: [HeaderName; 4] = [
    headers::FORWARDED,
    headers::FORWARDED_HOST,
    headers::FORWARDED_PORT,
    headers::REAL_IP,
];

/// Adds the headers about the client, its scheme and the prefix.
fn introduce(
    headers: &mut HeaderMap,
    client: &Line,
    trust: TrustForwarded,
    prefix: &str,
) -> Origin {
    let peer = client.peer();
    let peer_ip = peer.ip().to_canonical();
    let mut origin = Origin {
        client: SocketAddr::new(peer_ip, peer.port()),
        scheme: client.scheme(),
    };
    let mut chain = peer_ip.to_string();
    if believes(trust, peer) {
        if let Some(before) = joined(headers, &headers::FORWARDED_FOR) {
            if let Some(ip) = last_address(&before) {
                origin.client = SocketAddr::new(ip, 0);
            }
            chain = format!("{before}, {chain}");
        }
        let proto = headers.get(headers::FORWARDED_PROTO);
        let told = proto.map(|value| value.as_bytes().to_ascii_lowercase());
        match told.as_deref() {
            Some(b"https") => origin.scheme = Scheme::Https,
            Some(b"http") => origin.scheme = Scheme::Http,
            _ => {}
        }
    } else {
        for name in ONLY_OF_PROXIES {
            headers.remove(name);
        }
    }
    put(headers, headers::FORWARDED_FOR, &chain);
    put(headers, headers::FORWARDED_PREFIX, prefix);
    headers.insert(
        headers::FORWARDED_PROTO,
        HeaderValue::from_static(origin.scheme.as_str()),
    );
    origin
}

fn believes(trust: TrustForwarded, peer: SocketAddr) -> bool {
    match trust {
        TrustForwarded::Nobody => false,
        TrustForwarded::Loopback => peer.ip().to_canonical().is_loopback(),
        TrustForwarded::Everybody => true,
    }
}

/// The protocol that the request wants to upgrade to, if that is passed on.
fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(headers::UPGRADE)?;
    let passes = has_token(headers, &headers::CONNECTION, "upgrade")
        && !has_token(headers, &headers::UPGRADE, "h2c");
    passes.then(|| upgrade.clone())
}

fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Vec<_> = headers.get_all(name).iter().map(headers::text).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn last_address(chain: &str) -> Option<IpAddr> {
    chain.rsplit(',').next()?.trim().parse().ok()
}

/// Adds a header. Text that is not a valid header value is left out.
fn put(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    match HeaderValue::from_str(text) {
        Ok(value) => headers.insert(name, value),
        Err(_) => headers.remove(name),
    };
}

#[cfg(test)]
mod tests;
