//! How many locks of files (flock(2), fcntl(2)) each sandbox holds. The kernel charges no control group for them
//! (`file_lock_cache` in fs/locks.c), and Linux has no resource limit of them any more.
//!
//! They are counted only while the machine has more than one sandbox may hold. Counting reads the descriptors of all processes in
//! sandboxes, those first that have used the most CPU time: who makes many locks uses much. A look takes little CPU time and continues
//! where the last one stopped. `/proc/locks` is not read, because the locks of all programs wait for its reader.
//!
//! A lock that several descriptors or processes share, after dup(2) or fork(2), counts for each. Not seen are locks through a file that is
//! only mapped, or only in a message on its way, and those of a thread with a table of descriptors of its own.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use pilot_model::ports::LOCKS_MAX;

use super::cpu_time;
use crate::cgroup::Cgroup;

/// What is known between two looks.
#[derive(Debug)]
pub(super) struct Locks {
    /// Of the machine, at the last look.
    machine_before: u64,
    due: Instant,
    /// Processes still to be counted, the next one last.
    left: Vec<Process>,
    /// The descriptors of the process that is being counted.
    current: Option<(u64, fs::ReadDir)>,
    /// By the number of the sandbox.
    counted: HashMap<u64, u64>,
}

#[derive(Debug)]
struct Process {
    cpu_ticks: u64,
    sandbox: u64,
    pid: u32,
}

/// A sandbox that holds more locks than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany {
    pub(super) sandbox: u64,
    pub(super) locks: u64,
}

impl Locks {
    pub(super) fn new() -> Self {
        if machine_locks().is_none() {
            // The watch begins anew when there are sandboxes again.
            SAID.call_once(|| {
                tracing::warn!(
                    "the kernel does not tell the daemon how many locks of files there are (/proc/slabinfo): functions are not limited in them"
                );
            });
        }
        Self {
            machine_before: 0,
            due: Instant::now(),
            left: Vec::new(),
            current: None,
            counted: HashMap::new(),
        }
    }

    /// Whether the machine's locks grow so fast that a look is due before the usual pause is over.
    pub(super) fn grow_fast(&self) -> bool {
        self.due <= Instant::now()
            && machine_locks().is_some_and(|locks| locks > self.machine_before + LOCKS_MAX)
    }

    /// Counts for a short time. Returns the sandboxes that turned out to hold too many. `sandboxes` has their numbers.
    pub(super) fn look(
        &mut self,
        sandboxes: impl FnOnce() -> Vec<(u64, Arc<Cgroup>)>,
    ) -> Vec<TooMany> {
        let machine = machine_locks().unwrap_or(0);
        let growth = machine.saturating_sub(self.machine_before);
        self.machine_before = machine;
        if machine <= LOCKS_MAX {
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
        let pause_per_cpu_time = if growth > LOCKS_MAX { 10 } else { 30 };
        self.due = Instant::now() + took().saturating_mul(pause_per_cpu_time);
        too_many
    }

    /// Counts the locks of one descriptor. `false`: there is none left.
    fn next_descriptor(&mut self, too_many: &mut Vec<TooMany>) -> bool {
        let Some((sandbox, descriptors)) = &mut self.current else {
            let Some(Process { sandbox, pid, .. }) = self.left.pop() else {
                return false;
            };
            let is_over = self.counted.get(&sandbox) > Some(&LOCKS_MAX);
            // A process that has ended has none.
            if !is_over && let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) {
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
        *counted += locks_of(&descriptor.path(), LOCKS_MAX + 1 - *counted);
        if *counted > LOCKS_MAX {
            too_many.push(TooMany {
                sandbox,
                locks: *counted,
            });
            self.current = None;
        }
        true
    }
}

/// The processes in them, the busiest last.
fn processes(sandboxes: Vec<(u64, Arc<Cgroup>)>) -> Vec<Process> {
    let mut processes = Vec::new();
    for (sandbox, cgroup) in sandboxes {
        let threads = cgroup.threads().into_iter();
        processes.extend(threads.filter_map(|pid| {
            Some(Process {
                cpu_ticks: cpu_ticks_of_leader(pid)?,
                sandbox,
                pid,
            })
        }));
    }
    processes.sort_unstable_by_key(|process| process.cpu_ticks);
    processes
}

/// CPU time of a process. `None` for the other threads of one, which as a rule use the same descriptors, and for one that has ended.
fn cpu_ticks_of_leader(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    if leader.trim().parse() != Ok(pid) {
        return None;
    }
    // proc_pid_stat(5). The name of the program, which comes first, may have any byte.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

/// The locks of a descriptor, but not more than `enough` (proc_pid_fdinfo(5)). Their lines follow four others, and what the kernel says of
/// a file of a special kind follows them (`seq_show` in fs/proc/fd.c).
fn locks_of(descriptor: &Path, enough: u64) -> u64 {
    let Ok(file) = File::open(descriptor) else {
        return 0;
    };
    let lines = BufReader::with_capacity(READ_BYTES, file).lines().skip(4);
    let locks = lines.take_while(|line| line.as_ref().is_ok_and(|line| line.starts_with("lock:")));
    let enough = usize::try_from(enough).unwrap_or(usize::MAX);
    locks.take(enough).count() as u64
}

/// The locks of the machine, or more where the kernel keeps other objects with them. `None` if it does not say: it says so to root.
fn machine_locks() -> Option<u64> {
    // 10 us. Not every kernel has it (`CONFIG_SLUB_DEBUG`). The other one, which is 200 us, does not show merged caches by their names.
    let total = fs::read_to_string("/sys/kernel/slab/file_lock_cache/total_objects");
    if let Ok(total) = total {
        return total.split_ascii_whitespace().next()?.parse().ok();
    }
    let caches = fs::read_to_string("/proc/slabinfo").ok()?;
    let locks = caches
        .lines()
        .find_map(|line| line.strip_prefix("file_lock_cache "))?;
    locks.split_ascii_whitespace().next()?.parse().ok()
}

/// That the machine's locks are unknown is said once.
static SAID: Once = Once::new();

/// After this, a look is over.
const LOOK_CPU_TIME_MAX: Duration = Duration::from_millis(50);

/// Enough for most descriptors, and for some hundred locks.
const READ_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn the_locks_of_a_descriptor_are_counted_as_far_as_they_matter() {
        let files: Vec<File> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        files[0].lock_shared().unwrap();
        for at in 0..50 {
            lock_byte(&files[1], at * 2);
        }
        let locks = |file: &File, enough| {
            let descriptor = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
            locks_of(Path::new(&descriptor), enough)
        };
        assert_eq!(
            files
                .iter()
                .map(|file| locks(file, 100))
                .collect::<Vec<_>>(),
            [1, 50, 0]
        );
        assert_eq!(locks(&files[1], 20), 20);
        if let Some(of_machine) = machine_locks() {
            assert!(of_machine >= 51, "{of_machine}");
        }
    }

    #[test]
    fn a_thread_is_no_process() {
        assert!(cpu_ticks_of_leader(std::process::id()).is_some());
        let other = std::thread::spawn(|| {
            cpu_ticks_of_leader(nix::unistd::gettid().as_raw().cast_unsigned())
        });
        assert_eq!(other.join().unwrap(), None);
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
