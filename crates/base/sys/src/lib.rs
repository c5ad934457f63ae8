//! The operating system, as far as Pilotlight needs more of it than std and nix give: the only crate with `unsafe`.
//! Each module wraps one thing in a safe function; what a forked child may not do is kept from it by how the functions
//! are made ([`process::child_main`] never returns). The templates' inner loop (`native/`) is here as well, in C.
//!
//! Not here: policy. Which namespaces, which limits, which system calls is decided in `path/sandbox`.

/// The templates' inner loop, a shared object for this machine's architecture (`native/fork_server.c`).
pub const FORK_SERVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fork_server.so"));

pub mod capability;
pub mod clock;
pub mod loopback;
pub mod mount;
pub mod netlink;
pub mod process;
pub mod seccomp;
pub mod seqpacket;
pub mod shim;
pub mod sysv;
