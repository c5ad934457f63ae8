//! Workers that compute for long give way to those that compute for moments: a feedback queue of two levels (Corbató et al., "An
//! experimental time-sharing system", 1962; for functions Fu et al., "SFS: Smart OS Scheduling for Serverless Functions", SC '22).
//!
//! Without it, a short call waits for the rest of a slice of 1 to 4 ms wherever another function computes without end. The kernel lets a
//! process that wakes run at once before one whose weight is much smaller.
//!
//! A worker that has computed for [`LOOK`] or longer without a beginning or an end of an invocation is *demoted*: it has a
//! hundredth of its weight. It gets it back when one begins or ends, or when it waits for something else than a CPU. If one of the
//! demoted workers gets nearly nothing, all of them have their weights until the next look: so a long invocation is held up, and
//! not for ever. The weights of all that compute for long keep their ratio, also where other programs of the machine leave little
//! to them. The group of all functions keeps its own weight.
//!
//! What a template's imports have started computes in the template's group. It gives way in the same way. Here, a fork is what an
//! exchange is for a worker, and the group keeps its weight for [`TEMPLATE_LOOKS`] after one, so that no fork is held up.
//!
//! One thread looks at all workers, and, while there are some, at templates. On the path of a request, the worker only counts.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pilot_model::cpu_limit::WEIGHT;

use super::cpu::Counters;

/// The weight of a group, and what it has used.
#[derive(Debug)]
pub(crate) struct CpuShare {
    /// `cpu.shares` or `cpu.weight`.
    file: PathBuf,
    scale: WeightScale,
    pub(super) counters: Counters,
    /// How many exchanges have begun and ended in it, or how many forks were asked of it.
    changes: AtomicU32,
    /// Changed while `weight` is held.
    demoted: AtomicBool,
    weight: Mutex<u32>,
    /// A kept runtime has the same group for all workers that it becomes. It is looked at once.
    watched: AtomicBool,
    /// How long it was throttled until the last look that asked, ns.
    throttled_ns: AtomicU64,
}

/// What a version of cgroups writes for a weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightScale {
    /// For [`WEIGHT`].
    pub usual: u64,
    /// The kernel takes no less.
    pub least: u64,
}

impl CpuShare {
    pub(super) fn new(file: PathBuf, scale: WeightScale, counters: Counters) -> Arc<Self> {
        Arc::new(Self {
            file,
            scale,
            counters,
            changes: AtomicU32::new(0),
            demoted: AtomicBool::new(false),
            weight: Mutex::new(WEIGHT),
            watched: AtomicBool::new(false),
            throttled_ns: AtomicU64::new(0),
        })
    }

