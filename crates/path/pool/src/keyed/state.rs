//! The decisions of the keyed pool as a pure state machine (HotC, section IV): which runtime a worker gets, what happens to it
//! afterwards, which are started ahead of demand, and which are ended. It takes events with the time at which they happened; no
//! I/O, no clock, no lock. `driver.rs` calls it.
//!
//! The states of a runtime (the paper's Fig. 7; its three marks are states of a *key*, [`KeyedState::availability`]):
//!
//! ```text
//!               acquire                     started
//!   (none) ──────────────────▶ Starting ──────────────▶ Leased ◀──────────────┐
//!      │  refill                                        │   ▲ adapted         │ acquire: equal key
//!      └──────▶ Starting ───────────┐            release│   └─────── Adapting │
//!               (ahead)             ▼                   ▼            ▲        │
//!                     started   Available ◀───────── Cleaning        │ acquire: nearest key
//!                                   └────────────────cleaned─────────┴────────┘
//! ```
//!
//! and from every state, `end` removes the runtime.
//!
//! Invariants, property-tested in `state/tests.rs`: a runtime has one holder, because the state machine has the handles of
//! exactly the available ones; only those are evicted; a used runtime is given only to its owner; the counts by key and by base
//! key match the runtimes; beyond the limit no runtime is available; no more requests wait than there are runtimes being cleaned
//! or started.

mod account;
mod keeping;
mod nearest;
#[cfg(test)]
mod tests;
mod waiting;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use pilot_model::Instant;
use pilot_model::runtime_key::RuntimeKey;
use pilot_model::status::{Availability, RuntimeCounts, RuntimeTotals};

use account::{BaseKeyAccount, KeyAccount};
pub(super) use words::{Acquired, Awaited, Cause, End, Limits, Look, Near, RuntimeId, Wait};

/// All runtimes of all keys. `R` is the handle: it keeps the runtime alive.
#[derive(Debug)]
pub(super) struct KeyedState<R> {
    limits: Limits,
    /// By number, and therefore by age.
    runtimes: BTreeMap<RuntimeId, Runtime<R>>,
    /// The available ones.
    available: BTreeSet<RuntimeId>,
    /// Keys of versions and runtimes.
    keys: HashMap<Arc<RuntimeKey>, KeyAccount>,
    /// The base keys of those keys.
    base_keys: HashMap<Arc<RuntimeKey>, BaseKeyAccount>,
    next: u64,
    /// How often one became available.
    kept_so_far: u64,
    /// Nothing is started ahead of demand before this: memory was short.
    hold_until: Instant,
    closed: bool,
}

#[derive(Debug)]
struct Runtime<R> {
    key: Arc<RuntimeKey>,
    state: RuntimeState<R>,
}

#[derive(Debug)]
enum RuntimeState<R> {
    Starting {
        cause: Cause,
        asked: Instant,
    },
    /// Only in this state, the state machine has the handle.
    Available {
        runtime: R,
        since: Instant,
    },
    Adapting,
    Leased {
        since: Instant,
    },
    Cleaning {
        since: Instant,
    },
}

