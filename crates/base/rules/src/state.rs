//! The decisions of one pool (the workers of one version) as a pure state machine: it takes events with the time at which they
//! happened, and returns actions. No I/O, no clock, no lock; `pool.rs` is its driver.
//!
//! Invariants, property-tested in `state/tests.rs`: no request waits while a worker has a free slot; while a request waits, a worker
//! is busy or starting; there are at most `max` workers, and where a worker has several slots as many that end with their leases; no
//! worker has more than `concurrency` leases; requests of callers are served in the order in which they came, and the others after them; each gets a worker, fails, is refused or is abandoned exactly
//! once; a leased worker is never retired.
//!
//! A request may be announced before it can use a worker ([`PoolState::announce`]). It then has a place in the queue, and a worker is
//! started for it if that pays, but it holds none: free workers go to requests that can use them.

mod admission;
mod announced;
mod answered;
mod estimate;
mod idle;
mod keeping;
mod lease_ages;
mod resting;
mod rule;
mod sizing;
mod starts;
#[cfg(test)]
mod tests;
mod words;

use std::collections::VecDeque;
use std::time::Duration;

use pilot_model::{EndReason, Instant, Reuse, StartKind};

pub use admission::Wait;
use answered::Answered;
use estimate::{Arrivals, StartTimes};
pub use estimate::{Mean, backoff};
use idle::IdleList;
use lease_ages::LeaseAges;
use resting::Rested;
pub use words::{
    Action, Arrival, Awaited, Class, Counts, Ending, Key, RestStage, RestTimes, Settings,
    StartFault, Urgency, WaiterId, short_starts_max,
};

/// The arrival rate is observed over this part of T: a rise that is over then no longer counts as one.
const SPANS: u64 = 4;
/// After an eviction under memory pressure, no worker is started ahead of demand for this long.
pub const PRESSURE_HOLD: Duration = Duration::from_secs(30);

/// One pool's state.
#[derive(Debug)]
pub struct PoolState<W, Q> {
    settings: Settings,
    places: Vec<Option<WorkerState<W>>>,
    vacant: Vec<Key>,
    /// Workers with a free slot; the one used last at the end. Leases are taken from the end, so that the others become idle.
    free: Vec<Key>,
    /// Workers that are ready and have no lease.
    idlers: IdleList,
    /// Which idle workers rest.
    rested: Rested,
    /// Requests that wait, and announced ones, in the order in which they came.
    queue: VecDeque<Waiter<Q>>,
    /// Requests of the queue that are announced and have not come yet.
    announced: usize,
    /// Requests of the queue that have come and for which no caller waits.
    background: usize,
    next_waiter: u64,
    starting: u32,
    up: u32,
    /// Workers that end with their leases.
    draining: u32,
    /// A start has succeeded.
    has_started: bool,
    service: Mean,
    /// The same, over more invocations.
    service_steady: Mean,
    start_times: StartTimes,
    /// How often requests arrive.
    recent: Arrivals,
    last_arrival: Option<Instant>,
    /// Starts that failed since one succeeded.
    failures: u32,
    /// No worker is started ahead of demand before this.
    hold_until: Instant,
    /// Workers that the forecast wants, including the busy ones.
    target: u32,
    /// How long an idle worker is kept beyond the floor: `idle_s`, or what the forecast says.
    reap_after: Duration,
    /// Set by [`PoolState::scale`] until the next request: no more workers than this are kept ready.
    cap: u32,
    /// The larger of `min` and the target, limited by the cap.
    floor: u32,
    /// Current leases of all workers.
    leased: u32,
    /// Those leases that are about to end.
    answered: u32,
    /// When the current leases began, if each worker has one slot.
    lease_ages: LeaseAges,
    /// Most leases and waiting requests at one instant since [`PoolState::observe`].
    demand_max: u32,
    /// Most leases at one instant since then.
    leased_max: u32,
    /// Requests since [`PoolState::observe`].
    arrivals: u64,
    /// When [`PoolState::observe`] was last called.
    observed: Option<Instant>,
    mode: Mode,
    due: Instant,
}

