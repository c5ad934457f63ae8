//! Which workers are kept ready beyond demand (`min`, `spare`, a forecast's target), and which are reaped.

use std::time::Duration;

use pilot_model::forecast::{Target, Tick};
use pilot_model::{EndReason, Instant};

use super::words::{Action, Key, WaiterId};
use super::{Mode, PoolState, WorkerState};

impl<W: Clone, Q> PoolState<W, Q> {
    /// Retires idle workers beyond `workers`, or starts workers up to it. Until the next request it is the limit: also of `min`, and of
    /// workers that are starting or busy now.
    pub fn scale(&mut self, now: Instant, workers: u32, actions: &mut Vec<Action<W, Q>>) {
        if self.mode != Mode::Live {
            return;
        }
        self.cap = workers;
        self.update_floor();
        if workers == 0 {
            self.last_arrival = None;
        }
        while self.lasting() > workers
            && let Some(key) = self.coldest_idle()
        {
            self.retire(key, EndReason::Scaled, actions);
        }
        while self.lasting() < workers.min(self.settings.max) {
            self.start(now, None, actions);
        }
    }

    /// What the pool saw since the last call, for its forecaster. `worker_bytes` is the mean memory of a worker, if it was measured.
    pub fn observe(&mut self, now: Instant, worker_bytes: Option<u64>) -> Tick {
        let demand = self.demand();
        let tick = Tick {
            now,
            span: self
                .observed
                .map_or(Duration::ZERO, |before| now.since(before)),
            arrivals: self.arrivals,
            last_arrival: self.last_arrival,
            demand,
            demand_max: self.demand_max.max(demand),
            busy_max: self.leased_max,
            workers: self.lasting(),
            concurrency: self.settings.concurrency,
            service: self.service.value(),
            start: self.start_times.measured().map(Duration::from_nanos),
            worker_bytes,
        };
        self.observed = Some(now);
        self.arrivals = 0;
        self.demand_max = demand;
        self.leased_max = self.leased;
        tick
    }

    /// Applies a forecast's target: starts missing workers, and reaps those that are not to be kept. After [`PoolState::scale`] with
    /// fewer workers, that number is the limit until the next request.
    pub fn apply_target(&mut self, now: Instant, target: Target, actions: &mut Vec<Action<W, Q>>) {
        if self.mode != Mode::Live {
            return;
        }
        self.target = target.workers.min(self.settings.max);
        self.reap_after = target.idle.unwrap_or(self.settings.reap_after);
        self.update_floor();
        self.fill_floor(now, actions);
        self.reap(now, actions);
    }

    /// After a worker became ready or was released: decides whether it is kept if it is idle.
    pub(super) fn settle(&mut self, now: Instant, key: Key, actions: &mut Vec<Action<W, Q>>) {
        if let Some(WorkerState::Up { leases: 0, .. }) = self.place(key) {
            match self.mode {
                // Nobody is on the way who could use it.
                Mode::Live if self.lasting() > self.cap && self.queue.is_empty() => {
                    self.retire(key, EndReason::Scaled, actions);
                }
                Mode::Live => {
                    self.want(now.after(self.reap_after));
                    self.rest_later(now);
                }
                Mode::Retired | Mode::Closed => self.retire(key, EndReason::Retired, actions),
            }
        }
        if self.settings.spare > 0 || self.floor > 0 {
            self.refill(now, actions);
        }
    }

    /// Starts the workers that `min`, `spare` and the forecast require, once no request waits.
    pub(super) fn refill(&mut self, now: Instant, actions: &mut Vec<Action<W, Q>>) {
        if self.mode != Mode::Live || self.waiting() > 0 {
            return;
        }
        self.fill_floor(now, actions);
        if self.settings.spare > 0 && self.is_hot(now) {
            let ahead = self.idlers.len() + self.starting;
            self.start_ahead(now, self.settings.spare.saturating_sub(ahead), actions);
        }
    }

    /// Starts workers up to the floor.
    fn fill_floor(&mut self, now: Instant, actions: &mut Vec<Action<W, Q>>) {
        self.start_ahead(now, self.floor.saturating_sub(self.lasting()), actions);
    }

    /// Starts this many workers ahead of demand, up to `max`; starts none for some time after starts failed or memory was short.
    fn start_ahead(&mut self, now: Instant, workers: u32, actions: &mut Vec<Action<W, Q>>) {
        let workers = workers.min(self.settings.max.saturating_sub(self.lasting()));
        if workers > 0 && now < self.hold_until {
            self.want(self.hold_until);
            return;
        }
        for _ in 0..workers {
            self.start(now, None, actions);
        }
    }

    /// Computes how many workers are always kept. The cap of [`PoolState::scale`] applies until the next request.
    pub(super) fn update_floor(&mut self) {
        self.floor = self.settings.min.max(self.target).min(self.cap);
    }

