//! The decisions of the keyed pool as a pure state machine (HotC, section IV): which runtime a worker is given, what becomes of it
//! afterwards, which are started ahead and which are ended. Events come in with the time at which they happened; no I/O, no
//! clock, no lock. `driver.rs` calls it.
//!
//! A runtime's way (the paper's Fig. 7; its three marks are those of a *key*, [`KeyedState::availability`]):
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
//! and from every state `end`, to nothing.
//!
//! Invariants, property-tested in `state/tests.rs`: whoever holds a runtime holds it alone, for the state machine has the handles of
//! those that are available and of no others; only those are evicted; a runtime that somebody has used is given to its owner
//! alone; the counts by key and by base key are those of the runtimes; beyond the limit there is nothing available; no more requests
//! wait for what is under way than that is.

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
pub(super) use nearest::Near;
pub(super) use words::{Acquired, Awaited, Cause, End, Limits, Look, RuntimeId, Wait};

/// All runtimes of all keys. `R` is the handle: whoever has it keeps the runtime up.
#[derive(Debug)]
pub(super) struct KeyedState<R> {
    limits: Limits,
    /// By number, which is by age.
    runtimes: BTreeMap<RuntimeId, Runtime<R>>,
    /// Those available.
    available: BTreeSet<RuntimeId>,
    /// Keys that a version uses or a runtime has.
    keys: HashMap<Arc<RuntimeKey>, KeyAccount>,
    /// The base keys of those keys.
    base_keys: HashMap<Arc<RuntimeKey>, BaseKeyAccount>,
    next: u64,
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
    /// The only state in which the state machine has the handle.
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
            hold_until: Instant(0),
            closed: false,
        }
    }

    /// Algorithm 1: a runtime for a worker. Of those with the key, the one that became available last ("the first available",
    /// in the paper): its memory is the likeliest to be in the caches, and the others age until `keep` lets them go. Else the
    /// nearest that can be adapted. Else one that is under way, if that is worth waiting for (`waiting.rs`). Else a new one, for
    /// which the oldest available makes room where there are too many.
    ///
    /// Where all are leased a new one is started all the same: the limit is on what is kept. How many workers there may be is
    /// the business of each function's `scale.max`; a request is not refused because others are busy.
    ///
    /// Dead ones are met on the way and put into `gone`, as are those evicted. `None`: closed.
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

    /// One of this key that is available: for a request that has waited for its own since [`KeyedState::acquire`] said so.
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
            // Ending the last one of a key may have taken its account along.
            self.enter(key);
        }
        None
    }

    /// A runtime that was started for a request is up; the caller has it.
    pub(super) fn started(&mut self, now: Instant, id: RuntimeId) {
        self.note_start(now, id);
        self.shift(id, RuntimeState::Leased { since: now });
    }

    /// A runtime that was started ahead is up.
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

    /// A start came to nothing.
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

    /// Algorithm 2, its beginning: a worker gives its runtime back, to be cleaned. From here on it is the owner's of its key.
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

    /// Algorithm 2, its end: it is clean, and available again, unless nobody could use it or there are too many.
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

    /// A runtime is no more; `None`: whoever had it is to drop it. What is not known any more is ignored.
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

    /// Nothing is given, started or kept any more.
    pub(super) fn close(&mut self, gone: &mut Vec<R>) {
        self.closed = true;
        while let Some(id) = self.available.first().copied() {
            gone.extend(self.end(id, End::LetGo));
        }
    }

    /// Whether nothing is given any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether anything is kept at all: it is neither closed nor told to keep nothing.
    pub(super) fn keeps(&self) -> bool {
        !self.closed && self.limits.runtimes_max > 0
    }

    /// The paper's Fig. 7.
    pub(super) fn availability(&self, key: &RuntimeKey) -> Availability {
        match self.keys.get(key).map(|account| account.counts) {
            Some(counts) if counts.available > 0 => Availability::Available,
            Some(counts) if counts != RuntimeCounts::default() => Availability::NotAvailable,
            _ => Availability::NotExisting,
        }
    }

    /// Of this key, and what has become of them.
    pub(super) fn of_key(&self, key: &RuntimeKey) -> (RuntimeCounts, RuntimeTotals) {
        let account = self.keys.get(key);
        account.map_or_else(Default::default, |account| (account.counts, account.totals))
    }

    /// Of this base key.
    pub(super) fn of_base_key(&self, base_key: &RuntimeKey) -> RuntimeCounts {
        let account = self.base_keys.get(base_key);
        account.map_or_else(RuntimeCounts::default, |account| account.counts)
    }

    /// Of all.
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

    /// Those available, the oldest first.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&Arc<RuntimeKey>, &R)> {
        self.available.iter().filter_map(|id| {
            let Runtime { key, state } = self.runtimes.get(id)?;
            match state {
                RuntimeState::Available { runtime, .. } => Some((key, runtime)),
                _ => None,
            }
        })
    }

    /// A new runtime, to be started by the caller.
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

    /// Puts a runtime with those available; it may be one of those that have to go at once.
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
