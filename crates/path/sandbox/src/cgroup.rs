//! Cgroups: one per worker, per template and per build, with limits on memory, CPU and processes. Version 1 or version 2, whichever
//! the machine has; [`v1`] and [`v2`] know their files.
//!
//! ```text
//! pilotlightd-PID-RANDOM/  everything below the daemon, with the limits of all together; the daemon itself is not in it
//!   sN/                    a template, a worker or a runtime
//!   builds/                all builds, with a limit of memory of their own
//!     sN/                  a build
//!   containers/            all containers; their engine makes it and the groups in it
//! ```
//!
//! A daemon holds a lock on its folders (flock(2)), which the kernel releases when it ends, however it ends. So the next one knows
//! which folders are of daemons that have ended, also where PID namespaces differ.
//!
//! A process joins by writing `0` to the group's join files, which the daemon has opened. The kernel checks the rights of the
//! opener (cgroup_attach_permissions() in kernel/cgroup/cgroup.c), so the process needs none.

mod cpu;
mod demotion;
mod ended;
mod freezer;
mod pressure;
mod rest;
mod total;
mod v1;
mod v2;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::ports::MemoryShortage;
use pilot_model::{CpuTime, Rest};

use self::demotion::Demoter;
use self::ended::EndedGroups;
use crate::daemon_id::DaemonId;

pub(crate) use self::demotion::{CpuShare, Resident};
pub(crate) use self::ended::{LeftBehind, Owner};
pub use self::total::{Around, TotalLimits};

/// The limits for all processes of a group together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory including page cache and tmpfs files, bytes. No swap beyond it.
    pub memory_bytes: u64,
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    /// Period of the CPU quota, µs (cpu.cfs_period_us, cpu.max).
    pub cpu_period_us: u64,
    /// Its part when CPUs are short, relative to other groups beside it: as cgroup v2's `cpu.weight`.
    pub cpu_weight: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Whether its processes can be frozen, if the machine can.
    pub freezable: bool,
}

/// The kernel's default period of a CPU quota, µs.
pub(crate) const CPU_PERIOD_US: u64 = 100_000;

/// The CPU weight of all groups of a daemon together, relative to one ordinary process: one per CPU. With the default, all
/// functions together would weigh as much as one process, and a busy machine would delay workers by milliseconds. (Kubernetes
/// does the same for its pods.)
fn weight_in_processes() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// The smallest quota that the kernel accepts, µs.
const CPU_QUOTA_US_MIN: u64 = 1_000;

impl Limits {
    fn cpu_quota_us(&self) -> u64 {
        (u64::from(self.cpu_milli) * self.cpu_period_us / 1_000).max(CPU_QUOTA_US_MIN)
    }
}

/// The cgroup folders of this daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    inner: Arc<Inner>,
}

/// What a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Branch {
    /// Templates, workers and runtimes.
    Functions,
    /// Builds, which share a limit.
    Builds,
}

impl Branch {
    /// The folder of its groups, below this daemon's; empty: that one itself.
    fn folder(self) -> &'static str {
        match self {
            Self::Functions => "",
            Self::Builds => "builds",
        }
    }
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    /// Says that the daemon runs.
    _locks: Vec<File>,
    /// Folders that could not be removed yet, because their last process had not ended.
    leftover: Mutex<Vec<PathBuf>>,
    /// Of functions, whose memory may not be free yet.
    ended: EndedGroups,
    demoter: Demoter,
}

#[derive(Debug)]
enum Layout {
    V1(v1::Folders),
    V2(v2::Folder),
}

