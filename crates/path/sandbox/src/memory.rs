//! What a process uses, as the kernel counts it.

use std::fs;

/// Proportional set size of a process, bytes: each page counts for its share over all who map it (proc_pid_smaps(5)). 0 for
/// a process that is gone.
pub(crate) fn pss_bytes(pid: u32) -> u64 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
        return 0;
    };
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}
