//! `cpu_limit.enforcement = "precise"`: a worker that serves is stopped as soon as it is ahead of its CPU share, and for as long as
//! it is ahead. So an invocation that needs C of CPU time takes about C ÷ `cpu` (Equation 2 of the paper without its steps). The
//! kernel's quota gives a whole period's share at once, and takes it back at a tick.
//!
//! One thread for all workers reads their CPU clocks when they can first be ahead, and freezes them (`cgroup.freeze`), which no
//! process can escape. The kernel's quota, a little larger, is the backstop: it also limits workers that the thread does not see,
//! because they are between invocations, or because the machine is too busy to run it.
//!
//! Slices begin short, so that short invocations are exact, and grow with what the invocation has used, so that long ones are cheap
//! (decision 0032). [`Budget`] is the arithmetic; it reads no clock.

mod budget;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pilot_sys::clock::{monotonic_ns, process_cpu_ns};

use self::budget::{Budget, Next};
use crate::cgroup::Cgroup;

/// Paces workers. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct Pacer {
    shared: Arc<PacerQueue>,
}

#[derive(Debug, Default)]
struct PacerQueue {
    /// Guards what is paced and when it is due. Never held while a group is stopped or read.
    queue: Mutex<Queue>,
    /// The thread has something to do earlier than it knows.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Nanoseconds, and the number. Numbers that are paced no more are skipped.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    paced: HashMap<u64, Arc<Mutex<Paced>>>,
    next_number: u64,
    runs: bool,
    ended: bool,
}

/// A worker that serves.
#[derive(Debug)]
struct Paced {
    cgroup: Arc<Cgroup>,
    /// Its first processes when it began.
    processes: Vec<u32>,
    budget: Budget,
    stopped: bool,
    /// How long it was stopped in all.
    stops: Arc<Stops>,
    /// It is paced no more.
    over: bool,
}

/// A worker is paced until this is dropped. It runs then.
#[derive(Debug)]
pub(crate) struct Pace {
    shared: Arc<PacerQueue>,
    number: u64,
    paced: Arc<Mutex<Paced>>,
}

impl Pacer {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::default(),
        }
    }

    /// Holds the processes of a group to this share, thousandths of a CPU. `None`: their CPU time cannot be read, or there is no thread
    /// for it.
    pub(crate) fn pace(
        &self,
        cgroup: Arc<Cgroup>,
        cpu_milli: u32,
        stops: Arc<Stops>,
    ) -> Option<Pace> {
        let mut processes = cgroup.processes();
        processes.truncate(PROCESSES_READ_MAX);
        let used = used_ns(&cgroup, &processes)?;
        let now = monotonic_ns();
        let budget = Budget::new(cpu_milli, now, used);
        let first = match budget.next() {
            Next::Run(ns) | Next::Stop(ns) => now.saturating_add(ns),
        };
        let paced = Arc::new(Mutex::new(Paced {
            cgroup,
            processes,
            budget,
            stopped: false,
            stops,
            over: false,
        }));
        let mut queue = self.shared.queue.lock();
        if !queue.runs {
            queue.runs = self.start();
        }
        if !queue.runs {
            return None;
        }
        let number = queue.next_number;
        queue.next_number += 1;
        queue.paced.insert(number, Arc::clone(&paced));
        queue.due.push(Reverse((first, number)));
        drop(queue);
        self.shared.changed.notify_one();
        Some(Pace {
            shared: Arc::clone(&self.shared),
            number,
            paced,
        })
    }

    fn start(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("pacer".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = pilot_sys::process::run_before_others() {
                tracing::debug!(%error, "the pacer has the priority of other threads: \"precise\" is less so on a busy machine");
            }
            while shared.turn() {}
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread paces workers: only the kernel's quota limits them");
        }
        started.is_ok()
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.queue.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.shared.queue.lock().paced.remove(&self.number);
        let mut paced = self.paced.lock();
        paced.over = true;
        if std::mem::take(&mut paced.stopped) {
            paced.stops.end(monotonic_ns());
            paced.run();
        }
    }
}

