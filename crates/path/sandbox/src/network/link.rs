//! One link: a pair of devices with one end in the function's network namespace. Made by a process of its own, which enters
//! that namespace and does not return.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sched::{CloneFlags, setns};
use pilot_sys::netlink::route::{self, Route, Veth};

/// The name of the function's device.
const INSIDE: &str = "eth0";

/// The function's gateway. No host has this address; without ARP nobody needs it (`route::Veth`).
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Makes the link, from the host's device to the default route inside. Leaves nothing behind on an error. Afterwards this
/// process is in the function's network namespace.
pub(super) fn make(
    device: &str,
    address: Ipv4Addr,
    namespace: BorrowedFd<'_>,
) -> Result<(), LinkProblem> {
    let mut host = Route::open().map_err(|error| format!("open a netlink socket: {error}"))?;
    let [a, b, c, d] = address.octets();
    let pair = route::make_veth(&Veth {
        here: device,
        there: INSIDE,
        there_namespace: namespace.as_fd(),
        // A locally administered unicast address (IEEE 802, 8.4).
        hardware_address: [0x02, b'p', a, b, c, d],
    });
    host.apply(pair).map_err(|error| error.to_string())?;
    let index = host.index_of(device).map_err(|error| error.to_string())?;
    let made = here(&mut host, device, index, address)
        .and_then(|()| there(namespace, address).map_err(LinkProblem::Other));
    if made.is_err() {
        // This removes the other end, too. The socket is still in the host's namespace.
        let _ = host.apply(route::remove_link(index));
    }
    made
}

/// Why a link was not made.
#[derive(Debug)]
pub(super) enum LinkProblem {
    /// The machine has a route to this address already: another daemon has given it to a function.
    Taken,
    /// The step and the error.
    Other(String),
}

impl From<String> for LinkProblem {
    fn from(problem: String) -> Self {
        Self::Other(problem)
    }
}

/// The route is what gives this function the address: the kernel lets only one daemon add it.
fn here(host: &mut Route, device: &str, index: u32, address: Ipv4Addr) -> Result<(), LinkProblem> {
    without_ipv6(device)?;
    set(&forwarding(device), "1")?;
    host.apply(route::switch_on(index))
        .map_err(|error| error.to_string())?;
    match host.apply(route::add_route_to(address, index)) {
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            Err(LinkProblem::Taken)
        }
        added => Ok(added.map_err(|error| error.to_string())?),
    }
}

fn there(namespace: BorrowedFd<'_>, address: Ipv4Addr) -> Result<(), String> {
    setns(namespace, CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("enter the function's network namespace: {error}"))?;
    let mut inside = Route::open().map_err(|error| format!("open a netlink socket: {error}"))?;
    let index = inside.index_of(INSIDE).map_err(|error| error.to_string())?;
    without_ipv6(INSIDE)?;
    for message in [
        route::add_address(index, address, 32),
        route::switch_on(index),
        route::add_default_route(GATEWAY, index),
    ] {
        inside.apply(message).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Disables IPv6; otherwise both ends would get a link-local address when they are set up.
fn without_ipv6(device: &str) -> Result<(), String> {
    let switch = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
    match fs::write(&switch, "1") {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|error| format!("write {switch}: {error}")),
    }
}

/// The setting that allows packets arriving at a device to be forwarded.
pub(super) fn forwarding(device: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{device}/forwarding")
}

/// Writes a setting of this process's network namespace.
pub(super) fn set(switch: &str, value: &str) -> Result<(), String> {
    fs::write(switch, value).map_err(|error| format!("write {switch}: {error}"))
}
