//! The machine's processes as `/proc` shows them: who descends from whom, and who is gone.

use std::collections::HashMap;

/// Every process whose chain of parents leads to `ancestor`. Zombies are left out.
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

/// Whether there is no such process, or only its exit status is left.
#[must_use]
pub fn is_gone(pid: i32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| state == 'Z' || state == 'X')
}

/// How many descriptors a process has open.
#[must_use]
pub fn open_descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
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

/// From `/proc/PID/stat`. The name in parentheses may hold anything; what follows the last one does not.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