impl PacerQueue {
    /// Does what is due, or waits. False: it is over.
    fn turn(&self) -> bool {
        let mut queue = self.queue.lock();
        if queue.ended {
            return false;
        }
        let now = monotonic_ns();
        // The thread has a priority above all others, so it must leave them most of a CPU, however many workers it paces.
        let least_ns = queue.paced.len() as u64 * SHARE_NS;
        let (number, paced) = match queue.due.peek() {
            None => {
                self.changed.wait(&mut queue);
                return true;
            }
            Some(Reverse((at, _))) if *at > now => {
                let pause = Duration::from_nanos(at.saturating_sub(now));
                self.changed.wait_for(&mut queue, pause);
                return true;
            }
            Some(&Reverse((_, number))) => {
                queue.due.pop();
                let Some(paced) = queue.paced.get(&number) else {
                    return true;
                };
                (number, Arc::clone(paced))
            }
        };
        drop(queue);
        let next = paced.lock().step(least_ns);
        if let Some(at) = next {
            self.queue.lock().due.push(Reverse((at, number)));
        }
        true
    }
}

impl Paced {
    /// Stops it or lets it run. Returns when to look again, in `least_ns` or later; `None`: never.
    fn step(&mut self, least_ns: u64) -> Option<u64> {
        if self.over {
            return None;
        }
        // The group may be gone with its worker.
        let used = used_ns(&self.cgroup, &self.processes)?;
        let now = monotonic_ns();
        self.budget.account(now, used);
        let next = self.budget.next();
        match next {
            Next::Stop(_) if !self.stopped => {
                self.stopped = self.cgroup.stop().is_ok();
                if !self.stopped {
                    return None;
                }
                self.stops.begin(now);
            }
            Next::Run(_) if self.stopped => {
                self.stopped = false;
                self.stops.end(now);
                self.run();
            }
            Next::Stop(_) | Next::Run(_) => {}
        }
        let (Next::Stop(ns) | Next::Run(ns)) = next;
        Some(now.saturating_add(ns.max(least_ns)))
    }

    fn run(&self) {
        if let Err(error) = self.cgroup.go_on() {
            tracing::warn!(%error, "a worker that was stopped for its CPU limit cannot be let run: it ends with its timeout");
        }
    }
}

/// CPU time of the group, nanoseconds. The kernel adds up what a running process uses only at its ticks, unless somebody reads that
/// process's own clock (task_sched_runtime() in kernel/sched/core.c). Not of all processes: a function may have very many.
fn used_ns(cgroup: &Cgroup, processes: &[u32]) -> Option<u64> {
    for pid in processes {
        let _ = process_cpu_ns(*pid);
    }
    u64::try_from(cgroup.cpu()?.total().as_nanos()).ok()
}

/// Processes of a group whose clocks are read. What others use is seen at the next tick.
const PROCESSES_READ_MAX: usize = 4;
/// Each paced worker is looked at, stopped or let run at most once in this time multiplied by their number. That takes about 10 to 40 µs.
const SHARE_NS: u64 = 50_000;

/// For how long a worker was stopped, over all its exchanges. Read by others while its group is stopped and let run.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    ended_ns: AtomicU64,
    /// When the present stop began, on the monotonic clock; 0: it runs.
    began_ns: AtomicU64,
}

impl Stops {
    fn begin(&self, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Release);
    }

    fn end(&self, now_ns: u64) {
        let began = self.began_ns.swap(0, Ordering::AcqRel);
        let took = now_ns.saturating_sub(began);
        self.ended_ns.fetch_add(took, Ordering::AcqRel);
    }

    fn total(&self, now_ns: u64) -> Duration {
        let present = match self.began_ns.load(Ordering::Acquire) {
            0 => 0,
            began => now_ns.saturating_sub(began),
        };
        Duration::from_nanos(self.ended_ns.load(Ordering::Acquire) + present)
    }
}

/// A kind of worker that is paced while it serves.
#[derive(Debug)]
pub(crate) struct Paceable {
    pacer: Arc<Pacer>,
    cpu_milli: u32,
    pace: Mutex<Option<Pace>>,
    stops: Arc<Stops>,
}

impl Paceable {
    pub(crate) fn new(pacer: Arc<Pacer>, cpu_milli: u32) -> Self {
        Self {
            pacer,
            cpu_milli,
            pace: Mutex::new(None),
            stops: Arc::default(),
        }
    }

    /// An exchange begins.
    pub(crate) fn begin(&self, cgroup: Option<Arc<Cgroup>>) {
        let stops = || Arc::clone(&self.stops);
        let pace = cgroup.and_then(|cgroup| self.pacer.pace(cgroup, self.cpu_milli, stops()));
        *self.pace.lock() = pace;
    }

    /// For how long it was stopped so far.
    pub(crate) fn stopped(&self) -> Duration {
        self.stops.total(monotonic_ns())
    }

    /// The last exchange has ended.
    pub(crate) fn end(&self) {
        let pace = self.pace.lock().take();
        drop(pace);
    }
}
