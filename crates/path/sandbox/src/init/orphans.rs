//! Processes that the programs of a sandbox have left behind and that hold a pipe as their output. Whoever reads that pipe until its end,
//! as installers do with what install scripts print, would wait for them for ever.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Stat;
use crate::living_thread;

/// Those that there were when it was last asked for.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    seen: Vec<Orphan>,
}

/// An id may be used again, but not at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Orphan {
    pid: i32,
    begun: u64,
}

impl Orphans {
    /// Kills those that were there the last time. What has only just lost its parent may still have something to print.
    pub(super) fn end(&mut self, is_program: impl Fn(Pid) -> bool) {
        let orphans = Stat::of_all()
            .filter(|stat| stat.parent == OUR_ID && !is_program(Pid::from_raw(stat.pid)))
            .filter(|stat| holds_pipe(stat.pid))
            .map(|stat| Orphan {
                pid: stat.pid,
                begun: stat.begun,
            });
        let now: Vec<Orphan> = orphans.collect();
        for orphan in now.iter().filter(|orphan| self.seen.contains(orphan)) {
            // It may have just ended.
            let _ = kill(Pid::from_raw(orphan.pid), Signal::SIGKILL);
        }
        self.seen = now;
    }
}

/// Whether what it prints goes to a pipe, or to the pair of sockets that Node.js makes instead of one.
fn holds_pipe(pid: i32) -> bool {
    let Some(process) = living_thread::folder(pid) else {
        return false;
    };
    let files = process.join("fd");
    [1, 2].iter().any(|descriptor| {
        let file = fs::metadata(files.join(descriptor.to_string()));
        let kind = file.map(|file| file.file_type());
        kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
    })
}

/// The init's own, and so the parent of all whose parents have ended.
const OUR_ID: i32 = 1;
