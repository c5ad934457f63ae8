//! Waiting for a runtime of the key that is being cleaned, or one of the base key that is being started ahead of demand. A start
//! for the request itself would be ready later, and would slow down the other.
//!
//! At most as many requests wait as there are such runtimes. The runtimes are not reserved: a request that finds none continues
//! to wait, or gets one started.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::runtime_key::RuntimeKey;

use super::words::{Awaited, Cause, Look, Wait};
use super::{KeyedState, Runtime, RuntimeState};

impl<R> KeyedState<R> {
    /// Whether the caller must wait, for the first time or again.
    pub(super) fn wait(&mut self, now: Instant, key: &Arc<RuntimeKey>, look: Look) -> Option<Wait> {
        let wait = match look {
            Look::First => {
                let cleaning = self.worth_cleaning(key);
                cleaning.or_else(|| self.worth_start(now, key))?
            }
            // The caller knows how long from the first answer.
            Look::Waiting(on) if self.is_free(key, on) => Wait {
                on,
                patience: Duration::MAX,
            },
            Look::Waiting(_) | Look::Again | Look::Nowhere => return None,
        };
        let account = self.keys.get_mut(key)?;
        match wait.on {
            Awaited::Cleaning => account.waiting.cleaning += 1,
            Awaited::Ahead => {
                account.waiting.ahead += 1;
                self.base_account(key).waiting += 1;
            }
        }
        Some(wait)
    }

    /// A wait has ended, with or without success.
    pub(in crate::keyed) fn waited(&mut self, key: &Arc<RuntimeKey>, on: Awaited) {
        let Some(account) = self.keys.get_mut(key) else {
            return;
        };
        match on {
            Awaited::Cleaning => account.waiting.cleaning -= 1,
            Awaited::Ahead => {
                account.waiting.ahead -= 1;
                self.base_account(key).waiting -= 1;
            }
        }
        self.tidy(key);
    }

    /// Whether there are more such runtimes than waiting requests.
    fn is_free(&self, key: &RuntimeKey, on: Awaited) -> bool {
        let Some(account) = self.keys.get(key) else {
            return false;
        };
        match on {
            Awaited::Cleaning => account.counts.cleaning > account.waiting.cleaning,
            Awaited::Ahead => {
                let base = self.base_keys.get(&account.base_key);
                base.is_some_and(|base| base.ahead > base.waiting)
            }
        }
    }

    /// A runtime is usually cleaned long before a new one is ready. The wait may take at least half the time of a start: on a busy
    /// machine cleaning takes longer than usual, and another start would make the machine busier.
    fn worth_cleaning(&self, key: &RuntimeKey) -> Option<Wait> {
        let base = self.base_keys.get(&self.keys.get(key)?.base_key)?;
        let (clean, start) = (base.clean.value()?, base.start.value()?);
        let usual = clean.saturating_mul(2);
        let wait = Wait {
            on: Awaited::Cleaning,
            patience: usual.max(start / 2),
        };
        (usual < start && self.is_free(key, wait.on)).then_some(wait)
    }

    /// A runtime whose start is in progress is ready before a new one, unless its start takes twice as long as usual. The wait
    /// takes at most as long as a start.
    fn worth_start(&self, now: Instant, key: &RuntimeKey) -> Option<Wait> {
        let on = Awaited::Ahead;
        if !self.is_free(key, on) {
            return None;
        }
        let (base_key, base) = self
            .base_keys
            .get_key_value(&self.keys.get(key)?.base_key)?;
        let start = base.start.value()?;
        let begun = self.runtimes.values().filter_map(|runtime| match runtime {
            Runtime {
                key,
                state:
                    RuntimeState::Starting {
                        cause: Cause::Ahead,
                        asked,
                    },
            } if key == base_key => Some(*asked),
            _ => None,
        });
        // Earlier requests wait for the starts that began first.
        let mut begun = begun.skip(base.waiting as usize);
        let ago = now.since(begun.next()?);
        let patience = start.saturating_mul(2).saturating_sub(ago).min(start);
        (!patience.is_zero()).then_some(Wait { on, patience })
    }
}
