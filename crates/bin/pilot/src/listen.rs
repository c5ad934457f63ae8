//! The address that the daemon listens on: how it is written, and why the kernel refuses it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use serde::{Deserialize, Deserializer};

/// `ADDRESS:PORT` or `NAME:PORT`. If a name has several addresses, the first IPv4 address is used.
///
/// # Errors
/// What is wrong, and what would be valid.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wanted =
        "use ADDRESS:PORT or NAME:PORT, for example 127.0.0.1:8080, [::1]:8080 or localhost:8080";
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!("has no port; {wanted}"));
    }
    let Some((name, port)) = text.rsplit_once(':') else {
        return Err(wanted.to_owned());
    };
    if name.is_empty() || name.contains(':') || port.parse::<u16>().is_err() {
        return Err(wanted.to_owned());
    }
    let found: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map_err(|_| format!("the name {name} has no address; {wanted}"))?
        .collect();
    found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first())
        .copied()
        .ok_or_else(|| format!("the name {name} has no address; {wanted}"))
}

/// As [`address`], for a key of a configuration file.
pub(crate) fn of_key<'de, D: Deserializer<'de>>(key: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(key)?;
    let read = address(&text);
    read.map(Some).map_err(|problem| {
        serde::de::Error::custom(format!("is \"{}\": {problem}", text.escape_default()))
    })
}

/// Why the daemon cannot listen on an address, and what to do. `option` chooses it.
pub(crate) fn refusal(address: SocketAddr, option: &str, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another program listens there, perhaps another daemon; stop it, or choose another address with {option}"
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "{} is not an address of this machine; `ip address` lists those it has, and 0.0.0.0 stands for all of them",
            address.ip()
        ),
        io::ErrorKind::PermissionDenied => {
            format!("a port below 1024 needs root; choose a higher one with {option}")
        }
        _ => format!("{error}; choose another address with {option}"),
    };
    format!("cannot listen on {address}: {remedy}")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_is_a_number_or_a_name_with_a_port() {
        assert_eq!(address("127.0.0.1:80").unwrap().to_string(), "127.0.0.1:80");
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        let local = address("localhost:9311").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 9311, "{local}");
    }

    #[test]
    fn what_is_no_address_says_what_would_be_one() {
        for (text, wanted) in [
            ("127.0.0.1", "has no port; use ADDRESS:PORT"),
            ("::1", "has no port; use ADDRESS:PORT"),
            ("localhost", "use ADDRESS:PORT"),
            (":80", "use ADDRESS:PORT"),
            ("localhost:http", "use ADDRESS:PORT"),
            ("localhost:70000", "use ADDRESS:PORT"),
            ("http://localhost:80", "use ADDRESS:PORT"),
            (
                "nowhere.invalid:80",
                "the name nowhere.invalid has no address",
            ),
        ] {
            let problem = address(text).unwrap_err();
            assert!(problem.starts_with(wanted), "{text}: {problem}");
        }
    }

    #[test]
    fn each_refusal_of_the_kernel_has_its_remedy() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap();
        for (at, wanted) in [
            // TEST-NET-1 (RFC 5737) belongs to no machine.
            (
                "192.0.2.1:8080".parse().unwrap(),
                "192.0.2.1 is not an address of this machine",
            ),
            (taken, "another program listens there"),
        ] {
            let error = TcpListener::bind(at).unwrap_err();
            let said = refusal(at, "--listen", &error);
            assert!(said.contains(wanted), "{said}");
        }
    }
}
