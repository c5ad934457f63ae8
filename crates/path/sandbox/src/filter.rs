//! The system calls that code in a sandbox may make: an allow-list. Everything else fails with `EPERM`, or with `ENOSYS` where
//! programs then use a fallback.
//!
//! Filters are stacked. The template's is installed before the interpreter is executed and inherited by all forks, so that even
//! code that takes over a template cannot leave it. The worker's filter removes what only a template needs.

mod arguments;

use pilot_sys::seccomp::{Argument, Filter, Rule, Verdict};
use pilot_sys::seqpacket;

pub use pilot_sys::seccomp::FilterError;

use self::arguments::conditional;
use crate::isolation::TEMPLATE_USER;

/// The filters, compiled.
#[derive(Debug)]
pub struct Filters {
    /// For every process in a sandbox.
    pub(crate) template: Filter,
    /// For every process as well, installed after the first: of two errors, the kernel returns the later filter's (seccomp(2)).
    pub(crate) absent: Filter,
    /// For every process as well; see [`unsupported`].
    pub(crate) unsupported: Filter,
    /// For every process as well; see [`without_effect`].
    pub(crate) without_effect: Filter,
    /// For templates with a user, and what they fork.
    pub(crate) own_user: Filter,
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
            unsupported: Filter::compile(
                &unsupported(),
                Verdict::Errno(libc::EOPNOTSUPP.unsigned_abs()),
                Verdict::Allow,
            )?,
            without_effect: Filter::compile(
                &without_effect(seqpacket::descriptors_can_be_refused()),
                Verdict::Errno(0),
                Verdict::Allow,
            )?,
            own_user: Filter::compile(&other_users(), refused, Verdict::Allow)?,
            worker: Filter::compile(&worker_takes_away(), refused, Verdict::Allow)?,
        })
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

/// Changes of extended attributes (xattr(7)), which programs that copy files do without on file systems that have none. A filter cannot
/// read the attribute's name in memory. POSIX ACLs are among them: a file of tmpfs can have one of 64 KB, which it also inherits from its
/// folder, and the kernel charges nobody for it (`posix_acl_alloc` in fs/posix_acl.c).
fn unsupported() -> Vec<Rule> {
    [
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        libc::SYS_fremovexattr,
        SYS_SETXATTRAT,
        SYS_REMOVEXATTRAT,
    ]
    .map(|call| Rule {
        call,
        when: Vec::new(),
    })
    .into()
}

/// Calls that succeed and do nothing (`SECCOMP_RET_ERRNO` with 0, seccomp(2)), because programs treat an error as fatal, while none
/// depends on the effect:
///
/// - `FIOASYNC`, which asks for a signal when a descriptor is ready. The kernel keeps all who ask for those of a file in one list, and
///   each change of it goes through the list under a lock of the machine (`fasync_insert_entry` in fs/fcntl.c). nginx does not start its
///   workers if it fails. The other way to ask, `O_ASYNC` of fcntl(2), is refused.
/// - `SO_LINGER`, which lets the close of a socket wait for its peer, unless the kernel refuses descriptors that are sent to the daemon
///   (since Linux 6.16): the daemon must close what it is sent. A filter cannot read the option's value in memory. A close returns at
///   once, and the kernel sends the rest or, instead of a reset, ends the connection.
fn without_effect(descriptors_are_refused: bool) -> Vec<Rule> {
    let is = |index: u8, value: u32| Argument::Is { index, value };
    let asynchronous = Rule {
        call: libc::SYS_ioctl,
        when: vec![is(1, FIOASYNC)],
    };
    let lingering = Rule {
        call: libc::SYS_setsockopt,
        when: vec![
            is(1, libc::SOL_SOCKET.cast_unsigned()),
            is(2, libc::SO_LINGER.cast_unsigned()),
        ],
    };
    match descriptors_are_refused {
        true => vec![asynchronous],
        false => vec![asynchronous, lingering],
    }
}

