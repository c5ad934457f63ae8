//! `outbound_cidr`: the range of the addresses of functions with `network = "outbound"`. Each function has one on a device of its
//! own, and the machine forwards and translates what it sends. So they must be addresses that the kernel takes as a sender's on a
//! device and forwards.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Deserializer, de};

/// Reads the key.
pub(super) fn of_key<'de, D: Deserializer<'de>>(key: D) -> Result<Option<Ipv4Net>, D::Error> {
    let text = String::deserialize(key)?;
    text.parse().map(Some).map_err(|_| {
        de::Error::custom(format!(
            "is \"{}\", must be a range of IPv4 addresses, for example \"10.213.0.0/16\"",
            text.escape_default()
        ))
    })
}

/// Reads a list of ranges of IPv4 or IPv6 addresses.
pub(super) fn list_of_key<'de, D: Deserializer<'de>>(key: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(key)?;
    let ranges = texts.iter().map(|text| {
        text.parse().map_err(|_| {
            de::Error::custom(format!(
                "has \"{}\", must be a list of ranges of addresses, for example [\"10.1.0.0/16\", \"fd00::/8\"]",
                text.escape_default()
            ))
        })
    });
    ranges.collect()
}

/// Refuses a range that functions could not use, with the key.
pub(super) fn check(range: Ipv4Net) -> Result<(), String> {
    let is = |problem: &str| {
        format!(
            "outbound_cidr is \"{range}\", {problem}: name a private range that this machine and its network do not use, for example \
             \"10.213.0.0/16\""
        )
    };
    if range.prefix_len() > PREFIX_LEN_MAX {
        return Err(is(&format!(
            "which has no address for a function (at most /{PREFIX_LEN_MAX})"
        )));
    }
    for (address, prefix_len, what) in UNUSABLE {
        let unusable = Ipv4Net::new_assert(address, prefix_len);
        if range.contains(&unusable.network()) || unusable.contains(&range.network()) {
            return Err(is(&format!("which has addresses of {unusable}, {what}")));
        }
    }
    Ok(())
}

/// The first and the last address of a range are no function's.
const PREFIX_LEN_MAX: u8 = 30;

/// RFC 6890 ("Special-Purpose IP Address Registries"), and what Linux drops: `ip_route_input_slow` refuses senders of 0.0.0.0/8, of
/// 127.0.0.0/8 and of 224.0.0.0/3. Link-local addresses are not forwarded, and some are where clouds serve credentials.
const UNUSABLE: [(Ipv4Addr, u8, &str); 5] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "which are nobody's"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "the loopback addresses"),
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        "the link-local addresses",
    ),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "the multicast addresses"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "which are reserved"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_functions_cannot_use_is_refused_with_the_reason() {
        for (range, reason) in [
            ("127.0.0.0/16", "loopback"),
            ("127.1.2.3/24", "loopback"),
            ("224.0.0.0/8", "multicast"),
            ("239.1.0.0/16", "multicast"),
            ("169.254.169.0/24", "link-local"),
            ("0.0.0.0/0", "nobody's"),
            ("64.0.0.0/2", "loopback"),
            ("250.0.0.0/8", "reserved"),
            ("10.0.0.0/31", "has no address"),
            ("10.0.0.1/32", "has no address"),
        ] {
            let problem = check(range.parse().unwrap()).unwrap_err();
            assert!(
                problem.starts_with("outbound_cidr is") && problem.contains(reason),
                "{range}: {problem}"
            );
        }
        for range in [
            "10.213.0.0/16",
            "100.64.0.0/10",
            "192.168.7.0/30",
            "198.18.0.0/15",
        ] {
            assert_eq!(check(range.parse().unwrap()), Ok(()), "{range}");
        }
    }
}
