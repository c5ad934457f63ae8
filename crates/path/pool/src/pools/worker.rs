//! A worker as the pools see it: with its memory, its CPU time, and the exchanges that it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::Worker;
use pilot_model::{CpuTime, Instant};

use crate::permits::WorkerPermit;
use crate::printing::Printing;
use crate::resting::Resting;
use crate::shares::{Reading, Shares};

/// The CPU time that the kernel gives a group at once under a quota (`sched_cfs_bandwidth_slice_us`). A worker that since its throttled
/// time was last read has neither computed nor waited for this long was hardly throttled. Reading the kernel's counter takes 1.3 µs.
const QUOTA_SLICE: Duration = Duration::from_millis(5);

/// After exchanges with so much CPU time, the memory is read. With less, a worker gets a few megabytes of new pages; reading the kernel's
/// counter takes 1 to 2 µs.
const MEMORY_READ_FROM: Duration = Duration::from_millis(1);

/// A worker with what the pool notes about it.
#[derive(Debug)]
pub(crate) struct PooledWorker {
    pub(crate) worker: Arc<dyn Worker>,
    /// PSS as last sampled, bytes.
    pub(crate) pss: AtomicU64,
    /// Peak as last sampled, bytes; 0: not yet, or unknown.
    pub(crate) peak: AtomicU64,
    /// It was started or called since the last sample, so its memory may have changed.
    pub(crate) stirred: AtomicBool,
    pub(super) streams: AtomicU32,
    /// Exchanges that have begun and not ended.
    pub(super) exchanges: AtomicU32,
    /// Of a worker that rests between invocations.
    pub(crate) resting: Option<Resting>,
    /// Of a worker that is an HTTP server.
    pub(crate) printing: Option<Printing>,
    /// CPU time that has been attributed to invocations. Locked briefly, at the end of an exchange.
    cpu: Mutex<CpuTime>,
    /// CPU time by invocation, if it can serve several at once. Locked briefly, at the begin and the end of an exchange.
    pub(super) shares: Mutex<Shares>,
    /// Its CPU time as last read for `shares`. Locked while it is read.
    reading: Mutex<Reading>,
    /// The time for which it was throttled, as last read, and its CPU time then. `None`: not yet read.
    throttled: Mutex<Option<(Duration, Duration)>>,
    /// Its permit among the workers of all versions.
    pub(crate) permit: WorkerPermit,
}

impl PooledWorker {
    pub(crate) fn new(
        worker: Arc<dyn Worker>,
        resting: Option<Resting>,
        printing: Option<Printing>,
        permit: WorkerPermit,
    ) -> Self {
        Self {
            worker,
            pss: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            stirred: AtomicBool::new(true),
            streams: AtomicU32::new(0),
            exchanges: AtomicU32::new(0),
            resting,
            printing,
            cpu: Mutex::default(),
            shares: Mutex::default(),
            reading: Mutex::default(),
            throttled: Mutex::default(),
            permit,
        }
    }

    /// Lets the worker rest, unless it serves.
    pub(crate) fn rest(&self) {
        if let Some(resting) = &self.resting {
            resting.rest(&*self.worker);
        }
    }

    /// The worker is ended, and must be awake for that: it never rests again.
    pub(crate) fn wake_for_good(&self) {
        if let Some(resting) = &self.resting {
            // A worker that cannot be woken is killed in the end.
            let _ = resting.begin(&*self.worker);
        }
    }

    pub(crate) fn rests(&self) -> bool {
        self.resting.as_ref().is_some_and(Resting::is_on)
    }

    /// Reclaims the memory of a worker that rests.
    pub(crate) fn reclaim(&self) {
        if !self.rests() {
            return;
        }
        match self.worker.resources().reclaim() {
            // The next sample shows it.
            Ok(()) => self.stirred.store(true, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(%error, "the memory of a frozen worker was not reclaimed")
            }
        }
    }

    /// Measures the worker if it has no sample yet. The next sample measures it again.
    pub(crate) fn sample_first(&self) {
        if self.pss.load(Ordering::Relaxed) == 0 {
            self.pss
                .store(self.worker.resources().memory().pss, Ordering::Relaxed);
        }
    }

    /// CPU time of a worker that serves several at once, as [`Reading`] says. `None`: it cannot be measured.
    pub(super) fn cpu_of_several(&self, now: Instant, is_only: bool) -> Option<CpuTime> {
        let resources = self.worker.resources();
        self.reading.lock().at(now, is_only, || resources.cpu())
    }

    /// CPU time of the worker since the last call, or since its fork. `now`: all of it, as read; `None`: it cannot be measured.
    pub(super) fn spent(&self, now: Option<CpuTime>) -> Option<CpuTime> {
        let now = now?;
        let mut before = self.cpu.lock();
        let spent = now.since(*before);
        *before += spent;
        Some(spent)
    }

    /// Time for which the worker was throttled since it was last read, or since its start. It is not read where it was hardly
    /// throttled ([`QUOTA_SLICE`]): a later exchange then has that, too. Reads what [`PooledWorker::spent`] noted.
    pub(super) fn throttled(&self, took: Duration) -> Option<Duration> {
        let cpu = self.cpu.lock().total();
        let mut before = self.throttled.lock();
        let (total, cpu_before) = before.unwrap_or_default();
        let computed = cpu.saturating_sub(cpu_before);
        if before.is_some() && took.max(computed) < QUOTA_SLICE {
            return Some(Duration::ZERO);
        }
        let now = self.worker.resources().throttled()?.max(total);
        *before = Some((now, cpu));
        Some(now - total)
    }

    /// All CPU time of the worker, as last read.
    pub(crate) fn cpu(&self) -> Option<CpuTime> {
        self.spent(self.worker.resources().cpu());
        let cpu = *self.cpu.lock();
        (cpu != CpuTime::default()).then_some(cpu)
    }

    /// The highest memory use of the worker so far, bytes. `None`: unknown. It is read before the first sample, and for an exchange that
    /// `computed` long enough to use much more; otherwise it is that of the samples.
    pub(crate) fn memory_bytes_max(&self, computed: Duration) -> Option<u64> {
        if computed >= MEMORY_READ_FROM || self.peak.load(Ordering::Relaxed) == 0 {
            let peak = self.worker.resources().memory_peak().unwrap_or(0);
            self.peak.fetch_max(peak, Ordering::Relaxed);
        }
        match self.peak.load(Ordering::Relaxed) {
            0 => None,
            peak => Some(peak),
        }
    }
}
