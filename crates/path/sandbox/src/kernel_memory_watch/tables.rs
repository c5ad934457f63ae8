//! What `/proc/PID/net` says of the sockets in a process's network namespace (proc_pid_net(5)).

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};

use pilot_model::ports::SOCKETS_MAX;

use super::UNCHARGED_BYTES_MAX;

/// Memory that the sockets of a namespace hold.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// By nobody's account.
    pub(super) uncharged_bytes: u64,
    /// In connections that are made or accepted, and in datagrams to be read.
    pub(super) charged_bytes: u64,
}

/// How many sockets are in the namespace, connections that nobody has accepted included. 0 if the process has ended.
pub(super) fn sockets_used(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/sockstat")).unwrap_or_default();
    let used = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("sockets: used "));
    used.and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

/// Memory of all TCP connections of the machine: every namespace shows the same number. 0 if it is unknown.
pub(super) fn machine_tcp_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/net/sockstat").unwrap_or_default();
    let tcp = text.lines().find_map(|line| line.strip_prefix("TCP: "));
    let mut fields = tcp.unwrap_or_default().split(' ');
    let pages = fields.find(|field| *field == "mem").and(fields.next());
    pages
        .and_then(|pages| pages.parse().ok())
        .map_or(0, |pages: u64| pages * PAGE_BYTES)
}

impl Held {
    /// Stops when it is too much, and when there are more than [`SOCKETS_MAX`] by now: who makes sockets faster than they are read would
    /// otherwise keep it reading.
    pub(super) fn read(pid: u32, charged_bytes_max: u64) -> Self {
        let mut held = Self::default();
        for (table, kind) in TABLES {
            // Missing where the kernel does not have the protocol.
            let Ok(file) = File::open(format!("/proc/{pid}/net/{table}")) else {
                continue;
            };
            let lines = BufReader::with_capacity(READ_BYTES, file).lines().skip(1);
            for (number, line) in lines.enumerate() {
                let Ok(line) = line else { break };
                held.add(kind, &line);
                let is_over = held.is_too_much(charged_bytes_max)
                    || (number % LINES_PER_COUNT == LINES_PER_COUNT - 1
                        && sockets_used(pid) > SOCKETS_MAX);
                if is_over {
                    return held;
                }
            }
        }
        held
    }

    /// Whether sockets hold more than nobody may be charged for, or what is charged is more than the limits of who is in the namespace.
    pub(super) fn is_too_much(&self, charged_bytes_max: u64) -> bool {
        self.uncharged_bytes > UNCHARGED_BYTES_MAX
            || self.charged_bytes > charged_bytes_max.saturating_add(UNCHARGED_BYTES_MAX)
    }

    /// A line of a table. One that is not understood counts nothing.
    fn add(&mut self, kind: Kind, line: &str) {
        let mut fields = line.split_ascii_whitespace();
        let (uncharged, charged) = match kind {
            Kind::Tcp => {
                let (Some(state), Some((sent, received)), Some(inode)) =
                    (fields.nth(3), fields.next().and_then(queues), fields.nth(4))
                else {
                    return;
                };
                match (state, inode) {
                    // What a listener says of its queue is a number of connections. One in TIME_WAIT has no queue.
                    (LISTEN | TIME_WAIT, _) => (0, 0),
                    // Of no process: not accepted, or closed. A closed one has dropped what it had received; what it still sends is
                    // charged.
                    (_, "0") => (received + SOCKET_BYTES, sent),
                    _ => (0, sent + received),
                }
            }
            Kind::Udp => match fields.nth(4).and_then(queues) {
                Some((sent, received)) => (sent, received),
                None => return,
            },
            Kind::Netlink => match fields.nth(4).and_then(|bytes| bytes.parse().ok()) {
                Some(received) => (received, 0),
                None => return,
            },
        };
        self.uncharged_bytes = self.uncharged_bytes.saturating_add(uncharged);
        self.charged_bytes = self.charged_bytes.saturating_add(charged);
    }
}

