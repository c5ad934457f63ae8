//! The firewall rules for all links of a daemon, as data: one nf_tables table, which is removed with the socket that made it.
//!
//! Packets of functions are checked where they arrive, before other rules may change their destination (`arriving`);
//! afterwards, packets for the machine itself are dropped, too (`input`). Forwarded packets are either a function's, to
//! anything but a function and within a connection limit, or answers (`forward`). The host does not connect to functions either
//! (`output`).

use pilot_sys::netlink::credentials;
use pilot_sys::netlink::nftables::{
    ChainKind, Expression, Hook, IPV4, Meta, Transaction, UNICAST, state,
};

use crate::daemon_id::{DaemonId, base36};

/// Prefix of all devices of all daemons.
pub(super) const DEVICES: &str = "pilot";

/// A daemon's table.
#[derive(Debug, Clone)]
pub(super) struct Table {
    name: String,
    /// Prefix of this daemon's devices.
    devices: String,
}

impl Table {
    /// The table of this daemon.
    pub(super) fn of(daemon: DaemonId) -> Self {
        Self {
            name: format!("pilotlight_{}", daemon.long('_')),
            devices: format!("{DEVICES}{}-", daemon.short()),
        }
    }

    /// The name of a link's device: at most 15 bytes, of which the daemon takes 5 and a number 4.
    pub(super) fn device(&self, number: u32) -> String {
        format!("{}{}", self.devices, base36(number % NUMBERS))
    }

    /// Whether a device belongs to this daemon.
    pub(super) fn has(&self, device: &str) -> bool {
        device.starts_with(&self.devices)
    }

    /// Creates the table.
    pub(super) fn make(&self) -> Transaction {
        let from_function = |rest: &[Expression]| self.begins(Meta::InName, rest);
        let to_function = |rest: &[Expression]| self.begins(Meta::OutName, rest);
        let answers = [in_state(state::ESTABLISHED | state::RELATED), accept()].concat();
        let any = in_state(state::NEW | state::ESTABLISHED | state::RELATED);
        let mut all = Transaction::of(&self.name)
            .make_owned_table()
            .chain_at(
                "prerouting",
                ChainKind::Filter,
                Hook::Prerouting,
                BEFORE_NAT,
            )
            .chain_at("input", ChainKind::Filter, Hook::Input, FILTER)
            .chain_at("forward", ChainKind::Filter, Hook::Forward, FILTER)
            .chain_at("output", ChainKind::Filter, Hook::Output, FILTER)
            .chain_at("postrouting", ChainKind::Nat, Hook::Postrouting, SOURCE_NAT)
            .chain(ARRIVING)
            .chain(GUARD)
            .counting_set(LINKS, LINKS_MAX)
            .rule("prerouting", &from_function(&[Expression::Jump(ARRIVING)]))
            .rule("input", &from_function(&drop()))
            .rule("forward", &from_function(&to_function(&drop())))
            .rule("forward", &from_function(&too_many()))
            .rule("forward", &from_function(&[any, accept()].concat()))
            .rule("forward", &from_function(&drop()))
            .rule("forward", &to_function(&answers))
            .rule("forward", &to_function(&drop()))
            .rule("forward", &[Expression::Jump(GUARD)])
            .rule("output", &to_function(&answers))
            .rule("output", &to_function(&drop()))
            .rule("postrouting", &from_function(&[Expression::Masquerade]));
        for rule in arriving() {
            all = all.rule(ARRIVING, &rule);
        }
        all
    }

    /// Sets the interfaces through which packets are forwarded to functions only. Other daemons' functions have their own
    /// rules.
    pub(super) fn guard(&self, interfaces: impl Iterator<Item = u32>) -> Transaction {
        let begin = Transaction::of(&self.name).empty_chain(GUARD);
        interfaces.fold(begin, |transaction, interface| {
            let rule = [
                Expression::Load(Meta::InIndex),
                Expression::Is(interface.to_ne_bytes().into()),
                Expression::Load(Meta::OutName),
                Expression::IsNot(DEVICES.into()),
                Expression::Drop,
            ];
            transaction.rule(GUARD, &rule)
        })
    }

    /// Removes the table.
    pub(super) fn remove(&self) -> Transaction {
        Transaction::of(&self.name).remove_table()
    }

    /// A rule for packets whose device in this direction belongs to this daemon.
    fn begins(&self, name: Meta, rest: &[Expression]) -> Vec<Expression> {
        let ours = [
            Expression::Load(name),
            Expression::Is(self.devices.clone().into()),
        ];
        [&ours, rest].concat()
    }
}

/// Allows functions to send only IPv4, from their own address, to other machines.
fn arriving() -> Vec<Vec<Expression>> {
    let mut rules = vec![
        vec![
            Expression::Load(Meta::NetworkProtocol),
            Expression::IsNot(vec![IPV4]),
            Expression::Drop,
        ],
        vec![
            Expression::LoadReversePath,
            Expression::Is(vec![0; 4]),
            Expression::Drop,
        ],
        // No address of the host, no broadcast, no multicast.
        vec![
            Expression::LoadDestinationKind,
            Expression::IsNot(UNICAST.to_ne_bytes().into()),
            Expression::Drop,
        ],
    ];
    // Functions have no IPv6.
    rules.extend(credentials::refusals_ipv4());
    rules
}

/// Limits a function's new connections: the machine has one table for all connections, which no function may fill.
fn too_many() -> Vec<Expression> {
    let counted = [
        Expression::Load(Meta::InIndex),
        Expression::MoreConnectionsThan {
            set: LINKS,
            most: CONNECTIONS_MAX,
        },
    ];
    [&in_state(state::NEW)[..], &counted, &drop()].concat()
}

fn in_state(wanted: u32) -> Vec<Expression> {
    vec![
        Expression::LoadState,
        Expression::Mask(wanted.to_ne_bytes().into()),
        Expression::IsNot(vec![0; 4]),
    ]
}

fn accept() -> Vec<Expression> {
    vec![Expression::Accept]
}

fn drop() -> Vec<Expression> {
    vec![Expression::Drop]
}

/// Most links that a daemon can name: four digits.
const NUMBERS: u32 = 36 * 36 * 36 * 36;

/// Most open connections and datagram exchanges of a function. The kernel's table has 65,536 entries on a machine with 1 GiB
/// (nf_conntrack_init_start() in net/netfilter/nf_conntrack_core.c).
const CONNECTIONS_MAX: u32 = 4_096;

const LINKS: &str = "links";
const LINKS_MAX: u32 = 65_536;

const ARRIVING: &str = "arriving";
const GUARD: &str = "guard";

/// After connection tracking, before destination NAT (`NF_IP_PRI_MANGLE`, include/uapi/linux/netfilter_ipv4.h).
const BEFORE_NAT: i32 = -150;
/// `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`.
const SOURCE_NAT: i32 = 100;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn devices_have_names_of_at_most_15_bytes_and_their_own_daemon(
            daemon: u32,
            other: u32,
            number: u32,
        ) {
            let (daemon, other) = (DaemonId::of(1, daemon), DaemonId::of(1, other));
            let table = Table::of(daemon);
            let device = table.device(number);
            prop_assert!(device.len() <= 15, "{}", device);
            prop_assert!(table.has(&device));
            prop_assert_eq!(Table::of(other).has(&device), other == daemon);
        }
    }
}
