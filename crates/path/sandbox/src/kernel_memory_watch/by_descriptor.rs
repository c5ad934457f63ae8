//! How many locks and leases of files (flock(2), fcntl(2)), watches of epoll(7) and open folders of overlays each sandbox holds. The
//! kernel charges no control group for locks (`file_lock_cache` in fs/locks.c), and Linux has no resource limit of them any more. Watches
//! are charged, but an event goes through all watches of its descriptor with interrupts off (`ep_poll_callback` in fs/eventpoll.c). For
//! an open folder that is in both layers of an overlay, the kernel keeps a list of its names that it charges to nobody
//! (`ovl_dir_cache` in fs/overlayfs/readdir.c). Each descriptor can have a list of its own.
//!
//! They are counted only while the machine has more than one sandbox may hold. How many lists of names it has is not known: as many as
//! there is room for in what the kernel has more than before. Counting reads the descriptors of all processes in
//! sandboxes, those first that have used the most CPU time: who makes many uses much. A look takes little CPU time and continues
//! where the last one stopped. `/proc/locks` is not read, because the locks of all programs wait for its reader.
//!
//! What several descriptors or processes share, after dup(2) or fork(2), counts for each. Not seen are locks through a file that is
//! only mapped, what is only in a message on its way, and what belongs to a thread with a table of descriptors of its own.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use pilot_model::ports::{EPOLL_WATCHES_MAX, LOCKS_MAX, MemoryShortage, OVERLAY_FOLDERS_MAX};

use super::cpu_time;
use crate::cgroup::Cgroup;
use crate::living_thread;

/// What is known between two looks.
#[derive(Debug)]
pub(super) struct ByDescriptor {
    /// Of the machine, at the last look.
    machine_before: Counts,
    /// Memory that the kernel cannot free, at the last time when no sandbox was found to hold too many folders, or less. Bytes.
    unreclaimable_usual: u64,
    /// The same when the current count began.
    unreclaimable_at_begin: u64,
    due: Instant,
    /// Processes still to be counted, the next one last.
    left: Vec<Process>,
    /// The descriptors of the process that is being counted.
    current: Option<Descriptors>,
    /// By the number of the sandbox.
    counted: HashMap<u64, Counts>,
}

/// By kind, as in [`KINDS`].
type Counts = [u64; KINDS.len()];

/// What descriptors hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// How many a sandbox may hold.
    pub(super) most: u64,
    /// Why a sandbox with more is ended.
    pub(super) shortage: MemoryShortage,
    seen_in: SeenIn,
}

/// What tells that there are objects of a kind.
#[derive(Debug, PartialEq, Eq)]
enum SeenIn {
    Lines {
        /// How its lines in `/proc/PID/fdinfo/N` begin (proc_pid_fdinfo(5)).
        begin: &'static str,
        /// The kernel's caches of these objects. A kernel need not have those after the first one.
        caches: &'static [&'static str],
    },
    OverlayFolders,
}

/// The kind of [`SeenIn::OverlayFolders`] in [`KINDS`].
const FOLDERS: usize = 2;

const KINDS: [Kind; 3] = [
    Kind {
        name: "locks of files",
        most: LOCKS_MAX,
        shortage: MemoryShortage::TooManyLocks,
        seen_in: SeenIn::Lines {
            begin: "lock:",
            // Leases (`F_SETLEASE` of fcntl(2)) are in the first one before Linux 6.9.
            caches: &["file_lock_cache", "file_lease_cache"],
        },
    },
    Kind {
        name: "watches of epoll",
        most: EPOLL_WATCHES_MAX,
        shortage: MemoryShortage::TooManyWatches,
        seen_in: SeenIn::Lines {
            begin: "tfd:",
            caches: &["eventpoll_epi"],
        },
    },
    Kind {
        name: "open folders of /tmp and /dev/shm",
        most: OVERLAY_FOLDERS_MAX,
        shortage: MemoryShortage::TooManyFolders,
        seen_in: SeenIn::OverlayFolders,
    },
];

