//! The open connections of a listener, in total and by address of the client, within their limits.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open connections of one listener.
#[derive(Debug)]
pub(crate) struct Peers {
    connections_max: usize,
    per_address_max: usize,
    /// The lock is held for a look-up.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    /// Only addresses with a connection, so there are never more than connections.
    by_address: HashMap<IpAddr, usize>,
}

/// One open connection. Dropping it makes room for another one.
#[derive(Debug)]
pub(crate) struct Place {
    peers: Arc<Peers>,
    address: IpAddr,
}

/// Why there is no room for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The listener has as many as it may have.
    Listener,
    /// The client's address has.
    Address,
}

impl Peers {
    pub(crate) fn new(connections_max: usize, per_address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            connections_max,
            per_address_max,
            open: Mutex::default(),
        })
    }

    /// Room for one more connection from this address.
    pub(crate) fn admit(self: &Arc<Self>, from: IpAddr) -> Result<Place, Full> {
        let address = network(from);
        let mut open = self.open();
        let of_address = open.by_address.get(&address).copied().unwrap_or(0);
        if of_address >= self.per_address_max {
            return Err(Full::Address);
        }
        if open.total >= self.connections_max {
            return Err(Full::Listener);
        }
        open.total += 1;
        open.by_address.insert(address, of_address + 1);
        Ok(Place {
            peers: Arc::clone(self),
            address,
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Whoever holds it only counts, so it is never left in a wrong state.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.peers.open();
        open.total -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

/// What counts as one client: an IPv4 address, or an IPv6 network of /64, from which one machine may take any address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

/// How many connections were turned away, since the daemon started.
#[derive(Debug, Default)]
pub struct RefusedConnections {
    listener_full: AtomicU64,
    address_full: AtomicU64,
    too_slow: AtomicU64,
}

impl RefusedConnections {
    pub(crate) fn full(&self, why: Full) {
        match why {
            Full::Listener => &self.listener_full,
            Full::Address => &self.address_full,
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn too_slow(&self) {
        self.too_slow.fetch_add(1, Ordering::Relaxed);
    }

    /// The reasons and their counts.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        [
            ("listener_full", &self.listener_full),
            ("address_full", &self.address_full),
            ("too_slow", &self.too_slow),
        ]
        .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_cannot_take_every_connection() {
        let peers = Peers::new(3, 2);
        let first = peers.admit(ip("192.0.2.1")).unwrap();
        let _second = peers.admit(ip("::ffff:192.0.2.1")).unwrap();
        assert_eq!(
            peers.admit(ip("192.0.2.1")).err(),
            Some(Full::Address),
            "the same address"
        );
        let _third = peers.admit(ip("192.0.2.2")).unwrap();
        assert_eq!(peers.admit(ip("192.0.2.3")).err(), Some(Full::Listener));
        drop(first);
        let _again = peers.admit(ip("192.0.2.1")).unwrap();
        assert_eq!(peers.open().by_address.len(), 2);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let peers = Peers::new(10, 1);
        let place = peers.admit(ip("2001:db8::1")).unwrap();
        assert_eq!(peers.admit(ip("2001:db8::2")).err(), Some(Full::Address));
        let _other = peers.admit(ip("2001:db8:0:1::1")).unwrap();
        drop(place);
        let _next = peers.admit(ip("2001:db8::3")).unwrap();
    }
}
