//! Which runtimes are kept: Algorithm 3, the limits, and the end of runtimes that no version needs.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::forecast::{Target, Tick};
use pilot_model::runtime_key::RuntimeKey;
use pilot_rules::PRESSURE_HOLD;

use super::account::{BaseKeyAccount, KeyAccount};
use super::words::{Cause, End, RuntimeId};
use super::{KeyedState, RuntimeState};

impl<R> KeyedState<R> {
    /// Runtimes that are started ahead at the same time, over all base keys: more would take CPU time from requests.
    const AHEAD_MAX: u32 = 2;

    /// A version has this key now.
    pub(in crate::keyed) fn use_key(&mut self, key: &Arc<RuntimeKey>) {
        self.enter(key);
        if let Some(account) = self.keys.get_mut(key) {
            account.users += 1;
        }
        self.base_account(key).users += 1;
    }

    /// A version with this key is forgotten. Ends the runtimes that no version can use any more: those of its owner that cannot
    /// be adapted to a key still in use (the next version's mounts may differ, but its runtimes can be adapted), and pre-warmed
    /// ones if the base key has no version left.
    pub(in crate::keyed) fn disuse_key(&mut self, key: &Arc<RuntimeKey>, gone: &mut Vec<R>) {
        let Some(account) = self.keys.get_mut(key) else {
            return;
        };
        account.users = account.users.saturating_sub(1);
        let base = self.base_account(key);
        base.users = base.users.saturating_sub(1);
        if base.users == 0 {
            base.target = Target::default();
        }
        let keys = base.keys.clone();
        for other in keys {
            if !self.is_wanted(&other) {
                while let Some(id) = self.newest(&other) {
                    gone.extend(self.end(id, End::LetGo));
                }
            }
        }
        self.tidy(key);
    }

    /// Base keys that versions use.
    pub(in crate::keyed) fn base_keys_in_use(&self) -> impl Iterator<Item = &Arc<RuntimeKey>> {
        let used = self
            .base_keys
            .iter()
            .filter(|(_, account)| account.users > 0);
        used.map(|(base_key, _)| base_key)
    }

    /// The mean time of a fresh start of this base key.
    pub(in crate::keyed) fn fresh_start(&self, base_key: &RuntimeKey) -> Option<Duration> {
        self.base_keys.get(base_key)?.start.value()
    }

    /// What happened to a base key since the last call, for its forecaster. `None`: no version uses it.
    pub(in crate::keyed) fn observe(
        &mut self,
        now: Instant,
        base_key: &RuntimeKey,
    ) -> Option<Tick> {
        let account = self.base_keys.get_mut(base_key)?;
        Some(account.observe(now))
    }

    /// Sets the forecast for a base key; the caller calls [`KeyedState::refill`] next.
    pub(in crate::keyed) fn apply_target(&mut self, base_key: &RuntimeKey, target: Target) {
        if let Some(account) = self.base_keys.get_mut(base_key)
            && account.users > 0
        {
            account.target = target;
        }
    }

    /// Algorithm 3: the pre-warmed runtimes of a base key that the caller must start now.
    ///
    /// Per base key and not per key: a runtime of a base key can be adapted to any of its keys, so a pre-warmed one serves all of
    /// them. What several functions need at once is less than the sum of what each may need.
    ///
    /// The paper starts E − num_avail, in addition to those in use. But E forecasts how many will be in use, which includes those
    /// in use now. Adding both would double a steady use (see also `smoothing_markov.rs` of `side/forecast`). So there should be
    /// E in use or available. Used ones count, because their owners are most likely to return. But at least one must be without
    /// owner, for a request of a new owner.
    ///
    /// Starts ahead of demand use only free room and evict nothing. Otherwise two base keys would evict each other's runtimes at
    /// every tick.
    pub(in crate::keyed) fn refill(
        &mut self,
        now: Instant,
        base_key: &Arc<RuntimeKey>,
    ) -> Vec<RuntimeId> {
        let Some(account) = self.base_keys.get(base_key) else {
            return Vec::new();
        };
        let hold_until = self
            .hold_until
            .max(account.hold_until.unwrap_or(self.hold_until));
        // Waiting requests have priority: a start would slow down the cleaning that they wait for. The next tick is soon.
        let somebody_waits = self.keys.values().any(KeyAccount::is_waited_for);
        if self.closed || now < hold_until || somebody_waits {
            return Vec::new();
        }
        let wanted = account.wanted();
        let free = account.counts.available + account.ahead;
        let prewarmed = self.prewarmed(base_key) + account.ahead;
        let short = wanted
            .saturating_sub(free)
            .max(u32::from(wanted > 0 && prewarmed == 0));
        let room = self.limits.runtimes_max.saturating_sub(self.runtimes.len());
        let ahead: u32 = self.base_keys.values().map(|account| account.ahead).sum();
        let count = short
            .min(Self::AHEAD_MAX.saturating_sub(ahead))
            .min(u32::try_from(room).unwrap_or(u32::MAX));
        let begin = |_| self.begin(now, base_key, Cause::Ahead);
        (0..count).map(begin).collect()
    }

