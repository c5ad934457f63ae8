//! A lease: the right to use one slot of a worker for one invocation, and the wait for one.
//!
//! A lease cannot be lost. If it is dropped before the exchange, the worker goes back. If it is dropped during the exchange (the
//! client hung up), the worker is ended, except one that notices the hang-up itself and can still be used. A worker of several exchanges
//! that can be told keeps serving the others, also if an exchange takes too long: a task has the lease until the worker has ended this
//! one, or its time is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{BoxFuture, Done, StartStamps, Worker};
use pilot_model::{CpuTime, EndReason, Instant, SharedWorker, StartKind};
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at};

use super::super::BackgroundJob;
use super::super::worker::PooledWorker;
use super::{Pool, Refusal};
use crate::shares::ShareStart;
use pilot_rules::{Ending, Key, WaiterId};

/// The right to use one slot of a worker for one invocation.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    pooled: Arc<PooledWorker>,
    key: Key,
    since: Instant,
    kind: StartKind,
    fresh: bool,
    ending: Option<Ending>,
    /// When its answer was complete, before the exchange has ended.
    answered: Option<Instant>,
    /// The exchange has begun, and its worker must not rest.
    awake: bool,
    thawed: Option<Instant>,
    /// Its stream, and how many exchanges its worker had when it began, itself included.
    begun: Option<(u32, u32)>,
    /// The worker was told that nobody waits for the exchange any more, for this reason.
    given_up: Option<EndReason>,
    /// Its part of the CPU time of a worker that serves several. Only this lease locks it.
    share: Mutex<Option<ShareStart>>,
}

impl Lease {
    pub(crate) fn new(
        pool: Arc<Pool>,
        pooled: Arc<PooledWorker>,
        key: Key,
        since: Instant,
        kind: StartKind,
        fresh: bool,
    ) -> Self {
        Self {
            pool,
            pooled,
            key,
            since,
            kind,
            fresh,
            ending: Some(Ending::Unused),
            answered: None,
            awake: false,
            thawed: None,
            begun: None,
            given_up: None,
            share: Mutex::default(),
        }
    }