    /// Reaps workers that were idle for too long, the longest idle first, but keeps those that `min` and `spare` require.
    pub(super) fn reap(&mut self, now: Instant, actions: &mut Vec<Action<W, Q>>) {
        let hot = self.is_hot(now);
        let keep = if hot { self.settings.spare } else { 0 };
        let surplus = self.idlers.len().saturating_sub(keep);
        let above_floor = self.lasting().saturating_sub(self.floor);
        let some_idle = self.idlers.len() > 0;
        for _ in 0..surplus.min(above_floor) {
            let Some((key, touched)) = self.idlers.first() else {
                break;
            };
            let end = touched.after(self.reap_after);
            if end > now {
                self.want(end);
                break;
            }
            self.retire(key, EndReason::Idle, actions);
        }
        if hot
            && keep > 0
            && some_idle
            && let Some(last) = self.last_arrival
        {
            self.want(last.after(self.settings.hot_for));
        }
    }

    pub(super) fn is_hot(&self, now: Instant) -> bool {
        self.last_arrival
            .is_some_and(|last| now < last.after(self.settings.hot_for))
    }

    pub(super) fn coldest_idle(&self) -> Option<Key> {
        self.idlers.first().map(|(key, _)| key)
    }

    pub(super) fn retire(&mut self, key: Key, reason: EndReason, actions: &mut Vec<Action<W, Q>>) {
        if let Some(WorkerState::Up { worker, .. }) = self.vacate(key) {
            self.up -= 1;
            self.take_from_free(key);
            actions.push(Action::Retire(worker, reason));
        }
    }

    /// What workers are given at their start has changed: each one is replaced. Idle ones are retired now, leased ones when their leases
    /// end, and those that are starting when they have served the requests that wait now.
    pub fn renew(&mut self, actions: &mut Vec<Action<W, Q>>) {
        let next = WaiterId(self.next_waiter);
        for at in 0..self.places.len() {
            // There are at most `scale.max` workers, 10,000.
            let key = Key(u32::try_from(at).unwrap_or(u32::MAX));
            match self.place_mut(key) {
                Some(WorkerState::Starting { stale, .. }) => {
                    *stale = Some(stale.unwrap_or(next));
                }
                Some(WorkerState::Up { .. }) => self.replace(key, actions),
                None => {}
            }
        }
        self.want(Instant(0));
    }

    /// Gives one worker up, whose place another function needs: the one that has been idle longest; if none is idle, one that serves
    /// few, when its leases end. Returns whether there was one.
    pub fn give_up(&mut self, now: Instant, actions: &mut Vec<Action<W, Q>>) -> bool {
        let least_used = || {
            let places = (0_u32..).zip(&self.places);
            let leased = places.filter_map(|(at, place)| match place {
                Some(WorkerState::Up {
                    leases,
                    draining: None,
                    ..
                }) => Some((*leases, Key(at))),
                _ => None,
            });
            leased.min_by_key(|(leases, _)| *leases).map(|(_, key)| key)
        };
        let Some(key) = self.coldest_idle().or_else(least_used) else {
            return false;
        };
        self.hold_until = self.hold_until.max(now.after(super::PRESSURE_HOLD));
        self.drain(key, EndReason::Scaled, actions);
        if !self.queue.is_empty() {
            self.want(now);
        }
        true
    }

    /// Workers that end with their leases.
    #[must_use]
    pub fn draining(&self) -> usize {
        self.draining as usize
    }

    /// Replaces this worker.
    pub(super) fn replace(&mut self, key: Key, actions: &mut Vec<Action<W, Q>>) {
        self.drain(key, EndReason::Retired, actions);
    }

    /// Leases this worker no more, and retires it as soon as it has no lease.
    fn drain(&mut self, key: Key, reason: EndReason, actions: &mut Vec<Action<W, Q>>) {
        let Some(WorkerState::Up {
            leases,
            since_sum,
            draining: draining @ None,
            ..
        }) = self.place_mut(key)
        else {
            return;
        };
        *draining = Some(reason);
        let unused = *leases == 0;
        // With one slot, the sum is when the one lease began. It ends later, but then no request gets the worker.
        let began = Instant(u64::try_from(*since_sum).unwrap_or(u64::MAX));
        self.draining += 1;
        if unused {
            self.retire(key, reason, actions);
            return;
        }
        self.lease_ages.end(began);
        self.take_from_free(key);
    }

    /// This worker must not be leased any more. Mostly it is the one that has been idle longest, which is at the front.
    pub(super) fn take_from_free(&mut self, key: Key) {
        if let Some(at) = self.free.iter().position(|free| *free == key) {
            self.free.remove(at);
        }
    }

    pub(super) fn vacate(&mut self, key: Key) -> Option<WorkerState<W>> {
        let place = self.places.get_mut(key.0 as usize)?.take();
        self.vacant.extend(place.is_some().then_some(key));
        self.idlers.remove(key);
        let is_draining = |place: &WorkerState<W>| {
            matches!(
                place,
                WorkerState::Up {
                    draining: Some(_),
                    ..
                }
            )
        };
        self.draining -= u32::from(place.as_ref().is_some_and(is_draining));
        place
    }
}
