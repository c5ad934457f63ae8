//! `network = "outbound"`: a function reaches other hosts, but neither this one nor another function, and nobody reaches it.
//!
//! ```text
//!  function's namespace            host's namespace
//!  eth0 10.213.0.5/32 ────────── pilot…-… (no address) ──▶ nf_tables: `table`  ──▶ forwarded, masqueraded
//!  default via 169.254.1.1         route 10.213.0.5/32
//! ```
//! A link is a pair of devices without ARP and without an address on the host's side, so there is nothing of the host to connect
//! to. A function's address conflicts with a real one only if exactly that address is in use. All links of a daemon share one
//! table of rules. Daemons may share a range: the kernel refuses a second route to an address, and the daemon takes the next one.
//!
//! [`outbound`] is the daemon's side: it assigns addresses. [`probe`] finds out whether the machine can make links. [`host`] is the
//! spawner's side, which makes links and rules ([`table`]) and enables forwarding ([`forwarding`]). [`record`] is for whoever comes
//! after a daemon that was killed.

pub(crate) mod forwarding;
pub(crate) mod host;
mod link;
pub(crate) mod outbound;
pub(crate) mod probe;
mod record;
pub(crate) mod resolver;
mod table;

use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;

/// Range of functions' addresses unless configured otherwise. Only single addresses of it are ever routed.
pub const OUTBOUND_CIDR_DEFAULT: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16);

/// Where daemons record what they change in the machine's network.
pub(crate) fn records() -> &'static Path {
    Path::new(record::FOLDER)
}

/// The interfaces on which a daemon has left forwarding enabled because all its processes were killed. The next daemon that starts
/// as root disables it. Changes nothing.
///
/// # Errors
/// The record cannot be read, as text. Without root there is none.
pub fn forwarding_left_behind() -> Result<Vec<String>, String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Vec::new());
    }
    forwarding::left_behind(records())
}