/// The descriptors of a process that are not counted yet.
#[derive(Debug)]
struct Descriptors {
    sandbox: u64,
    left: fs::ReadDir,
    /// The overlays that it sees, by the number of the mount. Empty while folders are not counted.
    overlays: Vec<u64>,
}

#[derive(Debug)]
struct Process {
    cpu_ticks: u64,
    sandbox: u64,
    pid: u32,
}

/// A sandbox that holds more of a kind than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany {
    pub(super) sandbox: u64,
    pub(super) count: u64,
    pub(super) kind: &'static Kind,
}

impl ByDescriptor {
    pub(super) fn new() -> Self {
        let unreclaimable = unreclaimable_bytes();
        if KINDS[..FOLDERS]
            .iter()
            .any(|kind| of_machine(kind).is_none())
        {
            // The watch begins anew when there are sandboxes again.
            SAID.call_once(|| {
                tracing::warn!(
                    "the kernel does not tell the daemon how many locks of files and watches of epoll there are (/proc/slabinfo): functions are \
                     not limited in them"
                );
            });
        }
        Self {
            machine_before: Counts::default(),
            unreclaimable_usual: unreclaimable,
            unreclaimable_at_begin: unreclaimable,
            due: Instant::now(),
            left: Vec::new(),
            current: None,
            counted: HashMap::new(),
        }
    }

    /// Whether the machine's number grows so fast that a look is due before the usual pause is over.
    pub(super) fn grows_fast(&self) -> bool {
        self.due <= Instant::now() && self.has_grown(self.machine(unreclaimable_bytes()))
    }

    /// What the machine has. 0 of a kind of which the kernel does not say it.
    fn machine(&self, unreclaimable: u64) -> Counts {
        let more_bytes = unreclaimable.saturating_sub(self.unreclaimable_usual);
        KINDS.each_ref().map(|kind| match kind.seen_in {
            SeenIn::Lines { .. } => of_machine(kind).unwrap_or(0),
            SeenIn::OverlayFolders => more_bytes / LIST_BYTES,
        })
    }

    fn has_grown(&self, machine: Counts) -> bool {
        let growth = (0..KINDS.len()).map(|at| machine[at].saturating_sub(self.machine_before[at]));
        first_over(growth).is_some()
    }

    /// Counts for a short time. Returns the sandboxes that turned out to hold too many. `sandboxes` has their numbers.
    pub(super) fn look(
        &mut self,
        sandboxes: impl FnOnce() -> Vec<(u64, Arc<Cgroup>)>,
    ) -> Vec<TooMany> {
        let unreclaimable = unreclaimable_bytes();
        self.unreclaimable_usual = self.unreclaimable_usual.min(unreclaimable);
        let machine = self.machine(unreclaimable);
        let has_grown = self.has_grown(machine);
        self.machine_before = machine;
        if first_over(machine).is_none() {
            (self.left, self.current) = (Vec::new(), None);
            return Vec::new();
        }
        if self.due > Instant::now() {
            return Vec::new();
        }
        let before = cpu_time();
        if self.left.is_empty() && self.current.is_none() {
            self.counted.clear();
            self.left = processes(sandboxes());
            self.unreclaimable_at_begin = unreclaimable;
        }
        let took = || cpu_time().saturating_sub(before);
        let mut too_many = Vec::new();
        while took() < LOOK_CPU_TIME_MAX && self.next_descriptor(&mut too_many) {}
        if self.left.is_empty() && self.current.is_none() && !self.has_too_many_folders() {
            // What the kernel has more is something else.
            self.unreclaimable_usual = self.unreclaimable_at_begin;
        }
        let pause_per_cpu_time = if has_grown { 10 } else { 30 };
        self.due = Instant::now() + took().saturating_mul(pause_per_cpu_time);
        too_many
    }

    fn has_too_many_folders(&self) -> bool {
        let most = KINDS[FOLDERS].most;
        self.counted.values().any(|counted| counted[FOLDERS] > most)
    }

