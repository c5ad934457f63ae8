//! A container's cgroup as the host sees it: memory, its peak, kills at the limit, and processes. What cannot be found or read
//! (another cgroup root, missing rights) is left out; it is never an error.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use pilot_model::ports::MemoryShortage;

/// The cgroup folders of a container.
#[derive(Debug)]
pub(crate) struct Counters {
    memory: Option<Memory>,
    /// `cpuacct` of cgroup v1.
    cpu: Option<PathBuf>,
    /// Everything below the daemon, if the container is in that group.
    total: Option<PathBuf>,
}

#[derive(Debug)]
enum Memory {
    V1(PathBuf),
    V2 {
        dir: PathBuf,
        /// `memory.peak`, whose resets count for this descriptor alone (Documentation/admin-guide/cgroup-v2.rst, since Linux 6.12).
        peak: Option<Mutex<File>>,
    },
}

impl Memory {
    fn dir(&self) -> &Path {
        match self {
            Self::V1(dir) | Self::V2 { dir, .. } => dir,
        }
    }
}

/// How often memory was short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shortages {
    /// Processes that the kernel killed.
    kills: u64,
    /// Version 2: times that the own limit was reached and nothing could be reclaimed.
    own: u64,
}

impl Counters {
    /// For the container that contains this process of the host. `group`: the group of all containers of the daemon, which is in
    /// the group of everything below it.
    pub(crate) fn of(pid: Option<u32>, group: Option<&str>) -> Self {
        let lines = pid
            .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok())
            .unwrap_or_default();
        let mut counters = Self::from_lines(&lines, Path::new("/sys/fs/cgroup"));
        if group.is_some_and(|group| has_memory_in(&lines, group)) {
            let own = counters.memory.as_ref().map(Memory::dir);
            counters.total = own
                .and_then(|own| own.ancestors().nth(2))
                .map(Path::to_owned);
        }
        counters
    }

    /// `lines` have the format of `/proc/PID/cgroup`, see cgroups(7).
    fn from_lines(lines: &str, root: &Path) -> Self {
        let v1 = |controller: &str| {
            let dir = lines.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                controllers
                    .split(',')
                    .any(|name| name == controller)
                    .then(|| root.join(controllers).join(path.trim_start_matches('/')))
            })?;
            dir.is_dir().then_some(dir)
        };
        let v2 = || {
            let path = lines.lines().find_map(|line| line.strip_prefix("0::/"))?;
            let dir = root.join(path);
            dir.join("memory.events").is_file().then(|| Memory::V2 {
                peak: OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(dir.join("memory.peak"))
                    .ok()
                    .map(Mutex::new),
                dir,
            })
        };
        Self {
            memory: v1("memory").map(Memory::V1).or_else(v2),
            cpu: v1("cpuacct"),
            total: None,
        }
    }

    /// How often memory was short so far.
    pub(crate) fn shortages(&self) -> Shortages {
        let file = match &self.memory {
            Some(Memory::V1(dir)) => dir.join("memory.oom_control"),
            Some(Memory::V2 { dir, .. }) => dir.join("memory.events"),
            None => return Shortages::default(),
        };
        let text = fs::read_to_string(file).unwrap_or_default();
        let count = |name| {
            text.lines()
                .find_map(|line: &str| line.strip_prefix(name)?.trim().parse().ok())
                .unwrap_or(0)
        };
        Shortages {
            kills: count("oom_kill "),
            own: count("oom "),
        }
    }

    /// Whether the kernel has killed a process in it since `before` because memory was short, and where it was short.
    pub(crate) fn shortage_since(&self, before: Shortages) -> Option<MemoryShortage> {
        let now = self.shortages();
        if now.kills <= before.kills {
            return None;
        }
        let own = match &self.memory {
            // Version 1 does not count how often its own limit was reached; its peak is at the limit then. Without one of the two
            // numbers, the own limit is the usual cause.
            Some(Memory::V1(dir)) => number(&dir.join("memory.limit_in_bytes"))
                .zip(self.peak())
                .is_none_or(|(limit, peak)| peak.saturating_add(CHARGE_BYTES_MAX) >= limit),
            _ => now.own > before.own,
        };
        Some(if own {
            MemoryShortage::Own
        } else if self.total.as_deref().is_some_and(was_at_limit) {
            MemoryShortage::Total
        } else {
            MemoryShortage::Outside
        })
    }

    /// The peak since [`Counters::reset`], bytes.
    pub(crate) fn peak(&self) -> Option<u64> {
        match &self.memory {
            Some(Memory::V1(dir)) => number(&dir.join("memory.max_usage_in_bytes")),
            Some(Memory::V2 { peak, .. }) => {
                let mut file = peak.as_ref()?.lock();
                let mut text = String::new();
                file.rewind().ok()?;
                file.read_to_string(&mut text).ok()?;
                text.trim().parse().ok()
            }
            None => None,
        }
    }

    /// Proportional set size of all processes in it, bytes; the cgroup's usage if that cannot be read.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let (dir, charge) = match &self.memory {
            Some(Memory::V1(dir)) => (dir, "memory.usage_in_bytes"),
            Some(Memory::V2 { dir, .. }) => (dir, "memory.current"),
            None => return 0,
        };
        let members = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let sizes: Option<Vec<u64>> = members.lines().map(pss_bytes).collect();
        match sizes {
            Some(sizes) if !sizes.is_empty() => sizes.iter().sum(),
            _ => number(&dir.join(charge)).unwrap_or(0),
        }
    }

    /// Resets the counters that the kernel allows to reset.
    pub(crate) fn reset(&self) {
        let zero = |file: PathBuf| drop(fs::write(file, "0"));
        match &self.memory {
            Some(Memory::V1(dir)) => {
                zero(dir.join("memory.max_usage_in_bytes"));
                zero(dir.join("memory.failcnt"));
            }
            Some(Memory::V2 {
                peak: Some(peak), ..
            }) => drop(peak.lock().write(b"reset")),
            _ => {}
        }
        if let Some(dir) = &self.cpu {
            zero(dir.join("cpuacct.usage"));
        }
    }
}

