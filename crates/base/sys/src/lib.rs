//! What Pilotlight needs from the operating system beyond std and nix: the only crate with `unsafe`. Each module wraps one
//! kernel interface in safe functions. Functions for forked children are made so that a child cannot misuse them
//! ([`process::child_main`] never returns). The templates' inner loop (`native/`) is here as well, in C.
//!
//! Not here: policy. `path/sandbox` decides which namespaces, limits and system calls.

/// The templates' inner loop, a shared object for this machine's architecture (`native/fork_server.c`).
pub const FORK_SERVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fork_server.so"));

pub mod capability;
pub mod clock;
pub mod epoll;
pub mod heap;
pub mod holder;
pub mod loopback;
pub mod memfd;
pub mod mount;
pub mod netlink;
pub mod pages;
pub mod process;
pub mod scratch;
pub mod seccomp;
pub mod seqpacket;
pub mod shim;
pub mod sysv;
pub mod tree;
pub mod unnamed;