    /// An exchange begins or ends in it, or its template is asked for a fork. For the path.
    pub(crate) fn exchange_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if self.demoted.load(Ordering::Relaxed) {
            self.demote(false);
        }
    }

    /// Sets the weight that its function has.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn weigh(&self, weight: u32) -> io::Result<()> {
        let mut held = self.weight.lock();
        *held = weight;
        self.write(weight, self.demoted.load(Ordering::Relaxed))
    }

    fn demote(&self, demoted: bool) {
        let weight = self.weight.lock();
        if self.demoted.swap(demoted, Ordering::Relaxed) == demoted {
            return;
        }
        // Its group may be gone.
        if let Err(error) = self.write(*weight, demoted) {
            tracing::debug!(%error, file = %self.file.display(), demoted, "the weight stays as it is");
        }
    }

    /// What it has done, if it has used so much in one look.
    fn did(&self, used: Duration, is_turn: bool) -> Did {
        let is_demoted = self.demoted.load(Ordering::Relaxed);
        if used >= LOOK / COMPUTES_PART {
            return Did::Compute;
        }
        // It waits, or others have the CPUs.
        let may_want = is_demoted || (is_turn && !used.is_zero());
        match may_want && self.wants_cpu() {
            false => Did::Other,
            true if is_demoted && used < LOOK / STARVES_PART && !self.was_throttled() => {
                Did::Starve
            }
            true => Did::Compute,
        }
    }

    /// Whether its own quota has stopped it since the last call. Its threads are then ready to run, and no weight would help.
    fn was_throttled(&self) -> bool {
        let throttled = self.counters.throttled().unwrap_or_default();
        let now = u64::try_from(throttled.as_nanos()).unwrap_or(u64::MAX);
        self.throttled_ns.swap(now, Ordering::Relaxed) < now
    }

    /// Whether one of its threads runs, or is ready to, at this moment.
    fn wants_cpu(&self) -> bool {
        // Version 2 and version 1.
        let threads = fs::read_to_string(self.file.with_file_name("cgroup.threads"))
            .or_else(|_| fs::read_to_string(self.file.with_file_name("tasks")));
        // Its group may be gone.
        let threads = threads.unwrap_or_default();
        threads.lines().take(THREADS_MAX).any(|thread| {
            // `1234 (name) R …`; the name may have any character (proc_pid_stat(5)). No file: the thread has ended.
            let stat = fs::read(format!("/proc/{thread}/stat")).unwrap_or_default();
            let name_end = stat.iter().rposition(|&byte| byte == b')');
            name_end.is_some_and(|end| stat[end..].starts_with(b") R"))
        })
    }

    fn write(&self, weight: u32, demoted: bool) -> io::Result<()> {
        let part = if demoted { DEMOTED_PART } else { 1 };
        let value = u64::from(weight) * self.scale.usual / (u64::from(WEIGHT) * part);
        fs::write(&self.file, value.max(self.scale.least).to_string())
    }
}

/// Who lives in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resident {
    /// A worker.
    Worker,
    /// A template, with what its imports have started.
    Template,
}

impl Resident {
    /// After so many looks without a change it computes for long.
    fn looks(self) -> u32 {
        match self {
            Self::Worker => 1,
            Self::Template => TEMPLATE_LOOKS,
        }
    }
}

/// Looks at workers and templates. Dropping it ends its thread.
#[derive(Debug, Default)]
pub(super) struct Demoter {
    shared: Arc<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    list: Mutex<List>,
    /// There is something new, or it is over.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    /// Not seen by the thread yet.
    new: Vec<Seen>,
    /// There is a thread.
    runs: bool,
    /// There will be none.
    over: bool,
}

impl Demoter {
    /// A worker or a template lives in this group. Another one may have lived there before.
    pub(super) fn watch(&self, share: &Arc<CpuShare>, resident: Resident) {
        if share.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut list = self.shared.list.lock();
        if list.over {
            return;
        }
        list.new.push(Seen::new(Arc::downgrade(share), resident));
        if list.runs {
            if list.new.len() == 1 {
                self.shared.changed.notify_one();
            }
            return;
        }
        list.runs = true;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("demoter".to_owned());
        if let Err(error) = thread.spawn(move || shared.run()) {
            tracing::warn!(%error, "no thread looks at how long workers compute: long invocations may delay short ones");
            *list = List {
                over: true,
                ..List::default()
            };
        }
    }
}

impl Drop for Demoter {
    fn drop(&mut self) {
        self.shared.list.lock().over = true;
        self.shared.changed.notify_one();
    }
}

impl Watched {
    fn run(&self) {
        let mut looks = Looks::default();
        loop {
            let mut list = self.list.lock();
            while !list.over && list.new.is_empty() && !looks.has_workers() {
                self.changed.wait(&mut list);
            }
            if list.over {
                return;
            }
            let new = std::mem::take(&mut list.new);
            drop(list);
            looks.seen.extend(new);
            std::thread::sleep(LOOK);
            looks.look();
        }
    }
}

/// What the thread knows.
#[derive(Debug, Default)]
struct Looks {
    seen: Vec<Seen>,
    number: usize,
}

