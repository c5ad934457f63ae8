//! The limits of everything below the daemon together, and what the machine has for them.
//!
//! When such a limit is reached and nothing can be reclaimed, the kernel ends a process of the group, chosen by its memory and
//! `oom_score_adj`: never the daemon, which is not in the group.

use std::fs;
use std::io;
use std::path::Path;

use pilot_model::ports::MemoryShortage;

use super::{Branch, CHARGE_BYTES_MAX, Hierarchy, Layout, counter};

/// The limits of everything below the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalLimits {
    /// Memory of all functions and builds together, bytes.
    pub memory_bytes: u64,
    /// Their processes and threads.
    pub pids: u64,
    /// How much of the memory all builds together may have, bytes.
    pub builds_memory_bytes: u64,
}

/// The limits of the groups around the daemon, by which everything below it is limited anyway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Around {
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl Hierarchy {
    /// Limits everything below the daemon.
    ///
    /// # Errors
    /// The kernel's, with the file.
    pub fn limit_total(&self, total: &TotalLimits) -> io::Result<()> {
        let (memory, pids) = (self.inner.layout.memory(), self.inner.layout.pids());
        let builds = memory.join(Branch::Builds.folder());
        self.inner.layout.limit_memory(memory, total.memory_bytes)?;
        write(&pids.join("pids.max"), &total.pids.to_string())?;
        self.inner
            .layout
            .limit_memory(&builds, total.builds_memory_bytes.min(total.memory_bytes))
    }

    /// The limits of the groups around this daemon's.
    #[must_use]
    pub fn around(&self) -> Around {
        let layout = &self.inner.layout;
        let memory_file = match layout {
            Layout::V1(_) => "memory.limit_in_bytes",
            Layout::V2(_) => "memory.max",
        };
        Around {
            memory_bytes: least_around(layout.memory(), memory_file),
            pids: least_around(layout.pids(), "pids.max"),
        }
    }

    /// Where memory was short if a group's own limit was not reached.
    pub(super) fn shortage_around(&self, branch: Branch) -> MemoryShortage {
        let layout = &self.inner.layout;
        let memory = layout.memory();
        let builds = memory.join(Branch::Builds.folder());
        if branch == Branch::Builds && layout.was_at_limit(&builds) {
            MemoryShortage::Builds
        } else if layout.was_at_limit(memory) {
            MemoryShortage::Total
        } else {
            MemoryShortage::Outside
        }
    }
}

impl Layout {
    /// This daemon's folder with the limits of memory.
    pub(super) fn memory(&self) -> &Path {
        match self {
            Self::V1(folders) => folders.memory(),
            Self::V2(folder) => folder.path(),
        }
    }

    fn pids(&self) -> &Path {
        match self {
            Self::V1(folders) => folders.pids(),
            Self::V2(folder) => folder.path(),
        }
    }

    fn limit_memory(&self, group: &Path, bytes: u64) -> io::Result<()> {
        match self {
            Self::V1(_) => super::v1::write_memory(group, bytes),
            Self::V2(_) => super::v2::write_memory(group, bytes),
        }
        .map_err(|error| named(group, &error))
    }

    /// Whether a group with other groups in it has reached its own limit, now or earlier. In version 1 its peak shows it, which
    /// memory that could be reclaimed may have raised, too; only asked after the kernel has killed a process.
    fn was_at_limit(&self, group: &Path) -> bool {
        let number = |file: &str| {
            fs::read_to_string(group.join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        match self {
            Self::V1(_) => number("memory.limit_in_bytes")
                .zip(number("memory.max_usage_in_bytes"))
                .is_some_and(|(limit, peak): (u64, u64)| {
                    peak.saturating_add(CHARGE_BYTES_MAX) >= limit
                }),
            // Unlike memory.events, without those of the groups in it.
            Self::V2(_) => fs::read_to_string(group.join("memory.events.local"))
                .is_ok_and(|counts| counter(&counts, "oom") > 0),
        }
    }
}

/// The smallest number in this file of the groups around `group`.
fn least_around(group: &Path, file: &str) -> Option<u64> {
    let around = group.ancestors().skip(1);
    around
        .map_while(|folder| {
            // The root group of a hierarchy has no such file, and what is above it is no group.
            let text = fs::read_to_string(folder.join(file)).ok()?;
            Some(
                text.trim()
                    .parse::<u64>()
                    .ok()
                    .filter(|limit| *limit < UNLIMITED),
            )
        })
        .flatten()
        .min()
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    fs::write(file, text).map_err(|error| named(file, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Version 1 writes a number near the largest one where version 2 writes `max`.
const UNLIMITED: u64 = 1 << 60;

#[cfg(test)]
pub(super) mod tests;
