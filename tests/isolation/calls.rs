//! System calls that no function needs: the filter refuses each, or a privilege is missing.

use pilot_sys::seqpacket::descriptors_can_be_refused;
use serde_json::json;

use crate::ground::Ground;
use crate::{Attempt, Verdict};

const REFUSED: [&str; 47] = [
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "mount_setattr",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "sethostname",
    "setdomainname",
    "syslog",
    "iopl",
    "ioperm",
    "open_by_handle_at",
    "fanotify_init",
    "vhangup",
    "move_pages",
    "migrate_pages",
    "tee",
];

const NAMESPACES: [&str; 7] = [
    "NEWNS",
    "NEWCGROUP",
    "NEWUTS",
    "NEWIPC",
    "NEWUSER",
    "NEWPID",
    "NEWNET",
];

/// Commands of fcntl(2) and requests of ioctl(2).
const CONTROL: [&str; 8] = [
    "F_SETPIPE_SZ",
    "F_NOTIFY",
    "O_ASYNC",
    "NS_GET_USERNS",
    "NS_GET_PARENT",
    "NS_MNT_GET_NEXT",
    "TIOCSTI",
    "FS_IOC_SETFLAGS",
];

/// See also `others.rs`: what becomes of a descriptor that the kernel does not refuse.
fn descriptor(ground: &Ground, worker: &str) -> Verdict {
    if descriptors_can_be_refused() {
        ground.holds(worker, "send_descriptor", json!([]))
    } else {
        Verdict::Skip("the kernel cannot refuse them (before Linux 6.16)".to_owned())
    }
}

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in ["hostile", "spawned"] {
        for call in REFUSED {
            attempts.push(Attempt::new(
                format!("{worker}: {call} is refused"),
                move |ground| ground.holds(worker, "call", json!([call])),
            ));
        }
        for namespace in NAMESPACES {
            attempts.push(Attempt::new(
                format!("{worker}: no unshare of {namespace}"),
                move |ground| ground.holds(worker, "unshare", json!([namespace])),
            ));
            attempts.push(Attempt::new(
                format!("{worker}: no clone with {namespace}"),
                move |ground| ground.holds(worker, "clone", json!([namespace])),
            ));
        }
        for family in [
            "raw",
            "packet",
            "vsock",
            "alg",
            "netlink_netfilter",
            "bluetooth",
            "xdp",
            "sctp",
            "udplite",
            "dccp",
        ] {
            attempts.push(Attempt::new(
                format!("{worker}: no socket of kind {family}"),
                move |ground| ground.holds(worker, "socket", json!([family])),
            ));
        }
        for command in CONTROL {
            attempts.push(Attempt::new(
                format!("{worker}: {command} of a descriptor is refused"),
                move |ground| ground.holds(worker, "control", json!([command])),
            ));
        }
        for option in [
            "SO_ATTACH_FILTER",
            "SO_ATTACH_REUSEPORT_CBPF",
            "IP_OPTIONS",
            "IPV6_2292PKTOPTIONS",
            "IPV6_JOIN_GROUP",
            "IP_ADD_SOURCE_MEMBERSHIP",
            "TCP_MD5SIG",
            "TCP_MD5SIG_EXT",
            "TCP_AO_ADD_KEY",
            "TCP_ULP",
            "UDP_ENCAP",
        ] {
            attempts.push(Attempt::new(
                format!("{worker}: {option} of a socket is refused"),
                move |ground| ground.holds(worker, "option", json!([option])),
            ));
        }
        for call in ["prctl", "seccomp"] {
            attempts.push(Attempt::new(
                format!("{worker}: no filter by {call}"),
                move |ground| ground.holds(worker, "filter", json!([call])),
            ));
        }
        attempts.push(Attempt::new(
            format!("{worker}: no descriptor can be sent to the daemon"),
            move |ground| descriptor(ground, worker),
        ));
        attempts.extend(scheduling(worker));
        attempts.extend(without_charge(worker));
        attempts.push(Attempt::new(
            format!("{worker}: no user namespace through clone3"),
            move |ground| ground.holds(worker, "clone3", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: no way past the filter by x32 numbers"),
            move |ground| ground.holds(worker, "x32", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: no setns into a namespace in sight"),
            move |ground| ground.holds(worker, "setns", json!([])),
        ));
    }
    attempts
}

/// More of the CPUs than a function's neighbours have.
fn scheduling(worker: &'static str) -> [Attempt; 2] {
    [
        Attempt::new(format!("{worker}: no core scheduling"), move |ground| {
            ground.holds(worker, "core_scheduling", json!([]))
        }),
        Attempt::new(format!("{worker}: no longer time slice"), move |ground| {
            ground.holds(worker, "slice", json!([]))
        }),
    ]
}

/// What the kernel keeps, or does, at nobody's expense.
fn without_charge(worker: &'static str) -> [Attempt; 3] {
    [
        Attempt::new(
            format!("{worker}: extended attributes of files are not supported"),
            move |ground| ground.holds(worker, "attributes", json!([])),
        ),
        Attempt::new(
            format!("{worker}: files can be copied without their attributes"),
            move |ground| ground.holds(worker, "copies", json!([])),
        ),
        Attempt::new(format!("{worker}: FIOASYNC has no effect"), move |ground| {
            ground.holds(worker, "asynchronous", json!([]))
        }),
    ]
}
