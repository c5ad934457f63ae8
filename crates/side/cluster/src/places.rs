//! How many clients of the address for nodes have not shown yet who they are, in all and from one address. Nodes that have are counted by
//! node, so strangers take no room from them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Most connections of strangers.
const CONNECTIONS_MAX: usize = 256;
/// Most of them from one address.
const ADDRESS_MAX: usize = 16;

/// The strangers by address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One stranger, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Places,
    address: IpAddr,
}

impl Places {
    /// `None`: there are too many.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Place> {
        let mut places = self.0.lock();
        let all: usize = places.values().sum();
        let here = places.get(&address).copied().unwrap_or(0);
        if all >= CONNECTIONS_MAX || here >= ADDRESS_MAX {
            return None;
        }
        places.insert(address, here + 1);
        drop(places);
        let of = self.clone();
        Some(Place { of, address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.of.0.lock();
        if let Some(here) = places.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                places.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_address_leaves_room_for_others_and_all_have_a_limit() {
        let places = Places::default();
        let address = |last: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let mut held: Vec<_> = (0..ADDRESS_MAX).map(|_| places.admit(address(1))).collect();
        assert!(held.iter().all(Option::is_some) && places.admit(address(1)).is_none());
        for last in 2..=16 {
            held.extend((0..ADDRESS_MAX).map(|_| places.admit(address(last))));
        }
        assert_eq!(held.iter().flatten().count(), CONNECTIONS_MAX);
        assert!(places.admit(address(17)).is_none());
        held.clear();
        assert!(places.0.lock().is_empty() && places.admit(address(17)).is_some());
    }
}
