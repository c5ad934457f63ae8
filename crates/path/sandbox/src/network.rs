//! `network = "outbound"`: a function reaches other hosts, but neither this one nor another function, and nobody reaches it.
//!
//! ```text
//!  function's namespace            host's namespace
//!  eth0 10.213.0.5/32 ────────── pilot…-… (no address) ──▶ nf_tables: `table`  ──▶ forwarded, masqueraded
//!  default via 169.254.1.1         route 10.213.0.5/32
//! ```
//! A link is a pair of devices without ARP and without an address on the host's side, so there is nothing of the host to connect
//! to. A function's address conflicts with a real one only if exactly that address is in use. All links share one table of rules.
//!
//! [`outbound`] is the daemon's side: it assigns addresses. [`probe`] finds out whether the machine can make links. [`host`] is the
//! spawner's side, which makes links and rules ([`table`]) and enables forwarding ([`forwarding`]).

mod forwarding;
pub(crate) mod host;
mod link;
pub(crate) mod outbound;
pub(crate) mod probe;
pub(crate) mod resolver;
mod table;

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Range of functions' addresses unless configured otherwise. Only single addresses of it are ever routed.
pub const OUTBOUND_CIDR_DEFAULT: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16);
