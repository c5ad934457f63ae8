//! Calls that are allowed with some arguments only: options of sockets, commands, requests.

use pilot_sys::seccomp::{Argument, Rule};

/// Calls that are allowed for some arguments only.
pub(super) fn conditional() -> Vec<Rule> {
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let only = |call: libc::c_long, index: u8, values: &[i32]| -> Vec<Rule> {
        values
            .iter()
            .map(|value| Rule {
                call,
                when: vec![Argument::Is {
                    index,
                    value: value.cast_unsigned(),
                }],
            })
            .collect()
    };
    let mut rules = vec![Rule {
        // Processes and threads, without new namespaces. clone3 is not allowed, because a filter cannot read its flags in
        // memory; libraries fall back to clone.
        call: libc::SYS_clone,
        when: vec![Argument::Without {
            index: 0,
            mask: u64::from(namespaces.cast_unsigned()),
        }],
    }];
    // No packet, vsock, crypto or Bluetooth sockets. Netlink only for getifaddrs(3). Of the internet's protocols those that
    // programs use: for another one, such as SCTP, the kernel would load a module.
    rules.extend(only(libc::SYS_socket, 0, &[libc::AF_UNIX]));
    for family in [libc::AF_INET, libc::AF_INET6] {
        rules.extend(INTERNET_PROTOCOLS.iter().map(|protocol| Rule {
            call: libc::SYS_socket,
            when: vec![
                Argument::Is {
                    index: 0,
                    value: family.cast_unsigned(),
                },
                Argument::Is {
                    index: 2,
                    value: protocol.cast_unsigned(),
                },
            ],
        }));
    }
    rules.push(Rule {
        call: libc::SYS_socket,
        when: vec![
            Argument::Is {
                index: 0,
                value: libc::AF_NETLINK.cast_unsigned(),
            },
            Argument::Is {
                index: 2,
                value: libc::NETLINK_ROUTE.cast_unsigned(),
            },
        ],
    });
    rules.extend(only(libc::SYS_socketpair, 0, &[libc::AF_UNIX]));
    // Querying the execution domain, and the ordinary one; nothing that turns off address randomisation.
    rules.extend(only(libc::SYS_personality, 0, &[0, -1]));
    // Named pipes and, as with open(2), regular files. No devices, and sockets are made by bind(2).
    rules.extend(MAKE_NODES.iter().map(|(call, mode)| Rule {
        call: *call,
        when: vec![Argument::Without {
            index: *mode,
            mask: u64::from(libc::S_IFMT & !libc::S_IFIFO),
        }],
    }));
    rules.extend(only(libc::SYS_fcntl, 1, FCNTL_COMMANDS));
    rules.push(status_flags());
    rules.extend(IOCTL_REQUESTS.iter().map(|request| Rule {
        call: libc::SYS_ioctl,
        when: vec![Argument::Is {
            index: 1,
            value: *request,
        }],
    }));
    rules.extend(socket_options());
    rules
}

/// fcntl(2), `F_SETFL`: all flags but `O_ASYNC`; see [`super::without_effect`].
fn status_flags() -> Rule {
    Rule {
        call: libc::SYS_fcntl,
        when: vec![
            Argument::Is {
                index: 1,
                value: libc::F_SETFL.cast_unsigned(),
            },
            Argument::Without {
                index: 2,
                mask: u64::from(libc::O_ASYNC.cast_unsigned()),
            },
        ],
    }
}

/// setsockopt(2): all options of netlink, and those below.
fn socket_options() -> impl Iterator<Item = Rule> {
    let is = |index: u8, value: i32| Argument::Is {
        index,
        value: value.cast_unsigned(),
    };
    let rule = |when| Rule {
        call: libc::SYS_setsockopt,
        when,
    };
    let some = SOCKET_OPTIONS
        .iter()
        .flat_map(move |(level, options)| options.iter().map(move |option| (*level, *option)));
    std::iter::once(rule(vec![is(1, libc::SOL_NETLINK)]))
        .chain(some.map(move |(level, option)| rule(vec![is(1, level), is(2, option)])))
}

