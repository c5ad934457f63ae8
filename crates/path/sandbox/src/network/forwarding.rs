//! Enables forwarding on the machine for functions only.
//!
//! The kernel checks the device through which a packet arrives (ip_route_input_slow() in net/ipv4/route.c). For packets of
//! functions that is their link; for answers it is the interface towards other hosts. If the machine already is a router
//! (`net.ipv4.ip_forward`), nothing is changed. Otherwise forwarding is enabled per interface with an address, and the table's
//! guard drops packets that arrive there for anything but functions, so that the machine does not become a router for others.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use pilot_sys::netlink::Netlink;
use pilot_sys::netlink::route::Route;

use super::link::{forwarding, set};
use super::table::{DEVICES, Table};

/// Whether the machine as a whole forwards.
const MACHINE: &str = "/proc/sys/net/ipv4/ip_forward";

/// The interfaces on which forwarding was enabled.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    /// Name by index.
    switched_on: BTreeMap<u32, String>,
}

impl Forwarding {
    /// Updates forwarding and guard to the machine's current interfaces.
    pub(super) fn follow(
        &mut self,
        route: &mut Route,
        table: &Table,
        netfilter: &mut Netlink,
    ) -> Result<(), String> {
        let names = route.links().map_err(|error| error.to_string())?;
        let names: HashMap<u32, String> = names.into_iter().collect();
        let wanted = if is_on(MACHINE) {
            BTreeMap::new()
        } else {
            self.needed(route, &names)?
        };
        if wanted != self.switched_on {
            // The guard must be in place before forwarding is enabled.
            table
                .guard(wanted.keys().copied())
                .commit(netfilter)
                .map_err(|error| error.to_string())?;
        }
        // Links have forwarding enabled from the beginning, until somebody disables it for the whole machine.
        let links = names.values().filter(|name| table.has(name));
        for name in wanted.values().chain(links) {
            let switch = forwarding(name);
            // Ignore an interface that was removed meanwhile.
            if !is_on(&switch) && fs::exists(&switch).unwrap_or(false) {
                set(&switch, "1")?;
            }
        }
        self.switched_on = wanted;
        Ok(())
    }

    /// Interfaces towards other hosts that forward only if this daemon enables it.
    fn needed(
        &self,
        route: &mut Route,
        names: &HashMap<u32, String>,
    ) -> Result<BTreeMap<u32, String>, String> {
        let addresses = route.addresses().map_err(|error| error.to_string())?;
        Ok(addresses
            .into_iter()
            .filter(|address| address.beyond_host)
            .filter_map(|address| {
                let name = names.get(&address.index)?;
                let ours = self.switched_on.contains_key(&address.index);
                let needed = !name.starts_with(DEVICES) && (ours || !is_on(&forwarding(name)));
                needed.then(|| (address.index, name.clone()))
            })
            .collect())
    }

    /// Disables forwarding where it was enabled here.
    pub(super) fn undo(&mut self) {
        if is_on(MACHINE) {
            return;
        }
        for name in std::mem::take(&mut self.switched_on).into_values() {
            // Errors are ignored: the interface may be gone.
            let _ = set(&forwarding(&name), "0");
        }
    }
}

fn is_on(switch: &str) -> bool {
    fs::read_to_string(switch).is_ok_and(|value| value.trim() != "0")
}
