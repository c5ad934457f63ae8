//! Functions' DNS resolvers: the host's, if they are on other hosts.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

/// What a function gets as `/etc/resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolver {
    /// The host's file to use.
    pub(crate) file: PathBuf,
    /// Its resolvers, if all of them are on this machine, which functions cannot reach.
    pub(crate) out_of_reach: Option<String>,
}

/// The file that the host itself uses.
pub(crate) const OF_THE_HOST: &str = "/etc/resolv.conf";

/// Where systemd-resolved writes its upstream resolvers (systemd-resolved.service(8), "/ETC/RESOLV.CONF").
const BEHIND_THE_STUB: &str = "/run/systemd/resolve/resolv.conf";

impl Resolver {
    /// The first of the host's files that names a resolver on another host.
    pub(crate) fn find() -> Self {
        Self::among(&[OF_THE_HOST, BEHIND_THE_STUB].map(Path::new), is_own)
    }

    fn among(files: &[&Path], is_own: impl Fn(IpAddr) -> bool) -> Self {
        let mut first = None;
        for file in files {
            let resolvers = resolvers(&fs::read_to_string(file).unwrap_or_default());
            if resolvers.iter().any(|address| !is_own(*address)) {
                return Self {
                    file: file.to_path_buf(),
                    out_of_reach: None,
                };
            }
            let names: Vec<_> = resolvers.iter().map(ToString::to_string).collect();
            first.get_or_insert(names.join(", "));
        }
        Self {
            file: PathBuf::from(OF_THE_HOST),
            out_of_reach: first,
        }
    }
}

/// The addresses of `nameserver` lines (resolv.conf(5)). Without any, the C library asks localhost.
fn resolvers(text: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == "nameserver").then_some(())?;
            // An IPv6 address may have an interface suffix.
            words.next()?.split('%').next()?.parse().ok()
        })
        .collect();
    if found.is_empty() {
        found.push(IpAddr::from([127, 0, 0, 1]));
    }
    found
}

/// Whether an address belongs to this machine: only then can a socket be bound to it (ip(7)). Links have no IPv6, so an IPv6
/// address counts as unreachable, too.
fn is_own(address: IpAddr) -> bool {
    address.is_ipv6() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(files: &[&str]) -> Resolver {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..files.len())
            .map(|number| dir.path().join(number.to_string()))
            .collect();
        for (path, text) in paths.iter().zip(files) {
            fs::write(path, text).unwrap();
        }
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let mut found = Resolver::among(&paths, |address| address.is_loopback());
        found.file = PathBuf::from(found.file.file_name().unwrap());
        found
    }

    #[test]
    fn a_resolver_on_another_host_is_taken_as_it_is() {
        let found = find(&["nameserver 192.0.2.53\n", "nameserver 192.0.2.54\n"]);
        assert_eq!((found.file, found.out_of_reach), (PathBuf::from("0"), None));
    }

    #[test]
    fn behind_a_stub_on_loopback_its_own_resolvers_are_taken() {
        let found = find(&[
            "# stub\nnameserver 127.0.0.53\noptions edns0\n",
            "nameserver 192.0.2.54\n",
        ]);
        assert_eq!((found.file, found.out_of_reach), (PathBuf::from("1"), None));
    }

    #[test]
    fn resolvers_on_this_machine_alone_are_out_of_reach() {
        for files in [
            &["nameserver 127.0.0.1\n"][..],
            &["search example\n"],
            &[""],
        ] {
            let found = find(files);
            assert_eq!(found.out_of_reach.as_deref(), Some("127.0.0.1"));
            assert_eq!(found.file, PathBuf::from("resolv.conf"));
        }
    }

    #[test]
    fn loopback_is_this_machine() {
        assert!(is_own(IpAddr::from([127, 0, 0, 1])));
        // TEST-NET-3 (RFC 5737) belongs to no host.
        assert!(!is_own(IpAddr::from([203, 0, 113, 77])));
    }
}
