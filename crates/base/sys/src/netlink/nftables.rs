//! Packet filters (nf_tables; include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h): tables, chains and rules, written in
//! transactions that the kernel applies completely or not at all.
//!
//! A rule is a list of expressions. Each one loads a value into register 1, or compares the register and ends the rule on a
//! mismatch, or decides. Attributes are big-endian; values that are loaded and compared have the byte order of the packet or
//! the kernel.

use super::{Message, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, Netlink, NetlinkError};

/// The hook at which a chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// All incoming packets, before routing.
    Prerouting = 0,
    /// Packets for this machine.
    Input = 1,
    /// Packets that are forwarded.
    Forward = 2,
    /// Packets that this machine sends.
    Output = 3,
    /// All outgoing packets, after routing.
    Postrouting = 4,
}

/// The type of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Accepting and dropping.
    Filter,
    /// Address translation.
    Nat,
}

/// A property of a packet that is not part of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Meta {
    /// Index of the incoming interface, 4 bytes.
    InIndex = 4,
    /// Name of the incoming interface, 16 bytes.
    InName = 6,
    /// Name of the outgoing interface, 16 bytes.
    OutName = 7,
    /// [`IPV4`] or another, 1 byte.
    NetworkProtocol = 15,
    /// [`TCP`], [`UDP`] or another, 1 byte.
    TransportProtocol = 16,
}

/// [`Meta::NetworkProtocol`] of IPv4.
pub const IPV4: u8 = 2;
/// [`Meta::NetworkProtocol`] of IPv6.
pub const IPV6: u8 = 10;
/// [`Meta::TransportProtocol`] of TCP.
pub const TCP: u8 = 6;
/// [`Meta::TransportProtocol`] of UDP.
pub const UDP: u8 = 17;

/// Bits of a connection's state (conntrack).
pub mod state {
    /// Packets have been seen in both directions.
    pub const ESTABLISHED: u32 = 1 << 1;
    /// New, but related to an established one: ICMP errors.
    pub const RELATED: u32 = 1 << 2;
    /// The first packet.
    pub const NEW: u32 = 1 << 3;
}

/// An expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads a property.
    Load(Meta),
    /// Loads bytes of the IP header.
    LoadNetwork {
        /// Where they begin.
        offset: u32,
        /// How many.
        len: u32,
    },
    /// Loads bytes of the TCP or UDP header.
    LoadTransport {
        /// Where they begin.
        offset: u32,
        /// How many.
        len: u32,
    },
    /// Loads the connection's state, a bit of [`state`].
    LoadState,
    /// Loads what kind of address the destination is: [`UNICAST`] or another, 4 bytes.
    LoadDestinationKind,
    /// Loads the index of the incoming interface if the packet's source is routed through it, else 0; 4 bytes.
    LoadReversePath,
    /// Masks the loaded value with these bits.
    Mask(Vec<u8>),
    /// Continues if the loaded value begins with these bytes.
    Is(Vec<u8>),
    /// Continues if it does not.
    IsNot(Vec<u8>),
    /// Continues if more than `most` open connections, this one included, have had the same 4 bytes loaded here.
    MoreConnectionsThan {
        /// The set of [`Transaction::counting_set`] that counts.
        set: &'static str,
        /// The limit.
        most: u32,
    },
    /// Replaces the source address by that of the outgoing interface.
    Masquerade,
    /// Accepts the packet in this chain.
    Accept,
    /// Drops the packet.
    Drop,
    /// Continues in another chain, and returns at its end.
    Jump(&'static str),
}

/// [`Expression::LoadDestinationKind`] for the address of one other machine (`RTN_UNICAST`).
pub const UNICAST: u32 = 1;

/// Changes of one table for IPv4 and IPv6, made in one transaction.
#[derive(Debug)]
pub struct Transaction {
    table: String,
    messages: Vec<Message>,
}

impl Transaction {
    /// A transaction without changes.
    #[must_use]
    pub fn of(table: &str) -> Self {
        let begin = batch("begin a transaction of nf_tables", NFNL_MSG_BATCH_BEGIN);
        Self {
            table: table.to_owned(),
            messages: vec![begin],
        }
    }