    /// Not in the paper, which only shrinks at its limits: ends runtimes that have been available for longer than `keep` (or the
    /// time in the forecast) and that the forecast does not need. The longest available are first. The last pre-warmed one of a
    /// base key is kept while any is needed, because it would be started again.
    pub(in crate::keyed) fn let_go(&mut self, now: Instant, gone: &mut Vec<R>) {
        let base_keys: Vec<_> = self.base_keys.keys().map(Arc::clone).collect();
        for base_key in base_keys {
            let Some(account) = self.base_keys.get(&base_key) else {
                continue;
            };
            let keep = account.target.idle.unwrap_or(self.limits.keep);
            let wanted = account.wanted();
            let surplus = account.counts.available.saturating_sub(wanted);
            if surplus == 0 {
                continue;
            }
            let mut old = self.available_longer(now, &base_key, keep);
            old.sort_unstable();
            let mut left = surplus;
            for (_, id, is_prewarmed) in old {
                if left == 0 {
                    break;
                }
                if is_prewarmed && wanted > 0 && self.prewarmed(&base_key) <= 1 {
                    continue;
                }
                gone.extend(self.end(id, End::LetGo));
                left -= 1;
            }
        }
    }

    /// Memory is short: evicts the oldest available runtime, by creation as in the paper. `None`: none is available. Leased ones
    /// are never evicted.
    pub(in crate::keyed) fn evict_oldest(&mut self, now: Instant) -> Option<R> {
        self.hold_until = now.after(PRESSURE_HOLD);
        let id = self.available.first().copied()?;
        self.end(id, End::Evicted)
    }

    /// Makes room for one more runtime.
    pub(super) fn make_room(&mut self, gone: &mut Vec<R>) {
        self.evict_beyond(self.limits.runtimes_max.saturating_sub(1), gone);
    }

    /// Evicts the oldest available until there are no more than `most` runtimes, or none is available.
    pub(super) fn evict_beyond(&mut self, most: usize, gone: &mut Vec<R>) {
        while self.runtimes.len() > most
            && let Some(id) = self.available.first().copied()
        {
            gone.extend(self.end(id, End::Evicted));
        }
    }

    /// Whether a runtime of this key could be given to a version in use.
    pub(super) fn is_wanted(&self, key: &Arc<RuntimeKey>) -> bool {
        let account = self.keys.get(key);
        let Some(base) = account.and_then(|account| self.base_keys.get(&account.base_key)) else {
            return false;
        };
        base.users > 0
            && base.keys.iter().any(|other| {
                let used = self.keys.get(other).is_some_and(|other| other.users > 0);
                used && key.adaptation(other).is_some()
            })
    }

    /// The available runtimes that have not been used.
    fn prewarmed(&self, base_key: &RuntimeKey) -> u32 {
        let account = self.keys.get(base_key);
        account.map_or(0, |account| account.counts.available)
    }

    /// The runtimes of a base key that have been available for longer than `keep`: since when, which, and whether it is
    /// pre-warmed.
    fn available_longer(
        &self,
        now: Instant,
        base_key: &Arc<RuntimeKey>,
        keep: Duration,
    ) -> Vec<(Instant, RuntimeId, bool)> {
        let account = self.base_keys.get(base_key);
        let keys = account
            .into_iter()
            .flat_map(|account| &account.keys)
            .filter_map(|key| self.keys.get_key_value(key));
        let ids = keys.flat_map(|(key, account)| {
            let is_prewarmed = key == base_key;
            account.available.iter().map(move |id| (*id, is_prewarmed))
        });
        ids.filter_map(|(id, is_prewarmed)| match self.runtimes.get(&id)?.state {
            RuntimeState::Available { since, .. } if now.since(since) > keep => {
                Some((since, id, is_prewarmed))
            }
            _ => None,
        })
        .collect()
    }
}

impl BaseKeyAccount {
    /// How many should be available: what the forecast requires minus those in use.
    fn wanted(&self) -> u32 {
        self.target.workers.saturating_sub(self.used())
    }
}
