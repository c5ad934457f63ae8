//! One pool: the state machine of one version's workers, connected to engine, timer and sink.
//!
//! The warm path is: lock, take the last free worker, unlock; later: lock, put it back, unlock. No task, no channel, no
//! allocation. The actions of the state machine are executed after the lock is released.

mod lease;
mod starts;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::forecast::Target;
use pilot_model::log_line::visible;
use pilot_model::ports::{StartError, Worker};
use pilot_model::status::{ForecastStatus, PoolStatus};
use pilot_model::{
    Event, Instant, Interface, ScaleConfig, Seldom, StartKind, Version, WorkerRecord,
};
use tokio::sync::oneshot;

use super::worker::PooledWorker;
use super::{BackgroundJob, PLACE_WAIT_MAX, PoolsInner};
use crate::forecasting::Forecast;
use crate::permits::WorkerPermit;
use crate::printing::Printing;
use crate::resting::Resting;
use pilot_rules::{
    Action, Arrival, Awaited, Ending, Key, PoolState, Settings, StartFault, Urgency, Wait, WaiterId,
};

use starts::{Abandoned, Starts};

pub use lease::{Announcement, Lease, WaitingRequest};
pub(crate) use starts::Abandonment;

type Waiter = oneshot::Sender<Result<Lease, Refusal>>;
type Todo = Vec<Action<Arc<PooledWorker>, Waiter>>;

/// The workers of one version.
#[derive(Debug)]
pub struct Pool {
    version: Arc<Version>,
    /// The longest that a request waits for a busy worker.
    wait_max: Duration,
    shared: Arc<PoolsInner>,
    /// Guards the decisions; never held across an await, nor while actions are executed.
    state: Mutex<PoolState<Arc<PooledWorker>, Waiter>>,
    /// [`PoolState::due`], readable without the lock, nanoseconds.
    due: AtomicU64,
    /// The engine may hold a template of this version.
    templated: AtomicBool,
    /// The engine may hold anything for this version. After its template was evicted, that is what it shares with other versions.
    known: AtomicBool,
    starts: Starts,
    /// Guards the forecaster while it ticks; taken before `state`, never on the path of a request.
    forecast: Mutex<Option<Forecast>>,
    /// Mean memory of a worker as last sampled, bytes; 0: not yet.
    worker_bytes: AtomicU64,
    /// Starts that wait for a permit.
    without_permit: AtomicUsize,
}

/// The result of requesting a worker.
#[derive(Debug)]
pub enum Leased {
    /// A worker was free.
    Now(Lease),
    /// A place in the queue.
    Later(WaitingRequest),
}

/// Why a request gets no lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full. How long the requests in it wait, if that is known.
    #[error("the queue is full")]
    Full(Option<Duration>),
    /// The queue takes longer than the request may wait, or its deadline. How long the queue takes, if that is known.
    #[error("no worker becomes free in time")]
    Late(Option<Duration>),
    /// The request waited for as long as it was allowed to. How long the queue takes, if that is known.
    #[error("no worker became free in time")]
    TimedOut(Option<Duration>),
    /// There is no worker but those that start, and none of them is ready in time.
    #[error("no worker is ready in time")]
    NotStarted,
    /// No worker could be started.
    #[error(transparent)]
    Start(StartError),
    /// The pool was closed.
    #[error("the pool is closed")]
    Closed,
}

/// Failed starts that are logged per interval, of all functions.
static START_FAILURES: Seldom = Seldom::new(20);

impl Pool {
    pub(crate) fn new(version: Arc<Version>, shared: Arc<PoolsInner>) -> Self {
        let limits = &shared.limits;
        let settings = Settings::new(
            &version.config,
            limits.queue_max,
            limits.start_rule,
            limits.cpus,
        );
        let state = PoolState::new(settings);
        let config = &version.config;
        let wait_max = config.scale.max_wait.or(limits.wait_max);
        Self {
            wait_max: wait_max.unwrap_or(config.timeout),
            due: AtomicU64::new(state.due().0),
            version,
            shared,
            state: Mutex::new(state),
            templated: AtomicBool::new(true),
            known: AtomicBool::new(true),
            forecast: Mutex::new(None),
            starts: Starts::default(),
            worker_bytes: AtomicU64::new(0),
            without_permit: AtomicUsize::new(0),
        }
    }

