//! Keeps containers from the addresses where clouds serve the machine's credentials. The rules are in the container's network
//! namespace, so they concern no other container, and end with it. Programs in it cannot remove them, because they have no
//! capabilities. They are there before the first program runs, also in a container that gets a network later.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use pilot_sys::netlink::nftables::{ChainKind, Hook, Transaction};
use pilot_sys::netlink::{Netlink, Protocol, credentials};

/// Adds the rules to the network of a process.
///
/// # Errors
/// This process is not root, or the kernel has no `nf_tables`; as text.
pub(crate) fn refuse(pid: u32) -> Result<(), String> {
    let path = format!("/proc/{pid}/ns/net");
    let at = |error: io::Error| format!("{path}: {error}");
    let namespace = File::open(&path).map_err(at)?;
    let mut netfilter = Netlink::open_in(Protocol::Netfilter, namespace.as_fd()).map_err(at)?;
    let begin = Transaction::of(TABLE).make_table().chain_at(
        OUTPUT,
        ChainKind::Filter,
        Hook::Output,
        FILTER,
    );
    credentials::refusals()
        .into_iter()
        .fold(begin, |rules, rule| rules.rule(OUTPUT, &rule))
        .commit(&mut netfilter)
        .map_err(|error| error.to_string())
}

const TABLE: &str = "pilotlight";
const OUTPUT: &str = "output";
/// `NF_IP_PRI_FILTER`: after the engine's address translation.
const FILTER: i32 = 0;
