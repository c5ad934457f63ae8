//! The freezer on machines with version 1: the folder of version 2, which such machines have beside the others (systemd calls this
//! hybrid). `cgroup.freeze` needs no controller.
//!
//! Not the freezer of version 1. A process that it has frozen cannot be killed: SIGKILL waits until the process is thawed, also when
//! its PID namespace ends. A daemon that was killed would leave its frozen workers behind (decision 0031).
//!
//! The groups are threaded, so that a process can join through `cgroup.threads`: `0` moves only the calling thread, which avoids the
//! lock of `cgroup.procs` (decision 0002).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::open_to_write;

/// This daemon's folder, in `base`. `None`: processes cannot be frozen.
pub(super) fn make(base: &Path, name: &str) -> Option<PathBuf> {
    let folder = base.join(name);
    let made = fs::create_dir(&folder);
    if made.is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
        return None;
    }
    if make_threaded(&folder).is_err() || !folder.join(FREEZE).exists() {
        let _ = fs::remove_dir(&folder);
        return None;
    }
    Some(folder)
}

/// A group in this daemon's folder: the file to join it, and the file that freezes it.
pub(super) fn create(folder: &Path) -> io::Result<(OwnedFd, File)> {
    fs::create_dir(folder)?;
    make_threaded(folder)?;
    let join = open_to_write(&folder.join("cgroup.threads"))?;
    Ok((join, open(folder)?))
}

/// The file that freezes a group.
pub(super) fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(folder.join(FREEZE))
}

fn make_threaded(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.type"), "threaded")
}

const FREEZE: &str = "cgroup.freeze";
