//! The memory of a process as the kernel counts it.

use std::fs;

/// Proportional set size of a process, bytes: each page is divided among all processes that map it (proc_pid_smaps(5)). 0 for a
/// process that has ended.
pub(crate) fn pss_bytes(pid: u32) -> u64 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
        return 0;
    };
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}
