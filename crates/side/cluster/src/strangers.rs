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
pub(crate) struct Strangers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One stranger, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    of: Strangers,
    address: IpAddr,
}

impl Strangers {
    /// `None`: there are too many.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Stranger> {
        let mut strangers = self.0.lock();
        let all: usize = strangers.values().sum();
        let here = strangers.get(&address).copied().unwrap_or(0);
        if all >= CONNECTIONS_MAX || here >= ADDRESS_MAX {
            return None;
        }
        strangers.insert(address, here + 1);
        drop(strangers);
        let of = self.clone();
        Some(Stranger { of, address })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut strangers = self.of.0.lock();
        if let Some(here) = strangers.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                strangers.remove(&self.address);
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
        let strangers = Strangers::default();
        let address = |last: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let mut held: Vec<_> = (0..ADDRESS_MAX)
            .map(|_| strangers.admit(address(1)))
            .collect();
        assert!(held.iter().all(Option::is_some) && strangers.admit(address(1)).is_none());
        for last in 2..=16 {
            held.extend((0..ADDRESS_MAX).map(|_| strangers.admit(address(last))));
        }
        assert_eq!(held.iter().flatten().count(), CONNECTIONS_MAX);
        assert!(strangers.admit(address(17)).is_none());
        held.clear();
        assert!(strangers.0.lock().is_empty() && strangers.admit(address(17)).is_some());
    }
}
