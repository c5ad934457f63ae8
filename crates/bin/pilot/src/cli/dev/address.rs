//! The address for functions of the daemon of `pilot dev`, if none is given: the usual one, if it is free.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context;

use super::super::connection::DEFAULT_FUNCTIONS;
use super::super::output;
use crate::listen;

/// The usual address for functions, if it is free; else a free port of 127.0.0.1.
///
/// # Errors
/// No port is free.
pub(super) fn choose() -> anyhow::Result<SocketAddr> {
    free_or_another(DEFAULT_FUNCTIONS)
}

fn free_or_another(endpoint: &str) -> anyhow::Result<SocketAddr> {
    let wanted = endpoint
        .trim_end_matches('/')
        .strip_prefix("http://")
        .and_then(|authority| listen::address(authority).ok())
        .filter(|address| address.ip().is_loopback());
    match wanted {
        Some(address) if TcpListener::bind(address).is_ok() => return Ok(address),
        Some(address) => output::note(&format!(
            "{address} is in use: this daemon listens on a free port"
        )),
        None => {}
    }
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    free.and_then(|listener| listener.local_addr())
        .context("no port of 127.0.0.1 is free; name an address with --listen")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_address_is_used_if_it_is_free() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap();
        let endpoint = format!("http://{address}");
        let other = free_or_another(&endpoint).unwrap();
        assert_ne!(other, address);
        assert!(other.ip().is_loopback());
        drop(holder);
        assert_eq!(free_or_another(&endpoint).unwrap(), address);
    }

    #[test]
    fn an_endpoint_on_another_machine_is_not_listened_on() {
        for endpoint in ["http://192.0.2.1:8080", "nonsense"] {
            let address = free_or_another(endpoint).unwrap();
            assert_eq!(address.ip(), Ipv4Addr::LOCALHOST);
        }
    }
}