impl Hierarchy {
    /// Finds the machine's cgroups and creates this daemon's folder in them. Removes folders of daemons that have ended.
    ///
    /// # Errors
    /// Why there are no limits, as text.
    pub(crate) fn probe(daemon: DaemonId) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let name = format!("{FOLDER_PREFIX}{}", daemon.long('-'));
        let make = || match v1::Folders::make(&mounts, &own, &name) {
            Ok(folders) => Ok(Layout::V1(folders)),
            Err(v1_problem) => v2::Folder::make(&mounts, &own, &name)
                .map(Layout::V2)
                .map_err(|v2_problem| format!("no cgroups ({v1_problem}; {v2_problem})")),
        };
        let begin = || {
            let layout = make()?;
            let locks = lock(layout.folders())?;
            Ok::<_, String>((layout, locks))
        };
        // Daemons that start at the same time remove folders that are not locked yet.
        let mut begun = begin();
        for _ in 1..ATTEMPTS {
            if begun.is_ok() {
                break;
            }
            begun = begin();
        }
        let (layout, locks) = begun?;
        let inner = Inner {
            layout,
            _locks: locks,
            leftover: Mutex::default(),
            ended: EndedGroups::default(),
            demoter: Demoter::default(),
        };
        let mut leftover = Vec::new();
        for base in inner.layout.folders() {
            leftover.extend(remove_orphans(base, lock_of_ended));
        }
        // Where only an engine makes folders, nobody has locked them. They are of an ended daemon if its own folder is gone.
        let around = inner.layout.folders().first().and_then(|own| own.parent());
        for base in inner.layout.engines() {
            leftover.extend(remove_orphans(base, |folder| {
                let own = around.zip(folder.file_name());
                let is_gone = own.is_some_and(|(around, name)| !around.join(name).exists());
                is_gone.then_some(())
            }));
        }
        // A process that the kernel has killed may take seconds to end, because its memory is given back first.
        *inner.leftover.lock() = leftover;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The version: 1 or 2.
    #[must_use]
    pub fn version(&self) -> u8 {
        match self.inner.layout {
            Layout::V1(_) => 1,
            Layout::V2(_) => 2,
        }
    }

    /// Whether groups can be frozen.
    #[must_use]
    pub fn freezes(&self) -> bool {
        match &self.inner.layout {
            Layout::V1(folders) => folders.freezes(),
            Layout::V2(_) => true,
        }
    }

    /// The folder for containers, from the root of the hierarchy that limits memory. It has the limits of everything below the
    /// daemon.
    #[must_use]
    pub fn for_containers(&self) -> &Path {
        match &self.inner.layout {
            Layout::V1(folders) => folders.containers(),
            Layout::V2(folder) => folder.containers(),
        }
    }

    /// Creates a group.
    ///
    /// # Errors
    /// The kernel's; nothing is left behind.
    pub fn create(&self, branch: Branch, name: &str, limits: &Limits) -> io::Result<Cgroup> {
        self.sweep();
        let name = Path::new(branch.folder()).join(name);
        let files = match &self.inner.layout {
            Layout::V1(folders) => folders.create(&name, limits),
            Layout::V2(folder) => folder.create(&name, limits),
        };
        let weighed = |files: Files| {
            // A new group has it already. Writing is on the path of a cold request.
            if limits.cpu_weight != WEIGHT {
                files.share.weigh(limits.cpu_weight)?;
            }
            Ok(files)
        };
        match files.and_then(weighed) {
            Ok(files) => Ok(Cgroup {
                hierarchy: self.clone(),
                branch,
                files,
                limits: Mutex::new(*limits),
                before: Mutex::default(),
                rested: Mutex::new(None),
                owner: Mutex::new(None),
                blamed: Mutex::new(None),
            }),
            Err(error) => {
                for base in self.inner.layout.folders() {
                    let _ = fs::remove_dir(base.join(&name));
                }
                Err(error)
            }
        }
    }

    /// Tries again to remove folders that were busy. Returns whether none is left.
    pub fn sweep(&self) -> bool {
        let mut leftover = self.inner.leftover.lock();
        leftover.retain(|folder| !remove(folder));
        leftover.is_empty()
    }