    /// Creates the table. It is owned by the socket: nobody else can change it (not even `nft flush ruleset`), and it is
    /// removed when the socket's last descriptor is closed (nft_rcv_nl_event() in net/netfilter/nf_tables_api.c; Linux 5.12).
    #[must_use]
    pub fn make_owned_table(self) -> Self {
        let message = request(
            "make the table",
            NFT_MSG_NEWTABLE,
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .with_text(NFTA_TABLE_NAME, &self.table)
        .with_number(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
        self.and(message)
    }

    /// Creates a table that stays until somebody removes it, or its network namespace ends.
    #[must_use]
    pub fn make_table(self) -> Self {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let message = request("make the table", NFT_MSG_NEWTABLE, flags)
            .with_text(NFTA_TABLE_NAME, &self.table);
        self.and(message)
    }

    /// Removes the table.
    #[must_use]
    pub fn remove_table(self) -> Self {
        let message = request("remove the table", NFT_MSG_DELTABLE, 0)
            .with_text(NFTA_TABLE_NAME, &self.table);
        self.and(message)
    }

    /// Adds a chain at a hook. Chains with a lower `priority` run first; packets are accepted at the chain's end.
    #[must_use]
    pub fn chain_at(self, name: &str, kind: ChainKind, hook: Hook, priority: i32) -> Self {
        let kind = match kind {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        };
        let message = request("make a chain", NFT_MSG_NEWCHAIN, NLM_F_CREATE)
            .with_text(NFTA_CHAIN_TABLE, &self.table)
            .with_text(NFTA_CHAIN_NAME, name)
            .with_text(NFTA_CHAIN_TYPE, kind)
            .with_number(NFTA_CHAIN_POLICY, NF_ACCEPT)
            .with_list(NFTA_CHAIN_HOOK, |place| {
                place
                    .with_number(NFTA_HOOK_HOOKNUM, hook as u32)
                    .with_number(NFTA_HOOK_PRIORITY, priority.cast_unsigned())
            });
        self.and(message)
    }

    /// Adds a chain for [`Expression::Jump`].
    #[must_use]
    pub fn chain(self, name: &str) -> Self {
        let message = request("make a chain", NFT_MSG_NEWCHAIN, NLM_F_CREATE)
            .with_text(NFTA_CHAIN_TABLE, &self.table)
            .with_text(NFTA_CHAIN_NAME, name);
        self.and(message)
    }

    /// Adds a counting set for [`Expression::MoreConnectionsThan`], with at most `most` different keys of 4 bytes. A table may
    /// have one.
    #[must_use]
    pub fn counting_set(self, name: &str, most: u32) -> Self {
        let message = request("make a set", NFT_MSG_NEWSET, NLM_F_CREATE)
            .with_text(NFTA_SET_TABLE, &self.table)
            .with_text(NFTA_SET_NAME, name)
            .with_number(NFTA_SET_FLAGS, NFT_SET_EVAL)
            .with_number(NFTA_SET_KEY_TYPE, TYPE_IFACE_INDEX)
            .with_number(NFTA_SET_KEY_LEN, 4)
            .with_number(NFTA_SET_ID, COUNTING_SET)
            .with_list(NFTA_SET_DESC, |description| {
                description.with_number(NFTA_SET_DESC_SIZE, most)
            });
        self.and(message)
    }

    /// Appends a rule to a chain.
    #[must_use]
    pub fn rule(self, chain: &str, expressions: &[Expression]) -> Self {
        let message = request("add a rule", NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND)
            .with_text(NFTA_RULE_TABLE, &self.table)
            .with_text(NFTA_RULE_CHAIN, chain)
            .with_list(NFTA_RULE_EXPRESSIONS, |list| {
                expressions.iter().fold(list, expression)
            });
        self.and(message)
    }

    /// Removes all rules of a chain.
    #[must_use]
    pub fn empty_chain(self, chain: &str) -> Self {
        let message = request("empty a chain", NFT_MSG_DELRULE, 0)
            .with_text(NFTA_RULE_TABLE, &self.table)
            .with_text(NFTA_RULE_CHAIN, chain);
        self.and(message)
    }

    fn and(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// The messages, including begin and end.
    #[must_use]
    pub fn into_messages(mut self) -> Vec<Message> {
        let end = batch("end a transaction of nf_tables", NFNL_MSG_BATCH_END);
        self.messages.push(end);
        self.messages
    }

    /// Applies the changes.
    ///
    /// # Errors
    /// The first step that was rejected; then nothing has changed.
    pub fn commit(self, netfilter: &mut Netlink) -> Result<(), NetlinkError> {
        netfilter.transact(&self.into_messages()).map(drop)
    }
}

/// Begin and end get no answer of their own: an error is reported for the message that caused it.
fn batch(step: &'static str, kind: u16) -> Message {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    Message::new(step, kind, 0, &[0, 0, high, low])
}

/// `struct nfgenmsg`: family, version, resource.
fn request(step: &'static str, kind: u16, flags: u16) -> Message {
    let kind = NFNL_SUBSYS_NFTABLES << 8 | kind;
    Message::new(step, kind, flags | NLM_F_ACK, &[NFPROTO_INET, 0, 0, 0])
}

impl Message {
    fn with_number(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_be_bytes())
    }

    /// Unlike rtnetlink, nf_tables requires the flag for nested attributes.
    fn with_list(self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        self.with_nested(kind | NLA_F_NESTED, inside)
    }
}

fn expression(list: Message, step: &Expression) -> Message {
    let (name, data): (&str, &dyn Fn(Message) -> Message) = match step {
        Expression::Load(key) => ("meta", &|data| {
            data.with_number(NFTA_META_KEY, *key as u32)
                .with_number(NFTA_META_DREG, REGISTER)
        }),
        Expression::LoadNetwork { offset, len } => ("payload", &|data| {
            payload(data, NFT_PAYLOAD_NETWORK_HEADER, *offset, *len)
        }),
        Expression::LoadTransport { offset, len } => ("payload", &|data| {
            payload(data, NFT_PAYLOAD_TRANSPORT_HEADER, *offset, *len)
        }),
        Expression::LoadState => ("ct", &|data| {
            data.with_number(NFTA_CT_KEY, NFT_CT_STATE)
                .with_number(NFTA_CT_DREG, REGISTER)
        }),
        Expression::LoadDestinationKind => ("fib", &|data| {
            fib(data, NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR)
        }),
        Expression::LoadReversePath => ("fib", &|data| {
            fib(data, NFT_FIB_RESULT_OIF, NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF)
        }),
        Expression::Mask(mask) => ("bitwise", &|data| bitwise(data, mask)),
        Expression::Is(value) => ("cmp", &|data| compare(data, NFT_CMP_EQ, value)),
        Expression::IsNot(value) => ("cmp", &|data| compare(data, NFT_CMP_NEQ, value)),
        Expression::MoreConnectionsThan { set, most } => {
            ("dynset", &|data| more_connections_than(data, set, *most))
        }
        Expression::Masquerade => ("masq", &|data| data),
        Expression::Accept => ("immediate", &|data| verdict(data, NF_ACCEPT, None)),
        Expression::Drop => ("immediate", &|data| verdict(data, NF_DROP, None)),
        Expression::Jump(chain) => ("immediate", &|data| verdict(data, NFT_JUMP, Some(chain))),
    };
    list.with_list(NFTA_LIST_ELEM, |element| {
        element
            .with_text(NFTA_EXPR_NAME, name)
            .with_list(NFTA_EXPR_DATA, data)
    })
}

fn more_connections_than(data: Message, set: &str, most: u32) -> Message {
    data.with_number(NFTA_DYNSET_SREG_KEY, REGISTER)
        .with_number(NFTA_DYNSET_OP, NFT_DYNSET_OP_ADD)
        .with_text(NFTA_DYNSET_SET_NAME, set)
        .with_number(NFTA_DYNSET_SET_ID, COUNTING_SET)
        .with_list(NFTA_DYNSET_EXPR, |counter| {
            counter
                .with_text(NFTA_EXPR_NAME, "connlimit")
                .with_list(NFTA_EXPR_DATA, |data| {
                    data.with_number(NFTA_CONNLIMIT_COUNT, most)
                        .with_number(NFTA_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV)
                })
        })
}

fn payload(data: Message, base: u32, offset: u32, len: u32) -> Message {
    data.with_number(NFTA_PAYLOAD_DREG, REGISTER)
        .with_number(NFTA_PAYLOAD_BASE, base)
        .with_number(NFTA_PAYLOAD_OFFSET, offset)
        .with_number(NFTA_PAYLOAD_LEN, len)
}

fn fib(data: Message, result: u32, flags: u32) -> Message {
    data.with_number(NFTA_FIB_FLAGS, flags)
        .with_number(NFTA_FIB_RESULT, result)
        .with_number(NFTA_FIB_DREG, REGISTER)
}

fn bitwise(data: Message, mask: &[u8]) -> Message {
    let len = u32::try_from(mask.len()).expect("at most a register's 16 bytes");
    data.with_number(NFTA_BITWISE_SREG, REGISTER)
        .with_number(NFTA_BITWISE_DREG, REGISTER)
        .with_number(NFTA_BITWISE_LEN, len)
        .with_list(NFTA_BITWISE_MASK, |value| value.with(NFTA_DATA_VALUE, mask))
        .with_list(NFTA_BITWISE_XOR, |value| {
            value.with(NFTA_DATA_VALUE, &vec![0; mask.len()])
        })
}

fn compare(data: Message, operation: u32, with: &[u8]) -> Message {
    data.with_number(NFTA_CMP_SREG, REGISTER)
        .with_number(NFTA_CMP_OP, operation)
        .with_list(NFTA_CMP_DATA, |value| value.with(NFTA_DATA_VALUE, with))
}

fn verdict(data: Message, code: u32, chain: Option<&str>) -> Message {
    data.with_number(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT)
        .with_list(NFTA_IMMEDIATE_DATA, |value| {
            value.with_list(NFTA_DATA_VERDICT, |verdict| {
                let verdict = verdict.with_number(NFTA_VERDICT_CODE, code);
                match chain {
                    Some(chain) => verdict.with_text(NFTA_VERDICT_CHAIN, chain),
                    None => verdict,
                }
            })
        })
}

/// `NFT_REG_1`, 16 bytes.
const REGISTER: u32 = 1;
const NFT_REG_VERDICT: u32 = 0;

const NLA_F_NESTED: u16 = 0x8000;
const NFPROTO_INET: u8 = 1;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_DELRULE: u16 = 8;

const NFT_MSG_NEWSET: u16 = 9;

const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DESC: u16 = 9;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_DESC_SIZE: u16 = 1;
const NFT_SET_EVAL: u32 = 0x20;
/// How nft displays keys; the kernel only stores it.
const TYPE_IFACE_INDEX: u32 = 20;
/// The id by which rules of the same transaction refer to the set.
const COUNTING_SET: u32 = 1;
const NFTA_DYNSET_SET_NAME: u16 = 1;
const NFTA_DYNSET_SET_ID: u16 = 2;
const NFTA_DYNSET_OP: u16 = 3;
const NFTA_DYNSET_SREG_KEY: u16 = 4;
const NFTA_DYNSET_EXPR: u16 = 7;
const NFT_DYNSET_OP_ADD: u32 = 0;
const NFTA_CONNLIMIT_COUNT: u16 = 1;
const NFTA_CONNLIMIT_FLAGS: u16 = 2;
/// Match above the limit, instead of up to it.
const NFT_CONNLIMIT_F_INV: u32 = 1;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFT_JUMP: u32 = (-3_i32).cast_unsigned();

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_OWNER: u32 = 2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFTA_CT_DREG: u16 = 1;
const NFTA_CT_KEY: u16 = 2;
const NFT_CT_STATE: u32 = 0;
const NFTA_FIB_DREG: u16 = 1;
const NFTA_FIB_RESULT: u16 = 2;
const NFTA_FIB_FLAGS: u16 = 3;
const NFT_FIB_RESULT_OIF: u32 = 1;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NFTA_FIB_F_SADDR: u32 = 1 << 0;
const NFTA_FIB_F_DADDR: u32 = 1 << 1;
const NFTA_FIB_F_IIF: u32 = 1 << 3;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
