//! What an initscript connects to: `SCHEME://STORE`, `SCHEME://HOST[:PORT]`, or `sqs://CONNECTION`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::inputs::Scheme;

/// A store or a connection of the operator, or a server. Which one it is, the stores of the daemon say.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    scheme: Scheme,
    /// Lower case, except the name of a store of S3 or of files, or of a connection. An IPv6 address has its brackets.
    host: String,
    port: Option<u16>,
}

impl Endpoint {
    /// How it is spoken to.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The name of a store or a connection, or a host: a name or an address. An IPv6 address has its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, as written.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The port, or the usual one. `None`: the scheme has none.
    #[must_use]
    pub fn port_or_usual(&self) -> Option<u16> {
        self.port.or(match self.scheme {
            Scheme::Http | Scheme::Grpc => Some(80),
            Scheme::Https | Scheme::Grpcs => Some(443),
            Scheme::Redis | Scheme::Rediss => Some(6379),
            // The last one is no endpoint.
            Scheme::S3 | Scheme::File | Scheme::Sqs | Scheme::Tcp | Scheme::Direct => None,
        })
    }

    /// Whether both are the same endpoint: the usual port may be written or not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && self.host == other.host
            && self.port_or_usual() == other.port_or_usual()
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (endpoint, key) = parse(text)?;
        if key.is_empty() {
            Ok(endpoint)
        } else {
            Err(format!(
                "\"{}\" has a key, must be an endpoint alone",
                shown(text)
            ))
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// An entry of `allow`: an endpoint, and how its keys begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Allowed {
    endpoint: Endpoint,
    prefix: String,
}

impl Allowed {
    /// The endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The beginning of each key. Empty: all keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (endpoint, prefix) = parse(text)?;
        Ok(Self {
            endpoint,
            prefix: prefix.to_owned(),
        })
    }
}

impl TryFrom<String> for Allowed {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Allowed> for String {
    fn from(allowed: Allowed) -> Self {
        match allowed.prefix.as_str() {
            "" => allowed.endpoint.to_string(),
            prefix => format!("{}/{prefix}", allowed.endpoint),
        }
    }
}

/// An endpoint, and what follows its `/`.
fn parse(text: &str) -> Result<(Endpoint, &str), String> {
    let wrong = |problem: &str| {
        format!(
            "\"{}\" {problem}: write for example \"s3://STORE\", \"https://HOST\" or \"redis://HOST:PORT\"",
            shown(text)
        )
    };
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| wrong("is not an endpoint"))?;
    let scheme = Scheme::named(scheme).ok_or_else(|| wrong("has an unknown scheme"))?;
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if key.contains(|char: char| char.is_control() || char == '\\') || key.len() > KEY_LEN_MAX {
        return Err(wrong("has a key that cannot be used"));
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err(wrong("has a port that is not a number from 1 to 65535")),
    };
    let is_named = matches!(scheme, Scheme::S3 | Scheme::File | Scheme::Sqs);
    if is_named && port.is_some() {
        return Err(wrong("names a store or a connection, which has no port"));
    }
    if !is_host(host) {
        return Err(wrong("has no host, or one that cannot be used"));
    }
    if scheme == Scheme::Tcp && (port.is_none() || !key.is_empty()) {
        return Err(wrong("must be tcp://HOST:PORT, without a key"));
    }
    let host = if is_named {
        host.to_owned()
    } else {
        host.to_ascii_lowercase()
    };
    Ok((Endpoint { scheme, host, port }, key))
}

fn is_host(host: &str) -> bool {
    let is_name = |host: &str| {
        (1..=HOST_LEN_MAX).contains(&host.len())
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_name(host),
    }
}

/// Checks the target of an HTTP request, `/PATH[?QUERY]`. What it names must be what it begins with, so dot segments are refused, encoded
/// ones included (RFC 3986, section 5.2.4; WHATWG URL, "double-dot path segment").
///
/// # Errors
/// What is wrong with it.
pub fn check_target(target: &str) -> Result<(), String> {
    let path = target.split('?').next().unwrap_or_default();
    let is_dots = |segment: &str| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        matches!(plain.as_str(), "." | "..")
    };
    let fits = target.starts_with('/')
        && target.len() <= KEY_LEN_MAX
        && target
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"\\#".contains(&byte))
        && !path.split('/').any(is_dots);
    if fits {
        return Ok(());
    }
    Err(format!(
        "the target \"{}\" must be /PATH in visible ASCII, without \"\\\", \"#\", and parts \".\" and \"..\"",
        shown(target)
    ))
}

fn shown(text: &str) -> String {
    text.escape_default().take(SHOWN_MAX).collect()
}

const HOST_LEN_MAX: usize = 253;
const KEY_LEN_MAX: usize = 4096;
const SHOWN_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_place_is_read_and_written() {
        for text in [
            "s3://Photos",
            "sqs://Jobs",
            "https://example.com",
            "grpc://example.com:50051",
            "http://127.0.0.1:9000",
            "redis://cache.local:6380",
            "https://[2001:db8::1]:8443",
            "tcp://db.example.com:5432",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
        let allowed: Allowed = "s3://photos/public/".parse().unwrap();
        assert_eq!(String::from(allowed), "s3://photos/public/");
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "photos",
            "ftp://photos",
            "s3://",
            "s3://photos:80",
            "sqs://jobs:80",
            "https://user@host",
            "https://host:0",
            "https://host:99999",
            "https://[::1",
            "https://ho st",
            "https://host/a\\b",
            "tcp://host",
            "tcp://host:5432/key",
        ] {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
        assert!("s3://photos/key".parse::<Endpoint>().is_err());
    }

    #[test]
    fn a_target_does_not_leave_its_path() {
        for target in ["/", "/a/b?x=../y", "/a..b", "/%41"] {
            assert_eq!(check_target(target), Ok(()), "{target}");
        }
        for target in [
            "",
            "a",
            "/a/../b",
            "/a/%2E%2e/b",
            "/a/.%2e",
            "/a\\b",
            "/a#b",
            "/a b",
            "/ä",
            "/..",
        ] {
            assert!(check_target(target).is_err(), "{target}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,64}") {
            let _ = text.parse::<Allowed>();
            let _ = format!("https://{text}").parse::<Endpoint>();
            let _ = check_target(&text);
        }
    }
}