impl<R> KeyedState<R> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            runtimes: BTreeMap::new(),
            available: BTreeSet::new(),
            keys: HashMap::new(),
            base_keys: HashMap::new(),
            next: 0,
            kept_so_far: 0,
            hold_until: Instant(0),
            closed: false,
        }
    }

    /// Algorithm 1: a runtime for a worker. Among the available ones with the key, the one that became available last ("the first
    /// available", in the paper): its memory is most likely in the caches, and the others age until `keep` ends them. Otherwise
    /// the nearest one that can be adapted. Otherwise one that is being cleaned or started, if it is worth waiting for
    /// (`waiting.rs`). Otherwise a new one. If there are too many, the oldest available one is evicted.
    ///
    /// If all are leased, a new one is started anyway: the limit applies only to kept runtimes. Each function's `scale.max`
    /// limits its workers. A request is not refused because other functions are busy.
    ///
    /// Runtimes that are found dead or are evicted are put into `gone`. `None`: closed.
    pub(super) fn acquire(
        &mut self,
        now: Instant,
        key: &Arc<RuntimeKey>,
        look: Look,
        is_alive: impl Fn(&R) -> bool,
        gone: &mut Vec<R>,
    ) -> Option<Acquired<R>> {
        if let Look::Waiting(on) = look {
            self.waited(key, on);
        }
        if self.closed {
            return None;
        }
        self.enter(key);
        if look == Look::First {
            self.base_account(key).arrived(now);
        }
        if look != Look::Nowhere {
            if let Some((id, runtime)) = self.reuse(now, key, &is_alive, gone) {
                return Some(Acquired::Reused(id, runtime));
            }
            while let Some(near) = self.nearest(key) {
                let runtime = self.take(near.id, key, RuntimeState::Adapting)?;
                if is_alive(&runtime) {
                    return Some(Acquired::Near(near, runtime));
                }
                gone.push(runtime);
                self.end(near.id, End::Destroyed);
                self.enter(key);
            }
        }
        if let Some(wait) = self.wait(now, key, look) {
            return Some(Acquired::Wait(wait));
        }
        self.make_room(gone);
        let cause = Cause::Request;
        Some(Acquired::Start(self.begin(now, key, cause)))
    }

    /// An available runtime of this key, for a request that has been waiting for its own start since [`KeyedState::acquire`].
    pub(super) fn reuse(
        &mut self,
        now: Instant,
        key: &Arc<RuntimeKey>,
        is_alive: impl Fn(&R) -> bool,
        gone: &mut Vec<R>,
    ) -> Option<(RuntimeId, R)> {
        while let Some(id) = self.newest(key) {
            let runtime = self.take(id, key, RuntimeState::Leased { since: now })?;
            if is_alive(&runtime) {
                self.totals(key).reused += 1;
                return Some((id, runtime));
            }
            gone.push(runtime);
            self.end(id, End::Destroyed);
            // Ending the last runtime of a key may have removed its account.
            self.enter(key);
        }
        None
    }

    /// A runtime that was started for a request is ready; the caller has it.
    pub(super) fn started(&mut self, now: Instant, id: RuntimeId) {
        self.note_start(now, id);
        self.shift(id, RuntimeState::Leased { since: now });
    }

    /// A runtime that was started ahead of demand is ready.
    pub(super) fn started_ahead(
        &mut self,
        now: Instant,
        id: RuntimeId,
        runtime: R,
        gone: &mut Vec<R>,
    ) {
        self.note_start(now, id);
        self.keep(now, id, runtime, gone);
    }

    /// A start failed.
    pub(super) fn start_failed(&mut self, now: Instant, id: RuntimeId) {
        let Some(Runtime { key, state }) = self.runtimes.get(&id) else {
            return;
        };
        if matches!(state, RuntimeState::Starting { .. }) {
            let key = Arc::clone(key);
            self.base_account(&key).failed(now);
            self.remove(id);
        }
    }

    /// A runtime has been adapted.
    pub(super) fn adapted(&mut self, now: Instant, id: RuntimeId) {
        if let Some(Runtime {
            key,
            state: RuntimeState::Adapting,
        }) = self.runtimes.get(&id)
        {
            let key = Arc::clone(key);
            self.totals(&key).adapted += 1;
            self.shift(id, RuntimeState::Leased { since: now });
        }
    }

    /// Algorithm 2, first half: a worker gives its runtime back, to be cleaned. From now on it belongs to the owner in its key.
    pub(super) fn release(&mut self, now: Instant, id: RuntimeId) {
        if let Some(Runtime {
            key,
            state: RuntimeState::Leased { since },
        }) = self.runtimes.get(&id)
        {
            let (key, used) = (Arc::clone(key), now.since(*since));
            self.base_account(&key).service.add(used);
            self.shift(id, RuntimeState::Cleaning { since: now });
        }
    }

    /// Algorithm 2, second half: it is clean and available again, unless no version could use it or there are too many.
    pub(super) fn cleaned(&mut self, now: Instant, id: RuntimeId, runtime: R, gone: &mut Vec<R>) {
        let Some(Runtime {
            key,
            state: RuntimeState::Cleaning { since },
        }) = self.runtimes.get(&id)
        else {
            gone.push(runtime);
            return;
        };
        let (key, took) = (Arc::clone(key), now.since(*since));
        self.base_account(&key).clean.add(took);
        self.totals(&key).cleaned += 1;
        self.keep(now, id, runtime, gone);
    }

    /// A runtime has ended. `None`: the holder must drop it. An unknown id is ignored.
    pub(super) fn end(&mut self, id: RuntimeId, how: End) -> Option<R> {
        let key = Arc::clone(&self.runtimes.get(&id)?.key);
        let totals = self.totals(&key);
        match how {
            End::Destroyed => totals.destroyed += 1,
            End::Evicted => totals.evicted += 1,
            End::LetGo => totals.let_go += 1,
        }
        self.remove(id)
    }

    /// From now on, no runtime is given, started or kept.
    pub(super) fn close(&mut self, gone: &mut Vec<R>) {
        self.closed = true;
        while let Some(id) = self.available.first().copied() {
            gone.extend(self.end(id, End::LetGo));
        }
    }

    /// Whether it is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether any runtime is kept: it is not closed, and its limit is not 0.
    pub(super) fn keeps(&self) -> bool {
        !self.closed && self.limits.runtimes_max > 0
    }

    /// The state of a key in the paper's Fig. 7.
    pub(super) fn availability(&self, key: &RuntimeKey) -> Availability {
        match self.keys.get(key).map(|account| account.counts) {
            Some(counts) if counts.available > 0 => Availability::Available,
            Some(counts) if counts != RuntimeCounts::default() => Availability::NotAvailable,
            _ => Availability::NotExisting,
        }
    }

    /// Counts and totals of this key.
    pub(super) fn of_key(&self, key: &RuntimeKey) -> (RuntimeCounts, RuntimeTotals) {
        let account = self.keys.get(key);
        account.map_or_else(Default::default, |account| (account.counts, account.totals))
    }

    /// Counts of this base key.
    pub(super) fn of_base_key(&self, base_key: &RuntimeKey) -> RuntimeCounts {
        let account = self.base_keys.get(base_key);
        account.map_or_else(RuntimeCounts::default, |account| account.counts)
    }

    /// Counts of all keys.
    pub(super) fn counts(&self) -> RuntimeCounts {
        let mut sum = RuntimeCounts::default();
        for BaseKeyAccount { counts, .. } in self.base_keys.values() {
            sum.starting += counts.starting;
            sum.available += counts.available;
            sum.adapting += counts.adapting;
            sum.leased += counts.leased;
            sum.cleaning += counts.cleaning;
        }
        sum
    }

    /// The available runtimes, the oldest first.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&Arc<RuntimeKey>, &R)> {
        self.available.iter().filter_map(|id| {
            let Runtime { key, state } = self.runtimes.get(id)?;
            match state {
                RuntimeState::Available { runtime, .. } => Some((key, runtime)),
                _ => None,
            }
        })
    }

    /// A new runtime, which the caller must start.
    fn begin(&mut self, now: Instant, key: &Arc<RuntimeKey>, cause: Cause) -> RuntimeId {
        self.enter(key);
        self.next += 1;
        let id = RuntimeId(self.next);
        let state = RuntimeState::Starting { cause, asked: now };
        self.count_in(id, key, state.phase());
        let runtime = Runtime {
            key: Arc::clone(key),
            state,
        };
        self.runtimes.insert(id, runtime);
        id
    }

    /// How often a runtime became available.
    pub(super) fn kept_so_far(&self) -> u64 {
        self.kept_so_far
    }

    /// Makes a runtime available. It may be one that is evicted at once.
    fn keep(&mut self, now: Instant, id: RuntimeId, runtime: R, gone: &mut Vec<R>) {
        let Some(key) = self.runtimes.get(&id).map(|known| Arc::clone(&known.key)) else {
            gone.push(runtime);
            return;
        };
        if self.closed || !self.is_wanted(&key) {
            self.end(id, End::LetGo);
            gone.push(runtime);
            return;
        }
        self.shift(
            id,
            RuntimeState::Available {
                runtime,
                since: now,
            },
        );
        self.kept_so_far += 1;
        self.evict_beyond(self.limits.runtimes_max, gone);
    }

    fn note_start(&mut self, now: Instant, id: RuntimeId) {
        if let Some(Runtime {
            key,
            state: RuntimeState::Starting { asked, .. },
        }) = self.runtimes.get(&id)
        {
            let (key, took) = (Arc::clone(key), now.since(*asked));
            self.totals(&key).started += 1;
            let base = self.base_account(&key);
            base.start.add(took);
            base.failures = 0;
        }
    }
}
