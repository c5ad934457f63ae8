//! All pools, and what they share: engine, sink and clock; the timer task, the sampler, and the task that ends workers off the path.
//! `pool` is one of them, with its leases.

mod memory;
pub(crate) mod pool;
mod pressure;
mod worker;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::forecast::MakeForecaster;
use pilot_model::ports::{BoxFuture, Clock, Engine, EventSink, StartError};
use pilot_model::{EndReason, Event, FunctionName, Instant, StartRule, Version, WorkerId};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::forecasting;
use crate::permits::{WorkerPermit, WorkerPermits};
use crate::tasks::Tasks;
use pilot_rules::{Key, RestStage};

use pool::{Abandonment, Lease, Pool};
use worker::PooledWorker;

/// Bounds of all pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLimits {
    /// Requests of one version that may wait.
    pub queue_max: usize,
    /// The longest that a request waits for a worker that is being started.
    pub start_wait_max: Duration,
    /// The longest that a request waits for a busy worker, if its function does not say. `None`: the function's timeout.
    pub wait_max: Option<Duration>,
    /// When the PSS of all workers and templates exceeds this, those that were unused longest are evicted; `None`: no limit.
    pub memory_bytes_max: Option<u64>,
    /// How often memory is sampled.
    pub memory_sample_every: Duration,
    /// Most workers of all versions together.
    pub workers_max: usize,
    /// When another worker is started for requests that wait.
    pub start_rule: StartRule,
    /// CPUs of the machine. They limit how many short starts are in progress at once.
    pub cpus: usize,
}

/// All pools. Dropping it ends all their tasks.
#[derive(Debug)]
pub struct Pools {
    shared: Arc<PoolsInner>,
}

/// The longest that a start waits until another worker has ended.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The longest that a deployment waits until there is room for its template and the worker that tries it.
const PREPARE_WAIT_MAX: Duration = Duration::from_secs(5);

/// How many idle workers end at a time while a start has no room: a template needs as much as one, and so does the worker that tries it.
const EVICTED_AT_ONCE: usize = 4;

/// How often a start is tried for which the machine has no room.
const ROOM_LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest that a start waits until memory is not short any more.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(2);

/// What the pools share.
#[derive(Debug)]
pub(crate) struct PoolsInner {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) forecaster: MakeForecaster,
    /// Wakes the forecasting task.
    pub(crate) forecast_wake: Arc<Notify>,
    pub(crate) limits: PoolLimits,
    pub(crate) tasks: Tasks,
    /// Wait for what workers print at their end.
    endings: Tasks,
    /// Guards the list; pools are locked only after it is released.
    pools: Mutex<Vec<Weak<Pool>>>,
    /// Bounded by the number of workers and versions: each sends at most one job.
    background_jobs: mpsc::UnboundedSender<BackgroundJob>,
    workers: AtomicU64,
    /// The permits of all workers.
    pub(crate) permits: Arc<WorkerPermits>,
    /// Memory is so short that no worker is started.
    pub(crate) memory_is_short: watch::Sender<bool>,
    /// Workers or templates may have started since the last sample.
    stirred: AtomicBool,
    /// When the timer task runs next, nanoseconds. While it runs: never, so that every earlier due time notifies it.
    ticker_at: AtomicU64,
    ticker: Notify,
}