/// Options of setsockopt(2) by their level, from the kernel's `asm-generic/socket.h`, `linux/in.h`, `linux/in6.h`, `linux/tcp.h` and
/// `linux/udp.h`. Not those that make machine code (`SO_ATTACH_FILTER`, `SO_ATTACH_REUSEPORT_CBPF` and the like: see
/// [`worker_takes_away`]), and not those with which a socket keeps kernel memory that no control group is charged for (`IP_OPTIONS`,
/// `IPV6_2292PKTOPTIONS`, `IPV6_HOPOPTS`, `MCAST_MSFILTER`, the keys of `TCP_MD5SIG`, `TCP_MD5SIG_EXT` and `TCP_AO_ADD_KEY`).
/// Among these are multicast groups of IPv6, of which a socket can have thousands, and the sources of groups. A socket has at most 20
/// groups of IPv4 (`igmp_max_memberships`), which cost about twice what is charged for the socket. Not those that make a socket part of
/// something else in the kernel either (`TCP_ULP`, `UDP_ENCAP`).
const SOCKET_OPTIONS: &[(i32, &[i32])] = &[
    (
        libc::SOL_SOCKET,
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20, 21, 25, 29, 34, 35, 36,
            37, 40, 41, 42, 43, 45, 46, 47, 49, 61, 62, 63, 64, 65, 66, 67, 69, 70, 72, 74, 75, 76,
            83,
        ],
    ),
    (
        libc::SOL_IP,
        &[
            1, 2, 6, 7, 8, 10, 11, 12, 13, 14, 15, 18, 20, 21, 22, 23, 24, 25, 32, 33, 34, 35, 36,
            42, 45, 49, 50, 51,
        ],
    ),
    (
        libc::SOL_IPV6,
        &[
            1, 7, 8, 16, 17, 18, 19, 21, 23, 24, 25, 26, 29, 31, 33, 45, 49, 50, 51, 52, 53, 56,
            58, 60, 61, 62, 66, 67, 70, 72, 73, 74, 76, 77, 78,
        ],
    ),
    (
        libc::SOL_TCP,
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 18, 23, 24, 25, 27, 30, 33, 34, 35, 36,
            37, 44, 45, 46,
        ],
    ),
    (libc::SOL_UDP, &[1, 101, 102, 103, 104]),
];

/// 0 means the usual protocol of the socket's type.
const INTERNET_PROTOCOLS: &[i32] = &[
    0,
    libc::IPPROTO_TCP,
    libc::IPPROTO_UDP,
    libc::IPPROTO_ICMP,
    libc::IPPROTO_ICMPV6,
];

/// mknod(2) and mknodat(2), each with the index of its mode.
#[cfg(target_arch = "x86_64")]
const MAKE_NODES: &[(libc::c_long, u8)] = &[(libc::SYS_mknod, 1), (libc::SYS_mknodat, 2)];

/// mknodat(2), with the index of its mode.
#[cfg(not(target_arch = "x86_64"))]
const MAKE_NODES: &[(libc::c_long, u8)] = &[(libc::SYS_mknodat, 2)];

/// Commands of fcntl(2), besides [`status_flags`]. Not `F_SETPIPE_SZ`: a larger pipe lets a program print more at a time than the daemon reads in a turn.
/// Not `F_NOTIFY` either, which inotify(7) has replaced.
const FCNTL_COMMANDS: &[i32] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_GETOWN,
    libc::F_SETOWN,
    F_SETSIG,
    F_GETSIG,
    F_SETOWN_EX,
    F_GETOWN_EX,
    libc::F_SETLEASE,
    libc::F_GETLEASE,
    libc::F_GETPIPE_SZ,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    F_GET_RW_HINT,
    F_SET_RW_HINT,
    F_GET_FILE_RW_HINT,
    F_SET_FILE_RW_HINT,
];

/// Of fcntl(2), from `asm-generic/fcntl.h`; libc has no names for them.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_GET_RW_HINT: i32 = 1035;
const F_SET_RW_HINT: i32 = 1036;
const F_GET_FILE_RW_HINT: i32 = 1037;
const F_SET_FILE_RW_HINT: i32 = 1038;

/// Requests of ioctl(2), from the kernel's `asm-generic/ioctls.h`, `linux/sockios.h` and `linux/fs.h`. Not, for example, those that
/// open other namespaces (`NS_GET_PARENT`, `NS_MNT_GET_NEXT`) or put input into a terminal (`TIOCSTI`).
const IOCTL_REQUESTS: &[u32] = &[
    // Terminals and pseudo-terminals: isatty(3), sizes, modes, job control.
    0x5401,
    0x5402,
    0x5403,
    0x5404,
    0x5405,
    0x5406,
    0x5407,
    0x5408,
    0x5409,
    0x540a,
    0x540b,
    0x540e,
    0x540f,
    0x5410,
    0x5411,
    0x5413,
    0x5414,
    0x5422,
    0x5429,
    0x8004_5430,
    0x4004_5431,
    0x5441,
    0x802c_542a,
    0x402c_542b,
    0x402c_542c,
    0x402c_542d,
    // Of all descriptors: bytes to read, not blocking, close on exec.
    0x541b,
    0x5421,
    0x5450,
    0x5451,
    // Sockets: the mark, owners, times of arrival, queues.
    0x8901,
    0x8902,
    0x8903,
    0x8904,
    0x8905,
    0x8906,
    0x8907,
    0x894b,
    // Network devices, only to be read: names, flags, addresses, sizes, speed.
    0x8910,
    0x8912,
    0x8913,
    0x8915,
    0x8917,
    0x8919,
    0x891b,
    0x891d,
    0x8921,
    0x8927,
    0x8933,
    0x8942,
    0x8946,
    0x8970,
    // Files: clones, extents, attributes, generation, sizes of devices.
    0x4004_9409,
    0x4020_940d,
    0xc020_660b,
    0x8008_6601,
    0x801c_581f,
    0x8008_7601,
    0x1260,
    0x8008_1272,
    0x1268,
];