#[derive(Debug)]
enum WorkerState<W> {
    Starting {
        asked: Instant,
        expected: Instant,
        alone: bool,
        cause: Option<WaiterId>,
        /// It began before a [`PoolState::renew`]: it serves those who waited then, which are those before this one, and nobody
        /// else.
        stale: Option<WaiterId>,
    },
    Up {
        worker: W,
        leases: u32,
        /// Sum of the times at which the current leases began, nanoseconds. The sizing rule needs their mean age.
        since_sum: u128,
        /// Those of its leases that are about to end.
        answered: Answered,
        /// Set if the worker will not be leased again: the reason for its end.
        draining: Option<EndReason>,
    },
}

#[derive(Debug)]
struct Waiter<Q> {
    id: WaiterId,
    /// `None`: it is announced, but has not arrived yet.
    handle: Option<Q>,
    /// If it is announced: whom it waits for.
    awaited: Awaited,
    wait: Wait,
    /// A worker became ready while it was announced: no other worker is started for it before it arrives.
    met: bool,
    /// A start was ordered for it.
    caused: bool,
    /// It could expect a worker from a start that was ordered for another request.
    hoped: bool,
    /// Starts ordered for it that failed.
    failures: u32,
}

impl<Q> Waiter<Q> {
    /// What the request waited for. `fresh`: the worker that ends the wait has just started.
    fn kind(&self, fresh: bool) -> StartKind {
        if self.caused {
            StartKind::Cold
        } else if self.hoped || fresh {
            StartKind::ColdShared
        } else {
            StartKind::Warm
        }
    }

    /// A caller waits for its answer.
    fn is_caller(&self) -> bool {
        self.wait.urgency.class == Class::Caller
    }
}

/// A worker has just started.
#[derive(Debug, Clone, Copy)]
struct Fresh {
    /// It serves requests before this one only. `None`: all.
    before: Option<WaiterId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Keeps idle workers.
    Live,
    /// Serves requests, keeps no idle workers.
    Retired,
    /// Serves no request.
    Closed,
}

impl<W: Clone, Q> PoolState<W, Q> {
    /// Maximum number of attempts to start a worker for one request.
    const ATTEMPTS_MAX: u32 = 3;
    /// Spare workers are replaced this long after one was leased, or when it is released: off the path of the
    /// invocation that took it.
    const REFILL_AFTER: Duration = Duration::from_millis(2);
    const NEVER: Instant = Instant(u64::MAX);