    /// Whether no group is left below the daemon's: of a sandbox, of a build, or one that an engine has made for a container. It
    /// tries again to remove those that were busy.
    pub fn is_vacant(&self) -> bool {
        self.remove_ended() && self.sweep() && self.inner.bases().all(|base| has_no_groups(base))
    }
}

impl Inner {
    /// The daemon's folder in each hierarchy.
    fn bases(&self) -> impl Iterator<Item = &PathBuf> {
        let folders = self.layout.folders().iter();
        folders.chain(self.layout.engines())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for folder in self.leftover.get_mut().iter() {
            remove(folder);
        }
        self.ended.remove_all();
        for base in self.bases() {
            remove(&base.join(Branch::Builds.folder()));
            remove(&base.join(CONTAINERS));
            remove(base);
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

    /// This daemon's folder in the hierarchies that only engines use.
    fn engines(&self) -> &[PathBuf] {
        match self {
            Self::V1(folders) => folders.engines(),
            Self::V2(_) => &[],
        }
    }
}

/// The group for containers in a daemon's folder, from the root of the hierarchy.
fn for_containers(folder: &Path, mount: &Path) -> PathBuf {
    let own = folder.strip_prefix(mount).unwrap_or(folder);
    Path::new("/").join(own).join(CONTAINERS)
}

/// The folder of the groups of containers, below a daemon's.
const CONTAINERS: &str = "containers";

/// Levels of groups below a daemon's folder.
const DEPTH_MAX: u32 = 3;

/// Bytes of a list of some hundred processes.
const LIST_LEN_USUAL: usize = 2048;
/// How often a daemon makes its folders.
const ATTEMPTS: u32 = 20;
const FOLDER_PREFIX: &str = "pilotlightd-";
/// Of older versions, which take every folder with this prefix for one of theirs.
const OLDER_PREFIX: &str = "pilotlight-";

/// Removes the folders of ended daemons next to `base`. `ended` returns what keeps such a folder until it is removed. Returns those
/// that still have processes, the inner ones first.
fn remove_orphans<T>(base: &Path, ended: impl Fn(&Path) -> Option<T>) -> Vec<PathBuf> {
    let mut busy = Vec::new();
    let Some(entries) = base.parent().and_then(|parent| fs::read_dir(parent).ok()) else {
        return busy;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        if let Some(pid) = name.strip_prefix(OLDER_PREFIX) {
            // A daemon of an older version has only its process id in the name, and no lock.
            if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
                remove_tree(&path, DEPTH_MAX, &mut busy);
            }
        } else if name.starts_with(FOLDER_PREFIX)
            && path != base
            && let Some(_kept) = ended(&path)
        {
            remove_tree(&path, DEPTH_MAX, &mut busy);
        }
    }
    busy
}

/// Locks this daemon's folders for as long as it runs. Fails if another daemon has removed one.
fn lock(folders: &[PathBuf]) -> Result<Vec<File>, String> {
    let locks = folders.iter().map(|folder| {
        let lock = || -> io::Result<File> {
            let file = File::open(folder)?;
            file.lock_shared()?;
            folder.metadata().map(|_| file)
        };
        lock().map_err(|error| format!("{}: {error}", folder.display()))
    });
    locks.collect()
}

/// The lock of this folder, if no daemon holds it. A daemon that has just made the folder waits for it, and then finds the folder gone.
fn lock_of_ended(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    file.try_lock().ok()?;
    Some(file)
}

/// Removes a group and the groups in it, the inner ones first. Those with processes stay, and are added to `busy`.
fn remove_tree(group: &Path, depth_max: u32, busy: &mut Vec<PathBuf>) {
    if depth_max > 0 {
        let inner = fs::read_dir(group).into_iter().flatten().flatten();
        for entry in inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            remove_tree(&entry.path(), depth_max - 1, busy);
        }
    }
    if !remove(group) {
        busy.push(group.to_owned());
    }
}

