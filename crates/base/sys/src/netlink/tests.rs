//! Compares messages with those that iproute2 6.1 and nft 1.0.6 send for the same thing, recorded on a little-endian machine;
//! and parses what a kernel may answer.

use super::nftables::{ChainKind, Expression, Hook, Meta, Transaction, state};
use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Compares length, type and everything after the header. Flags and sequence numbers differ between tools.
#[track_caller]
fn assert_recorded(message: &Message, hex: &str) {
    let (ours, theirs) = (message.to_bytes(), bytes(hex));
    assert_eq!(ours[HEADER_LEN..], theirs[HEADER_LEN..]);
    assert_eq!(ours[..6], theirs[..6]);
}

#[cfg(target_endian = "little")]
mod recorded {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;

    use super::*;
    use crate::netlink::route;

    #[test]
    fn a_pair_of_devices_is_asked_for_as_iproute2_does() {
        // ip link add pilotx-1 arp off address … type veth peer name eth0 arp off address … netns …
        let namespace = std::fs::File::open("/dev/null").unwrap();
        let veth = route::Veth {
            here: "pilotx-1",
            there: "eth0",
            there_namespace: namespace.as_fd(),
            hardware_address: [0x02, 0x70, 0x0a, 0xd5, 0x00, 0x05],
        };
        let recorded = "8000000010000506a733006b00000000000000000000000080000000800000000a00010002700ad500050000\
            0d00030070696c6f74782d310000000044001200080001007665746838000200340001000000000000000000\
            80000000800000000a00010002700ad50005000008001c0004000000090003006574683000000000";
        let number = u8::try_from(namespace.as_raw_fd()).unwrap();
        let recorded = recorded.replace("08001c0004", &format!("08001c00{number:02x}"));
        assert_recorded(&route::make_veth(&veth), &recorded);
    }

    #[test]
    fn addresses_and_routes_are_asked_for_as_iproute2_does() {
        let address = Ipv4Addr::new(10, 213, 0, 5);
        for (message, recorded) in [
            (
                route::add_address(2, address, 32),
                "28000000140005060233006b000000000220000002000000080002000ad50005080001000ad50005",
            ),
            (
                route::switch_on(2),
                "20000000100005000233006b0000000000000000020000000100000001000000",
            ),
            (
                route::add_default_route(Ipv4Addr::new(169, 254, 1, 1), 2),
                "2c000000180005060233006b0000000002000000fe0400010400000008000500a9fe01010800040002000000",
            ),
            (
                route::add_route_to(Ipv4Addr::new(10, 213, 0, 6), 3),
                "2c000000180005050233006b0000000002200000fe04fd0100000000080001000ad500060800040003000000",
            ),
            (
                route::remove_link(3),
                "20000000110005000333006b0000000000000000030000000000000000000000",
            ),
        ] {
            assert_recorded(&message, recorded);
        }
    }

    #[test]
    fn chains_and_rules_are_asked_for_as_nft_does() {
        let ours = || {
            [
                Expression::Load(Meta::InName),
                Expression::Is(b"pilotx-".to_vec()),
            ]
        };
        let state = (state::ESTABLISHED | state::RELATED).to_ne_bytes();
        let rule = |chain: &str, steps: &[Expression]| {
            let messages = Transaction::of("t").rule(chain, steps).into_messages();
            messages[1].clone()
        };
        let with = |steps: &[Expression]| [&ours()[..], steps].concat();
        let transaction = Transaction::of("t")
            .chain_at("a", ChainKind::Filter, Hook::Prerouting, -150)
            .chain_at("n", ChainKind::Nat, Hook::Postrouting, 100)
            .chain("b")
            .into_messages();
        let rules = [
            rule("a", &with(&[Expression::Jump("b")])),
            rule("n", &with(&[Expression::Masquerade])),
            rule(
                "b",
                &[
                    Expression::Load(Meta::NetworkProtocol),
                    Expression::IsNot(vec![nftables::IPV4]),
                    Expression::Drop,
                ],
            ),
            rule(
                "b",
                &[
                    Expression::LoadReversePath,
                    Expression::Is(vec![0; 4]),
                    Expression::Drop,
                ],
            ),
            rule(
                "b",
                &[
                    Expression::LoadDestinationKind,
                    Expression::IsNot(nftables::UNICAST.to_ne_bytes().to_vec()),
                    Expression::Drop,
                ],
            ),
            rule(
                "b",
                &[
                    Expression::Load(Meta::NetworkProtocol),
                    Expression::Is(vec![nftables::IPV4]),
                    Expression::LoadNetwork { offset: 16, len: 2 },
                    Expression::Is(vec![169, 254]),
                    Expression::Load(Meta::TransportProtocol),
                    Expression::Is(vec![nftables::UDP]),
                    Expression::LoadTransport { offset: 2, len: 2 },
                    Expression::Is(vec![0, 53]),
                    Expression::Accept,
                ],
            ),
            rule(
                "b",
                &[
                    Expression::LoadState,
                    Expression::Mask(state.to_vec()),
                    Expression::IsNot(vec![0; 4]),
                    Expression::Accept,
                ],
            ),
            rule(
                "b",
                &[
                    Expression::Load(Meta::InIndex),
                    Expression::Is(7_u32.to_ne_bytes().to_vec()),
                    Expression::Drop,
                ],
            ),
        ];
        assert_eq!(RECORDED_TRANSACTION.lines().count(), 14);
        let mut recorded = RECORDED_TRANSACTION.lines();
        for message in &transaction[..1] {
            assert_recorded(message, recorded.next().unwrap());
        }
        // The table: nft's has no owner.
        recorded.next();
        for message in transaction[1..4]
            .iter()
            .chain(&rules)
            .chain(&transaction[4..])
        {
            assert_recorded(message, recorded.next().unwrap());
        }
    }

