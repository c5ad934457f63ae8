//! The system calls that code in a sandbox may make: an allow-list. Everything else fails with `EPERM`, or with `ENOSYS` where
//! programs then use a fallback.
//!
//! Filters are stacked. The template's is installed before the interpreter is executed and inherited by all forks, so that even
//! code that takes over a template cannot leave it. The worker's filter removes what only a template needs.

use pilot_sys::seccomp::{Argument, Filter, Rule, Verdict};
use pilot_sys::seqpacket;

pub use pilot_sys::seccomp::FilterError;

/// The filters, compiled.
#[derive(Debug)]
pub struct Filters {
    /// For every process in a sandbox.
    pub(crate) template: Filter,
    /// For every process as well, installed after the first: of two errors, the kernel returns the later filter's (seccomp(2)).
    pub(crate) absent: Filter,
    /// For every process, where the kernel lets functions send descriptors to the daemon; see [`lingering`].
    pub(crate) lingering: Option<Filter>,
    /// For workers, in addition.
    pub(crate) worker: Filter,
}

impl Filters {
    /// Compiles them for this machine.
    ///
    /// # Errors
    /// An unknown architecture.
    pub fn compile() -> Result<Self, FilterError> {
        let rules = allowed();
        let refused = Verdict::Errno(libc::EPERM.unsigned_abs());
        Ok(Self {
            template: Filter::compile(&rules, Verdict::Allow, refused)?,
            absent: Filter::compile(
                &absent(),
                Verdict::Errno(libc::ENOSYS.unsigned_abs()),
                Verdict::Allow,
            )?,
            lingering: match seqpacket::descriptors_can_be_refused() {
                true => None,
                false => Some(Self::without_lingering()?),
            },
            worker: Filter::compile(&worker_takes_away(), refused, Verdict::Allow)?,
        })
    }

    fn without_lingering() -> Result<Filter, FilterError> {
        Filter::compile(&lingering(), Verdict::Errno(0), Verdict::Allow)
    }
}

/// What every process in a sandbox may do.
fn allowed() -> Vec<Rule> {
    let always = GROUPS
        .iter()
        .flat_map(|(_, calls)| calls.iter())
        .chain(LEGACY.iter().map(|(older, _)| older))
        .chain(OF_THIS_ARCHITECTURE)
        .map(|call| Rule {
            call: *call,
            when: Vec::new(),
        });
    always.chain(conditional()).collect()
}

/// `SO_LINGER`, which lets the close of a socket wait for its peer. Before Linux 6.16 a function can send such a socket to the
/// daemon, which must close it. A filter cannot read the option's value in memory, so setting it has no effect and succeeds
/// (`SECCOMP_RET_ERRNO` with 0, seccomp(2)). It does not fail, because programs treat an error of `setsockopt` as fatal, while none
/// depends on its effect: a close returns at once, and the kernel sends the rest or, instead of a reset, ends the connection.
fn lingering() -> Vec<Rule> {
    let is = |index: u8, value: i32| Argument::Is {
        index,
        value: value.cast_unsigned(),
    };
    vec![Rule {
        call: libc::SYS_setsockopt,
        when: vec![is(1, libc::SOL_SOCKET), is(2, libc::SO_LINGER)],
    }]
}

/// Calls with a fallback that programs use only if the kernel does not have the call: the C library starts threads with clone3,
/// and changes modes with fchmodat2.
fn absent() -> Vec<Rule> {
    [libc::SYS_clone3, SYS_FCHMODAT2]
        .map(|call| Rule {
            call,
            when: Vec::new(),
        })
        .into()
}

/// fchmodat2(2), which libc does not name on every architecture. Its number is the same everywhere (`asm-generic/unistd.h`).
const SYS_FCHMODAT2: libc::c_long = 452;

/// What templates may do and their workers may not: enter namespaces, and install filters. The machine code of all filters of the
/// machine has one limit (`net.core.bpf_jit_limit`), and no worker starts when it is used up.
fn worker_takes_away() -> Vec<Rule> {
    let mut rules: Vec<Rule> = [libc::SYS_setns, libc::SYS_seccomp]
        .map(|call| Rule {
            call,
            when: Vec::new(),
        })
        .into();
    rules.push(Rule {
        call: libc::SYS_prctl,
        when: vec![Argument::Is {
            index: 0,
            value: libc::PR_SET_SECCOMP.cast_unsigned(),
        }],
    });
    rules
}