    /// Begins the exchange: from here on, dropping the lease ends the worker. Wakes the worker if it rests. Returns the stream's
    /// number.
    pub fn begin(&mut self) -> u32 {
        self.ending = Some(Ending::Lost(EndReason::Cancelled));
        self.wake();
        self.pooled.stirred.store(true, Ordering::Relaxed);
        loop {
            let stream = self
                .pooled
                .streams
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1);
            if stream != 0 {
                if self.begun.is_none() {
                    self.pooled.worker.resources().exchange_changed();
                    let others = self.pooled.exchanges.fetch_add(1, Ordering::Relaxed);
                    self.begun = Some((stream, others.saturating_add(1)));
                    if self.serves_several() {
                        // If it is the only one, all that the worker uses from the last reading on is its own.
                        let now = match others {
                            0 => None,
                            _ => self.pooled.cpu_of_several(self.pool.now(), false),
                        };
                        *self.share.get_mut() = Some(self.pooled.shares.lock().begin(now));
                    }
                }
                return stream;
            }
        }
    }

    fn wake(&mut self) {
        let Some(resting) = self.pooled.resting.as_ref().filter(|_| !self.awake) else {
            return;
        };
        self.awake = true;
        match resting.begin(&*self.pooled.worker) {
            Ok(false) => {}
            Ok(true) => self.thawed = Some(self.pool.now()),
            Err(error) => {
                // The exchange fails at once, and not at its timeout.
                tracing::warn!(%error, "a worker cannot be woken, and is killed");
                self.pooled.worker.kill();
            }
        }
    }

    /// When the worker was woken for the exchange. `None`: it did not rest.
    #[must_use]
    pub fn thawed(&self) -> Option<Instant> {
        self.thawed
    }

    /// The worker itself notices when the exchange is abandoned, and can still be used: dropping the lease gives it back.
    pub fn outlives_exchange(&mut self) {
        self.ending = Some(Ending::Reusable);
    }

    /// The whole answer is about to be with the caller, but the exchange has not ended. A request that comes now waits for this worker
    /// for a moment, and no other one is started for it.
    pub fn answered(&mut self, now: Instant) {
        if self.answered.is_none() {
            self.answered = Some(now);
            self.pool.answered(now, self.key);
        }
    }

    /// The worker.
    #[must_use]
    pub fn worker(&self) -> &Arc<dyn Worker> {
        &self.pooled.worker
    }

    /// When it was given.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// What the request waited for.
    #[must_use]
    pub fn kind(&self) -> StartKind {
        self.kind
    }

    /// The times of the worker's start, if the request waited for it.
    #[must_use]
    pub fn start(&self) -> Option<StartStamps> {
        self.fresh.then(|| self.pooled.worker.stamps())
    }

    /// The highest memory use of the worker so far, bytes: read now if the exchange, which used this CPU time ([`Lease::cpu`]), can have
    /// raised it much, otherwise as last sampled. `None`: unknown.
    #[must_use]
    pub fn memory_bytes_max(&self, now: Instant, cpu: Option<CpuTime>) -> Option<u64> {
        let alone = cpu.filter(|_| !self.serves_several());
        let computed = alone.map_or_else(|| now.since(self.since), CpuTime::total);
        self.pooled.memory_bytes_max(computed)
    }

    fn serves_several(&self) -> bool {
        self.pool.version().config.concurrency > 1
    }

    /// Proportional set size of the worker, bytes, as last sampled. `None`: it was not yet sampled.
    #[must_use]
    pub fn pss_bytes(&self) -> Option<u64> {
        match self.pooled.pss.load(Ordering::Relaxed) {
            0 => None,
            pss => Some(pss),
        }
    }

    /// CPU time of the exchange until `now`: what its worker used since the previous exchange, or, if it can serve several at once, the
    /// part of this one; since the last call. `None`: it cannot be measured.
    #[must_use]
    pub fn cpu(&self, now: Instant) -> Option<CpuTime> {
        if !self.serves_several() {
            return self.pooled.spent(self.pooled.worker.resources().cpu());
        }
        let mut share = self.share.lock();
        let start = share.as_mut()?;
        let is_only = self.pooled.exchanges.load(Ordering::Relaxed) == 1;
        let now = self.pooled.cpu_of_several(now, is_only);
        self.pooled.shares.lock().read(now, start)
    }

    /// How long the worker was throttled in the exchange, which ends `now`. `None`: it cannot be measured, or the worker can serve
    /// several at once.
    #[must_use]
    pub fn throttled(&self, now: Instant) -> Option<Duration> {
        let alone = !self.serves_several();
        alone.then(|| self.pooled.throttled(now.since(self.since)))?
    }

    /// What the exchange, which is about to end, shared its worker with, as [`Lease::cpu`] has read it. `None`: such workers serve one at a
    /// time.
    #[must_use]
    pub fn shared(&self, now: Instant) -> Option<SharedWorker> {
        let (stream, at_once) = self.begun.filter(|_| self.serves_several())?;
        let newest = self.pooled.streams.load(Ordering::Relaxed);
        let at_end = self.pooled.exchanges.load(Ordering::Relaxed);
        Some(SharedWorker {
            at_once: at_once.max(at_end),
            alone: at_once == 1 && newest == stream,
            cpu: self.pooled.spent(self.pooled.cpu_of_several(now, false)),
        })
    }

    /// Publishes what the worker has printed so far, if it is an HTTP server. Returns the end of it, at most 4 KiB.
    #[must_use]
    pub fn flush_output(&self) -> Bytes {
        let printing = self.pooled.printing.as_ref();
        printing.map_or_else(Bytes::new, |printing| printing.flush(&*self.pooled.worker))
    }

    /// The exchange is over. The worker can be used again, unless it has said that it ends: another caller would see its end.
    pub fn over(self, now: Instant, done: &Done) {
        if done.is_last {
            self.lose(now, EndReason::Crash);
        } else {
            self.finish(now);
        }
    }

    /// The exchange is over; the worker can be used again.
    pub fn finish(mut self, now: Instant) {
        self.end(now, Ending::Reusable);
    }

    /// The worker is dead or must not be used again.
    pub fn lose(mut self, now: Instant, reason: EndReason) {
        self.end(now, Ending::Lost(reason));
    }

    /// The exchange has failed. The worker must not be used again, unless it serves others, has not answered in time, and ends the exchange
    /// soon after it is told that nobody waits for it: the handler may wait for a client that sends slowly.
    pub fn fail(mut self, now: Instant, reason: EndReason) {
        if reason != EndReason::Timeout || !self.give_up(reason) {
            self.end(now, Ending::Lost(reason));
        }
    }

    fn end(&mut self, now: Instant, ending: Ending) {
        if self.ending.take().is_some() {
            if self.begun.is_some() {
                self.pooled.worker.resources().exchange_changed();
                self.pooled.exchanges.fetch_sub(1, Ordering::Relaxed);
                if self.share.get_mut().is_some() {
                    let now = self.pooled.cpu_of_several(now, false);
                    self.pooled.shares.lock().end(now);
                }
            }
            if let (true, Some(resting)) = (self.awake, &self.pooled.resting) {
                resting.end(&*self.pooled.worker);
            }
            self.pool
                .release(now, self.key, self.since, ending, self.answered);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(ending) = self.ending else { return };
        let is_abandoned = matches!(ending, Ending::Lost(EndReason::Cancelled));
        if is_abandoned && self.given_up.is_none() && self.give_up(EndReason::Cancelled) {
            return;
        }
        self.end(self.pool.now(), ending);
    }
}

