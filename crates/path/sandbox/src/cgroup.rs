//! Control groups: one group per worker and per template, with limits on memory, CPU and processes. Version 1 and version 2,
//! whichever the machine has; their files are [`v1`]'s and [`v2`]'s to know.
//!
//! A process joins by writing `0` to the group's join files, which the daemon has opened: the kernel checks who opened
//! them (cgroup_attach_permissions() in kernel/cgroup/cgroup.c), so that the process itself needs no right.

mod v1;
mod v2;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// What the processes of a group may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory with page cache and tmpfs files, bytes. Swap is not to be used beyond it.
    pub memory_bytes: u64,
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    /// Processes and threads.
    pub pids: u32,
}

/// CPU is given in slices of this period, µs (cpu.cfs_period_us, cpu.max).
const CPU_PERIOD_US: u64 = 100_000;

/// What all groups of a daemon together weigh against the machine's other work: as much per CPU as a process of its own, which
/// is 1 in these units. Left alone, all functions would weigh as much as one process, and whatever else runs would have a worker
/// wait for milliseconds. (What Kubernetes does for its pods.)
fn weight_in_processes() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// The smallest quota the kernel takes, µs.
const CPU_QUOTA_US_MIN: u64 = 1_000;

impl Limits {
    fn cpu_quota_us(&self) -> u64 {
        (u64::from(self.cpu_milli) * CPU_PERIOD_US / 1_000).max(CPU_QUOTA_US_MIN)
    }
}

/// Where this daemon's groups lie. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    /// Folders that could not be removed yet: their last process was still going.
    leftover: Mutex<Vec<PathBuf>>,
}

#[derive(Debug)]
enum Layout {
    V1(v1::Folders),
    V2(v2::Folder),
}

impl Hierarchy {
    /// Finds the machine's control groups and makes this daemon's folder in them. Folders of daemons that are no more are
    /// removed.
    ///
    /// # Errors
    /// Why there are no limits, in words.
    pub fn probe() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let name = format!("{FOLDER_PREFIX}{}", std::process::id());
        let layout = match v1::Folders::make(&mounts, &own, &name) {
            Ok(folders) => Layout::V1(folders),
            Err(v1_problem) => match v2::Folder::make(&mounts, &own, &name) {
                Ok(folder) => Layout::V2(folder),
                Err(v2_problem) => {
                    return Err(format!("no cgroups ({v1_problem}; {v2_problem})"));
                }
            },
        };
        let inner = Inner {
            layout,
            leftover: Mutex::default(),
        };
        for base in inner.layout.folders() {
            remove_orphans(base);
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// 1 or 2.
    #[must_use]
    pub fn version(&self) -> u8 {
        match self.inner.layout {
            Layout::V1(_) => 1,
            Layout::V2(_) => 2,
        }
    }

    /// Makes a group.
    ///
    /// # Errors
    /// The kernel's; nothing is left behind.
    pub fn create(&self, name: &str, limits: &Limits) -> io::Result<Cgroup> {
        self.sweep();
        let files = match &self.inner.layout {
            Layout::V1(folders) => folders.create(name, limits),
            Layout::V2(folder) => folder.create(name, limits),
        };
        match files {
            Ok(files) => Ok(Cgroup {
                hierarchy: self.clone(),
                files,
            }),
            Err(error) => {
                for base in self.inner.layout.folders() {
                    let _ = fs::remove_dir(base.join(name));
                }
                Err(error)
            }
        }
    }

    /// Tries again to remove what was still busy. True: nothing is left.
    pub fn sweep(&self) -> bool {
        let mut leftover = self.inner.leftover.lock();
        leftover.retain(|folder| !remove(folder));
        leftover.is_empty()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for folder in self.leftover.get_mut().iter().chain(self.layout.folders()) {
            remove(folder);
        }
    }
}

impl Layout {
    fn folders(&self) -> &[PathBuf] {
        match self {
            Self::V1(folders) => folders.all(),
            Self::V2(folder) => folder.all(),
        }
    }
}

const FOLDER_PREFIX: &str = "pilotlight-";

/// Removes the folders of daemons that have ended, beside `base`.
fn remove_orphans(base: &Path) {
    let Some(entries) = base.parent().and_then(|parent| fs::read_dir(parent).ok()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name
            .to_str()
            .and_then(|name| name.strip_prefix(FOLDER_PREFIX))
        else {
            continue;
        };
        if Path::new("/proc").join(pid).exists() {
            continue;
        }
        for group in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(group.path());
        }
        let _ = fs::remove_dir(entry.path());
    }
}

/// Removes a group's folder; true when it is gone. Its files are the kernel's and go with it.
fn remove(folder: &Path) -> bool {
    match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// One group. Dropping it removes it, at the latest when its last process has ended.
#[derive(Debug)]
pub struct Cgroup {
    hierarchy: Hierarchy,
    files: Files,
}

/// The files of a group that are used again and again.
#[derive(Debug)]
struct Files {
    /// Its name below this daemon's folders.
    name: String,
    /// Its folders, one per hierarchy.
    folders: Vec<PathBuf>,
    /// Written to by the process that joins.
    join: Vec<OwnedFd>,
    /// Lists the processes.
    processes: PathBuf,
    /// Highest memory use so far.
    peak: PathBuf,
    /// Has a line `oom_kill N`.
    oom: PathBuf,
}

impl Cgroup {
    /// The files a process writes `0` to.
    #[must_use]
    pub fn join_files(&self) -> &[OwnedFd] {
        &self.files.join
    }

    /// The processes in it, as the daemon sees them.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        fs::read_to_string(&self.files.processes)
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect()
    }

    /// Highest memory use so far, bytes, where the kernel keeps it.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(&self.files.peak)
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// How often the kernel killed a process of it for want of memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        fs::read_to_string(&self.files.oom)
            .unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Changes the limits of what runs in it.
    ///
    /// # Errors
    /// The kernel's: `ResourceBusy` for less memory than is in use. Some limits may be changed by then.
    pub fn set_limits(&self, limits: &Limits) -> io::Result<()> {
        match &self.hierarchy.inner.layout {
            Layout::V1(folders) => folders.limit(&self.files, limits),
            Layout::V2(folder) => folder.limit(&self.files, limits),
        }
    }

    /// Begins a new use: the highest memory use is forgotten where the kernel can.
    pub fn reset(&self) {
        let _ = fs::write(&self.files.peak, "0");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.files.join.clear();
        let busy = self
            .files
            .folders
            .drain(..)
            .filter(|folder| !remove(folder));
        self.hierarchy.inner.leftover.lock().extend(busy);
    }
}

fn open_to_write(path: &Path) -> io::Result<OwnedFd> {
    let file: File = OpenOptions::new().write(true).open(path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests;
