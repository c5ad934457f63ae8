//! A request's bytes, which are made once, and its address.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use rustls::pki_types::ServerName;

use crate::error::LoadError;

/// A server's address and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Its address.
    pub address: SocketAddr,
    /// `HOST[:PORT]`, for the host header.
    pub host: String,
    /// Whose certificate it must have; `None`: no TLS.
    pub certificate_of: Option<ServerName<'static>>,
}

impl Site {
    /// Splits `http://HOST[:PORT][/PATH]`, or the same with `https://`, into the server and the path, and resolves the host. If it has
    /// several addresses, it connects, to find out which one is the server's.
    ///
    /// # Errors
    /// The URL is invalid, or the host is unknown.
    pub fn of(url: &str) -> Result<(Self, String), LoadError> {
        let wrong = |problem| LoadError::Url {
            url: url.to_owned(),
            problem,
        };
        let http = url.strip_prefix("http://").map(|rest| (rest, false));
        let https = url.strip_prefix("https://").map(|rest| (rest, true));
        let (rest, is_tls) = http
            .or(https)
            .ok_or_else(|| wrong("is not an http:// or https:// address"))?;
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        if host.is_empty() || url.contains(|letter: char| letter.is_ascii_whitespace()) {
            return Err(wrong("is not an http:// or https:// address"));
        }
        // The port is after the last colon, unless that is inside an IPv6 address.
        let port = host.rsplit_once(':').map(|(_, port)| port);
        let port = port.filter(|port| !port.ends_with(']'));
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(wrong("has no number after the colon"));
        }
        let found = if port.is_some() {
            host.to_socket_addrs()
        } else {
            format!("{host}:{}", if is_tls { 443 } else { 80 }).to_socket_addrs()
        };
        let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
        let address = reachable(&found).ok_or_else(|| LoadError::UnknownHost {
            url: url.to_owned(),
        })?;
        let name = match port {
            Some(port) => host
                .strip_suffix(port)
                .unwrap_or(host)
                .trim_end_matches(':'),
            None => host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let certificate_of = is_tls.then(|| ServerName::try_from(name.to_owned()));
        let site = Self {
            address,
            host: host.to_owned(),
            certificate_of: certificate_of
                .transpose()
                .map_err(|_| wrong("has a host that no certificate can be for"))?,
        };
        Ok((site, path.to_owned()))
    }

    /// The bytes of a request.
    #[must_use]
    pub fn encode(
        &self,
        method: &str,
        path: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Vec<u8> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.host);
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if method != "GET" || !body.is_empty() {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }
}

/// The first address at which a server accepts connections, or the first of all. A name may have several, of which a server has one:
/// `localhost` is also `[::1]` on many machines.
fn reachable(found: &[SocketAddr]) -> Option<SocketAddr> {
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_MAX).is_ok();
    let chosen = match found {
        [] | [_] => None,
        several => several.iter().find(accepts),
    };
    chosen.or(found.first()).copied()
}

/// For an address that neither accepts nor refuses, of several.
const CONNECT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn of_several_addresses_the_one_with_a_server_is_used() {
        let bound = |ip: &str| TcpListener::bind((ip, 0)).unwrap();
        let (server, other) = (bound("127.0.0.1"), bound("127.0.0.1"));
        let (listens, refuses) = (server.local_addr().unwrap(), other.local_addr().unwrap());
        drop(other);
        assert_eq!(reachable(&[refuses, listens]), Some(listens));
        assert_eq!(reachable(&[refuses, refuses]), Some(refuses));
        assert_eq!(
            reachable(&[refuses]),
            Some(refuses),
            "no connection was tried"
        );
        assert_eq!(reachable(&[]), None);
    }

    #[test]
    fn a_url_is_a_server_and_a_path() {
        for (url, address, path) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "/"),
            ("http://127.0.0.1/fn/a/?b=c", "127.0.0.1:80", "/fn/a/?b=c"),
            ("http://[::1]:81/", "[::1]:81", "/"),
            ("http://[::1]/x", "[::1]:80", "/x"),
            ("https://127.0.0.1/x", "127.0.0.1:443", "/x"),
            ("https://[::1]:81/", "[::1]:81", "/"),
        ] {
            let (site, found) = Site::of(url).unwrap();
            let name = site.certificate_of.map(|name| name.to_str().into_owned());
            let host = url
                .starts_with("https")
                .then(|| site.address.ip().to_string());
            assert_eq!(name, host);
            assert_eq!(
                (site.address.to_string().as_str(), found.as_str()),
                (address, path)
            );
        }
        for wrong in [
            "",
            "127.0.0.1",
            "ftp://127.0.0.1",
            "http://",
            "http://a b",
            "http:///x",
            "http://h:x/",
        ] {
            assert!(Site::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_has_a_length_when_it_has_a_body_or_could_have_one() {
        let (site, _) = Site::of("http://127.0.0.1:1").unwrap();
        let header = ("a".to_owned(), "b".to_owned());
        assert_eq!(
            site.encode("POST", "/x", &[header], b"{}"),
            b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:1\r\na: b\r\ncontent-length: 2\r\n\r\n{}"
        );
        assert_eq!(
            site.encode("GET", "/", &[], b""),
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\n"
        );
    }
}