impl Lease {
    /// Tells the worker that nobody waits for the exchange any more, and leaves the lease to a task. False: the worker cannot be told.
    fn give_up(&mut self, reason: EndReason) -> bool {
        let worker = &self.pooled.worker;
        let told = self.begun.and_then(|(stream, _)| worker.cancel(stream));
        let Some(told) = told else { return false };
        let lease = Self {
            pool: Arc::clone(&self.pool),
            pooled: Arc::clone(&self.pooled),
            ending: self.ending.take(),
            given_up: Some(reason),
            share: Mutex::new(self.share.get_mut().take()),
            ..*self
        };
        // Not here: this may run inside `Tasks::spawn`, which is not reentrant.
        (self.pool.shared).in_background(BackgroundJob::Abandoned(lease, told));
        true
    }

    /// Nobody waits for the exchange. Waits until the worker has ended it (`told`): if the caller has gone, at most as long as the exchange
    /// could have taken; if that time is over, for a moment.
    pub(crate) async fn outlast(self, told: BoxFuture<'static, bool>) {
        let reason = self.given_up.unwrap_or(EndReason::Cancelled);
        let patience = match reason {
            EndReason::Timeout => AFTER_TIMEOUT,
            _ => self.pool.version().config.timeout,
        };
        let is_over = timeout(patience, told).await;
        let now = self.pool.now();
        match is_over {
            Ok(true) => {
                // Before its next caller can get it.
                let (version, output) = (self.pool.version(), self.pooled.worker.take_output());
                (self.pool.shared).publish_printed(Arc::clone(version), output);
                self.finish(now);
            }
            Ok(false) | Err(_) => self.lose(now, reason),
        }
    }
}

/// How long a worker of several exchanges has for the end of one that has timed out. It gets new ones meanwhile, also if it hangs.
const AFTER_TIMEOUT: Duration = Duration::from_millis(500);

/// A request that is on its way. Dropping it retracts the request: no worker is started for it, and it does not count as an
/// arrival.
#[derive(Debug)]
pub struct Announcement {
    pool: Arc<Pool>,
    id: Option<WaiterId>,
    since: Instant,
}

impl Announcement {
    pub(crate) fn new(pool: Arc<Pool>, id: Option<WaiterId>, since: Instant) -> Self {
        Self { pool, id, since }
    }

    /// The request has been sent, and waits for its inputs.
    pub fn sent(&self) {
        if let Some(id) = self.id {
            self.pool.sent(id);
        }
    }

    /// The request has arrived. Returns its id, and when it was announced.
    pub(crate) fn kept(mut self) -> (Option<WaiterId>, Instant) {
        (self.id.take(), self.since)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.pool.retract(id);
        }
    }
}

/// A place in the queue. Dropping it gives the place up.
#[derive(Debug)]
pub struct WaitingRequest {
    pool: Arc<Pool>,
    id: WaiterId,
    answer: oneshot::Receiver<Result<Lease, Refusal>>,
    /// Until the deadline of its caller.
    left: Option<Duration>,
}

impl WaitingRequest {
    pub(crate) fn new(
        pool: Arc<Pool>,
        id: WaiterId,
        answer: oneshot::Receiver<Result<Lease, Refusal>>,
        left: Option<Duration>,
    ) -> Self {
        Self {
            pool,
            id,
            answer,
            left,
        }
    }

    /// Waits for a worker: for a busy one as long as the function, or the daemon, says, and at most
    /// [`PoolLimits::start_wait_max`](crate::PoolLimits::start_wait_max) for a starting one. Otherwise a function whose import
    /// takes longer than its timeout could never start. The deadline of its caller ends both.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`], [`Refusal::Late`], [`Refusal::NotStarted`], or the error of the start that it waited for.
    pub async fn lease(mut self) -> Result<Lease, Refusal> {
        let left = self.left.unwrap_or(Duration::MAX);
        let patience = self.pool.wait_max();
        let begun = tokio::time::Instant::now();
        let last = begun + patience.max(self.pool.start_wait_max()).min(left);
        let mut until = begun + patience.min(left);
        loop {
            if let Ok(answer) = timeout_at(until, &mut self.answer).await {
                return answer.unwrap_or(Err(Refusal::Closed));
            }
            if until >= last || !self.pool.awaits_start(self.id) {
                break;
            }
            until = last.min(until + LOOK_AGAIN);
        }
        let awaits_start = self.pool.awaits_start(self.id);
        // Leave the queue first: after that, either the answer is in the channel or it never comes.
        self.pool.abandon(self.id);
        self.answer
            .try_recv()
            .unwrap_or_else(|_| Err(self.pool.timed_out(awaits_start)))
    }
}

/// After its patience has ended, a request that waits for a start checks at this interval that the start is still in progress.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        // A lease that was given in the meantime is in the channel and is released with it.
        self.pool.abandon(self.id);
    }
}