/// Calls with a fallback that programs use only if the kernel does not have the call: the C library starts threads with clone3, and
/// changes modes with fchmodat2. Core scheduling, too, which a kernel may not have: with it a function could keep the other threads
/// of its processor cores idle.
fn absent() -> Vec<Rule> {
    let mut rules: Vec<Rule> = [libc::SYS_clone3, SYS_FCHMODAT2]
        .map(|call| Rule {
            call,
            when: Vec::new(),
        })
        .into();
    rules.push(Rule {
        call: libc::SYS_prctl,
        when: vec![Argument::Is {
            index: 0,
            value: PR_SCHED_CORE,
        }],
    });
    rules
}

/// prctl(2), `PR_SCHED_CORE`, which libc does not name (`linux/prctl.h`).
const PR_SCHED_CORE: u32 = 62;

/// fchmodat2(2), which libc does not name on every architecture. Its number is the same everywhere (`asm-generic/unistd.h`).
const SYS_FCHMODAT2: libc::c_long = 452;

/// The same of setxattrat(2) and removexattrat(2), since Linux 6.13.
const SYS_SETXATTRAT: libc::c_long = 463;
const SYS_REMOVEXATTRAT: libc::c_long = 466;

/// ioctl(2), from the kernel's `asm-generic/ioctls.h`.
const FIOASYNC: u32 = 0x5452;

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

/// Becoming somebody else than [`TEMPLATE_USER`], which is another user of the machine in each function's user namespace. A template keeps
/// `CAP_SETUID` and `CAP_SETGID`: its children take this user in theirs.
fn other_users() -> Vec<Rule> {
    let not = |index: u8, value: u32| Argument::Not { index, value };
    let ids = CHANGES_OF_IDS.iter().flat_map(|(call, arguments)| {
        (0..*arguments).map(|index| Rule {
            call: *call,
            when: vec![not(index, TEMPLATE_USER), not(index, UNCHANGED)],
        })
    });
    let groups = Rule {
        call: libc::SYS_setgroups,
        when: vec![not(0, 0)],
    };
    ids.chain([groups]).collect()
}

/// Calls that change users or groups, each with the number of its arguments.
const CHANGES_OF_IDS: [(libc::c_long, u8); 8] = [
    (libc::SYS_setuid, 1),
    (libc::SYS_setgid, 1),
    (libc::SYS_setfsuid, 1),
    (libc::SYS_setfsgid, 1),
    (libc::SYS_setreuid, 2),
    (libc::SYS_setregid, 2),
    (libc::SYS_setresuid, 3),
    (libc::SYS_setresgid, 3),
];

/// An id that stays as it is (setresuid(2)).
const UNCHANGED: u32 = u32::MAX;

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
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
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
        let without_effect =
            Filter::compile(&without_effect(false), Verdict::Errno(0), Verdict::Allow).unwrap();
        let wanted = libc::linger {
            l_onoff: 1,
            l_linger: LINGER_S.cast_signed(),
        };
        // A filter is of its thread.
        let closing = std::thread::spawn(move || {
            let (socket, _listener) = clogged();
            for filter in [&filters.template, &filters.absent, &without_effect] {
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
        assert!(!is_set && took < Duration::from_secs(4), "{took:?}");
    }

    #[test]
    fn no_call_that_changes_extended_attributes_is_allowed() {
        let allowed = allowed();
        for rule in unsupported() {
            let is_allowed = allowed.iter().any(|other| other.call == rule.call);
            assert!(!is_allowed, "{}", rule.call);
        }
    }

    #[test]
    fn groups_that_nobody_is_charged_for_are_refused_and_a_few_are_not() {
        let filters = Filters::compile().unwrap();
        // A filter is of its thread.
        let joining = std::thread::spawn(move || {
            let [four, six] = ["127.0.0.1:0", "[::1]:0"].map(UdpSocket::bind);
            for filter in [&filters.template, &filters.absent] {
                filter.install().unwrap();
            }
            let group = "ff12::1".parse().unwrap();
            let of_six = six.ok().map(|six| six.join_multicast_v6(&group, 1));
            let group = Ipv4Addr::new(239, 1, 2, 3);
            (
                of_six,
                four.unwrap()
                    .join_multicast_v4(&group, &Ipv4Addr::LOCALHOST),
            )
        });
        let (of_six, of_four) = joining.join().unwrap();
        // A machine may have no IPv6.
        if let Some(of_six) = of_six {
            assert_eq!(of_six.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        of_four.unwrap();
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
