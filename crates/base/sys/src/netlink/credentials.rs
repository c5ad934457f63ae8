//! Rules that refuse the addresses where clouds serve a machine's credentials to whoever asks from it. Some clouds also run their
//! resolver there, so names are resolved.

use std::net::IpAddr;

use super::nftables::{Expression, IPV4, IPV6, Meta, TCP, UDP};

/// The first bytes of the IPv4 addresses: the link-local ones, which must not be forwarded anyway (RFC 3927, 7), and those of
/// Alibaba Cloud, Azure and Oracle Cloud.
const ADDRESSES: [&[u8]; 4] = [
    &[169, 254],
    &[100, 100, 100, 200],
    &[168, 63, 129, 16],
    &[192, 0, 0, 192],
];

/// `fd00:ec2::254` (AWS), `fd20:ce::254` (Google Cloud), `fd00:c1::a9fe:a9fe` (Oracle Cloud).
const ADDRESSES_IPV6: [[u8; 16]; 3] = [
    [
        0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54,
    ],
    [
        0xfd, 0x20, 0, 0xce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54,
    ],
    [
        0xfd, 0, 0, 0xc1, 0, 0, 0, 0, 0, 0, 0, 0, 0xa9, 0xfe, 0xa9, 0xfe,
    ],
];

/// Whether this is one of the addresses that serve a machine's credentials.
#[must_use]
pub fn is_one(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => ADDRESSES
            .iter()
            .any(|begin| address.octets().starts_with(begin)),
        IpAddr::V6(address) => ADDRESSES_IPV6.contains(&address.octets()),
    }
}

/// Rules for packets of both protocols.
#[must_use]
pub fn refusals() -> Vec<Vec<Expression>> {
    let of = |protocol: u8, rules: Vec<Vec<Expression>>| {
        let begin = [
            Expression::Load(Meta::NetworkProtocol),
            Expression::Is(vec![protocol]),
        ];
        rules
            .into_iter()
            .map(move |rule| [&begin[..], &rule].concat())
    };
    let ipv6 = ADDRESSES_IPV6
        .iter()
        .flat_map(|address| refused(DESTINATION_IPV6, address));
    of(IPV4, refusals_ipv4())
        .chain(of(IPV6, ipv6.collect()))
        .collect()
}

/// Rules for packets that are IPv4.
#[must_use]
pub fn refusals_ipv4() -> Vec<Vec<Expression>> {
    ADDRESSES
        .iter()
        .flat_map(|address| refused(DESTINATION, address))
        .collect()
}

fn refused(offset: u32, address: &[u8]) -> [Vec<Expression>; 3] {
    let to = [
        // The destination, or its first bytes.
        Expression::LoadNetwork {
            offset,
            len: u32::try_from(address.len()).unwrap_or(u32::MAX),
        },
        Expression::Is(address.to_vec()),
    ];
    let names = |protocol: u8| {
        let to_port = [
            Expression::Load(Meta::TransportProtocol),
            Expression::Is(vec![protocol]),
            Expression::LoadTransport { offset: 2, len: 2 },
            Expression::Is(DNS.to_be_bytes().into()),
            Expression::Accept,
        ];
        [&to[..], &to_port].concat()
    };
    [
        names(UDP),
        names(TCP),
        [&to[..], &[Expression::Drop]].concat(),
    ]
}

/// Offset of the destination in the header (RFC 791, 3.1; RFC 8200, 3).
const DESTINATION: u32 = 16;
const DESTINATION_IPV6: u32 = 24;
const DNS: u16 = 53;
