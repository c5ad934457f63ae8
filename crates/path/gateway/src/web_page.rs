//! Requests that a web page made, in the browser of someone who can reach the daemon. Where no token is required, such a page could
//! deploy and invoke: by a form or a script of its own site (then `Origin` names that site), or after its name was made to resolve to
//! the daemon's address (DNS rebinding; then `Host` has that name). Function URLs are web pages themselves and are not checked.

use http::request::Parts;

use crate::errors::RequestError;
use crate::headers;

/// Refuses a request whose `Host` is a foreign name, or whose `Origin` is another site. An IP address is never foreign: DNS has no
/// part in it. `Host` is that of the target, if it has one (`host`). `names`: the daemon's own names, apart from `localhost`.
///
/// # Errors
/// [`RequestError::Foreign`].
pub(crate) fn refuse(head: &Parts, names: &[String]) -> Result<(), RequestError> {
    // Of HTTP/1.0, which browsers do not speak.
    let Some(host) = head.headers.get(headers::HOST) else {
        return Ok(());
    };
    let host = headers::text(host);
    if !is_ours(&host, names) {
        return Err(RequestError::Foreign {
            header: "Host",
            value: shown(&host),
        });
    }
    let Some(origin) = head.headers.get(headers::ORIGIN) else {
        return Ok(());
    };
    let origin = headers::text(origin);
    match origin.split_once("://") {
        Some((_, site)) if site.eq_ignore_ascii_case(&host) => Ok(()),
        _ => Err(RequestError::Foreign {
            header: "Origin",
            value: shown(&origin),
        }),
    }
}

fn is_ours(host: &str, names: &[String]) -> bool {
    // An IPv6 address has brackets.
    if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let ends = port.is_empty() || port.starts_with(':');
        return ends && address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let name = host.split_once(':').map_or(host, |(name, _port)| name);
    name.parse::<std::net::Ipv4Addr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

fn shown(value: &str) -> String {
    value.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn own_names_and_addresses_pass_and_other_sites_do_not() {
        let own = ["pilot.example".to_owned()];
        for (host, origin, passes) in [
            ("localhost:8080", None, true),
            ("127.0.0.1", None, true),
            ("[::1]:8080", None, true),
            ("Pilot.Example:80", None, true),
            ("localhost:8080", Some("http://localhost:8080"), true),
            ("evil.example", None, false),
            ("localhost.evil.example", None, false),
            ("127.0.0.1.evil.example", None, false),
            ("[::1].evil.example", None, false),
            ("[evil.example]", None, false),
            ("localhost:8080", Some("http://localhost:3000"), false),
            ("localhost:8080", Some("https://evil.example"), false),
            ("localhost:8080", Some("null"), false),
        ] {
            let mut request = Request::builder().header("host", host);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(refuse(&head, &own).is_ok(), passes, "{host} {origin:?}");
        }
    }
}
