//! The sandbox of a worker, until it is taken back, and what the worker uses of the machine.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::{MemoryShortage, Resources, WorkerMemory};
use pilot_model::{CpuTime, Rest};

use super::Body;
use crate::cgroup::{Cgroup, CpuShare, Resident};
use crate::pace::Paceable;

/// See the module.
#[derive(Debug)]
pub(crate) struct SandboxInUse {
    /// Taken when the worker is killed, or released for reuse.
    body: Mutex<Option<Body>>,
    /// Peak of its memory when it was taken, bytes.
    last_peak: AtomicU64,
    cpu: CpuClock,
    /// `None`: there is no cgroup.
    share: Option<Arc<CpuShare>>,
    /// What paces the worker while it serves.
    paceable: Option<Paceable>,
}

impl SandboxInUse {
    pub(crate) fn new(body: Body, paceable: Option<Paceable>) -> Self {
        Self {
            share: body
                .sandbox
                .cgroup()
                .map(|cgroup| cgroup.watch(Resident::Worker)),
            body: Mutex::new(Some(body)),
            last_peak: AtomicU64::new(0),
            cpu: CpuClock::default(),
            paceable,
        }
    }

    pub(super) fn pace(&mut self, paceable: Option<Paceable>) {
        self.paceable = paceable;
    }

    /// For the end of the worker. What it has used is remembered. `None`: it was taken before.
    pub(crate) fn take(&self) -> Option<Body> {
        let peak = self.memory_peak().unwrap_or(0);
        self.last_peak.fetch_max(peak, Ordering::Relaxed);
        let body = self.body.lock().take()?;
        self.remember(&body);
        Some(body)
    }

    /// The sandbox will be gone: remembers the CPU time that was counted.
    pub(super) fn remember(&self, body: &Body) {
        self.cpu.remember(body);
    }

    /// Sends a signal to the main process. Does not wait.
    pub(crate) fn tell_signal(&self, signal: i32) {
        if let Some(body) = self.body.lock().as_ref() {
            body.sandbox.control().tell_signal(signal);
        }
    }

    /// Whether the kernel has killed a process because memory was short.
    pub(crate) fn shortage(&self) -> Option<MemoryShortage> {
        self.cgroup()?.shortage()
    }

    fn cgroup(&self) -> Option<Arc<Cgroup>> {
        self.body.lock().as_ref()?.sandbox.shared_cgroup()
    }
}

/// Not under the lock, which ending and waking the worker need: reading the memory of a process that forks waits until the fork is
/// done, which may take many seconds if it waits for memory.
impl Resources for SandboxInUse {
    /// Nothing once the worker is killed or released.
    fn memory(&self) -> WorkerMemory {
        // The sandbox can end while memory is read.
        let members = self.body.lock().as_ref().map(|body| body.sandbox.members());
        members.map_or_else(WorkerMemory::default, |members| WorkerMemory {
            pss: members.pss_bytes(),
            peak: members.peak_bytes(),
        })
    }

    fn rest(&self, how: Rest) -> io::Result<()> {
        let cgroup = self.cgroup().ok_or(io::ErrorKind::Unsupported)?;
        cgroup.rest(how)
    }

    fn wake(&self) -> io::Result<()> {
        self.cgroup().map_or(Ok(()), |cgroup| cgroup.wake())
    }

    fn reclaim(&self) -> io::Result<()> {
        self.cgroup().map_or(Ok(()), |cgroup| cgroup.reclaim())
    }

    fn engage(&self) {
        if let Some(paceable) = &self.paceable {
            paceable.begin(self.cgroup());
        }
    }

    fn disengage(&self) {
        if let Some(paceable) = &self.paceable {
            paceable.end();
        }
    }

    fn exchange_changed(&self) {
        if let Some(share) = &self.share {
            share.exchange_changed();
        }
    }

    fn memory_peak(&self) -> Option<u64> {
        let last = self.last_peak.load(Ordering::Relaxed);
        let now = match self.body.lock().as_ref() {
            Some(body) => body.sandbox.cgroup().and_then(Cgroup::peak_bytes),
            None => None,
        };
        now.or_else(|| (last > 0).then_some(last))
    }

    fn cpu(&self) -> Option<CpuTime> {
        self.cpu.read(&self.body)
    }

    fn throttled(&self) -> Option<Duration> {
        let by_kernel = self.cpu.throttled(&self.body);
        match &self.paceable {
            None => by_kernel,
            Some(paceable) => Some(by_kernel.unwrap_or_default() + paceable.stopped()),
        }
    }
}

/// Reads the CPU time of a sandbox's processes, or, where the kernel counts none for its group, of its main process.
#[derive(Debug, Default)]
struct CpuClock {
    /// The main process, as the daemon sees it. Found at the first read, which takes 20 µs more.
    pid: OnceLock<u32>,
    /// What was read last, for those who ask when the sandbox is gone.
    last: Mutex<(Option<CpuTime>, Option<Duration>)>,
}

impl CpuClock {
    /// CPU time. `None`: there is no cgroup.
    fn read(&self, body: &Mutex<Option<Body>>) -> Option<CpuTime> {
        match body.lock().as_ref() {
            Some(body) => {
                if let Some(cpu) = body.sandbox.cgroup()?.cpu() {
                    return Some(cpu);
                }
            }
            None => return self.last.lock().0,
        }
        self.of_main_process(body)
    }

    /// Time for which the sandbox was throttled. `None`: it is not counted.
    fn throttled(&self, body: &Mutex<Option<Body>>) -> Option<Duration> {
        match body.lock().as_ref() {
            Some(body) => body.sandbox.cgroup()?.throttled(),
            None => self.last.lock().1,
        }
    }

    /// The sandbox will be gone: remembers what was counted.
    fn remember(&self, body: &Body) {
        if let Some(cgroup) = body.sandbox.cgroup() {
            *self.last.lock() = (cgroup.cpu(), cgroup.throttled());
        }
    }

    fn of_main_process(&self, body: &Mutex<Option<Body>>) -> Option<CpuTime> {
        let pid = match self.pid.get() {
            Some(pid) => *pid,
            None => {
                let processes = body.lock().as_ref()?.sandbox.cgroup()?.processes();
                // Its children have higher numbers, as long as the numbers do not wrap around.
                let main = processes.into_iter().min()?;
                *self.pid.get_or_init(|| main)
            }
        };
        let (user, all) = pilot_sys::clock::process_cpu_ns(pid)?;
        Some(CpuTime {
            user: Duration::from_nanos(user),
            system: Duration::from_nanos(all - user),
        })
    }
}
