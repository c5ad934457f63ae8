//! The host that a request is for: one valid header `Host`, which is what everything behind looks at. A target with an authority
//! (`GET http://shop.example/ HTTP/1.1`) goes before the header, and replaces it (RFC 9112, section 3.2.2).

use http::request::Parts;
use http::{HeaderValue, Version};

use crate::errors::RequestError;
use crate::headers;

/// Checks the host, and replaces the header if the target has an authority.
///
/// # Errors
/// [`RequestError::Malformed`]. With several hosts, or with a malformed one, a proxy and the function could choose different ones.
pub(crate) fn settle(head: &mut Parts) -> Result<(), RequestError> {
    settled(head).map_err(|problem| RequestError::Malformed {
        problem: problem.to_owned(),
    })
}

fn settled(head: &mut Parts) -> Result<(), &'static str> {
    let mut hosts = head.headers.get_all(headers::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_host(host.as_bytes()) => {}
        (Some(_), None) => return Err("the Host header is not a host with an optional port"),
        (None, _) if head.version < Version::HTTP_11 || is_check(head) => {}
        (None, _) => return Err("the request has no Host header (HTTP/2: no :authority)"),
        (Some(_), Some(_)) => return Err("the request has more than one Host header"),
    }
    let Some(authority) = head.uri.authority() else {
        return Ok(());
    };
    let authority = authority.as_str();
    if authority.is_empty() || !is_host(authority.as_bytes()) {
        return Err("the target's authority is not a host with an optional port");
    }
    let host = HeaderValue::from_str(authority).map_err(|_| "the target has no valid authority")?;
    head.headers.insert(headers::HOST, host);
    Ok(())
}

/// Whether it is a health check over HTTP/2, as HAProxy sends them: without an authority. Its answer is the same for every host.
fn is_check(head: &Parts) -> bool {
    head.version == Version::HTTP_2 && matches!(head.uri.path(), "/healthz" | "/readyz")
}

/// `uri-host [ ":" port ]` (RFC 9110, section 7.2), or nothing, which says that the target has no authority.
fn is_host(host: &[u8]) -> bool {
    if host.is_empty() {
        return true;
    }
    if let Some(rest) = host.strip_prefix(b"[") {
        let Some(end) = rest.iter().position(|byte| *byte == b']') else {
            return false;
        };
        return is_ipv6(&rest[..end]) && is_port(&rest[end + 1..]);
    }
    let colon = host.iter().position(|byte| *byte == b':');
    let (name, port) = host.split_at(colon.unwrap_or(host.len()));
    is_name(name) && is_port(port)
}

/// An address in brackets. The grammar has a place for future versions of IP, which nobody uses.
fn is_ipv6(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.parse::<std::net::Ipv6Addr>().is_ok()
}

/// Nothing, or a colon and digits, which may be left out.
fn is_port(port: &[u8]) -> bool {
    match port.split_first() {
        None => true,
        Some((colon, digits)) => *colon == b':' && digits.iter().all(u8::is_ascii_digit),
    }
}

/// A registered name, or an address of IPv4 (RFC 3986, section 3.2.2). Without commas, which the grammar permits: a comma is what joins
/// two headers to one.
fn is_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let Some((byte, after)) = rest.split_first() {
        rest = match (byte, after) {
            (b'%', [high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                after
            }
            (byte, after) if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(byte) => {
                after
            }
            _ => return false,
        };
    }
    !name.is_empty()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_an_optional_port() {
        for valid in [
            "",
            "x",
            "x:80",
            "x:",
            "shop.example",
            "Shop.Example.:8443",
            "a_function.local",
            "xn--bcher-kva.example",
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:1",
            "caf%C3%A9.example",
            "a!$&'()*+;=~b",
        ] {
            assert!(is_host(valid.as_bytes()), "{valid}");
        }
        for invalid in [
            "a b",
            "a b/c",
            "<script>",
            "http://evil/",
            "evil/",
            "[::1",
            "::1",
            "[::1]x",
            "[::1]x:80",
            "[x]",
            "[]",
            "[fe80::1%25eth0]",
            "a,b",
            "user@x",
            "user:secret@x",
            ":80",
            "x:80:81",
            "x:y",
            "x:-1",
            "x?y",
            "x#y",
            "x\\y",
            "x\"y",
            "x\ty",
            "%",
            "%4",
            "%zz",
            "caf\u{e9}.example",
        ] {
            assert!(!is_host(invalid.as_bytes()), "{invalid}");
        }
        assert!(!is_host(&[0xff]));
    }

    /// The host after [`settle`], if the request is valid.
    fn host_of(version: Version, target: &str, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header("host", *host);
        }
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        settle(&mut head).ok()?;
        let host = head.headers.get("host");
        Some(host.map_or_else(String::new, |host| host.to_str().unwrap().to_owned()))
    }

    #[test]
    fn the_authority_of_a_target_replaces_the_header() {
        let (old, new, two) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        for (version, target, hosts, host) in [
            (new, "/fn/f/", vec!["x"], Some("x")),
            (
                new,
                "http://y.example:81/fn/f/",
                vec!["x"],
                Some("y.example:81"),
            ),
            (new, "http://[::1]:81/fn/f/", vec!["x"], Some("[::1]:81")),
            (old, "http://y.example/fn/f/", vec![], Some("y.example")),
            (old, "/fn/f/", vec![], Some("")),
            (new, "http://y.example/fn/f/", vec![], None),
            (new, "http://y.example/fn/f/", vec!["x", "x"], None),
            (new, "http://y.example/fn/f/", vec!["a b"], None),
            (new, "http://x:80@y.example/fn/f/", vec!["x"], None),
            (new, "/fn/f/", vec![], None),
            (new, "/healthz", vec![], None),
            (two, "/healthz", vec![], Some("")),
            (two, "/readyz", vec![], Some("")),
            (two, "/healthz/x", vec![], None),
            (two, "/fn/f/", vec![], None),
            (old, "/fn/f/", vec!["x", "y"], None),
        ] {
            let found = host_of(version, target, &hosts);
            assert_eq!(found.as_deref(), host, "{target} {hosts:?}");
        }
    }
}