/// Whether this process of the host is below a group of the hierarchy that limits memory.
pub(crate) fn is_in(pid: u32, group: &str) -> bool {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    has_memory_in(&lines, group)
}

/// `lines` have the format of `/proc/PID/cgroup`.
fn has_memory_in(lines: &str, group: &str) -> bool {
    let fields = lines.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let (v1, v2): (Vec<_>, Vec<_>) = fields
        .filter(|(names, _)| names.is_empty() || names.split(',').any(|name| name == "memory"))
        .partition(|(names, _)| !names.is_empty());
    v1.first()
        .or(v2.first())
        .is_some_and(|(_, path)| Path::new(path).starts_with(group))
}

/// Whether a group with other groups in it has reached its own limit, now or earlier. Only asked after the kernel has killed a
/// process.
fn was_at_limit(group: &Path) -> bool {
    let reached = fs::read_to_string(group.join("memory.events.local"));
    if let Ok(counts) = reached {
        let mut counts = counts.lines();
        return counts.any(|line| line.strip_prefix("oom ").is_some_and(|count| count != "0"));
    }
    number(&group.join("memory.limit_in_bytes"))
        .zip(number(&group.join("memory.max_usage_in_bytes")))
        .is_some_and(|(limit, peak)| peak.saturating_add(CHARGE_BYTES_MAX) >= limit)
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Of one process; 0 if it has ended. `None`: this process may not read it.
fn pss_bytes(pid: &str) -> Option<u64> {
    match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(text) => text
            .lines()
            .find_map(|line| line.strip_prefix("Pss:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
            .map(|kib| kib * 1024),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(0),
    }
}

/// The kernel charges at most so much at once (a huge page), so the peak at the limit may be this much lower.
const CHARGE_BYTES_MAX: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_found_by_its_controllers_and_reset() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory/docker/c1");
        let cpu = root.path().join("cpu,cpuacct/docker/c1");
        for dir in [&memory, &cpu] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(
            memory.join("memory.oom_control"),
            "under_oom 0\noom_kill 3\n",
        )
        .unwrap();
        fs::write(memory.join("memory.max_usage_in_bytes"), "4096\n").unwrap();
        fs::write(cpu.join("cpuacct.usage"), "77\n").unwrap();
        let lines = "5:memory:/docker/c1\n4:cpu,cpuacct:/docker/c1\n0::/docker/c1\n";

        let counters = Counters::from_lines(lines, root.path());

        assert_eq!(counters.shortages().kills, 3);
        let before = Shortages { kills: 2, own: 0 };
        let limit = |bytes: u64| {
            fs::write(memory.join("memory.limit_in_bytes"), bytes.to_string()).unwrap();
        };
        limit(4096);
        assert_eq!(counters.shortage_since(before), Some(MemoryShortage::Own));
        limit(64 << 20);
        assert_eq!(
            counters.shortage_since(before),
            Some(MemoryShortage::Outside)
        );
        assert_eq!(counters.shortage_since(counters.shortages()), None);
        assert_eq!(counters.peak(), Some(4096));
        counters.reset();
        assert_eq!(counters.peak(), Some(0));
        assert_eq!(fs::read_to_string(cpu.join("cpuacct.usage")).unwrap(), "0");
    }

    #[test]
    fn version_2_is_found_where_there_is_no_other() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("system.slice/docker-c1.scope");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("memory.events"), "oom 2\noom_kill 1\n").unwrap();
        fs::write(dir.join("memory.current"), "8192\n").unwrap();

        let counters = Counters::from_lines("0::/system.slice/docker-c1.scope\n", root.path());

        let before = |own| Shortages { kills: 0, own };
        assert_eq!(
            counters.shortage_since(before(1)),
            Some(MemoryShortage::Own)
        );
        assert_eq!(
            counters.shortage_since(before(2)),
            Some(MemoryShortage::Outside)
        );
        assert_eq!(counters.shortage_since(counters.shortages()), None);
        assert_eq!(counters.memory_bytes(), 8192);
        assert_eq!(counters.peak(), None);
    }

    #[test]
    fn the_group_around_a_container_is_seen() {
        let both = "5:memory:/a/containers/c1\n4:pids:/b/c1\n0::/b\n";
        assert!(has_memory_in(both, "/a/containers"));
        assert!(!has_memory_in(both, "/b"));
        assert!(!has_memory_in(both, "/a/cont"));
        assert!(has_memory_in("0::/b/c1\n", "/b"));
        assert!(!has_memory_in("", "/b"));
    }

    #[test]
    fn what_cannot_be_found_is_left_out() {
        let counters = Counters::of(None, Some("/a"));
        assert_eq!((counters.shortages().kills, counters.peak()), (0, None));
        counters.reset();
    }
}