#[derive(Debug)]
struct Seen {
    share: Weak<CpuShare>,
    resident: Resident,
    /// At the last look at it; `None`: there was none.
    changes: Option<u32>,
    /// Looks since the last change.
    unchanged: u32,
    used: Duration,
    /// It had used nothing at the last look.
    rests: bool,
    /// What it did before the last look.
    did: Did,
}

/// What a worker has done since the last look at it, with an invocation that had begun before.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Did {
    /// It waited. Or an invocation has begun or ended.
    #[default]
    Other,
    /// It computed, or would have with a CPU.
    Compute,
    /// It would have computed, and got nearly nothing, because it is demoted.
    Starve,
}

impl Seen {
    fn new(share: Weak<CpuShare>, resident: Resident) -> Self {
        Self {
            share,
            resident,
            changes: None,
            unchanged: 0,
            used: Duration::ZERO,
            rests: false,
            did: Did::default(),
        }
    }

    /// Returns whether the group is still there.
    fn look(&mut self, is_turn: bool) -> bool {
        let Some(share) = self.share.upgrade() else {
            return false;
        };
        let changes = share.changes.load(Ordering::Relaxed);
        self.unchanged = match self.changes.replace(changes) == Some(changes) {
            true => self.unchanged.saturating_add(1),
            false => 0,
        };
        let is_same = self.unchanged >= self.resident.looks();
        if is_same && self.rests && !is_turn {
            return true;
        }
        let Some(used) = share.counters.cpu().map(|cpu| cpu.total()) else {
            return false;
        };
        let more = used.saturating_sub(self.used);
        self.used = used;
        self.did = if is_same {
            share.did(more, is_turn)
        } else {
            Did::Other
        };
        self.rests = is_same && more.is_zero() && self.did == Did::Other;
        if self.did == Did::Other {
            share.demote(false);
        }
        true
    }

    fn demote(&self, demoted: bool) {
        if self.did != Did::Other
            && let Some(share) = self.share.upgrade()
        {
            // If an exchange ends at this moment, the next look gives the weight back.
            share.demote(demoted);
        }
    }
}

impl Looks {
    fn has_workers(&self) -> bool {
        self.seen
            .iter()
            .any(|seen| seen.resident == Resident::Worker)
    }

    fn look(&mut self) {
        self.number = self.number.wrapping_add(1);
        let (number, mut at) = (self.number, 0_usize);
        self.seen.retain_mut(|seen| {
            at += 1;
            seen.look((number + at) % RESTING_TURNS == 0)
        });
        let nobody_starves = self.seen.iter().all(|seen| seen.did != Did::Starve);
        for seen in &self.seen {
            seen.demote(nobody_starves);
        }
    }
}