    #[test]
    fn connections_are_counted_as_nft_does() {
        let messages = Transaction::of("t")
            .counting_set("links", 65_536)
            .rule(
                "b",
                &[
                    Expression::LoadState,
                    Expression::Mask(state::NEW.to_ne_bytes().to_vec()),
                    Expression::IsNot(vec![0; 4]),
                    Expression::Load(Meta::InIndex),
                    Expression::MoreConnectionsThan {
                        set: "links",
                        most: 4096,
                    },
                    Expression::Drop,
                ],
            )
            .into_messages();
        let mut recorded = include_str!("tests/nft_count.hex").lines();
        // With nft's own data, which the kernel stores (NFTA_SET_USERDATA).
        let set = messages[1].clone().with(13, &[0, 4, 1, 0, 0, 0]);
        assert_recorded(&set, recorded.next().unwrap());
        assert_recorded(&messages[2], recorded.next().unwrap());
    }

    /// `nft -f` of a table `t` with these chains and rules, one message per line.
    const RECORDED_TRANSACTION: &str = include_str!("tests/nft.hex");
}

#[test]
fn an_attribute_is_found_behind_the_fixed_part_and_others() {
    let message = Message::new("", 16, 0, &[0; 8])
        .with(1, b"abc")
        .with(2, b"hello");
    let answer = Answer {
        kind: 16,
        payload: message.to_bytes()[HEADER_LEN..].to_vec(),
    };
    assert_eq!(answer.attribute(8, 2), Some(&b"hello"[..]));
    assert_eq!(answer.attribute(8, 3), None);
    assert_eq!(answer.attribute(100, 1), None);
}

#[test]
fn cut_off_answers_are_left_out_and_never_read_beyond() {
    let message = Message::new("", 16, 0, &[0; 8]).with(1, b"abcdefgh");
    let whole = message.numbered(7);
    for len in 0..whole.len() {
        assert!(split(&whole[..len]).is_empty());
        let answer = Answer {
            kind: 16,
            payload: whole[..len].to_vec(),
        };
        // Arbitrary bytes must not panic.
        let _ = (answer.attribute(8, 1), answer.number(4));
    }
    let twice = [&whole[..], &whole[..]].concat();
    let answers = split(&twice);
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0].0, 7);
    assert!(split(&[0; 64]).len() <= 4);
}

#[test]
fn a_refusal_names_the_step() {
    let mut netlink = Netlink::open(Protocol::Route).unwrap();
    let nonsense = [
        route::remove_link(0x7fff_fff0),
        route::remove_link(0x7fff_fff0),
    ];
    let error = netlink.transact(&nonsense[..1]).unwrap_err();
    assert_eq!(error.step, "remove the device");
}

#[test]
fn links_and_addresses_are_listed() {
    let mut route = route::Route::open().unwrap();
    let links = route.links().unwrap();
    let (index, _) = links.iter().find(|(_, name)| name == "lo").unwrap();
    assert_eq!(route.index_of("lo").unwrap(), *index);
    let loopback = |address: &route::InterfaceAddress| {
        address.index == *index && address.address.is_loopback() && !address.beyond_host
    };
    let addresses = route.addresses().unwrap();
    assert!(addresses.is_empty() || addresses.iter().any(loopback));
}
