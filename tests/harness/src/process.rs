//! The machine's processes from `/proc`: their descendants, and whether they have ended.

use std::collections::HashMap;

/// All descendants of `ancestor`, without zombies.
#[must_use]
pub fn descendants(ancestor: i32) -> Vec<i32> {
    let parents = parents();
    let below = |mut pid: i32| {
        while let Some(&parent) = parents.get(&pid) {
            if parent == ancestor {
                return true;
            }
            pid = parent;
        }
        false
    };
    parents.keys().copied().filter(|pid| below(*pid)).collect()
}

/// Whether the process does not exist, or is a zombie.
#[must_use]
pub fn is_gone(pid: i32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| state == 'Z' || state == 'X')
}

/// Number of open descriptors of a process.
#[must_use]
pub fn open_descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Number of descriptors of a process that are open to this kind of thing, for example `socket:` or `/memfd:` (proc(5), `/proc/PID/fd`).
#[must_use]
pub fn open_descriptors_to(pid: i32, kind: &str) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let targets = open.into_iter().flatten().flatten();
    let targets = targets.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with(kind))
        .count()
}

fn parents() -> HashMap<i32, i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let (state, parent) = state_and_parent(pid)?;
            (state != 'Z').then_some((pid, parent))
        })
        .collect()
}

/// State and parent from `/proc/PID/stat`. The name in parentheses may contain any characters, also parentheses.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Memory of a process that is in RAM, bytes.
#[must_use]
pub fn resident_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
