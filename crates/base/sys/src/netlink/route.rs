//! Links, IPv4 addresses and routes (rtnetlink(7); include/uapi/linux/{rtnetlink,if_link,if_addr,veth}.h), as needed for a
//! point-to-point link between two network namespaces.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{
    Answer, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Netlink, NetlinkError,
    Protocol,
};

/// A pair of connected devices. Both ends have the same hardware address and do not use ARP: on such a link the kernel sends to
/// the device's own address (arp_constructor() in net/ipv4/arp.c), which is also the peer's.
#[derive(Debug, Clone)]
pub struct Veth<'a> {
    /// Name of the end in the namespace of the socket.
    pub here: &'a str,
    /// Name of the other end.
    pub there: &'a str,
    /// The other end's namespace.
    pub there_namespace: BorrowedFd<'a>,
    /// The hardware address of both.
    pub hardware_address: [u8; 6],
}

/// An IPv4 address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's index.
    pub index: u32,
    /// The address.
    pub address: Ipv4Addr,
    /// Whether it is valid beyond this machine.
    pub beyond_host: bool,
}

/// A socket for links, addresses and routes, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Route {
    netlink: Netlink,
}

impl Route {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            netlink: Netlink::open(Protocol::Route)?,
        })
    }

    /// Executes a message of this module.
    ///
    /// # Errors
    /// The kernel's.
    pub fn apply(&mut self, message: Message) -> Result<(), NetlinkError> {
        self.netlink.transact(&[message]).map(drop)
    }

    /// The index of an interface.
    ///
    /// # Errors
    /// The kernel's: no interface has this name.
    pub fn index_of(&mut self, name: &str) -> Result<u32, NetlinkError> {
        let step = "look an interface up";
        let message =
            Message::new(step, RTM_GETLINK, NLM_F_ACK, &link(0, 0, 0)).with_text(IFLA_IFNAME, name);
        let answers = self.netlink.transact(&[message])?;
        answers
            .first()
            .and_then(|answer| answer.number(4))
            .ok_or(NetlinkError {
                step,
                source: io::ErrorKind::InvalidData.into(),
            })
    }

    /// Index and name of every interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn links(&mut self) -> Result<Vec<(u32, String)>, NetlinkError> {
        let list = Message::new("list interfaces", RTM_GETLINK, NLM_F_DUMP, &link(0, 0, 0));
        let answers = self.netlink.transact(&[list])?;
        Ok(answers.iter().filter_map(link_of).collect())
    }

    /// The IPv4 addresses of every interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn addresses(&mut self) -> Result<Vec<InterfaceAddress>, NetlinkError> {
        let fixed = [AF_INET, 0, 0, 0, 0, 0, 0, 0];
        let list = Message::new("list addresses", RTM_GETADDR, NLM_F_DUMP, &fixed);
        let answers = self.netlink.transact(&[list])?;
        Ok(answers.iter().filter_map(address_of).collect())
    }
}

fn link_of(answer: &Answer) -> Option<(u32, String)> {
    let name = answer.attribute(LINK_LEN, IFLA_IFNAME)?;
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    Some((
        answer.number(4)?,
        String::from_utf8_lossy(name).into_owned(),
    ))
}

fn address_of(answer: &Answer) -> Option<InterfaceAddress> {
    let address = answer.attribute(ADDRESS_LEN, IFA_LOCAL)?;
    let scope = *answer.payload.get(3)?;
    Some(InterfaceAddress {
        index: answer.number(4)?,
        address: Ipv4Addr::from(*address.first_chunk()?),
        beyond_host: scope < RT_SCOPE_HOST,
    })
}