/// Whether there are no groups below a daemon's folder, except for the empty ones that hold others.
fn has_no_groups(base: &Path) -> bool {
    let shared = [Branch::Builds.folder(), CONTAINERS];
    let groups = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    };
    groups(base).all(|group| {
        let name = group.file_name();
        shared.iter().any(|shared| name == *shared) && groups(&group.path()).next().is_none()
    })
}

/// Removes a group's folder and returns whether it is gone. The kernel removes the files in it.
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
    branch: Branch,
    files: Files,
    /// As last set.
    limits: Mutex<Limits>,
    /// What was counted when this use of the group began: CPU time, and time for which it was throttled.
    before: Mutex<(CpuTime, Duration)>,
    /// How its processes rest. Taken before `limits`.
    rested: Mutex<Option<Rest>>,
    /// The function that it belongs to, if any.
    owner: Mutex<Option<Owner>>,
    /// Why the daemon has ended its processes, if it has.
    blamed: Mutex<Option<MemoryShortage>>,
}

/// The paths and files of a group that are used repeatedly.
#[derive(Debug)]
struct Files {
    /// Its path below this daemon's folders.
    name: PathBuf,
    /// Its folders, one per hierarchy.
    folders: Vec<PathBuf>,
    /// The files to which a joining process writes.
    join: Vec<OwnedFd>,
    /// Lists the processes. Open, because reading it is on the path of a cold request: 3 us instead of 15.
    processes: File,
    /// Peak memory use; open for the same reason. `None`: the kernel does not record it.
    peak: Option<File>,
    /// Has a line `oom_kill N`. In version 2 also a line `oom N`.
    oom: PathBuf,
    /// How to tell whose limit was reached.
    own_limit: OwnLimit,
    share: Arc<CpuShare>,
    /// `cgroup.freeze`. `None`: it cannot be frozen.
    freeze: Option<File>,
}

/// How a group shows that it has reached its own memory limit, and not a group around it or the machine.
#[derive(Debug)]
enum OwnLimit {
    /// `oom N` of `memory.events` counts the times that this group's own limit was reached and nothing could be reclaimed
    /// (mem_cgroup_oom() in mm/memcontrol.c).
    Counted,
    /// Version 1 does not count them. The peak is then at the limit in this file.
    ByPeak(PathBuf),
}

impl Cgroup {
    /// A worker or a template lives in it: from here on it gives way to others while it computes for long.
    pub(crate) fn watch(&self, resident: Resident) -> Arc<CpuShare> {
        let demoter = &self.hierarchy.inner.demoter;
        demoter.watch(&self.files.share, resident);
        Arc::clone(&self.files.share)
    }

    /// The files to which a process writes `0` to join.
    #[must_use]
    pub fn join_files(&self) -> &[OwnedFd] {
        &self.files.join
    }

