//! The accounts: counts and measurements of each key and each base key. Every change of a runtime's state is made here, so that
//! the counts match the runtimes.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::forecast::{Target, Tick};
use pilot_model::runtime_key::RuntimeKey;
use pilot_model::status::{RuntimeCounts, RuntimeTotals};
use pilot_rules::{Mean, backoff};

use super::words::{Cause, RuntimeId};
use super::{KeyedState, Runtime, RuntimeState};

/// The account of a key.
#[derive(Debug)]
pub(super) struct KeyAccount {
    pub(super) base_key: Arc<RuntimeKey>,
    /// Versions that have this key.
    pub(super) users: u32,
    /// The available ones; the one that became available last is at the end.
    pub(super) available: Vec<RuntimeId>,
    pub(super) waiting: WaitCounts,
    pub(super) counts: RuntimeCounts,
    pub(super) totals: RuntimeTotals,
}

impl KeyAccount {
    /// Whether a request waits for one that is being cleaned.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.cleaning > 0
    }
}

/// Requests that wait, by what they wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WaitCounts {
    /// For a runtime of the key that is being cleaned.
    pub(super) cleaning: u32,
    /// For a runtime of the base key that is being started ahead of demand.
    pub(super) ahead: u32,
}

/// The account of a base key, over all its keys.
#[derive(Debug, Default)]
pub(super) struct BaseKeyAccount {
    /// Its keys that have an account.
    pub(super) keys: Vec<Arc<RuntimeKey>>,
    /// Versions that have one of these keys.
    pub(super) users: u32,
    pub(super) counts: RuntimeCounts,
    /// The starting ones that are started ahead of demand.
    pub(super) ahead: u32,
    /// Requests that wait for one of those.
    pub(super) waiting: u32,
    /// From requesting a fresh runtime until it is ready.
    pub(super) start: Mean,
    /// From giving one back until it is clean, including the end of the use.
    pub(super) clean: Mean,
    /// From getting a runtime until giving it back.
    pub(super) service: Mean,
    arrivals: u64,
    last_arrival: Option<Instant>,
    /// Maximum in use at one instant since [`BaseKeyAccount::observe`].
    used_max: u32,
    /// Maximum leased at one instant since then.
    leased_max: u32,
    observed: Option<Instant>,
    /// What the forecast requires.
    pub(super) target: Target,
    /// Failed starts since the last successful one.
    pub(super) failures: u32,
    /// No runtime is started ahead of demand before this: starts failed.
    pub(super) hold_until: Option<Instant>,
}

impl BaseKeyAccount {
    /// num − num_avail of Algorithm 3: existing and not available. Starts ahead of demand do not count, because the forecast
    /// would take them for demand.
    pub(super) fn used(&self) -> u32 {
        let RuntimeCounts {
            starting,
            available: _,
            adapting,
            leased,
            cleaning,
        } = self.counts;
        starting.saturating_sub(self.ahead) + adapting + leased + cleaning
    }

    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrivals += 1;
        self.last_arrival = Some(now);
    }

    /// A start failed: the next one ahead of demand is delayed by a second, then two, four, … up to a minute.
    pub(super) fn failed(&mut self, now: Instant) {
        self.hold_until = Some(now.after(backoff(self.failures)));
        self.failures = self.failures.saturating_add(1);
    }

    /// The forecaster's input for the time since the last call.
    pub(super) fn observe(&mut self, now: Instant) -> Tick {
        let used = self.used();
        let counts = self.counts;
        let tick = Tick {
            now,
            span: self
                .observed
                .map_or(Duration::ZERO, |before| now.since(before)),
            arrivals: self.arrivals,
            last_arrival: self.last_arrival,
            demand: used,
            demand_max: self.used_max.max(used),
            busy_max: self.leased_max,
            workers: used + counts.available + self.ahead,
            concurrency: 1,
            service: self.service.value(),
            start: self.start.value(),
            worker_bytes: None,
        };
        self.observed = Some(now);
        self.arrivals = 0;
        self.used_max = used;
        self.leased_max = counts.leased;
        tick
    }

    fn note_peaks(&mut self) {
        self.used_max = self.used_max.max(self.used());
        self.leased_max = self.leased_max.max(self.counts.leased);
    }
}

impl<R> KeyedState<R> {
    /// Opens the account of a key, if there is none.
    pub(super) fn enter(&mut self, key: &Arc<RuntimeKey>) {
        if self.keys.contains_key(key) {
            return;
        }
        let base_key = Arc::new(key.base_key());
        // Use the `Arc` of the base key's account, so that equal base keys share it.
        let base_key = match self.base_keys.get_key_value(&base_key) {
            Some((known, _)) => Arc::clone(known),
            None => {
                self.base_keys
                    .insert(Arc::clone(&base_key), BaseKeyAccount::default());
                base_key
            }
        };
        if let Some(account) = self.base_keys.get_mut(&base_key) {
            account.keys.push(Arc::clone(key));
        }
        self.keys.insert(
            Arc::clone(key),
            KeyAccount {
                base_key,
                users: 0,
                available: Vec::new(),
                waiting: WaitCounts::default(),
                counts: RuntimeCounts::default(),
                totals: RuntimeTotals::default(),
            },
        );
    }