/// Creates a pair of devices, both down.
#[must_use]
pub fn make_veth(veth: &Veth<'_>) -> Message {
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let without_arp = link(0, IFF_NOARP, IFF_NOARP);
    Message::new("make the pair of devices", RTM_NEWLINK, flags, &without_arp)
        .with(IFLA_ADDRESS, &veth.hardware_address)
        .with_text(IFLA_IFNAME, veth.here)
        .with_nested(IFLA_LINKINFO, |info| {
            info.with(IFLA_INFO_KIND, b"veth")
                .with_nested(IFLA_INFO_DATA, |data| {
                    data.with_nested(VETH_INFO_PEER, |peer| {
                        let namespace = veth.there_namespace.as_raw_fd();
                        peer.then(&without_arp)
                            .with(IFLA_ADDRESS, &veth.hardware_address)
                            .with(IFLA_NET_NS_FD, &namespace.to_ne_bytes())
                            .with_text(IFLA_IFNAME, veth.there)
                    })
                })
        })
}

/// Sets an interface up.
#[must_use]
pub fn switch_on(index: u32) -> Message {
    let fixed = link(index, IFF_UP, IFF_UP);
    Message::new("switch the device on", RTM_NEWLINK, NLM_F_ACK, &fixed)
}

/// Removes an interface. Removing one end of a pair removes the other.
#[must_use]
pub fn remove_link(index: u32) -> Message {
    let fixed = link(index, 0, 0);
    Message::new("remove the device", RTM_DELLINK, NLM_F_ACK, &fixed)
}

/// Gives an interface an address with its prefix.
#[must_use]
pub fn add_address(index: u32, address: Ipv4Addr, prefix_len: u8) -> Message {
    let mut fixed = [0; ADDRESS_LEN];
    fixed[..4].copy_from_slice(&[AF_INET, prefix_len, 0, RT_SCOPE_UNIVERSE]);
    fixed[4..].copy_from_slice(&index.to_ne_bytes());
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    Message::new("give the device its address", RTM_NEWADDR, flags, &fixed)
        .with(IFA_LOCAL, &address.octets())
        .with(IFA_ADDRESS, &address.octets())
}

/// Routes one address through an interface. Fails with `EEXIST` if there is a route to exactly this address, through whatever
/// interface (fib_table_insert() in net/ipv4/fib_trie.c).
#[must_use]
pub fn add_route_to(address: Ipv4Addr, index: u32) -> Message {
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let fixed = route(32, RT_SCOPE_LINK, 0);
    Message::new("add the route to the function", RTM_NEWROUTE, flags, &fixed)
        .with(RTA_DST, &address.octets())
        .with(RTA_OIF, &index.to_ne_bytes())
}

/// Adds a default route to a gateway that is assumed to be on the interface's link.
#[must_use]
pub fn add_default_route(gateway: Ipv4Addr, index: u32) -> Message {
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let fixed = route(0, RT_SCOPE_UNIVERSE, RTNH_F_ONLINK);
    Message::new("add the default route", RTM_NEWROUTE, flags, &fixed)
        .with(RTA_GATEWAY, &gateway.octets())
        .with(RTA_OIF, &index.to_ne_bytes())
}

/// `struct ifinfomsg`: family, padding, type, index, flags, which flags to change.
fn link(index: u32, flags: u32, change: u32) -> [u8; LINK_LEN] {
    let mut fixed = [0; LINK_LEN];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    fixed[12..16].copy_from_slice(&change.to_ne_bytes());
    fixed
}

/// `struct rtmsg`: family, lengths of destination and source, TOS, table, protocol, scope, type, flags.
fn route(prefix_len: u8, scope: u8, flags: u32) -> [u8; 12] {
    let mut fixed = [0; 12];
    fixed[..8].copy_from_slice(&[
        AF_INET,
        prefix_len,
        0,
        0,
        RT_TABLE_MAIN,
        RTPROT_STATIC,
        scope,
        RTN_UNICAST,
    ]);
    fixed[8..].copy_from_slice(&flags.to_ne_bytes());
    fixed
}

/// Changes of interfaces' addresses, as bits for [`super::events`].
pub const ADDRESS_EVENTS: u32 = 1 << (5 - 1);

/// Changes of interfaces' forwarding (`RTNLGRP_IPV4_NETCONF`).
pub const FORWARDING_EVENTS: u32 = 1 << (24 - 1);

const LINK_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;

const AF_INET: u8 = 2;
const IFF_UP: u32 = 0x1;
const IFF_NOARP: u32 = 0x80;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const RTNH_F_ONLINK: u32 = 4;