/// Calls that are allowed for some arguments only.
fn conditional() -> Vec<Rule> {
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

/// setsockopt(2): all options of TCP, UDP and netlink, and those below.
fn socket_options() -> impl Iterator<Item = Rule> {
    let is = |index: u8, value: i32| Argument::Is {
        index,
        value: value.cast_unsigned(),
    };
    let rule = |when| Rule {
        call: libc::SYS_setsockopt,
        when,
    };
    let whole = [libc::SOL_TCP, libc::SOL_UDP, libc::SOL_NETLINK];
    let some = SOCKET_OPTIONS
        .iter()
        .flat_map(move |(level, options)| options.iter().map(move |option| (*level, *option)));
    whole
        .into_iter()
        .map(move |level| rule(vec![is(1, level)]))
        .chain(some.map(move |(level, option)| rule(vec![is(1, level), is(2, option)])))
}

/// Options of setsockopt(2) by their level, from the kernel's `asm-generic/socket.h`, `linux/in.h` and `linux/in6.h`. Not those that make
/// machine code (`SO_ATTACH_FILTER`, `SO_ATTACH_REUSEPORT_CBPF` and the like: see [`worker_takes_away`]), and not those with which
/// a socket keeps kernel memory that no control group is charged for (`IP_OPTIONS`, `IPV6_2292PKTOPTIONS`, `IPV6_HOPOPTS`, `MCAST_MSFILTER`).
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
            37, 38, 39, 40, 42, 43, 44, 45, 46, 47, 49, 50, 51,
        ],
    ),
    (
        libc::SOL_IPV6,
        &[
            1, 7, 8, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 29, 31, 33, 42, 43, 44, 45, 46, 47,
            49, 50, 51, 52, 53, 56, 58, 60, 61, 62, 66, 67, 70, 72, 73, 74, 76, 77, 78,
        ],
    ),
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

/// Commands of fcntl(2). Not `F_SETPIPE_SZ`: a larger pipe lets a program print more at a time than the daemon reads in a turn.
/// Not `F_NOTIFY` either, which inotify(7) has replaced.
const FCNTL_COMMANDS: &[i32] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
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
    // Of all descriptors: bytes to read, not blocking, signals, close on exec.
    0x541b,
    0x5421,
    0x5450,
    0x5451,
    0x5452,
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

