//! Enables forwarding on the machine for functions only.
//!
//! The kernel checks the device through which a packet arrives (ip_route_input_slow() in net/ipv4/route.c). For packets of
//! functions that is their link; for answers it is the interface towards other hosts. If the machine already is a router
//! (`net.ipv4.ip_forward`), nothing is changed. Otherwise forwarding is enabled per interface with an address, and the table's
//! guard drops packets that arrive there for anything but functions, so that the machine does not become a router for others.
//!
//! What is enabled is recorded first ([`record`](super::record)), for the daemons of the machine together: one that finds an
//! interface in the record does not take it for the administrator's choice, and the last one disables it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use pilot_sys::netlink::Netlink;
use pilot_sys::netlink::route::Route;

use super::link::{forwarding, set};
use super::record::{Interfaces, Records};
use super::table::{DEVICES, Table};

/// Whether the machine as a whole forwards.
const MACHINE: &str = "/proc/sys/net/ipv4/ip_forward";

/// The interfaces on which forwarding was enabled.
#[derive(Debug)]
pub(super) struct Forwarding {
    switched_on: Interfaces,
    /// `None` in a network namespace of which nothing is left.
    records: Option<Records>,
}

impl Forwarding {
    /// `records` is the folder of the records.
    pub(super) fn new(records: Option<&Path>) -> Result<Self, String> {
        let records = records.map(Records::here).transpose();
        Ok(Self {
            switched_on: Interfaces::new(),
            records: records.map_err(|error| format!("identify the network namespace: {error}"))?,
        })
    }

    /// Updates forwarding and guard to the machine's current interfaces.
    pub(super) fn follow(
        &mut self,
        route: &mut Route,
        table: &Table,
        netfilter: &mut Netlink,
    ) -> Result<(), String> {
        let Self {
            switched_on,
            records,
        } = self;
        let record = records.as_mut().map(Records::join).transpose()?;
        let mut ours = record
            .as_ref()
            .map_or_else(Interfaces::new, |record| record.read());
        let recorded = ours.clone();
        ours.extend(switched_on.clone());
        let names = route.links().map_err(|error| error.to_string())?;
        let names: HashMap<u32, String> = names.into_iter().collect();
        let wanted = if is_on(MACHINE) {
            Interfaces::new()
        } else {
            needed(&ours, route, &names)?
        };
        if let Some(record) = &record
            && wanted != recorded
        {
            record.write(&wanted)?;
        }
        if wanted != *switched_on {
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
        *switched_on = wanted;
        Ok(())
    }

    /// Disables forwarding where daemons enabled it, if no other one needs it.
    pub(super) fn undo(&mut self, route: &mut Route) {
        let enabled = std::mem::take(&mut self.switched_on);
        let Some(records) = &mut self.records else {
            disable(route, &enabled);
            return;
        };
        match records.leave() {
            Ok(Some(record)) => {
                let mut all = record.read();
                all.extend(enabled);
                disable(route, &all);
                // If this fails, the next daemon disables it again, which changes nothing.
                let _ = record.forget();
            }
            Ok(None) => {}
            Err(_) => drop(disable(route, &enabled)),
        }
    }
}

/// Interfaces on which killed daemons have left forwarding enabled. Changes nothing.
pub(crate) fn left_behind(folder: &Path) -> Result<Vec<String>, String> {
    of_the_killed(folder, |_, interfaces| interfaces.into_values().collect())
}

/// Disables forwarding that killed daemons have left enabled, and returns the interfaces.
pub(crate) fn recover(folder: &Path) -> Result<Vec<String>, String> {
    of_the_killed(folder, |record, interfaces| {
        let mut route = Route::open().ok()?;
        let disabled = disable(&mut route, &interfaces);
        record.forget().ok()?;
        Some(disabled)
    })
    .map(Option::unwrap_or_default)
}

fn of_the_killed<T: Default>(
    folder: &Path,
    then: impl FnOnce(super::record::Locked<'_>, Interfaces) -> T,
) -> Result<T, String> {
    let mut records = Records::here(folder).map_err(|error| error.to_string())?;
    if !records.exists() {
        return Ok(T::default());
    }
    Ok(match records.leave()? {
        Some(record) => {
            let interfaces = record.read();
            then(record, interfaces)
        }
        None => T::default(),
    })
}

/// Interfaces towards other hosts that forward only if a daemon enables it. `ours` are those where one has done so.
fn needed(
    ours: &Interfaces,
    route: &mut Route,
    names: &HashMap<u32, String>,
) -> Result<Interfaces, String> {
    let addresses = route.addresses().map_err(|error| error.to_string())?;
    Ok(addresses
        .into_iter()
        .filter(|address| address.beyond_host)
        .filter_map(|address| {
            let name = names.get(&address.index)?;
            // A new interface may have the index of an old one.
            let is_ours = ours.get(&address.index) == Some(name);
            let needed = !name.starts_with(DEVICES) && (is_ours || !is_on(&forwarding(name)));
            needed.then(|| (address.index, name.clone()))
        })
        .collect())
}

/// Disables forwarding on the interfaces that are still there, unless the whole machine forwards now. Returns their names.
fn disable(route: &mut Route, interfaces: &Interfaces) -> Vec<String> {
    if is_on(MACHINE) || interfaces.is_empty() {
        return Vec::new();
    }
    let links = route.links().unwrap_or_default().into_iter();
    links
        .filter(|(index, name)| interfaces.get(index) == Some(name))
        // Errors are ignored: the interface may be gone.
        .filter_map(|(_, name)| set(&forwarding(&name), "0").is_ok().then_some(name))
        .collect()
}

fn is_on(switch: &str) -> bool {
    fs::read_to_string(switch).is_ok_and(|value| value.trim() != "0")
}
