//! What the suites under `tests/` share: the real daemon as a child process, projects to deploy, and a small HTTP client that can
//! also misbehave (stop reading, send a part, disconnect).
//!
//! It uses the program only from outside: its command line, its HTTP interfaces and its files. It depends on no other crate of the
//! workspace, so that the tests find mistakes in shared types. Its functions panic instead of returning errors.

#![expect(
    clippy::unwrap_used,
    reason = "the whole crate is test code; a panic is how a test fails"
)]

mod compiled_worker;
mod daemon;
mod groups;
mod http;
mod machine;
mod multipart;
mod process;
mod project;
mod wait;

pub use daemon::{Daemon, DaemonOptions, Machine, free_address, terminate};
pub use groups::{group_with, groups_of};
pub use http::{Connection, Request, Response, encode_query};
pub use machine::{Need, skip};
pub use multipart::{ArchiveEntry, archive, multipart};
pub use process::{descendants, is_gone, open_descriptors, open_descriptors_to, resident_bytes};
pub use project::Project;
pub use wait::{eventually, eventually_within, patience};

/// Whether this process is root, which sandboxes with namespaces and cgroups need.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Skips a test loudly, unless the process is root.
#[macro_export]
macro_rules! needs_root {
    () => {
        if !$crate::is_root() {
            $crate::skip("root (namespaces, cgroups)");
            return;
        }
    };
}