/// Groups of calls, each with its reason.
const GROUPS: &[(&str, &[libc::c_long])] = &[
    (
        "files and folders, as far as their modes and the read-only mounts allow",
        &[
            libc::SYS_close,
            libc::SYS_close_range,
            libc::SYS_chdir,
            libc::SYS_copy_file_range,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_fadvise64,
            libc::SYS_fallocate,
            libc::SYS_fchdir,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            libc::SYS_fchown,
            libc::SYS_fchownat,
            libc::SYS_fdatasync,
            libc::SYS_fgetxattr,
            libc::SYS_flistxattr,
            libc::SYS_flock,
            libc::SYS_fsetxattr,
            libc::SYS_fstat,
            libc::SYS_fstatfs,
            libc::SYS_fsync,
            libc::SYS_ftruncate,
            libc::SYS_getcwd,
            libc::SYS_getdents64,
            libc::SYS_getxattr,
            libc::SYS_inotify_add_watch,
            libc::SYS_inotify_init1,
            libc::SYS_inotify_rm_watch,
            libc::SYS_lgetxattr,
            libc::SYS_linkat,
            libc::SYS_listxattr,
            libc::SYS_llistxattr,
            libc::SYS_lseek,
            libc::SYS_mkdirat,
            libc::SYS_newfstatat,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_pread64,
            libc::SYS_preadv,
            libc::SYS_preadv2,
            libc::SYS_pwrite64,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_read,
            libc::SYS_readahead,
            libc::SYS_readlinkat,
            libc::SYS_readv,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_sendfile,
            libc::SYS_splice,
            libc::SYS_statfs,
            libc::SYS_statx,
            libc::SYS_symlinkat,
            libc::SYS_sync_file_range,
            libc::SYS_truncate,
            libc::SYS_umask,
            libc::SYS_unlinkat,
            libc::SYS_utimensat,
            libc::SYS_write,
            libc::SYS_writev,
        ],
    ),
    (
        "the process's own memory",
        &[
            libc::SYS_brk,
            libc::SYS_get_mempolicy,
            libc::SYS_madvise,
            libc::SYS_membarrier,
            libc::SYS_memfd_create,
            libc::SYS_mincore,
            libc::SYS_mlock,
            libc::SYS_mlock2,
            libc::SYS_mlockall,
            libc::SYS_mmap,
            libc::SYS_mprotect,
            libc::SYS_mremap,
            libc::SYS_msync,
            libc::SYS_munlock,
            libc::SYS_munlockall,
            libc::SYS_munmap,
            libc::SYS_pkey_alloc,
            libc::SYS_pkey_free,
            libc::SYS_pkey_mprotect,
        ],
    ),
    (
        "processes and threads within the sandbox's PID namespace",
        &[
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_futex,
            libc::SYS_get_robust_list,
            libc::SYS_getcpu,
            libc::SYS_getpgid,
            libc::SYS_getpid,
            libc::SYS_getppid,
            libc::SYS_getpriority,
            libc::SYS_getsid,
            libc::SYS_gettid,
            libc::SYS_kill,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_send_signal,
            libc::SYS_prlimit64,
            libc::SYS_restart_syscall,
            libc::SYS_rseq,
            libc::SYS_sched_get_priority_max,
            libc::SYS_sched_get_priority_min,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_getattr,
            libc::SYS_sched_getparam,
            libc::SYS_sched_getscheduler,
            libc::SYS_sched_rr_get_interval,
            // Not sched_setattr: with it a process of the default policy asks for a time slice of up to 100 ms (`sched_runtime`, since
            // Linux 6.12), which its neighbours wait for. A filter cannot read it in memory. The C library has no need of the call:
            // policies and priorities of threads are set with sched_setscheduler and sched_setparam.
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_yield,
            libc::SYS_set_robust_list,
            libc::SYS_set_tid_address,
            libc::SYS_setpgid,
            libc::SYS_setpriority,
            libc::SYS_setsid,
            libc::SYS_tgkill,
            libc::SYS_tkill,
            libc::SYS_wait4,
            libc::SYS_waitid,
        ],
    ),
    (
        "dropping and querying privileges: without capabilities none can be gained",
        &[
            libc::SYS_capget,
            libc::SYS_capset,
            libc::SYS_getegid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getgroups,
            libc::SYS_getresgid,
            libc::SYS_getresuid,
            libc::SYS_getuid,
            libc::SYS_prctl,
            libc::SYS_seccomp,
            libc::SYS_setfsgid,
            libc::SYS_setfsuid,
            libc::SYS_setgid,
            libc::SYS_setgroups,
            libc::SYS_setregid,
            libc::SYS_setresgid,
            libc::SYS_setresuid,
            libc::SYS_setreuid,
            libc::SYS_setuid,
        ],
    ),
    (
        "signals",
        &[
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigpending,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigqueueinfo,
            libc::SYS_rt_sigreturn,
            libc::SYS_rt_sigsuspend,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_sigaltstack,
            libc::SYS_signalfd4,
        ],
    ),
    (
        "reading the time",
        &[
            libc::SYS_clock_getres,
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_getitimer,
            libc::SYS_gettimeofday,
            libc::SYS_nanosleep,
            libc::SYS_setitimer,
            libc::SYS_timer_create,
            libc::SYS_timer_delete,
            libc::SYS_timer_getoverrun,
            libc::SYS_timer_gettime,
            libc::SYS_timer_settime,
            libc::SYS_timerfd_create,
            libc::SYS_timerfd_gettime,
            libc::SYS_timerfd_settime,
            libc::SYS_times,
        ],
    ),
    (
        "sockets of the types allowed below",
        &[
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_bind,
            libc::SYS_connect,
            libc::SYS_getpeername,
            libc::SYS_getsockname,
            libc::SYS_getsockopt,
            libc::SYS_listen,
            libc::SYS_recvfrom,
            libc::SYS_recvmmsg,
            libc::SYS_recvmsg,
            libc::SYS_sendmmsg,
            libc::SYS_sendmsg,
            libc::SYS_sendto,
            libc::SYS_shutdown,
        ],
    ),
    (
        "waiting",
        &[
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_eventfd2,
            libc::SYS_pipe2,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
        ],
    ),
    (
        "System V shared memory, semaphores and queues of the sandbox's own IPC namespace",
        &[
            libc::SYS_msgctl,
            libc::SYS_msgget,
            libc::SYS_msgrcv,
            libc::SYS_msgsnd,
            libc::SYS_semctl,
            libc::SYS_semget,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_shmat,
            libc::SYS_shmctl,
            libc::SYS_shmdt,
            libc::SYS_shmget,
        ],
    ),
    (
        "information about the machine",
        &[
            libc::SYS_getrandom,
            libc::SYS_getrusage,
            libc::SYS_sysinfo,
            libc::SYS_uname,
        ],
    ),
    (
        "entering the namespaces that a template gets; removed for workers, and useless without a capability",
        &[libc::SYS_setns],
    ),
];

