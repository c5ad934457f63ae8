//! What the suites under `tests/` share: the real daemon as a child process, projects to deploy on it, and a small HTTP
//! client that hides nothing (it can stop reading, send by halves and hang up).
//!
//! It knows the program only from outside: its command line, its HTTP interfaces and its files. It depends on no other
//! crate of the workspace, so that a mistake in a shared type cannot hide from the tests. Everything here panics rather
//! than returning errors: a test has no use for them.

#![expect(
    clippy::unwrap_used,
    reason = "the whole crate is test code; a panic is how a test fails"
)]

mod daemon;
mod http;
mod multipart;
mod process;
mod project;
mod wait;

pub use daemon::{Daemon, DaemonOptions, Machine, terminate};
pub use http::{Connection, Request, Response, encode_query};
pub use multipart::{ArchiveEntry, archive, multipart};
pub use process::{descendants, is_gone, open_descriptors};
pub use project::Project;
pub use wait::{eventually, eventually_within};

/// Whether this process is root: what sandboxes with namespaces and cgroups of their own need.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns from a test, saying loudly why, unless the process is root.
#[macro_export]
macro_rules! needs_root {
    () => {
        if !$crate::is_root() {
            eprintln!(
                "\n*** SKIPPED: {} needs root (namespaces, cgroups) ***\n",
                std::thread::current().name().unwrap_or("this test")
            );
            return;
        }
    };
}
