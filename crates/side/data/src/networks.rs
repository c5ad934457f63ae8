//! Which addresses initscripts may reach without a store: those of the public internet, and networks that the operator names.
//!
//! A name is resolved once for a connection, each address is checked, and the connection goes to a checked address. So a name that
//! resolves to another address the next time (DNS rebinding) gains nothing.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use ipnet::IpNet;
use pilot_model::BoxFuture;
use pilot_sys::netlink::credentials;

/// The networks beyond the public internet, and who knows the addresses of names.
#[derive(Debug, Clone)]
pub(crate) struct Networks {
    named: Arc<[IpNet]>,
    names: Arc<dyn Names>,
}

/// What names lead to.
pub(crate) trait Names: Debug + Send + Sync {
    /// The addresses of a host. The next answer may be another one.
    fn addresses<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The machine's resolver.
#[derive(Debug)]
struct Machine;

impl Names for Machine {
    fn addresses<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

impl Networks {
    pub(crate) fn new(named: Vec<IpNet>) -> Self {
        Self::with_names(named, Arc::new(Machine))
    }

    pub(crate) fn with_names(named: Vec<IpNet>, names: Arc<dyn Names>) -> Self {
        Self {
            named: named.into(),
            names,
        }
    }

    /// Whether an initscript may connect to an address.
    ///
    /// # Errors
    /// Why not, and who can change that.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), String> {
        let address = address.to_canonical();
        if credentials::is_one(address) {
            return Err(format!(
                "{address} is where clouds serve a machine's credentials: no initscript may connect to it"
            ));
        }
        if self.named.iter().any(|network| network.contains(&address)) {
            return Ok(());
        }
        if is_public(address) && !is_own(address) {
            return Ok(());
        }
        Err(format!(
            "{address} is a private address, or one of this machine: the operator adds its network to data.initscript_networks in \
             pilotd.toml, or makes the server a store"
        ))
    }

    /// The addresses of a host that an initscript may connect to.
    ///
    /// # Errors
    /// The name is unknown, or no address may be used.
    pub(crate) async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut refused = None;
        let mut found = Vec::new();
        let addresses = self.names.addresses(host, port).await?;
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            match self.check(address.ip()) {
                Ok(()) => found.push(address),
                Err(problem) => refused = Some(problem),
            }
        }
        match (found.is_empty(), refused) {
            (false, _) => Ok(found),
            (true, Some(problem)) => Err(io::Error::new(io::ErrorKind::PermissionDenied, problem)),
            (true, None) => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
        }
    }
}

/// Whether an address is of the public internet (IANA's registries of special-purpose addresses, RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_ipv4(address),
        IpAddr::V6(address) => is_public_ipv6(address),
    }
}

fn is_public_ipv4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        // This network, and reserved ones with broadcast and multicast.
        || a == 0
        || a >= 224
        // Shared address space (RFC 6598).
        || (a == 100 && (64..128).contains(&b))
        // Protocol assignments, and the relays of 6to4.
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        // Benchmarks (RFC 2544).
        || (a == 198 && (b == 18 || b == 19));
    !is_special
}

fn is_public_ipv6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // Global unicast, without protocol assignments (Teredo among them), documentation, and 6to4, which contains an IPv4 address.
    let is_special =
        (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || a == 0x2002 || (a & 0xfff0) == 0x3ff0;
    (a & 0xe000) == 0x2000 && !is_special
}

/// Whether it is an address of this machine: only such a one can be bound (bind(2), EADDRNOTAVAIL).
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Addresses of one name that are looked at.
const ADDRESSES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(named: &[&str], address: &str) -> bool {
        let named = named.iter().map(|one| one.parse().unwrap()).collect();
        Networks::new(named).check(address.parse().unwrap()).is_ok()
    }

    #[test]
    fn only_the_public_internet_is_reached_by_default() {
        for address in ["1.1.1.1", "8.8.8.8", "2606:4700::1111"] {
            assert!(allowed(&[], address), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "2002:7f00:1::",
            "2001:db8::1",
            "64:ff9b::a00:1",
        ] {
            assert!(!allowed(&[], address), "{address}");
        }
    }

    #[test]
    fn a_network_that_the_operator_names_is_reached_and_credentials_never_are() {
        assert!(allowed(&["10.0.0.0/8"], "10.1.2.3"));
        assert!(allowed(&["127.0.0.0/8"], "::ffff:127.0.0.1"));
        assert!(!allowed(&["10.0.0.0/8"], "192.168.1.1"));
        for address in ["169.254.169.254", "168.63.129.16", "fd00:ec2::254"] {
            assert!(!allowed(&["0.0.0.0/0", "::/0"], address), "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_with_a_private_address_is_refused() {
        let refused = Networks::new(Vec::new()).resolve("localhost", 80).await;
        let problem = refused.unwrap_err().to_string();
        assert!(problem.contains("data.initscript_networks"), "{problem}");
    }
}