/// Work that is done off the path.
pub(crate) enum BackgroundJob {
    /// End a worker of this version, in the way that fits the reason.
    End(Arc<PooledWorker>, Arc<Version>, EndReason),
    /// Let an idle worker rest.
    Rest(Arc<PooledWorker>, RestStage),
    /// Drop what the engine holds for a version.
    Forget(Arc<Version>),
    /// Drop a version's template.
    Evict(Arc<Version>),
    /// Wait for the end of an exchange whose caller has gone.
    Abandoned(Lease, BoxFuture<'static, bool>),
    /// The task of a start has ended without a result. Why it was abandoned, if it was.
    StartLost(Arc<Pool>, Key, Option<Abandonment>),
    /// Everything sent before this is done.
    Flush(oneshot::Sender<()>),
}

impl Pools {
    /// Without pools. Call it inside a tokio runtime: the tasks run there.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        sink: Arc<dyn EventSink>,
        clock: Arc<dyn Clock>,
        forecaster: MakeForecaster,
        limits: PoolLimits,
    ) -> Self {
        let (background_jobs, inbox) = mpsc::unbounded_channel();
        let every = limits.memory_sample_every;
        let permits = limits.workers_max;
        let shared = Arc::new(PoolsInner {
            engine,
            sink,
            clock,
            forecaster,
            forecast_wake: Arc::new(Notify::new()),
            limits,
            tasks: Tasks::new(),
            endings: Tasks::new(),
            pools: Mutex::new(Vec::new()),
            background_jobs,
            workers: AtomicU64::new(0),
            permits: WorkerPermits::new(permits),
            memory_is_short: watch::Sender::new(false),
            stirred: AtomicBool::new(true),
            ticker_at: AtomicU64::new(u64::MAX),
            ticker: Notify::new(),
        });
        let weak = Arc::downgrade(&shared);
        shared.tasks.spawn(run_background_jobs(inbox, weak.clone()));
        shared.tasks.spawn(tick(weak.clone()));
        shared.tasks.spawn(forecasting::drive(
            weak.clone(),
            Arc::clone(&shared.forecast_wake),
            PoolsInner::forecast,
        ));
        shared.tasks.spawn(memory::sample(weak.clone(), every));
        shared.tasks.spawn(pressure::watch(weak));
        Self { shared }
    }

    /// A new pool, for a version that is live now. It lives as long as it has holders, for example a lease.
    #[must_use]
    pub fn open(&self, version: Arc<Version>) -> Arc<Pool> {
        let pool = Arc::new(Pool::new(version, Arc::clone(&self.shared)));
        self.shared.pools.lock().push(Arc::downgrade(&pool));
        pool.start_forecast(pool.version().config.scale.clone());
        self.shared.stir();
        self.shared.wake_ticker_by(pool.due());
        pool
    }

    /// Prepares a version, as the engine does. While the machine has no room for it, what nobody uses is ended.
    pub fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let (shared, version) = (Arc::clone(&self.shared), Arc::clone(version));
        let first = shared.engine.prepare(&version);
        Box::pin(async move {
            let again = || shared.engine.prepare(&version);
            shared.with_room(PREPARE_WAIT_MAX, first, again).await
        })
    }

    /// Other functions leave this many permits of workers to this one.
    pub fn reserve(&self, function: &FunctionName, workers: u32) {
        self.shared.permits.reserve(function, workers as usize);
    }

    /// Runs a task that ends with the pools.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.tasks.spawn(task);
    }

    /// Closes every pool, kills what still runs, and waits until all workers have ended.
    pub async fn close(&self) {
        let pools = self.shared.pools();
        for pool in &pools {
            pool.close();
            pool.kill();
        }
        let (done, flushed) = oneshot::channel();
        self.shared.in_background(BackgroundJob::Flush(done));
        let _ = flushed.await;
    }

    /// Waits until what workers printed at their end is published. Call it when their sandboxes have ended.
    pub async fn settle(&self) {
        self.shared.endings.finish(SETTLE_TIME_MAX).await;
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for pool in self.shared.pools() {
            pool.close();
        }
        self.shared.tasks.abort();
        self.shared.endings.abort();
    }
}

/// Nothing is waited for but tasks of the daemon.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(1);

