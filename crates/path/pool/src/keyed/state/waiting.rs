//! Waiting for what is under way: a runtime of the key that is being cleaned, or one of the base key that is being started ahead of
//! demand. Another start beside it would be up later, and would take its time from it.
//!
//! As many wait as there are under way. What becomes available is anybody's: whoever waited and finds it gone waits on, or has
//! one started.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::runtime_key::RuntimeKey;

use super::words::{Awaited, Cause, Look, Wait};
use super::{KeyedState, Runtime, RuntimeState};

impl<R> KeyedState<R> {
    /// Whether the caller is one who waits, from now on or still.
    pub(super) fn wait(&mut self, now: Instant, key: &Arc<RuntimeKey>, look: Look) -> Option<Wait> {
        let wait = match look {
            Look::First => {
                let cleaning = self.worth_cleaning(key);
                cleaning.or_else(|| self.worth_start(now, key))?
            }
            // For how long is for the caller to know, who was told the first time.
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

    /// A wait is over, whatever came of it.
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

    /// Whether more are under way than are waited for.
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

    /// One that is being cleaned is likely to be clean long before a new one is up. Worth half of what that takes: on a busy machine
    /// cleaning takes longer than usual, and a start beside it would make it busier still.
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

    /// One that is being started was begun before a new one would be: unless it takes twice as long as others did it is up first.
    /// Waiting for it costs no more than what a start takes.
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
        // Whoever came before has those that were begun before.
        let mut begun = begun.skip(base.waiting as usize);
        let ago = now.since(begun.next()?);
        let patience = start.saturating_mul(2).saturating_sub(ago).min(start);
        (!patience.is_zero()).then_some(Wait { on, patience })
    }
}