/// Bytes to be sent, and bytes to be read.
fn queues(field: &str) -> Option<(u64, u64)> {
    let (sent, received) = field.split_once(':')?;
    let bytes = |digits| u32::from_str_radix(digits, 16).map(u64::from).ok();
    Some((bytes(sent)?, bytes(received)?))
}

/// The format of a table.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Tcp,
    Udp,
    Netlink,
}

const TABLES: [(&str, Kind); 7] = [
    ("tcp", Kind::Tcp),
    ("tcp6", Kind::Tcp),
    ("udp", Kind::Udp),
    ("udp6", Kind::Udp),
    ("udplite", Kind::Udp),
    ("udplite6", Kind::Udp),
    ("netlink", Kind::Netlink),
];

/// States of TCP (include/net/tcp_states.h).
const TIME_WAIT: &str = "06";
const LISTEN: &str = "0A";

/// The socket of a connection itself (`struct tcp6_sock`), with what belongs to it.
const SOCKET_BYTES: u64 = 4096;

/// At least, on every architecture.
const PAGE_BYTES: u64 = 4096;

/// Read at once. The kernel gives a page of it (`seq_read_iter` in fs/seq_file.c).
const READ_BYTES: usize = 64 * 1024;

/// Lines that are read until the sockets are counted again.
const LINES_PER_COUNT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, lines: &[&str]) -> Held {
        let mut held = Held::default();
        for line in lines {
            held.add(kind, line);
        }
        held
    }

    #[test]
    fn a_connection_that_nobody_accepted_is_charged_to_nobody() {
        let held = of(
            Kind::Tcp,
            &[
                "   0: 0100007F:8651 00000000:0000 0A 00000000:00000101 00:00000000 00000000  0  0 14031355 1 0 100 0 0 10 0",
                "   1: 0100007F:8651 0100007F:E2AA 01 00000000:00010000 00:00000000 00000000  0  0 0 1 0 20 4 0 10 -1",
                "   2: 0100007F:8651 0100007F:E2AC 06 00000000:00000000 03:0000176F 00000000  0  0 0 3 0",
            ],
        );
        assert_eq!(
            (held.uncharged_bytes, held.charged_bytes),
            (65536 + SOCKET_BYTES, 0)
        );
    }

    #[test]
    fn what_a_process_has_open_or_still_sends_is_charged() {
        let held = of(
            Kind::Tcp,
            &[
                "   1: 0100007F:E2AA 0100007F:8651 01 00001000:00000200 01:00000016 00000000  0  0 14031358 2 0 20 4 0 10 -1",
                "   2: 0100007F:E2AB 0100007F:8651 04 00002000:00000000 01:00000016 00000000  0  0 0 2 0 20 4 0 10 -1",
            ],
        );
        assert_eq!(
            (held.uncharged_bytes, held.charged_bytes),
            (SOCKET_BYTES, 0x3200)
        );
    }

    #[test]
    fn datagrams_that_are_kept_back_and_messages_of_netlink_are_charged_to_nobody() {
        let datagrams = " 8345: 0100007F:A4C2 0100007F:0009 01 0000EFA8:00000100 00:00000000 00000000  0  0 14031532 2 0 0";
        let held = of(Kind::Udp, &[datagrams]);
        assert_eq!((held.uncharged_bytes, held.charged_bytes), (0xEFA8, 0x100));
        let messages = "000000009a9f6744 0   0          00000000 4352     0        0     2        0        14030299";
        assert_eq!(of(Kind::Netlink, &[messages]).uncharged_bytes, 4352);
    }

    #[test]
    fn lines_that_are_not_understood_count_nothing() {
        for line in [
            "",
            "  1:",
            "  1: a b 01 zz:00 c d e f 0",
            "  1: a b 01 00000001:00000001",
        ] {
            for kind in [Kind::Tcp, Kind::Udp, Kind::Netlink] {
                let held = of(kind, &[line]);
                assert!(held.uncharged_bytes < 2, "{line}: {held:?}");
            }
        }
    }
}