    /// The version of these workers.
    #[must_use]
    pub fn version(&self) -> &Arc<Version> {
        &self.version
    }

    /// A request is on its way: a worker is started for it if that pays, but none is reserved. Counts as an arrival.
    #[must_use]
    pub fn announce(self: &Arc<Self>, now: Instant, awaited: Awaited) -> Announcement {
        let mut id = None;
        self.change(|state, _, todo| id = state.announce(now, awaited, todo));
        Announcement::new(Arc::clone(self), id, now)
    }

    /// Whether a worker is free now: an invocation need not wait for one to start.
    #[must_use]
    pub fn has_free(&self) -> bool {
        self.state.lock().has_free()
    }

    /// A worker, or a place in the queue. `announcement` is this request's, if it was announced.
    ///
    /// # Errors
    /// [`Refusal::Full`], [`Refusal::Late`], [`Refusal::Closed`].
    pub fn lease(
        self: &Arc<Self>,
        now: Instant,
        urgency: Urgency,
        announcement: Option<Announcement>,
    ) -> Result<Leased, Refusal> {
        let wait = Wait {
            longest: self.wait_max,
            urgency,
        };
        let announced = announcement.map(Announcement::kept);
        let mut todo = Todo::new();
        let mut answer = None;
        let mut state = self.state.lock();
        let arrival = loop {
            let handle = || {
                let (sender, receiver) = oneshot::channel();
                answer = Some(receiver);
                sender
            };
            let arrival = match announced {
                Some((Some(id), _)) => state.claim(now, id, wait, handle, &mut todo),
                _ => state.arrive_within(now, wait, handle, &mut todo),
            };
            match arrival {
                Arrival::Leased(key, pooled, _) if !pooled.worker.is_alive() => {
                    state.found_dead(now, key, &mut todo);
                }
                arrival => break arrival,
            }
        };
        self.act(state, now, todo, None);
        match arrival {
            Arrival::Leased(key, pooled, kind) => {
                // If the worker was started while the request was on its way, that start is part of the wait.
                let fresh = announced
                    .is_some_and(|(_, since)| pooled.worker.stamps().initialised > since)
                    && kind != StartKind::Warm;
                let pool = Arc::clone(self);
                Ok(Leased::Now(Lease::new(pool, pooled, key, now, kind, fresh)))
            }
            Arrival::Queued(id) => match answer {
                Some(answer) => Ok(Leased::Later(WaitingRequest::new(
                    Arc::clone(self),
                    id,
                    answer,
                    urgency.finish_by.map(|end| end.since(now)),
                ))),
                None => Err(Refusal::Closed),
            },
            Arrival::Late(wait) => Err(Refusal::Late(Some(wait))),
            Arrival::Full(wait) => Err(Refusal::Full(wait)),
            Arrival::Closed => Err(Refusal::Closed),
        }
    }

    /// Retires idle workers beyond `workers`, or starts workers up to it.
    pub fn scale(self: &Arc<Self>, workers: u32) {
        self.change(|state, now, todo| state.scale(now, workers, todo));
        if workers == 0 {
            self.abandon_unneeded_starts();
        }
    }

    /// Replaces the forecaster by one with these settings.
    pub fn start_forecast(self: &Arc<Self>, scale: ScaleConfig) {
        if let Some(forecaster) = (self.shared.forecaster)(&scale) {
            self.follow(Forecast::new(scale, forecaster));
        } else {
            self.stop_forecast();
            self.change(|state, now, todo| state.apply_target(now, Target::default(), todo));
        }
    }

    /// Takes over the forecaster of the previous version, with what it has learned, if it was made from the same settings.
    pub fn inherit_forecast(self: &Arc<Self>, before: &Self) {
        let scale = &self.version.config.scale;
        let theirs = before.forecast.lock().take();
        if let Some(mut theirs) = theirs.filter(|theirs| theirs.scale == *scale) {
            theirs.due = Instant(0);
            self.follow(theirs);
        }
    }

    /// The newest forecast and its reason; `None`: there is no forecaster.
    #[must_use]
    pub fn forecast_status(&self) -> Option<ForecastStatus> {
        self.forecast.lock().as_ref().map(Forecast::status)
    }

    fn follow(&self, forecast: Forecast) {
        *self.forecast.lock() = Some(forecast);
        self.shared.forecast_wake.notify_one();
    }