    /// Counts what one descriptor holds. `false`: there is none left.
    fn next_descriptor(&mut self, too_many: &mut Vec<TooMany>) -> bool {
        let Some(current) = &mut self.current else {
            let Some(Process { sandbox, pid, .. }) = self.left.pop() else {
                return false;
            };
            let counted = self.counted.get(&sandbox).copied().unwrap_or_default();
            // A process that has ended has none.
            if first_over(counted).is_none() {
                let with_folders = self.machine_before[FOLDERS] > KINDS[FOLDERS].most;
                self.current = Descriptors::of(sandbox, pid, with_folders);
            }
            return true;
        };
        let sandbox = current.sandbox;
        let Some(Ok(descriptor)) = current.left.next() else {
            self.current = None;
            return true;
        };
        let counted = self.counted.entry(sandbox).or_default();
        count_in(&descriptor.path(), &current.overlays, counted);
        if let Some(at) = first_over(*counted) {
            too_many.push(TooMany {
                sandbox,
                count: counted[at],
                kind: &KINDS[at],
            });
            self.current = None;
        }
        true
    }
}

impl Descriptors {
    /// `None`: the process has ended.
    fn of(sandbox: u64, pid: u32, with_folders: bool) -> Option<Self> {
        let thread = living_thread::folder(pid)?;
        let mounts = match with_folders {
            true => fs::read_to_string(thread.join("mountinfo")).ok()?,
            false => String::new(),
        };
        Some(Self {
            sandbox,
            left: fs::read_dir(thread.join("fdinfo")).ok()?,
            overlays: mounts.lines().filter_map(overlay_in).collect(),
        })
    }
}

/// The number of a mount, if it is of an overlay, in a line of proc_pid_mountinfo(5).
fn overlay_in(line: &str) -> Option<u64> {
    let (mount, file_system) = line.split_once(" - ")?;
    file_system
        .starts_with("overlay ")
        .then(|| first_number(mount))?
}

/// The first kind of which there are more than a sandbox may hold.
fn first_over(counts: impl IntoIterator<Item = u64>) -> Option<usize> {
    let mut with_kinds = counts.into_iter().zip(&KINDS);
    with_kinds.position(|(count, kind)| count > kind.most)
}

/// The processes in them, the busiest last.
fn processes(sandboxes: Vec<(u64, Arc<Cgroup>)>) -> Vec<Process> {
    let mut processes = Vec::new();
    let mut seen = HashSet::new();
    for (sandbox, cgroup) in sandboxes {
        let threads = cgroup.threads().into_iter();
        let new = threads
            .filter_map(process_of)
            .filter(|pid| seen.insert(*pid));
        processes.extend(new.map(|pid| Process {
            cpu_ticks: cpu_ticks(pid).unwrap_or(0),
            sandbox,
            pid,
        }));
    }
    processes.sort_unstable_by_key(|process| process.cpu_ticks);
    processes
}

/// The process that a thread is of. `None`: it has ended. The threads of a process as a rule use the same descriptors.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    process.trim().parse().ok()
}

/// CPU time of all threads of a process.
fn cpu_ticks(pid: u32) -> Option<u64> {
    // proc_pid_stat(5). The name of the program, which comes first, may have any byte.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

/// Adds what a descriptor holds, until there is too much of a kind. `descriptor` is its file in `fdinfo`.
fn count_in(descriptor: &Path, overlays: &[u64], counted: &mut Counts) {
    let Ok(file) = File::open(descriptor) else {
        return;
    };
    let mut lines = BufReader::with_capacity(READ_BYTES, file).lines();
    for line in lines.by_ref().take(HEAD_LINES).map_while(Result::ok) {
        let mount = line.strip_prefix("mnt_id:").and_then(first_number);
        if mount.is_some_and(|mount| overlays.contains(&mount)) && is_folder(descriptor) {
            counted[FOLDERS] += 1;
        }
    }
    for line in lines {
        let kind = line
            .ok()
            .and_then(|line| KINDS.iter().position(|kind| kind.is_in(&line)));
        let Some(kind) = kind else {
            return;
        };
        counted[kind] += 1;
        if counted[kind] > KINDS[kind].most {
            return;
        }
    }
}

impl Kind {
    fn is_in(&self, line: &str) -> bool {
        matches!(self.seen_in, SeenIn::Lines { begin, .. } if line.starts_with(begin))
    }
}

/// Whether an open file of an overlay is a folder. Such files are in memory, so that this does not wait.
fn is_folder(descriptor: &Path) -> bool {
    let file = descriptor
        .parent()
        .and_then(Path::parent)
        .zip(descriptor.file_name());
    file.is_some_and(|(thread, name)| thread.join("fd").join(name).is_dir())
}

/// Memory of the kernel's objects that it cannot free, bytes (proc_meminfo(5)). 0 where it does not say.
fn unreclaimable_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut lines = meminfo.lines();
    let kib = lines.find_map(|line| first_number(line.strip_prefix("SUnreclaim:")?));
    kib.unwrap_or(0) << 10
}