    /// An empty pool. Nothing is started before [`PoolState::tick`], or a request.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let floor = settings.min;
        Self {
            target: 0,
            reap_after: settings.reap_after,
            cap: u32::MAX,
            leased: 0,
            answered: 0,
            lease_ages: LeaseAges::default(),
            demand_max: 0,
            leased_max: 0,
            arrivals: 0,
            observed: None,
            settings,
            places: Vec::new(),
            vacant: Vec::new(),
            free: Vec::new(),
            idlers: IdleList::default(),
            rested: Rested::default(),
            queue: VecDeque::new(),
            announced: 0,
            background: 0,
            next_waiter: 0,
            starting: 0,
            up: 0,
            draining: 0,
            has_started: false,
            service: Mean::default(),
            service_steady: Mean::default(),
            start_times: StartTimes::default(),
            recent: Arrivals::default(),
            last_arrival: None,
            failures: 0,
            hold_until: Instant(0),
            floor,
            mode: Mode::Live,
            due: if floor > 0 { Instant(0) } else { Self::NEVER },
        }
    }

    /// A request arrives whose caller waits for as long as it takes. `handle` is made only if it has to wait.
    pub fn arrive(
        &mut self,
        now: Instant,
        handle: impl FnOnce() -> Q,
        actions: &mut Vec<Action<W, Q>>,
    ) -> Arrival<W> {
        self.arrive_within(now, Wait::UNBOUNDED, handle, actions)
    }

    /// A request arrives that may wait only so long. `handle` is made only if it has to wait.
    pub fn arrive_within(
        &mut self,
        now: Instant,
        wait: Wait,
        handle: impl FnOnce() -> Q,
        actions: &mut Vec<Action<W, Q>>,
    ) -> Arrival<W> {
        if self.mode == Mode::Closed {
            return Arrival::Closed;
        }
        self.count_arrival(now);
        self.take_or_wait(now, wait, handle, actions)
    }

    /// An announced request has arrived. `handle` is made only if it has to wait on.
    pub fn claim(
        &mut self,
        now: Instant,
        id: WaiterId,
        wait: Wait,
        handle: impl FnOnce() -> Q,
        actions: &mut Vec<Action<W, Q>>,
    ) -> Arrival<W> {
        if self.mode == Mode::Closed {
            return Arrival::Closed;
        }
        let Some(at) = self.position(id) else {
            // Its start failed and it lost its place in the queue.
            return self.take_or_wait(now, wait, handle, actions);
        };
        if let Some(&key) = self.free.last()
            && let Some(worker) = self.lease(now, key)
        {
            let kind = self
                .remove(at)
                .map_or(StartKind::Warm, |waiter| waiter.kind(false));
            self.refill_soon(now);
            return Arrival::Leased(key, worker, kind);
        }
        if !self.has_place(wait, actions) {
            self.remove(at);
            return Arrival::Full(self.expected_wait(now));
        }
        // The one that gave its place up may have been before it.
        let Some(waiter) = self.waiter(id) else {
            return Arrival::Full(self.expected_wait(now));
        };
        waiter.handle = Some(handle());
        waiter.wait = wait;
        self.announced -= 1;
        self.background += usize::from(wait.urgency.class == Class::Background);
        self.demand_max = self.demand_max.max(self.demand());
        self.order_starts(now, Some(id), actions);
        self.queued(now, id, actions)
    }

    /// Whether the queue has a place for a request, perhaps that of another one.
    fn has_place(&mut self, wait: Wait, actions: &mut Vec<Action<W, Q>>) -> bool {
        self.waiting() < self.settings.queue_max
            || wait.urgency.class == Class::Caller && self.displace(actions)
    }

    /// A request is in the queue. If it cannot be served in time, it leaves the queue again.
    fn queued(
        &mut self,
        now: Instant,
        id: WaiterId,
        actions: &mut Vec<Action<W, Q>>,
    ) -> Arrival<W> {
        if self.needs_start(now, id) {
            self.start(now, Some(id), actions);
        }
        match self.too_late(now, id) {
            None => Arrival::Queued(id),
            Some(wait) => {
                drop(self.abandon(id));
                Arrival::Late(wait)
            }
        }
    }

    fn count_arrival(&mut self, now: Instant) {
        self.last_arrival = Some(now);
        self.arrivals += 1;
        self.recent.add(now, self.start_times.latency() / SPANS);
        if self.cap != u32::MAX {
            self.cap = u32::MAX;
            self.update_floor();
        }
    }

    fn take_or_wait(
        &mut self,
        now: Instant,
        wait: Wait,
        handle: impl FnOnce() -> Q,
        actions: &mut Vec<Action<W, Q>>,
    ) -> Arrival<W> {
        if let Some(&key) = self.free.last()
            && let Some(worker) = self.lease(now, key)
        {
            self.refill_soon(now);
            return Arrival::Leased(key, worker, StartKind::Warm);
        }
        if !self.has_place(wait, actions) {
            return Arrival::Full(self.expected_wait(now));
        }
        let id = self.enqueue(Some(handle()), wait);
        self.background += usize::from(wait.urgency.class == Class::Background);
        self.demand_max = self.demand_max.max(self.demand());
        self.order_starts(now, Some(id), actions);
        self.note_hope();
        self.queued(now, id, actions)
    }

    fn enqueue(&mut self, handle: Option<Q>, wait: Wait) -> WaiterId {
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.queue.push_back(Waiter {
            id,
            handle,
            awaited: Awaited::Inputs,
            wait,
            met: false,
            caused: false,
            hoped: false,
            failures: 0,
        });
        id
    }

    /// If no worker is up, the newest request can only expect a worker from the starts in progress.
    fn note_hope(&mut self) {
        if let Some(waiter) = self.queue.back_mut() {
            waiter.hoped |= self.starting > 0 && self.up == 0;
        }
    }

    fn refill_soon(&mut self, now: Instant) {
        if self.settings.spare > 0 {
            self.want(now.after(Self::REFILL_AFTER));
        }
    }

    /// Requests in the queue that have arrived.
    fn waiting(&self) -> usize {
        self.queue.len() - self.announced
    }

    fn position(&self, id: WaiterId) -> Option<usize> {
        self.queue
            .binary_search_by_key(&id, |waiter| waiter.id)
            .ok()
    }

    /// A request gives up waiting. `None`: it no longer waits: it was served or has failed.
    pub fn abandon(&mut self, waiter: WaiterId) -> Option<Q> {
        let at = self.position(waiter)?;
        self.remove(at)?.handle
    }

    /// Whether this request waits for a start that is in progress, or for one that follows it, and not for a busy worker.
    #[must_use]
    pub fn awaits_start(&self, waiter: WaiterId) -> bool {
        let waiter = self.position(waiter).and_then(|at| self.queue.get(at));
        let more_follow = self.starts_are_held() && self.lasting() < self.settings.max;
        self.starting > 0
            && waiter.is_some_and(|waiter| waiter.caused || waiter.hoped || more_follow)
    }

    /// The start of this worker began only at `begun`: before, its template was built, which the next starts do not wait for.
    /// To be called before [`PoolState::ready`].
    pub fn began_late(&mut self, key: Key, begun: Instant) {
        if let Some(WorkerState::Starting { asked, .. }) = self.place_mut(key) {
            *asked = begun.max(*asked);
        }
    }

    /// A started worker is ready.
    pub fn ready(&mut self, now: Instant, key: Key, worker: W, actions: &mut Vec<Action<W, Q>>) {
        let Some(&WorkerState::Starting {
            asked,
            alone,
            stale,
            ..
        }) = self.place(key)
        else {
            return;
        };
        self.start_times.ready(asked, now, alone);
        self.has_started = true;
        self.failures = 0;
        self.starting -= 1;
        self.up += 1;
        self.places[key.0 as usize] = Some(WorkerState::Up {
            worker,
            leases: 0,
            since_sum: 0,
            answered: Answered::default(),
            draining: None,
        });
        if self.mode == Mode::Closed {
            self.retire(key, EndReason::Retired, actions);
            return;
        }
        self.free.push(key);
        self.idlers.push(key, now);
        self.serve_queue(now, key, Some(Fresh { before: stale }), actions);
        if stale.is_some() {
            self.replace(key, actions);
        }
        if self.announced > 0 && self.free.last() == Some(&key) {
            let slots = self.settings.concurrency as usize;
            let announced = self.queue.iter_mut().filter(|waiter| waiter.is_unmet());
            announced.take(slots).for_each(|waiter| waiter.met = true);
        }
        self.order_starts(now, None, actions);
        self.settle(now, key, actions);
    }

    /// A start failed.
    pub fn start_failed(
        &mut self,
        now: Instant,
        key: Key,
        fault: StartFault,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        let Some(&WorkerState::Starting { cause, .. }) = self.place(key) else {
            return;
        };
        self.vacate(key);
        self.starting -= 1;
        self.failures = self.failures.saturating_add(1);
        self.hold_until = self.hold_until.max(now.after(backoff(self.failures)));
        let alone = self.starting == 0 && self.up == 0;
        let hopeless = self.failures >= Self::ATTEMPTS_MAX && alone;
        match fault {
            StartFault::Import if hopeless || !self.has_started => self.fail_all(actions),
            StartFault::Import => {
                let failed = cause.and_then(|id| self.abandon(id));
                actions.extend(failed.map(Action::Fail));
            }
            StartFault::Full if alone => self.fail_all(actions),
            StartFault::Full => {}
            StartFault::Transient if hopeless => self.fail_all(actions),
            StartFault::Transient => self.charge_failure(cause, actions),
        }
        self.order_starts(now, None, actions);
        self.refill(now, actions);
    }

    /// A lease that began at `since` ended.
    pub fn release(
        &mut self,
        now: Instant,
        key: Key,
        since: Instant,
        ending: Ending,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        let once = self.settings.reuse == Reuse::Once;
        let full_at = self.settings.concurrency;
        let Some(WorkerState::Up {
            leases,
            since_sum,
            draining,
            ..
        }) = self.place_mut(key)
        else {
            return;
        };
        let was_full = *leases >= full_at;
        let was_draining = draining.is_some();
        *leases = leases.saturating_sub(1);
        // With one slot, the sum is when the one lease began.
        let began = Instant(u64::try_from(*since_sum).unwrap_or(u64::MAX));
        *since_sum = since_sum.saturating_sub(u128::from(since.0));
        match ending {
            Ending::Lost(reason) => *draining = Some(draining.unwrap_or(reason)),
            Ending::Reusable if once => *draining = Some(EndReason::Once),
            Ending::Reusable | Ending::Unused => {}
        }
        let (unused, draining) = (*leases == 0, *draining);
        if unused {
            *since_sum = 0;
        }
        self.draining += u32::from(draining.is_some() && !was_draining);
        if unused && !was_draining {
            self.lease_ages.end(began);
        }
        self.leased = self.leased.saturating_sub(1);
        self.sample(now, since, ending);
        match draining {
            Some(reason) => {
                if !was_full && !was_draining {
                    self.take_from_free(key);
                }
                if unused {
                    self.retire(key, reason, actions);
                }
            }
            None => {
                if was_full {
                    self.free.push(key);
                }
                if unused {
                    self.idlers.push(key, now);
                }
                self.serve_queue(now, key, None, actions);
            }
        }
        self.order_starts(now, None, actions);
        self.settle(now, key, actions);
    }

    /// A worker that was just leased is already dead: undoes the lease.
    pub fn found_dead(&mut self, now: Instant, key: Key, actions: &mut Vec<Action<W, Q>>) {
        self.release(now, key, now, Ending::Lost(EndReason::Crash), actions);
    }

    /// Time has passed: reaps, refills, and reconsiders starts for waiting requests. To be called at [`PoolState::due`].
    pub fn tick(&mut self, now: Instant, actions: &mut Vec<Action<W, Q>>) {
        self.due = Self::NEVER;
        self.order_starts(now, None, actions);
        self.refill(now, actions);
        self.reap(now, actions);
        self.rest(now, actions);
    }

    /// When [`PoolState::tick`] is to be called next. Far in the future: not before another event.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Another version becomes the live one: this pool keeps no worker ready. Waiting and new requests are still served.
    pub fn retire_all(&mut self, actions: &mut Vec<Action<W, Q>>) {
        if self.mode == Mode::Live {
            self.mode = Mode::Retired;
            self.target = 0;
            self.update_floor();
        }
        while let Some(key) = self.coldest_idle() {
            self.retire(key, EndReason::Retired, actions);
        }
    }

    /// This version is the live one again.
    pub fn revive(&mut self) {
        if self.mode == Mode::Retired {
            self.mode = Mode::Live;
            self.want(Instant(0));
        }
    }

    /// Serves no request any more: waiting requests fail, and every worker without a lease is retired.
    pub fn close(&mut self, actions: &mut Vec<Action<W, Q>>) {
        self.mode = Mode::Closed;
        self.fail_all(actions);
        self.retire_all(actions);
    }

    /// Fails all waiting requests and forgets the announced ones.
    fn fail_all(&mut self, actions: &mut Vec<Action<W, Q>>) {
        self.announced = 0;
        self.background = 0;
        let handles = self.queue.drain(..).filter_map(|waiter| waiter.handle);
        actions.extend(handles.map(Action::Fail));
    }

    /// Retires this worker under memory pressure, if it is idle. Returns whether it was.
    pub fn evict(&mut self, now: Instant, key: Key, actions: &mut Vec<Action<W, Q>>) -> bool {
        let idle = matches!(self.place(key), Some(WorkerState::Up { leases: 0, .. }));
        if idle {
            self.hold_until = self.hold_until.max(now.after(PRESSURE_HOLD));
            self.retire(key, EndReason::Pressure, actions);
        }
        idle
    }

    /// Idle workers, and when each was last used; the one that was not used for longest first.
    pub fn idle_workers(&self) -> impl Iterator<Item = (Key, Instant, &W)> {
        self.idlers
            .iter()
            .filter_map(|(key, touched)| match self.place(key) {
                Some(WorkerState::Up { worker, .. }) => Some((key, touched, worker)),
                _ => None,
            })
    }

    /// Every worker that is up.
    pub fn workers(&self) -> impl Iterator<Item = &W> {
        self.places
            .iter()
            .flatten()
            .filter_map(|place| match place {
                WorkerState::Up { worker, .. } => Some(worker),
                WorkerState::Starting { .. } => None,
            })
    }

    /// Whether a worker has a free slot.
    #[must_use]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many workers there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let idle = self.idlers.len();
        Counts {
            starting: self.starting,
            idle,
            busy: self.up - idle,
            waiting: u32::try_from(self.waiting()).unwrap_or(u32::MAX),
        }
    }

    /// Whether there is no worker, no start in progress and no waiting request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total() == 0 && self.queue.is_empty()
    }

    /// Whether this version is still the live one.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.mode == Mode::Live
    }

    /// The newest request.
    #[must_use]
    pub fn last_arrival(&self) -> Option<Instant> {
        self.last_arrival
    }

    /// One more lease on the worker at the end of `free`.
    fn lease(&mut self, now: Instant, key: Key) -> Option<W> {
        let full_at = self.settings.concurrency;
        let since = if full_at == 1 {
            self.lease_ages.begin(now)
        } else {
            now
        };
        let Some(WorkerState::Up {
            worker,
            leases,
            since_sum,
            ..
        }) = self.place_mut(key)
        else {
            self.lease_ages.end(since);
            return None;
        };
        *leases += 1;
        *since_sum += u128::from(since.0);
        let (worker, first, full) = (worker.clone(), *leases == 1, *leases >= full_at);
        if first {
            self.idlers.remove(key);
        }
        self.leased += 1;
        self.leased_max = self.leased_max.max(self.leased);
        self.demand_max = self.demand_max.max(self.leased);
        if full {
            self.free.pop();
        }
        Some(worker)
    }

    /// Gives this worker's free slots to the front of the queue.
    fn serve_queue(
        &mut self,
        now: Instant,
        key: Key,
        fresh: Option<Fresh>,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        let before = fresh.and_then(|fresh| fresh.before);
        let fresh = fresh.is_some();
        while self.waiting() > 0 && self.free.last() == Some(&key) {
            let at = self.next_in_turn();
            if before.is_some_and(|newer| self.queue[at].id >= newer) {
                return;
            }
            if self.refuse_if_late(now, at, actions) {
                continue;
            }
            let (Some(worker), Some(waiter)) = (self.lease(now, key), self.remove(at)) else {
                return;
            };
            let kind = waiter.kind(fresh);
            actions.extend(waiter.handle.map(|to| Action::Give {
                to,
                key,
                worker,
                kind,
                fresh,
            }));
        }
    }

    /// Adds the service time of a lease that ended.
    fn sample(&mut self, now: Instant, since: Instant, ending: Ending) {
        let took = now.since(since);
        let counts = match ending {
            Ending::Reusable => true,
            // The invocation was cut short: it would have taken at least this long.
            Ending::Lost(_) => self.service.value().is_some_and(|mean| took > mean),
            Ending::Unused => false,
        };
        if counts {
            self.service.add(took);
            self.service_steady.add_steadily(took);
        }
    }

    fn total(&self) -> u32 {
        self.starting + self.up
    }

    /// All workers, as far as they do not end with their leases. An exchange of a worker with several slots may last for days, for
    /// example a WebSocket. So another worker takes the place of one that only ends its exchanges; of at most `max` such ones.
    fn lasting(&self) -> u32 {
        match self.settings.concurrency {
            1 => self.total(),
            _ => self.total() - self.draining.min(self.settings.max),
        }
    }

    /// Invocations that run or wait.
    fn demand(&self) -> u32 {
        self.leased
            .saturating_add(u32::try_from(self.waiting()).unwrap_or(u32::MAX))
    }

    fn want(&mut self, at: Instant) {
        self.due = self.due.min(at);
    }

    fn place(&self, key: Key) -> Option<&WorkerState<W>> {
        self.places.get(key.0 as usize)?.as_ref()
    }

    fn place_mut(&mut self, key: Key) -> Option<&mut WorkerState<W>> {
        self.places.get_mut(key.0 as usize)?.as_mut()
    }
}