    pub(crate) fn stop_forecast(&self) {
        self.forecast.lock().take();
    }

    /// Ticks the forecaster if it is due, and applies its target. Returns when it is due next; far in the future: there is none.
    pub(crate) fn forecast(self: &Arc<Self>) -> Instant {
        let mut slot = self.forecast.lock();
        let Some(forecast) = slot.as_mut() else {
            return Instant(u64::MAX);
        };
        let now = self.now();
        if now < forecast.due {
            return forecast.due;
        }
        let bytes = self.worker_bytes.load(Ordering::Relaxed);
        let seen = self.state.lock().observe(now, (bytes > 0).then_some(bytes));
        let Some(target) = forecast.tick(now, &seen, &self.version.config.name) else {
            *slot = None;
            return Instant(u64::MAX);
        };
        self.change(|state, now, todo| state.apply_target(now, target, todo));
        forecast.due
    }

    /// Another version becomes the live one: running and waiting requests are served, and no worker is kept ready.
    pub fn retire(self: &Arc<Self>) {
        self.stop_forecast();
        self.change(|state, _, todo| state.retire_all(todo));
        self.abandon_unneeded_starts();
    }

    /// Abandons the starts in progress if no request waits.
    fn abandon_unneeded_starts(&self) {
        let waiting = self.state.lock().counts().waiting;
        if waiting == 0 {
            self.starts.abandon_all();
        }
    }

    /// What its workers are given at their start has changed: each one is replaced when it has served what it serves now.
    pub fn renew(self: &Arc<Self>) {
        self.change(|state, _, todo| state.renew(todo));
    }

    /// This version is the live one again. It was prepared before.
    pub fn revive(self: &Arc<Self>) {
        self.change(|state, _, _| state.revive());
        self.note_prepared();
        if self.forecast.lock().is_none() {
            self.start_forecast(self.version.config.scale.clone());
        }
    }

    /// The engine has prepared this version again, or is about to. The pool may have dropped the template before.
    pub fn note_prepared(&self) {
        self.known.store(true, Ordering::Relaxed);
        self.templated.store(true, Ordering::Relaxed);
    }

    /// Serves no request any more: idle workers are ended now, leased ones when their lease ends.
    pub fn close(self: &Arc<Self>) {
        self.change(|state, _, todo| state.close(todo));
        self.starts.abandon_all();
    }

    /// Kills every worker, leased or not: their invocations end with a fault.
    pub fn kill(&self) {
        let workers: Vec<_> = self.state.lock().workers().map(Arc::clone).collect();
        for pooled in workers {
            pooled.worker.kill();
        }
    }

