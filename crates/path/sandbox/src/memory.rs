//! The memory of a process as the kernel counts it.

use std::fs;
use std::path::Path;

use crate::living_thread;

/// Proportional set size of a process, bytes: each page is divided among all processes that map it (proc_pid_smaps(5)). 0 for a
/// process that has ended.
pub(crate) fn pss_bytes(pid: u32) -> u64 {
    // Nearly every process has its first thread, and looking for one takes longer.
    let own = format!("/proc/{pid}");
    pss_of(Path::new(&own))
        .or_else(|| pss_of(&living_thread::folder(pid)?))
        .unwrap_or(0)
}

/// `None`: the thread has ended.
fn pss_of(thread: &Path) -> Option<u64> {
    let text = fs::read_to_string(thread.join("smaps_rollup")).ok()?;
    let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib = pss.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?;
    Some(kib * 1024)
}
