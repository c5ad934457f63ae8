//! How short the memory of everything below the daemon is: what the kernel says of stalls (PSI, Documentation/accounting/psi.rst),
//! where it does, and how much of the group's limit is in use. Only the daemon's own group counts. Whether other programs of the
//! machine are short of memory does not, because ending functions may not help them.

use std::fs;
use std::path::Path;

use pilot_model::ports::MemoryPressure;

use super::{Hierarchy, Layout, counter};

impl Hierarchy {
    /// How short it is. [`MemoryPressure::None`] if the kernel does not say.
    #[must_use]
    pub fn memory_pressure(&self) -> MemoryPressure {
        let group = self.inner.layout.memory();
        let used = self.inner.layout.used_percent(group);
        let by_use = used.map_or(MemoryPressure::None, |percent| {
            of(percent, USED_PERCENT_HIGH, USED_PERCENT_CRITICAL)
        });
        let stalls = fs::read_to_string(group.join("memory.pressure"));
        by_use.max(stalls.map_or(MemoryPressure::None, |text| by_stalls(&text)))
    }
}

impl Layout {
    /// Memory in use, without files that were not used lately, in per cent of the limit.
    fn used_percent(&self, group: &Path) -> Option<u64> {
        let (used, limit, unused) = match self {
            Self::V1(_) => (
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
                "total_inactive_file",
            ),
            Self::V2(_) => ("memory.current", "memory.max", "inactive_file"),
        };
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let (used, limit) = (number(used)?, number(limit)?);
        let unused = counter(&read("memory.stat")?, unused);
        used.saturating_sub(unused)
            .saturating_mul(100)
            .checked_div(limit)
    }
}

/// What the shares of the last ten seconds say in which some processes, or all, waited for memory.
fn by_stalls(text: &str) -> MemoryPressure {
    let share = |kind: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(kind))?;
        let mut words = line.split_whitespace();
        let share = words.find_map(|word| word.strip_prefix("avg10="))?;
        share.parse::<f64>().ok()
    };
    if share("full ").is_some_and(|percent| percent >= STALLED_PERCENT) {
        MemoryPressure::Critical
    } else if share("some ").is_some_and(|percent| percent >= STALLED_PERCENT) {
        MemoryPressure::High
    } else {
        MemoryPressure::None
    }
}

fn of(percent: u64, high: u64, critical: u64) -> MemoryPressure {
    if percent >= critical {
        MemoryPressure::Critical
    } else if percent >= high {
        MemoryPressure::High
    } else {
        MemoryPressure::None
    }
}

const USED_PERCENT_HIGH: u64 = 90;
const USED_PERCENT_CRITICAL: u64 = 97;
/// A fifth of the time is lost.
const STALLED_PERCENT: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::super::total::tests::hierarchy;
    use super::super::{tests, v1, v2};
    use super::*;

    /// The kernel's files of a group with this many bytes in use and in files that were not used lately, of 1,000.
    fn fill(group: &Path, names: [&str; 3], used: u64, unused: u64) {
        let [usage, limit, inactive] = names;
        let file = |name: &str, text: String| fs::write(group.join(name), text).unwrap();
        file(usage, format!("{used}\n"));
        file(limit, "1000\n".to_owned());
        file("memory.stat", format!("cache 7\n{inactive} {unused}\n"));
    }

    #[test]
    fn memory_in_use_without_files_that_can_be_dropped_is_compared_with_the_limit() {
        let root = tempfile::tempdir().unwrap();
        let (mounts, own) = tests::v1_tree(root.path());
        let folders = v1::Folders::make(&mounts, &own, "pilotlight-1").unwrap();
        let one = (
            folders.memory().to_owned(),
            hierarchy(Layout::V1(folders)),
            [
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
                "total_inactive_file",
            ],
        );
        let root = tempfile::tempdir().unwrap();
        let (mounts, own) = tests::recorded_v2_tree(root.path());
        let folder = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap();
        let two = (
            folder.path().to_owned(),
            hierarchy(Layout::V2(folder)),
            ["memory.current", "memory.max", "inactive_file"],
        );
        for (group, ours, names) in [one, two] {
            assert_eq!(ours.memory_pressure(), MemoryPressure::None, "no files");
            for (used, unused, expected) in [
                (899, 0, MemoryPressure::None),
                (900, 0, MemoryPressure::High),
                (1000, 101, MemoryPressure::None),
                (1000, 50, MemoryPressure::High),
                (1000, 30, MemoryPressure::Critical),
            ] {
                fill(&group, names, used, unused);
                assert_eq!(ours.memory_pressure(), expected, "{used} {unused}");
            }
            fill(&group, names, 1, 0);
            let stalled = "some avg10=25.00 avg60=1 avg300=0 total=9\nfull avg10=0.10 total=1\n";
            fs::write(group.join("memory.pressure"), stalled).unwrap();
            assert_eq!(ours.memory_pressure(), MemoryPressure::High);
        }
    }

    #[test]
    fn stalls_of_all_processes_are_worse_than_stalls_of_some() {
        for (some, full, expected) in [
            ("0.00", "0.00", MemoryPressure::None),
            ("19.99", "5.00", MemoryPressure::None),
            ("20.00", "19.99", MemoryPressure::High),
            ("90.00", "20.00", MemoryPressure::Critical),
            ("x", "x", MemoryPressure::None),
        ] {
            let text = format!(
                "some avg10={some} avg60=99.00 avg300=99.00 total=1\nfull avg10={full} avg60=99.00 avg300=99.00 total=1\n"
            );
            assert_eq!(by_stalls(&text), expected, "{text}");
        }
        assert_eq!(by_stalls(""), MemoryPressure::None);
    }
}