/// Older variants of calls, each with the call that replaces it, which every architecture has and functions may make.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[(libc::c_long, libc::c_long)] = &[
    (libc::SYS_access, libc::SYS_faccessat),
    (libc::SYS_alarm, libc::SYS_setitimer),
    (libc::SYS_chmod, libc::SYS_fchmodat),
    (libc::SYS_chown, libc::SYS_fchownat),
    (libc::SYS_creat, libc::SYS_openat),
    (libc::SYS_dup2, libc::SYS_dup3),
    (libc::SYS_epoll_create, libc::SYS_epoll_create1),
    (libc::SYS_epoll_wait, libc::SYS_epoll_pwait),
    (libc::SYS_eventfd, libc::SYS_eventfd2),
    (libc::SYS_fork, libc::SYS_clone),
    (libc::SYS_getdents, libc::SYS_getdents64),
    (libc::SYS_getpgrp, libc::SYS_getpgid),
    (libc::SYS_getrlimit, libc::SYS_prlimit64),
    (libc::SYS_inotify_init, libc::SYS_inotify_init1),
    (libc::SYS_lchown, libc::SYS_fchownat),
    (libc::SYS_link, libc::SYS_linkat),
    (libc::SYS_lstat, libc::SYS_newfstatat),
    (libc::SYS_mkdir, libc::SYS_mkdirat),
    (libc::SYS_open, libc::SYS_openat),
    (libc::SYS_pause, libc::SYS_ppoll),
    (libc::SYS_pipe, libc::SYS_pipe2),
    (libc::SYS_poll, libc::SYS_ppoll),
    (libc::SYS_readlink, libc::SYS_readlinkat),
    (libc::SYS_rename, libc::SYS_renameat),
    (libc::SYS_rmdir, libc::SYS_unlinkat),
    (libc::SYS_select, libc::SYS_pselect6),
    (libc::SYS_setrlimit, libc::SYS_prlimit64),
    (libc::SYS_signalfd, libc::SYS_signalfd4),
    (libc::SYS_stat, libc::SYS_newfstatat),
    (libc::SYS_symlink, libc::SYS_symlinkat),
    (libc::SYS_time, libc::SYS_clock_gettime),
    (libc::SYS_unlink, libc::SYS_unlinkat),
    (libc::SYS_utime, libc::SYS_utimensat),
    (libc::SYS_utimes, libc::SYS_utimensat),
    (libc::SYS_vfork, libc::SYS_clone),
];

/// The same for newer architectures, such as aarch64 (`asm-generic/unistd.h`): they never had the others.
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[(libc::c_long, libc::c_long)] = &[
    (libc::SYS_getrlimit, libc::SYS_prlimit64),
    (libc::SYS_setrlimit, libc::SYS_prlimit64),
];

/// Calls of one architecture: the C library sets the register of thread-local storage.
#[cfg(target_arch = "x86_64")]
const OF_THIS_ARCHITECTURE: &[libc::c_long] = &[libc::SYS_arch_prctl];

/// Calls of one architecture.
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_ARCHITECTURE: &[libc::c_long] = &[];

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use nix::sys::socket::{getsockopt, setsockopt, sockopt};

    use super::*;

    /// A socket whose peer does not read, with as much data as it takes.
    fn clogged() -> (TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let block = vec![0; 64 * 1024];
        while let Ok(1..) = socket.write(&block) {}
        assert_eq!(
            socket.write(&block).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        socket.set_nonblocking(false).unwrap();
        (socket, listener)
    }

    /// Architectures without the older variants, such as aarch64, then miss nothing.
    #[test]
    fn what_an_old_call_does_can_be_done_by_one_that_every_architecture_has() {
        let allowed = allowed();
        let older: Vec<i64> = LEGACY.iter().map(|(older, _)| *older).collect();
        for (older_one, newer) in LEGACY {
            let is_allowed = allowed.iter().any(|rule| rule.call == *newer);
            assert!(is_allowed, "{newer}, which replaces {older_one}");
            assert!(!older.contains(newer), "{newer} is itself old");
        }
    }

    #[test]
    fn where_descriptors_cannot_be_refused_no_socket_lingers() {
        const LINGER_S: u32 = 5;
        let filters = Filters::compile().unwrap();
        let lingering = Filters::without_lingering().unwrap();
        let wanted = libc::linger {
            l_onoff: 1,
            l_linger: LINGER_S.cast_signed(),
        };
        // A filter is of its thread.
        let closing = std::thread::spawn(move || {
            let (socket, _listener) = clogged();
            for filter in [&filters.template, &filters.absent, &lingering] {
                filter.install().unwrap();
            }
            setsockopt(&socket, sockopt::Linger, &wanted).unwrap();
            let is_set = getsockopt(&socket, sockopt::Linger).unwrap().l_onoff != 0;
            socket.set_nodelay(true).unwrap();
            assert!(socket.nodelay().unwrap(), "other options work");
            let begun = Instant::now();
            drop(socket);
            (is_set, begun.elapsed())
        });
        let (is_set, took) = closing.join().unwrap();
        assert!(!is_set && took < Duration::from_secs(1), "{took:?}");
    }

    #[test]
    fn a_socket_lingers_without_the_filter() {
        let (socket, _listener) = clogged();
        let wanted = libc::linger {
            l_onoff: 1,
            l_linger: 1,
        };
        setsockopt(&socket, sockopt::Linger, &wanted).unwrap();
        let begun = Instant::now();
        drop(socket);
        assert!(begun.elapsed() >= Duration::from_millis(900));
    }
}