    /// Process ids of its processes, in the daemon's PID namespace.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let (mut text, mut len) = (vec![0; LIST_LEN_USUAL], 0);
        // An error means that there are no more.
        while let Ok(read @ 1..) = self.files.processes.read_at(&mut text[len..], len as u64) {
            len += read;
            text.resize(len + LIST_LEN_USUAL, 0);
        }
        String::from_utf8_lossy(&text[..len])
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect()
    }

    /// The threads in it, for who looks again and again. Version 1 keeps the list of an open file as it is while somebody reads it more
    /// than once a second (`cgroup_pidlist_start` in kernel/cgroup/cgroup-v1.c), so this neither has one open nor reads the list that
    /// [`Self::processes`] does.
    pub(crate) fn threads(&self) -> Vec<u32> {
        threads_in(self.files.oom.parent().unwrap_or(Path::new("")))
    }

    /// Peak memory use, bytes, if the kernel records it.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        let mut digits = [0; 24];
        let len = self.files.peak.as_ref()?.read_at(&mut digits, 0).ok()?;
        str::from_utf8(&digits[..len]).ok()?.trim().parse().ok()
    }

    /// How many of its processes the kernel has killed because memory was short.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let counts = fs::read_to_string(&self.files.oom).unwrap_or_default();
        counter(&counts, "oom_kill")
    }

    /// The limit of its memory, bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.limits.lock().memory_bytes
    }

    /// The daemon ends its processes. From here on this is its shortage.
    pub(crate) fn blame(&self, shortage: MemoryShortage) {
        *self.blamed.lock() = Some(shortage);
    }

    /// Whether the daemon has ended its processes.
    pub(crate) fn is_blamed(&self) -> bool {
        self.blamed.lock().is_some()
    }

    /// Whether the kernel has killed one of its processes because memory was short, and where it was short. `oom_kill` counts
    /// the victims in this group, whoever had too much.
    #[must_use]
    pub fn shortage(&self) -> Option<MemoryShortage> {
        if let Some(shortage) = *self.blamed.lock() {
            return Some(shortage);
        }
        let counts = fs::read_to_string(&self.files.oom).unwrap_or_default();
        if counter(&counts, "oom_kill") == 0 {
            return None;
        }
        let own = match &self.files.own_limit {
            OwnLimit::Counted => counter(&counts, "oom") > 0,
            OwnLimit::ByPeak(limit) => {
                let limit = fs::read_to_string(limit).ok();
                let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
                // Without one of the two, the limit of the group itself is the usual cause.
                limit
                    .zip(self.peak_bytes())
                    .is_none_or(|(limit, peak)| peak.saturating_add(CHARGE_BYTES_MAX) >= limit)
            }
        };
        Some(if own {
            MemoryShortage::Own
        } else {
            self.hierarchy.shortage_around(self.branch)
        })
    }

    /// Changes the limits of a running group.
    ///
    /// # Errors
    /// The kernel's: `ResourceBusy` for less memory than is in use. Some limits may already be changed then.
    pub fn set_limits(&self, limits: &Limits) -> io::Result<()> {
        let before = std::mem::replace(&mut *self.limits.lock(), *limits);
        if before.cpu_weight != limits.cpu_weight {
            self.files.share.weigh(limits.cpu_weight)?;
        }
        self.write_limits(limits)
    }

    fn write_limits(&self, limits: &Limits) -> io::Result<()> {
        match &self.hierarchy.inner.layout {
            Layout::V1(folders) => folders.limit(&self.files, limits),
            Layout::V2(folder) => folder.limit(&self.files, limits),
        }
    }

    /// Starts a new use: CPU time counts from here on, and so does the peak if the kernel supports it.
    pub fn reset(&self) {
        if let Some(peak) = &self.files.peak {
            let _ = peak.write_at(b"0", 0);
        }
        self.reset_cpu();
        *self.blamed.lock() = None;
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.files.join.clear();
        if self.end() {
            return;
        }
        let busy = self
            .files
            .folders
            .drain(..)
            .filter(|folder| !remove(folder));
        self.hierarchy.inner.leftover.lock().extend(busy);
    }
}

/// The threads in the group with this folder. Not its processes: `/proc` shows nothing of one whose first thread has ended, which
/// version 2 lists all the same (`css_task_iter_advance` in kernel/cgroup/cgroup.c).
fn threads_in(folder: &Path) -> Vec<u32> {
    let read = |file| fs::read_to_string(folder.join(file));
    let text = read("tasks").or_else(|_| read("cgroup.threads"));
    let text = text.unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A line `NAME N` of a group's file; 0 if there is none.
fn counter(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(' ')?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// The kernel charges at most so much at once (a huge page), so the peak of a group at its limit may be this much lower.
const CHARGE_BYTES_MAX: u64 = 2 << 20;

/// Opens the file of a peak, which newer kernels allow to reset by writing.
fn open_peak(path: &Path) -> Option<File> {
    let both = OpenOptions::new().read(true).write(true).open(path);
    both.or_else(|_| File::open(path)).ok()
}

fn open_to_write(path: &Path) -> io::Result<OwnedFd> {
    let file: File = OpenOptions::new().write(true).open(path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests;