    /// Workers by state, waiting requests, and memory as last sampled. A worker without a sample is measured now, so this must not be
    /// called on the path of a request.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let workers: Vec<_> = self.state.lock().workers().map(Arc::clone).collect();
        for pooled in workers {
            pooled.sample_first();
        }
        let state = self.state.lock();
        let counts = state.counts();
        PoolStatus {
            starting: counts.starting,
            idle: counts.idle,
            frozen: count(state.workers().filter(|pooled| pooled.rests())),
            busy: counts.busy,
            waiting: counts.waiting,
            memory_bytes: state
                .workers()
                .map(|pooled| pooled.pss.load(Ordering::Relaxed))
                .sum(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    pub(crate) fn release(
        self: &Arc<Self>,
        now: Instant,
        key: Key,
        since: Instant,
        ending: Ending,
        answered: Option<Instant>,
    ) {
        let mut todo = Todo::new();
        let mut state = self.state.lock();
        if let Some(at) = answered {
            state.answered_lease_ends(at, key);
        }
        state.release(now, key, since, ending, &mut todo);
        self.act(state, now, todo, None);
    }

    pub(crate) fn answered(&self, now: Instant, key: Key) {
        self.state.lock().answered(now, key);
    }

    pub(crate) fn abandon(&self, waiter: WaiterId) {
        // Dropped after the lock is released.
        let _handle = self.state.lock().abandon(waiter);
    }

    pub(crate) fn retract(self: &Arc<Self>, announced: WaiterId) {
        self.change(|state, _, _| state.retract(announced));
    }

    pub(crate) fn sent(self: &Arc<Self>, announced: WaiterId) {
        self.change(|state, now, todo| state.sent(now, announced, todo));
    }

    pub(crate) fn awaits_start(&self, waiter: WaiterId) -> bool {
        self.state.lock().awaits_start(waiter)
    }

    /// How long a request would wait for a busy worker now, at least.
    pub(crate) fn expected_wait(&self) -> Option<Duration> {
        let now = self.now();
        self.state.lock().expected_wait(now)
    }

    /// Why a request that has waited for as long as it may got nothing. `awaited_start`: it waited for a start, and not for a busy
    /// worker.
    pub(crate) fn timed_out(&self, awaited_start: bool) -> Refusal {
        if awaited_start && self.without_permit.load(Ordering::Relaxed) > 0 {
            return Refusal::Start(self.shared.no_permit());
        }
        let counts = self.state.lock().counts();
        match awaited_start && counts.idle == 0 && counts.busy == 0 {
            true => Refusal::NotStarted,
            false => Refusal::TimedOut(self.expected_wait()),
        }
    }

    /// The permit for a start.
    async fn permit(&self) -> Result<WorkerPermit, StartError> {
        self.without_permit.fetch_add(1, Ordering::Relaxed);
        // Also if the start is abandoned.
        let _waits = WithoutPermit(&self.without_permit);
        self.shared.permit(&self.version.config.name).await
    }

    pub(crate) fn wait_max(&self) -> Duration {
        self.wait_max
    }

    pub(crate) fn start_wait_max(&self) -> Duration {
        self.shared.limits.start_wait_max
    }

    /// When [`Pool::tick`] is to be called.
    pub(crate) fn due(&self) -> Instant {
        Instant(self.due.load(Ordering::Acquire))
    }

    pub(crate) fn tick(self: &Arc<Self>) {
        self.change(|state, now, todo| state.tick(now, todo));
    }

    pub(crate) fn evict(self: &Arc<Self>, key: Key) -> bool {
        let mut evicted = false;
        self.change(|state, now, todo| evicted = state.evict(now, key, todo));
        evicted
    }

    /// Gives one worker up, whose permit another function needs; without one, a start that takes too long. Returns whether there was
    /// either.
    pub(crate) fn give_up(self: &Arc<Self>) -> bool {
        let mut gave = false;
        self.change(|state, now, todo| gave = state.give_up(now, todo));
        gave || self.starts.abandon_overdue(self.now())
    }

    /// Workers that end with their leases.
    pub(crate) fn draining(&self) -> usize {
        self.state.lock().draining()
    }

    pub(crate) fn workers(&self) -> Vec<Arc<PooledWorker>> {
        self.state.lock().workers().map(Arc::clone).collect()
    }

    /// Memory was sampled: stores the mean of a worker. Without workers, the old value stays.
    pub(crate) fn note_memory(&self) {
        let state = self.state.lock();
        let sampled = state
            .workers()
            .map(|pooled| pooled.pss.load(Ordering::Relaxed));
        let (count, sum) = sampled
            .filter(|bytes| *bytes > 0)
            .fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        if let Some(mean) = u64::checked_div(sum, count) {
            self.worker_bytes.store(mean, Ordering::Relaxed);
        }
    }

    /// Idle workers, each with the time of its last use and its memory.
    pub(crate) fn idle_workers(&self) -> Vec<(Key, Instant, u64)> {
        let state = self.state.lock();
        let idle = state.idle_workers();
        idle.map(|(key, touched, pooled)| (key, touched, pooled.pss.load(Ordering::Relaxed)))
            .collect()
    }

    /// When the newest request of a pool arrived that has a template but no workers. `None`: it has workers, or no template.
    pub(crate) fn cold_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let cold = state.is_empty() && self.templated.load(Ordering::Relaxed);
        cold.then(|| state.last_arrival().unwrap_or(Instant(0)))
    }

    /// Drops the template for lack of memory, off the path.
    pub(crate) fn evict_template(&self) {
        if self.templated.swap(false, Ordering::Relaxed) {
            self.shared
                .in_background(BackgroundJob::Evict(Arc::clone(&self.version)));
        }
    }

    /// Drops all that the engine holds for this version, off the path.
    fn forget_version(&self) {
        self.templated.store(false, Ordering::Relaxed);
        if self.known.swap(false, Ordering::Relaxed) {
            self.shared
                .in_background(BackgroundJob::Forget(Arc::clone(&self.version)));
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().is_live()
    }

    /// The task of a start ended without a result. `abandoned`: it was aborted, and why.
    pub(crate) fn start_lost(self: &Arc<Self>, key: Key, abandoned: Option<Abandonment>) {
        let problem = match abandoned {
            None => "the start was given up",
            Some(Abandonment::Needless) => "the start was given up, because nobody needs it",
            Some(Abandonment::Overdue) => {
                "the start was given up: it took long, and another function needed its place"
            }
        };
        let error = StartError::Runtime {
            problem: problem.to_owned(),
            output: String::new(),
        };
        if abandoned != Some(Abandonment::Needless) {
            self.tell_failure(&error);
        }
        self.start_failed(key, &error);
    }

    fn started(self: &Arc<Self>, key: Key, result: Result<Started, StartError>) {
        match result {
            Ok(started) => {
                self.starts.end(key);
                let now = self.now();
                let stamps = started.worker.stamps();
                let pooled = self.pooled(started);
                // Before anybody can have it: its end is told after its start.
                self.shared.sink.publish(Event::WorkerStarted {
                    worker: pooled.worker.id(),
                    version: Arc::clone(&self.version),
                    forked: stamps.forked,
                    took: stamps.initialised.since(stamps.asked),
                });
                let mut todo = Todo::new();
                let mut state = self.state.lock();
                state.began_late(key, stamps.template);
                state.ready(now, key, pooled, &mut todo);
                self.act(state, now, todo, None);
            }
            Err(error) => {
                self.tell_failure(&error);
                self.start_failed(key, &error);
            }
        }
    }

    fn tell_failure(&self, error: &StartError) {
        if let Some(left_out) = START_FAILURES.admit(std::time::Instant::now()) {
            let (function, version) = (&self.version.config.name, &self.version.id);
            // The error quotes what the function said.
            let error = visible(&error.to_string());
            tracing::warn!(%function, %version, error, left_out, "a worker did not come up");
        }
    }

    fn start_failed(self: &Arc<Self>, key: Key, error: &StartError) {
        self.starts.end(key);
        let fault = match error {
            StartError::Import { .. } => StartFault::Import,
            StartError::Full { .. } => StartFault::Full,
            StartError::Runtime { .. }
            | StartError::Inputs { .. }
            | StartError::Triggers { .. }
            | StartError::Initscript { .. }
            | StartError::Sandbox { .. } => StartFault::Transient,
        };
        let now = self.now();
        let mut todo = Todo::new();
        let mut state = self.state.lock();
        state.start_failed(now, key, fault, &mut todo);
        self.act(state, now, todo, Some(error));
    }

    /// A new worker. If it is an HTTP server, its output is followed from now on.
    fn pooled(&self, started: Started) -> Arc<PooledWorker> {
        let is_server = self.version.config.interface == Interface::Http;
        let printing = is_server.then(|| {
            let (sink, clock) = (&self.shared.sink, &self.shared.clock);
            Printing::new(
                Arc::clone(&self.version),
                Arc::clone(sink),
                Arc::clone(clock),
            )
        });
        let resting = Resting::new(&self.version.config);
        let pooled = PooledWorker::new(started.worker, resting, printing, started.permit);
        let pooled = Arc::new(pooled);
        if is_server {
            let followed = Arc::clone(&pooled);
            self.shared.tasks.spawn(async move {
                if let Some(printing) = &followed.printing {
                    printing.follow(&*followed.worker).await;
                }
            });
        }
        pooled
    }

    fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut PoolState<Arc<PooledWorker>, Waiter>, Instant, &mut Todo),
    ) {
        let now = self.now();
        let mut todo = Todo::new();
        let mut state = self.state.lock();
        change(&mut state, now, &mut todo);
        self.act(state, now, todo, None);
    }

