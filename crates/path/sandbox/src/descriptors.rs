//! Which of the daemon's descriptors are for what. A sandbox takes about sixteen. Without a reserve, sandboxes would take the last
//! ones, and then connections, files and builds would fail.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;

use nix::sys::resource::{Resource, getrlimit};
use pilot_model::ports::StartError;

/// Whether there are descriptors for a spare sandbox: they have three quarters of all.
pub(crate) fn has_spare() -> bool {
    open() < most() / 8 * 6
}

/// Checks that there are descriptors for a sandbox that is needed: an eighth is for everything else.
///
/// # Errors
/// [`StartError::Full`].
pub(crate) fn check() -> Result<(), StartError> {
    let most = most();
    if open() < most / 8 * 7 {
        return Ok(());
    }
    Err(StartError::Full {
        problem: format!(
            "the daemon has nearly all of the {most} files open that it may have, and keeps the rest for connections; raise that limit \
             (LimitNOFILE of its service, or `ulimit -Hn`)"
        ),
    })
}

/// How many there may be.
fn most() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, most)| most)
}

/// How many are open: the size of that folder (proc_pid_fd(5), Linux 6.2). An older kernel says 0, and to count the entries would take
/// a microsecond for each. There it is the number of the next one, the lowest that is free (open(2)): no more than are open.
fn open() -> u64 {
    match fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len()) {
        0 => File::open("/dev/null")
            .map_or(u64::MAX, |null| u64::from(null.as_raw_fd().unsigned_abs())),
        open => open,
    }
}