/// The number of the machine, or more where the kernel keeps other objects with them. `None` if it does not say: it says so to root, and
/// not of all kinds.
fn of_machine(kind: &Kind) -> Option<u64> {
    // 10 us each. Not every kernel has them (`CONFIG_SLUB_DEBUG`). The other file, which is 200 us, does not show merged caches by their
    // names.
    let in_cache = |cache: &str| {
        let total = fs::read_to_string(format!("/sys/kernel/slab/{cache}/total_objects")).ok()?;
        first_number(&total)
    };
    sum(kind, in_cache).or_else(|| in_table(kind, &fs::read_to_string("/proc/slabinfo").ok()?))
}

/// The same of the table of all caches (slabinfo(5)).
fn in_table(kind: &Kind, slabinfo: &str) -> Option<u64> {
    sum(kind, |cache| {
        let mut lines = slabinfo.lines();
        lines.find_map(|line| first_number(line.strip_prefix(cache)?.strip_prefix(' ')?))
    })
}

fn sum(kind: &Kind, in_cache: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let SeenIn::Lines { caches, .. } = kind.seen_in else {
        return None;
    };
    let (first, others) = caches.split_first()?;
    let others = others.iter().filter_map(|cache| in_cache(cache));
    Some(in_cache(first)? + others.sum::<u64>())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// That the machine's numbers are unknown is said once.
static SAID: Once = Once::new();

/// After this, a look is over.
const LOOK_CPU_TIME_MAX: Duration = Duration::from_millis(50);

/// Of about 65,000 names, which are all that one of these folders can have: longer names take more, shorter ones less.
const LIST_BYTES: u64 = 16 << 20;

/// Lines that each descriptor has (`seq_show` in fs/proc/fd.c).
const HEAD_LINES: usize = 4;

/// Enough for most descriptors, and for some hundred locks.
const READ_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// What a descriptor holds, beside what was counted before.
    fn held(descriptor: &impl AsRawFd, mut counted: Counts) -> Counts {
        let file = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        count_in(Path::new(&file), &[], &mut counted);
        counted
    }

    #[test]
    fn the_locks_of_a_descriptor_are_counted_as_far_as_they_matter() {
        let files: Vec<File> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        files[0].lock_shared().unwrap();
        for at in 0..50 {
            lock_byte(&files[1], at * 2);
        }
        let locks: Vec<_> = files.iter().map(|file| held(file, [0, 7, 0])).collect();
        assert_eq!(locks, [[1, 7, 0], [50, 7, 0], [0, 7, 0]]);
        assert_eq!(
            held(&files[1], [LOCKS_MAX - 20, 0, 0]),
            [LOCKS_MAX + 1, 0, 0]
        );
        if let Some(of_machine) = of_machine(&KINDS[0]) {
            assert!(of_machine >= 51, "{of_machine}");
        }
    }

    #[test]
    fn the_watches_of_a_descriptor_are_counted_as_far_as_they_matter() {
        let head = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n";
        let watch =
            "tfd:        4 events:       1b data:                4  pos:0 ino:c5da sdev:e\n";
        let lines = head.to_owned() + &watch.repeat(50);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), lines).unwrap();
        let held = |mut counted| {
            count_in(file.path(), &[], &mut counted);
            counted
        };
        assert_eq!(held([3, 0, 0]), [3, 50, 0]);
        assert_eq!(
            held([0, EPOLL_WATCHES_MAX, 0]),
            [0, EPOLL_WATCHES_MAX + 1, 0]
        );
    }

    #[test]
    fn leases_count_as_locks_do_whichever_cache_they_are_in() {
        let header = "# name            <active_objs> <num_objs> <objsize>\n";
        let locks = "file_lock_ctx          70    146     56\nfile_lock_cache    257    336    192   21    1\n";
        let leases = "file_lease_cache   30000    30025    160   25    1\n";
        let [of_locks, ..] = &KINDS;
        assert_eq!(in_table(of_locks, &format!("{header}{locks}")), Some(257));
        assert_eq!(
            in_table(of_locks, &format!("{header}{leases}{locks}")),
            Some(30_257)
        );
        assert_eq!(in_table(of_locks, header), None);
    }

    #[test]
    fn a_thread_is_of_its_process() {
        let own = std::process::id();
        assert!(cpu_ticks(own).is_some());
        let other =
            std::thread::spawn(|| process_of(nix::unistd::gettid().as_raw().cast_unsigned()));
        assert_eq!(other.join().unwrap(), Some(own));
    }

    #[test]
    fn the_locks_of_a_process_whose_first_thread_has_ended_are_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (mut child, pid) = living_thread::tests::without_first_thread(file.path());
        let descriptors = Descriptors::of(0, pid, false).unwrap().left.flatten();
        let mut counted = Counts::default();
        descriptors.for_each(|one| count_in(&one.path(), &[], &mut counted));
        assert_eq!(counted[0], 20);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn the_open_folders_of_overlays_are_counted() {
        let lines = "22 1 0:20 / /proc rw - proc proc rw\n\
                     93 22 0:41 / /tmp rw,nosuid - overlay overlay rw,lowerdir=.,upperdir=/tmp/upper\n\
                     94 22 0:42 / /overlay rw - tmpfs overlay rw\n";
        assert_eq!(
            lines.lines().filter_map(overlay_in).collect::<Vec<_>>(),
            [93]
        );
        let folder = tempfile::tempdir().unwrap();
        let (open, file) = (
            File::open(folder.path()).unwrap(),
            tempfile::tempfile().unwrap(),
        );
        let mount = |file: &File| {
            let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
            let lines = fs::read_to_string(path).unwrap();
            let mut lines = lines.lines();
            lines
                .find_map(|line| first_number(line.strip_prefix("mnt_id:")?))
                .unwrap()
        };
        let held = |file: &File, overlays: &[u64]| {
            let mut counted = Counts::default();
            let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
            count_in(Path::new(&path), overlays, &mut counted);
            counted[FOLDERS]
        };
        assert_eq!(held(&open, &[mount(&open)]), 1);
        assert_eq!(held(&open, &[mount(&open) + 1]), 0);
        assert_eq!(held(&file, &[mount(&file)]), 0, "no folder");
    }

    #[test]
    fn the_kernels_memory_is_suspicious_by_its_growth_and_only_until_everything_was_counted() {
        let mut held = ByDescriptor::new();
        let usual = unreclaimable_bytes();
        assert!(usual > 0);
        held.unreclaimable_usual = usual;
        let lists = |held: &ByDescriptor, more| held.machine(usual + more)[FOLDERS];
        assert_eq!(lists(&held, 0), 0);
        assert_eq!(lists(&held, 5 * LIST_BYTES), 5);
        // As if it had grown since.
        held.unreclaimable_usual = usual.saturating_sub(20 * LIST_BYTES);
        assert_eq!(held.look(Vec::new), []);
        assert!(held.unreclaimable_usual > usual.saturating_sub(10 * LIST_BYTES));
    }

    fn lock_byte(file: &File, at: i64) {
        let lock = libc::flock {
            l_type: i16::try_from(libc::F_WRLCK).unwrap(),
            l_whence: 0,
            l_start: at,
            l_len: 1,
            l_pid: 0,
        };
        nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETLK(&lock)).unwrap();
    }
}