    /// Releases the lock, then executes the actions.
    fn act(
        self: &Arc<Self>,
        state: parking_lot::MutexGuard<'_, PoolState<Arc<PooledWorker>, Waiter>>,
        now: Instant,
        todo: Todo,
        error: Option<&StartError>,
    ) {
        let due = state.due();
        self.due.store(due.0, Ordering::Release);
        let over = !state.is_live() && state.is_empty();
        drop(state);
        // Starts wake the timer's task themselves, later.
        if !todo.iter().any(|action| matches!(action, Action::Start(_))) {
            self.shared.wake_ticker_by(due);
        }
        for action in todo {
            match action {
                Action::Start(key) => self.start(key, due),
                Action::Give {
                    to,
                    key,
                    worker,
                    kind,
                    fresh,
                } => {
                    let lease = Lease::new(Arc::clone(self), worker, key, now, kind, fresh);
                    // If the request no longer waits, the lease comes back and is dropped here: it is released unused.
                    let _ = to.send(Ok(lease));
                }
                Action::Fail(waiter) => {
                    let refusal = error.cloned().map_or(Refusal::Closed, Refusal::Start);
                    let _ = waiter.send(Err(refusal));
                }
                Action::Refuse(waiter) => {
                    let _ = waiter.send(Err(Refusal::Late(None)));
                }
                Action::Rest(pooled, stage) => {
                    self.shared
                        .in_background(BackgroundJob::Rest(pooled, stage));
                }
                Action::Retire(pooled, reason) => {
                    pooled.permit.leaves();
                    self.shared
                        .sink
                        .publish(Event::WorkerEnded(Arc::new(WorkerRecord {
                            worker: pooled.worker.id(),
                            version: Arc::clone(&self.version),
                            reason,
                            lived: now.since(pooled.worker.stamps().forked),
                            cpu: pooled.cpu(),
                            memory_bytes_max: pooled.memory_bytes_max(Duration::MAX),
                        })));
                    let version = Arc::clone(&self.version);
                    self.shared
                        .in_background(BackgroundJob::End(pooled, version, reason));
                }
            }
        }
        let known = self.known.load(Ordering::Relaxed);
        if over && known && !self.shared.is_live_elsewhere(self) {
            self.forget_version();
        }
    }