/// How long an invocation computes before its worker gives way: between one and two of these.
const LOOK: Duration = Duration::from_millis(100);
/// How many looks a template keeps its weight after a fork was asked of it: a second, which is longer than nearly all forks take.
const TEMPLATE_LOOKS: u32 = 10;
/// Who has used this part of a look computes. Below that of a worker with `cpu = 0.25`. Who has used less waits, for a CPU or for
/// something else.
const COMPUTES_PART: u32 = 8;
/// A demoted worker that would compute and has used less than this part of a look starves.
const STARVES_PART: u32 = 32;
/// A worker that used nothing is looked at in one of so many turns: reading a counter takes 1.3 µs. So are the threads of one that
/// used little.
const RESTING_TURNS: usize = 8;
/// Most threads of a worker that are looked at, so that workers with many threads do not keep the thread that looks busy.
const THREADS_MAX: usize = 8;
/// The part of its weight that a demoted worker has. A 16th makes no difference to the others, a 64th makes some (bench/neighbours).
const DEMOTED_PART: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const V1: WeightScale = WeightScale {
        usual: 1024,
        least: 2,
    };

    struct Group {
        folder: tempfile::TempDir,
        share: Arc<CpuShare>,
        looks: Looks,
        used_ms: u64,
    }

    impl Group {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("cpuacct.usage"), "0\n").unwrap();
            fs::write(folder.path().join("cpu.shares"), "1024\n").unwrap();
            fs::write(folder.path().join("cpu.stat"), "throttled_time 0\n").unwrap();
            let counters = Counters::v1(Some(folder.path()), folder.path());
            let share = CpuShare::new(folder.path().join("cpu.shares"), V1, counters);
            let mut looks = Looks::default();
            looks
                .seen
                .push(Seen::new(Arc::downgrade(&share), Resident::Worker));
            Self {
                folder,
                share,
                looks,
                used_ms: 0,
            }
        }

        /// Another look, after it has computed for so long. Returns what its weight is.
        fn computes(&mut self, ms: u64) -> String {
            self.used_ms += ms;
            let ns = self.used_ms * 1_000_000;
            fs::write(self.folder.path().join("cpuacct.usage"), format!("{ns}\n")).unwrap();
            self.looks.look();
            self.weight()
        }

        /// For so long in all.
        fn was_throttled(&self, ms: u64) {
            let stat = format!("nr_throttled 1\nthrottled_time {}\n", ms * 1_000_000);
            fs::write(self.folder.path().join("cpu.stat"), stat).unwrap();
        }

        /// These threads live in it.
        fn has(&self, threads: &[nix::unistd::Pid]) {
            let lines: String = threads.iter().map(|thread| format!("{thread}\n")).collect();
            fs::write(self.folder.path().join("tasks"), lines).unwrap();
        }

        fn weight(&self) -> String {
            let text = fs::read_to_string(self.folder.path().join("cpu.shares")).unwrap();
            text.trim().to_owned()
        }
    }

    #[test]
    fn who_computes_for_long_gives_way_until_the_invocation_ends() {
        let mut group = Group::new();
        assert_eq!(group.computes(100), "1024", "it may have begun just now");
        assert_eq!(group.computes(100), "10");
        assert_eq!(group.computes(100), "10");
        group.share.exchange_changed();
        assert_eq!(group.weight(), "1024");
        assert_eq!(group.computes(100), "1024", "it is another invocation");
        assert_eq!(group.computes(20), "10", "also with a small share");
    }

    #[test]
    fn short_invocations_keep_their_weight_however_many_there_are() {
        let mut group = Group::new();
        for _ in 0..20 {
            group.share.exchange_changed();
            assert_eq!(group.computes(100), "1024");
        }
    }

    #[test]
    fn what_a_template_has_started_gives_way_after_a_second_without_forks() {
        let mut group = Group::new();
        group.looks.seen[0].resident = Resident::Template;
        for _ in 0..3 {
            for _ in 0..TEMPLATE_LOOKS {
                assert_eq!(group.computes(100), "1024", "it may be forking");
            }
            assert_eq!(group.computes(100), "10");
            assert_eq!(group.computes(100), "10");
            group.share.exchange_changed();
            assert_eq!(
                group.weight(),
                "1024",
                "before the template has the request"
            );
        }
        assert_eq!(group.computes(0), "1024", "it waits");
    }

    #[test]
    fn templates_alone_are_not_looked_at() {
        let mut group = Group::new();
        assert!(group.looks.has_workers());
        group.looks.seen[0].resident = Resident::Template;
        assert!(!group.looks.has_workers());
    }

    #[test]
    fn who_gets_no_cpu_or_waits_has_its_weight_back() {
        let mut group = Group::new();
        group.computes(100);
        assert_eq!(group.computes(100), "10");
        assert_eq!(group.computes(5), "1024");
        assert_eq!(group.computes(100), "10");
        for _ in 0..20 {
            assert_eq!(group.computes(0), "1024");
        }
        let looks = (0..RESTING_TURNS).map(|_| group.computes(20));
        assert!(looks.collect::<Vec<_>>().contains(&"10".to_owned()));
    }

    #[test]
    fn whom_its_own_quota_stops_does_not_starve() {
        let mut group = Group::new();
        group.has(&[nix::unistd::gettid()]);
        group.computes(100);
        assert_eq!(group.computes(100), "10");
        for number in 1..10 {
            group.was_throttled(number * 90);
            assert_eq!(group.computes(1), "10");
        }
        assert_eq!(group.computes(1), "1024", "others have the CPUs");
    }

    #[test]
    fn who_wants_more_cpu_than_it_gets_keeps_giving_way_and_does_not_starve() {
        let mut group = Group::new();
        group.has(&[nix::unistd::gettid()]);
        group.computes(100);
        assert_eq!(group.computes(100), "10");
        assert_eq!(group.computes(5), "10");
        assert_eq!(group.computes(2), "1024");
        assert_eq!(group.computes(60), "10");
        // Others leave little to it, also with its full weight.
        group.share.exchange_changed();
        let looks = (0..=RESTING_TURNS).map(|_| group.computes(5));
        assert_eq!(looks.last().unwrap(), "10");
    }

    #[test]
    fn if_one_starves_all_have_their_weights_until_the_next_look() {
        let (mut group, mut other) = (Group::new(), Group::new());
        group.looks.seen.append(&mut other.looks.seen);
        other.has(&[nix::unistd::gettid()]);
        let mut computes = |ms: u64, others_ms: u64| {
            other.used_ms += others_ms;
            let ns = other.used_ms * 1_000_000;
            fs::write(other.folder.path().join("cpuacct.usage"), ns.to_string()).unwrap();
            (group.computes(ms), other.weight())
        };
        let weights = |weight: &str| (weight.to_owned(), weight.to_owned());
        computes(100, 100);
        assert_eq!(computes(100, 100), weights("10"));
        assert_eq!(computes(100, 0), weights("1024"));
        assert_eq!(computes(100, 50), weights("10"));
    }

    #[test]
    fn threads_that_wait_want_no_cpu() {
        let mut group = Group::new();
        let (stop, waits) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                tell.send(nix::unistd::gettid()).unwrap();
                let _ = waits.recv();
            });
            let thread = told.recv().unwrap();
            let state = || fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
            while !state().contains(") S") {
                std::thread::yield_now();
            }
            group.has(&[thread]);
            group.computes(100);
            assert_eq!(group.computes(100), "10");
            assert_eq!(group.computes(5), "1024");
            drop(stop);
        });
        // One that has ended since the list was read.
        group.has(&[nix::unistd::Pid::from_raw(i32::MAX)]);
        assert!(!group.share.wants_cpu());
    }

    #[test]
    fn the_weights_of_those_that_give_way_keep_their_ratio() {
        let (mut group, mut heavy) = (Group::new(), Group::new());
        heavy.share.weigh(400).unwrap();
        for one in [&mut group, &mut heavy] {
            one.computes(100);
            one.computes(100);
        }
        assert_eq!((&*group.weight(), &*heavy.weight()), ("10", "40"));
        heavy.share.weigh(200).unwrap();
        assert_eq!(heavy.weight(), "20");
        heavy.share.exchange_changed();
        assert_eq!(heavy.weight(), "2048");
        let mut light = Group::new();
        light.share.weigh(1).unwrap();
        light.computes(100);
        assert_eq!(light.computes(100), "2", "the kernel takes no less");
    }

    #[test]
    fn the_thread_ends_with_its_demoter_and_forgets_who_is_gone() {
        let mut group = Group::new();
        let demoter = Demoter::default();
        demoter.watch(&group.share, Resident::Worker);
        let watched = Arc::weak_count(&group.share);
        demoter.watch(&group.share, Resident::Worker);
        assert!(
            Arc::weak_count(&group.share) <= watched,
            "it is another worker of the same runtime"
        );
        let shared = Arc::downgrade(&demoter.shared);
        drop(demoter);
        let ends = std::time::Instant::now() + Duration::from_secs(10);
        while shared.strong_count() > 0 {
            assert!(std::time::Instant::now() < ends);
            std::thread::sleep(Duration::from_millis(10));
        }
        group.share = Group::new().share;
        group.looks.look();
        assert!(group.looks.seen.is_empty());
    }
}
