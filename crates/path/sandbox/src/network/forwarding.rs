//! Lets the machine forward for functions, and for nobody else.
//!
//! The kernel asks the device through which a packet comes in whether it forwards (ip_route_input_slow() in
//! net/ipv4/route.c). For what functions send that is their link; for the answers it is whatever interface leads to the
//! other hosts. On a machine that is a router already (`net.ipv4.ip_forward`) nothing is changed. On any other, the
//! interfaces that have an address are switched on one by one, and the table's guard drops what comes in through them for
//! anybody but functions: the machine is no more of a router than it was.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use pilot_sys::netlink::Netlink;
use pilot_sys::netlink::route::Route;

use super::link::{forwarding, set};
use super::table::{DEVICES, Table};

/// Whether the machine as a whole forwards.
const MACHINE: &str = "/proc/sys/net/ipv4/ip_forward";

/// What was switched on.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    /// Name by index.
    switched_on: BTreeMap<u32, String>,
}

impl Forwarding {
    /// Brings switches and guard up to date with the machine's interfaces.
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
            // The guard is up before a switch is on.
            table
                .guard(wanted.keys().copied())
                .commit(netfilter)
                .map_err(|error| error.to_string())?;
        }
        // Links have theirs on from the beginning, until somebody switches off the whole machine's.
        let links = names.values().filter(|name| table.has(name));
        for name in wanted.values().chain(links) {
            let switch = forwarding(name);
            // One that went away meanwhile needs none.
            if !is_on(&switch) && fs::exists(&switch).unwrap_or(false) {
                set(&switch, "1")?;
            }
        }
        self.switched_on = wanted;
        Ok(())
    }

    /// Interfaces that lead to other hosts and do not forward but for us.
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

    /// Switches off what was switched on.
    pub(super) fn undo(&mut self) {
        if is_on(MACHINE) {
            return;
        }
        for name in std::mem::take(&mut self.switched_on).into_values() {
            // Nobody is left to be told; it may well be gone.
            let _ = set(&forwarding(&name), "0");
        }
    }
}

fn is_on(switch: &str) -> bool {
    fs::read_to_string(switch).is_ok_and(|value| value.trim() != "0")
}