    /// Starts a worker. The timer's task runs at `due` or before; it is woken when the start has been requested, because tokio wakes a
    /// second thread for two tasks that are ready at once, and the new worker would wait for the processor behind that thread.
    fn start(self: &Arc<Self>, key: Key, due: Instant) {
        self.note_prepared();
        self.shared.stir();
        let id = self.shared.next_worker();
        let start = self.shared.engine.start(&self.version, id);
        let run = |abandoned| {
            // Not in the task, which may be aborted before it runs.
            let mut order = StartOrder {
                pool: Arc::clone(self),
                key,
                open: true,
                abandoned,
            };
            async move {
                let (shared, version) = (&order.pool.shared, &order.pool.version);
                let result = {
                    let mut starting = pin!(async {
                        let permit = order.pool.permit().await?;
                        let again = || shared.engine.start(version, id);
                        let worker = shared.with_room(PLACE_WAIT_MAX, start, again).await?;
                        Ok(Started { worker, permit })
                    });
                    let requested = poll_fn(|task| Poll::Ready(starting.as_mut().poll(task))).await;
                    shared.wake_ticker_by(due);
                    match requested {
                        Poll::Ready(result) => result,
                        Poll::Pending => starting.await,
                    }
                };
                order.open = false;
                order.pool.started(order.key, result);
            }
        };
        let spawn = |abandoned| self.shared.tasks.spawn(run(abandoned));
        self.starts.begin(key, self.now(), spawn);
    }
}

fn count<T>(all: impl Iterator<Item = T>) -> u32 {
    u32::try_from(all.count()).unwrap_or(u32::MAX)
}

/// A start that waits for a permit, as long as this lives.
struct WithoutPermit<'a>(&'a AtomicUsize);

impl Drop for WithoutPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A new worker, and its permit among all workers.
struct Started {
    worker: Arc<dyn Worker>,
    permit: WorkerPermit,
}

/// Reports every ordered start to the state machine, even if its task panics or is aborted.
struct StartOrder {
    pool: Arc<Pool>,
    key: Key,
    open: bool,
    abandoned: Abandoned,
}

impl Drop for StartOrder {
    fn drop(&mut self) {
        if self.open {
            let pool = Arc::clone(&self.pool);
            // Not here: this may run inside `Tasks::spawn`, which is not reentrant.
            self.pool.shared.in_background(BackgroundJob::StartLost(
                pool,
                self.key,
                self.abandoned.get(),
            ));
        }
    }
}