    /// Closes the accounts of a key and its base key, if nobody needs them.
    pub(super) fn tidy(&mut self, key: &Arc<RuntimeKey>) {
        let Some(account) = self.keys.get(key) else {
            return;
        };
        let is_idle =
            account.counts == RuntimeCounts::default() && account.waiting == WaitCounts::default();
        if account.users > 0 || !is_idle {
            return;
        }
        let base_key = Arc::clone(&account.base_key);
        self.keys.remove(key);
        if let Some(account) = self.base_keys.get_mut(&base_key) {
            account.keys.retain(|other| other != key);
            if account.keys.is_empty() {
                self.base_keys.remove(&base_key);
            }
        }
    }

    pub(super) fn totals(&mut self, key: &Arc<RuntimeKey>) -> &mut RuntimeTotals {
        self.enter(key);
        let account = self.keys.get_mut(key);
        &mut account.expect("the account was just opened").totals
    }

    pub(super) fn base_account(&mut self, key: &Arc<RuntimeKey>) -> &mut BaseKeyAccount {
        self.enter(key);
        let base_key = self
            .keys
            .get(key)
            .map(|account| Arc::clone(&account.base_key));
        base_key
            .and_then(|base_key| self.base_keys.get_mut(&base_key))
            .expect("a key's account is opened with its base key's")
    }

    /// The available runtime of this key that became available last.
    pub(super) fn newest(&self, key: &RuntimeKey) -> Option<RuntimeId> {
        self.keys.get(key)?.available.last().copied()
    }

    /// Takes an available runtime for the key `to`.
    pub(super) fn take(
        &mut self,
        id: RuntimeId,
        to: &Arc<RuntimeKey>,
        state: RuntimeState<R>,
    ) -> Option<R> {
        match self.change(id, Some(to), state)? {
            RuntimeState::Available { runtime, .. } => Some(runtime),
            _ => None,
        }
    }

    /// Changes the state and keeps the key.
    pub(super) fn shift(&mut self, id: RuntimeId, state: RuntimeState<R>) {
        self.change(id, None, state);
    }

    /// Returns the previous state.
    fn change(
        &mut self,
        id: RuntimeId,
        to: Option<&Arc<RuntimeKey>>,
        state: RuntimeState<R>,
    ) -> Option<RuntimeState<R>> {
        let runtime = self.runtimes.get_mut(&id)?;
        let before = Arc::clone(&runtime.key);
        let key = Arc::clone(to.unwrap_or(&before));
        let left = std::mem::replace(&mut runtime.state, state);
        let phase = runtime.state.phase();
        runtime.key = Arc::clone(&key);
        self.count_out(id, &before, left.phase());
        self.count_in(id, &key, phase);
        if before != key {
            self.tidy(&before);
        }
        Some(left)
    }

    /// Removes a runtime. Returns its handle, if the state machine had it.
    pub(super) fn remove(&mut self, id: RuntimeId) -> Option<R> {
        let Runtime { key, state } = self.runtimes.remove(&id)?;
        self.count_out(id, &key, state.phase());
        self.tidy(&key);
        match state {
            RuntimeState::Available { runtime, .. } => Some(runtime),
            _ => None,
        }
    }

    pub(super) fn count_in(&mut self, id: RuntimeId, key: &Arc<RuntimeKey>, phase: RuntimePhase) {
        let base = self.base_account(key);
        *count_mut(&mut base.counts, phase) += 1;
        base.ahead += u32::from(phase == RuntimePhase::StartingAhead);
        base.note_peaks();
        if let Some(account) = self.keys.get_mut(key) {
            *count_mut(&mut account.counts, phase) += 1;
            if phase == RuntimePhase::Available {
                account.available.push(id);
                self.available.insert(id);
            }
        }
    }

    fn count_out(&mut self, id: RuntimeId, key: &Arc<RuntimeKey>, phase: RuntimePhase) {
        let base = self.base_account(key);
        *count_mut(&mut base.counts, phase) -= 1;
        base.ahead -= u32::from(phase == RuntimePhase::StartingAhead);
        if let Some(account) = self.keys.get_mut(key) {
            *count_mut(&mut account.counts, phase) -= 1;
            if phase == RuntimePhase::Available {
                account.available.retain(|other| *other != id);
                self.available.remove(&id);
            }
        }
    }
}

/// A state without its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuntimePhase {
    Starting,
    StartingAhead,
    Available,
    Adapting,
    Leased,
    Cleaning,
}

impl<R> RuntimeState<R> {
    pub(super) fn phase(&self) -> RuntimePhase {
        match self {
            Self::Starting {
                cause: Cause::Request,
                ..
            } => RuntimePhase::Starting,
            Self::Starting {
                cause: Cause::Ahead,
                ..
            } => RuntimePhase::StartingAhead,
            Self::Available { .. } => RuntimePhase::Available,
            Self::Adapting => RuntimePhase::Adapting,
            Self::Leased { .. } => RuntimePhase::Leased,
            Self::Cleaning { .. } => RuntimePhase::Cleaning,
        }
    }
}

fn count_mut(counts: &mut RuntimeCounts, phase: RuntimePhase) -> &mut u32 {
    match phase {
        RuntimePhase::Starting | RuntimePhase::StartingAhead => &mut counts.starting,
        RuntimePhase::Available => &mut counts.available,
        RuntimePhase::Adapting => &mut counts.adapting,
        RuntimePhase::Leased => &mut counts.leased,
        RuntimePhase::Cleaning => &mut counts.cleaning,
    }
}