impl PoolsInner {
    pub(crate) fn next_worker(&self) -> WorkerId {
        WorkerId(self.workers.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The permit of a new worker of this function. Where all are taken, the idle worker that was unused longest makes room, and this
    /// waits for a limited time until a worker has ended. If no worker is idle and the function has fewer than its share, a worker of
    /// the function with the most of them ends with its invocation.
    ///
    /// # Errors
    /// [`StartError::Full`].
    pub(crate) async fn permit(&self, function: &FunctionName) -> Result<WorkerPermit, StartError> {
        let mut short = self.memory_is_short.subscribe();
        let enough = short.wait_for(|is_short| !is_short);
        if timeout(MEMORY_WAIT_MAX, enough).await.is_err() {
            return Err(self.no_permit());
        }
        let asked = match self.permits.ask(function) {
            Ok(permit) => return Ok(permit),
            Err(asked) => asked,
        };
        let patience = if self.make_room(function) {
            self.limits.start_wait_max
        } else {
            PLACE_WAIT_MAX
        };
        let look = || {
            self.make_room(function);
        };
        let permit = asked.within(patience, look).await;
        permit.ok_or_else(|| self.no_permit())
    }

    /// Why a start that waits for a permit has none.
    pub(crate) fn no_permit(&self) -> StartError {
        let problem = match *self.memory_is_short.borrow() {
            true => "the memory of all functions together is almost used up (limits.total_memory_mb); try again".to_owned(),
            false => format!(
                "{} workers are running, which is the limit of this daemon; try again, or raise limits.workers",
                self.limits.workers_max
            ),
        };
        StartError::Full { problem }
    }

    /// The result of a start or a preparation. While the machine has no room for it, it is tried again for a limited time, and what
    /// nobody uses is ended: idle workers, those first that were unused longest, and then templates.
    ///
    /// # Errors
    /// Those of the start.
    pub(crate) async fn with_room<T>(
        &self,
        patience: Duration,
        first: BoxFuture<'static, Result<T, StartError>>,
        again: impl Fn() -> BoxFuture<'static, Result<T, StartError>>,
    ) -> Result<T, StartError> {
        let mut result = first.await;
        let until = tokio::time::Instant::now() + patience;
        while matches!(result, Err(StartError::Full { .. })) && tokio::time::Instant::now() < until
        {
            let pools = self.pools();
            // Those that are still ending have what they use.
            let mut ending = self.permits.leaving();
            while ending < EVICTED_AT_ONCE && memory::evict_oldest(&pools, &self.permits) {
                ending += 1;
            }
            if ending == 0 {
                memory::drop_templates(&pools, memory::Share::Some);
            }
            tokio::time::sleep(ROOM_LOOK_EVERY).await;
            result = again().await;
        }
        result
    }

    /// All permits are taken, and this function waits for one. Returns whether it is entitled to one.
    fn make_room(&self, function: &FunctionName) -> bool {
        let pools = self.pools();
        let draining: usize = pools.iter().map(|pool| pool.draining()).sum();
        let coming = draining + self.permits.leaving();
        let lacks = self.permits.lacks(coming);
        let evicted = lacks && memory::evict_oldest(&pools, &self.permits);
        let entitled = self.permits.is_short(function);
        if evicted || !entitled {
            return entitled;
        }
        if let Some(debtor) = self.permits.debtor(coming) {
            let theirs = pools
                .iter()
                .filter(|pool| pool.version().config.name == debtor);
            let _ = theirs.into_iter().any(Pool::give_up);
        }
        entitled
    }

    fn publish_printed(&self, version: Arc<Version>, output: Bytes) {
        if !output.is_empty() {
            let at = self.clock.now();
            self.sink.publish(Event::Printed {
                version,
                output,
                at,
            });
        }
    }

    /// The next sample must not be skipped.
    pub(crate) fn stir(&self) {
        self.stirred.store(true, Ordering::Relaxed);
    }

    /// Whether [`PoolsInner::stir`] was called since the last call.
    pub(crate) fn was_stirred(&self) -> bool {
        self.stirred.swap(false, Ordering::Relaxed)
    }

    /// Sends a job to the task off the path. If that task has ended, kills the job's worker here.
    pub(crate) fn in_background(&self, job: BackgroundJob) {
        if let Err(mpsc::error::SendError(BackgroundJob::End(pooled, ..))) =
            self.background_jobs.send(job)
        {
            pooled.worker.kill();
        }
    }

    /// Makes the timer task run at `due` or before.
    pub(crate) fn wake_ticker_by(&self, due: Instant) {
        if due.0 < self.ticker_at.load(Ordering::Acquire) {
            self.ticker.notify_one();
        }
    }

    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether another pool keeps the same version alive (deployed again under another number): they share a template.
    pub(crate) fn is_live_elsewhere(&self, pool: &Arc<Pool>) -> bool {
        self.pools().iter().any(|other| {
            !Arc::ptr_eq(other, pool)
                && other.version().id == pool.version().id
                && other.version().config.name == pool.version().config.name
                && other.is_live()
        })
    }

    /// Ticks the forecasters that are due. Returns the time until the next one is due.
    fn forecast(self: &Arc<Self>) -> Duration {
        let pools = self.pools();
        let next = pools.iter().map(Pool::forecast).min();
        let next = next.unwrap_or(Instant(u64::MAX));
        next.since(self.clock.now())
    }

    /// Ticks the pools that are due, and returns when the next one is due.
    fn tick_due(&self) -> Instant {
        let mut next = Instant(u64::MAX);
        for pool in self.pools() {
            if pool.due() <= self.clock.now() {
                pool.tick();
            }
            next = next.min(pool.due());
        }
        next
    }
}

async fn run_background_jobs(
    mut inbox: mpsc::UnboundedReceiver<BackgroundJob>,
    shared: Weak<PoolsInner>,
) {
    while let Some(job) = inbox.recv().await {
        match job {
            BackgroundJob::End(pooled, version, reason) => {
                match reason {
                    EndReason::Idle | EndReason::Once | EndReason::Retired | EndReason::Scaled => {
                        pooled.wake_for_good();
                        pooled.worker.retire();
                    }
                    EndReason::Pressure => {
                        pooled.wake_for_good();
                        pooled.worker.discard();
                    }
                    // It may be in the middle of an invocation.
                    EndReason::Cancelled | EndReason::Crash | EndReason::Timeout => {
                        pooled.worker.kill();
                    }
                }
                if let Some(shared) = shared.upgrade() {
                    publish_last_output(&pooled, version, &shared).await;
                }
            }
            BackgroundJob::Rest(pooled, RestStage::Rest) => pooled.rest(),
            BackgroundJob::Rest(pooled, RestStage::Reclaim) => {
                // Takes as long as the disk; nobody waits for it.
                drop(tokio::task::spawn_blocking(move || pooled.reclaim()));
            }
            BackgroundJob::Forget(version) => {
                if let Some(shared) = shared.upgrade() {
                    shared.engine.forget(&version);
                }
            }
            BackgroundJob::Evict(version) => {
                if let Some(shared) = shared.upgrade() {
                    shared.engine.evict(&version);
                }
            }
            BackgroundJob::Abandoned(lease, told) => {
                if let Some(shared) = shared.upgrade() {
                    shared.tasks.spawn(lease.outlast(told));
                }
            }
            BackgroundJob::StartLost(pool, key, abandoned) => pool.start_lost(key, abandoned),
            BackgroundJob::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Publishes what a worker that is being ended has printed after its last answer. Does not wait for its end. What a server prints is
/// followed ([`Printing`](crate::printing::Printing)).
async fn publish_last_output(
    pooled: &PooledWorker,
    version: Arc<Version>,
    shared: &Arc<PoolsInner>,
) {
    if pooled.printing.is_some() {
        return;
    }
    let mut said = pooled.worker.last_output();
    match poll_fn(|task| Poll::Ready(said.as_mut().poll(task))).await {
        Poll::Ready(output) => shared.publish_printed(version, output),
        Poll::Pending => {
            // Not the worker itself, whose permit is free from here on.
            let publisher = Arc::clone(shared);
            let published = async move { publisher.publish_printed(version, said.await) };
            shared.endings.spawn(published);
        }
    }
}

async fn tick(shared: Weak<PoolsInner>) {
    loop {
        let Some(strong) = shared.upgrade() else {
            return;
        };
        strong.ticker_at.store(u64::MAX, Ordering::Release);
        let next = strong.tick_due();
        strong.ticker_at.store(next.0, Ordering::Release);
        let pause = next.since(strong.clock.now()).min(LONGEST_PAUSE);
        tokio::select! {
            () = strong.ticker.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The timer task runs at least this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
