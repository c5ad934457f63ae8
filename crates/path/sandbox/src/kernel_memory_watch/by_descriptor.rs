//! How many locks and leases of files (flock(2), fcntl(2)) and how many watches of epoll(7) each sandbox holds. The kernel charges no
//! control group for locks (`file_lock_cache` in fs/locks.c), and Linux has no resource limit of them any more. Watches are charged, but
//! an event goes through all watches of its descriptor with interrupts off (`ep_poll_callback` in fs/eventpoll.c).
//!
//! They are counted only while the machine has more than one sandbox may hold. Counting reads the descriptors of all processes in
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

use pilot_model::ports::{EPOLL_WATCHES_MAX, LOCKS_MAX, MemoryShortage};

use super::cpu_time;
use crate::cgroup::Cgroup;
use crate::living_thread;

/// What is known between two looks.
#[derive(Debug)]
pub(super) struct ByDescriptor {
    /// Of the machine, at the last look.
    machine_before: Counts,
    due: Instant,
    /// Processes still to be counted, the next one last.
    left: Vec<Process>,
    /// The descriptors of the process that is being counted.
    current: Option<(u64, fs::ReadDir)>,
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
    /// How its lines in `/proc/PID/fdinfo/N` begin (proc_pid_fdinfo(5)).
    line: &'static str,
    /// The kernel's caches of these objects. A kernel need not have those after the first one.
    caches: &'static [&'static str],
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "locks of files",
        most: LOCKS_MAX,
        shortage: MemoryShortage::TooManyLocks,
        line: "lock:",
        // Leases (`F_SETLEASE` of fcntl(2)) are in the first one before Linux 6.9.
        caches: &["file_lock_cache", "file_lease_cache"],
    },
    Kind {
        name: "watches of epoll",
        most: EPOLL_WATCHES_MAX,
        shortage: MemoryShortage::TooManyWatches,
        line: "tfd:",
        caches: &["eventpoll_epi"],
    },
];

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
        if KINDS.iter().any(|kind| of_machine(kind).is_none()) {
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
            due: Instant::now(),
            left: Vec::new(),
            current: None,
            counted: HashMap::new(),
        }
    }

    /// Whether the machine's number grows so fast that a look is due before the usual pause is over.
    pub(super) fn grows_fast(&self) -> bool {
        self.due <= Instant::now() && self.has_grown(machine())
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
        let machine = machine();
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
        }
        let took = || cpu_time().saturating_sub(before);
        let mut too_many = Vec::new();
        while took() < LOOK_CPU_TIME_MAX && self.next_descriptor(&mut too_many) {}
        let pause_per_cpu_time = if has_grown { 10 } else { 30 };
        self.due = Instant::now() + took().saturating_mul(pause_per_cpu_time);
        too_many
    }

    /// Counts what one descriptor holds. `false`: there is none left.
    fn next_descriptor(&mut self, too_many: &mut Vec<TooMany>) -> bool {
        let Some((sandbox, descriptors)) = &mut self.current else {
            let Some(Process { sandbox, pid, .. }) = self.left.pop() else {
                return false;
            };
            let counted = self.counted.get(&sandbox).copied().unwrap_or_default();
            // A process that has ended has none.
            if first_over(counted).is_none()
                && let Some(descriptors) = descriptors_of(pid)
            {
                self.current = Some((sandbox, descriptors));
            }
            return true;
        };
        let sandbox = *sandbox;
        let Some(Ok(descriptor)) = descriptors.next() else {
            self.current = None;
            return true;
        };
        let counted = self.counted.entry(sandbox).or_default();
        count_in(&descriptor.path(), counted);
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

fn descriptors_of(pid: u32) -> Option<fs::ReadDir> {
    let thread = living_thread::folder(pid)?;
    fs::read_dir(thread.join("fdinfo")).ok()
}

/// Adds what a descriptor holds, until there is too much of a kind. Its lines follow four others (`seq_show` in fs/proc/fd.c).
fn count_in(descriptor: &Path, counted: &mut Counts) {
    let Ok(file) = File::open(descriptor) else {
        return;
    };
    for line in BufReader::with_capacity(READ_BYTES, file).lines().skip(4) {
        let kind = line
            .ok()
            .and_then(|line| KINDS.iter().position(|kind| line.starts_with(kind.line)));
        let Some(kind) = kind else {
            return;
        };
        counted[kind] += 1;
        if counted[kind] > KINDS[kind].most {
            return;
        }
    }
}

/// What the machine has. 0 of a kind of which the kernel does not say it.
fn machine() -> Counts {
    KINDS.each_ref().map(|kind| of_machine(kind).unwrap_or(0))
}

/// The number of the machine, or more where the kernel keeps other objects with them. `None` if it does not say: it says so to root.
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
    let (first, others) = kind.caches.split_first()?;
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

/// Enough for most descriptors, and for some hundred locks.
const READ_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// What a descriptor holds, beside what was counted before.
    fn held(descriptor: &impl AsRawFd, mut counted: Counts) -> Counts {
        let file = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        count_in(Path::new(&file), &mut counted);
        counted
    }

    #[test]
    fn the_locks_of_a_descriptor_are_counted_as_far_as_they_matter() {
        let files: Vec<File> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        files[0].lock_shared().unwrap();
        for at in 0..50 {
            lock_byte(&files[1], at * 2);
        }
        let locks: Vec<_> = files.iter().map(|file| held(file, [0, 7])).collect();
        assert_eq!(locks, [[1, 7], [50, 7], [0, 7]]);
        assert_eq!(held(&files[1], [LOCKS_MAX - 20, 0]), [LOCKS_MAX + 1, 0]);
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
            count_in(file.path(), &mut counted);
            counted
        };
        assert_eq!(held([3, 0]), [3, 50]);
        assert_eq!(held([0, EPOLL_WATCHES_MAX]), [0, EPOLL_WATCHES_MAX + 1]);
    }

    #[test]
    fn leases_count_as_locks_do_whichever_cache_they_are_in() {
        let header = "# name            <active_objs> <num_objs> <objsize>\n";
        let locks = "file_lock_ctx          70    146     56\nfile_lock_cache    257    336    192   21    1\n";
        let leases = "file_lease_cache   30000    30025    160   25    1\n";
        let [of_locks, _] = &KINDS;
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
        let descriptors = descriptors_of(pid).unwrap().flatten();
        let mut counted = Counts::default();
        descriptors.for_each(|one| count_in(&one.path(), &mut counted));
        assert_eq!(counted[0], 20);
        drop(child.stdin.take());
        child.wait().unwrap();
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
