//! Beyond the paper (its section VII names it): on a miss, the available runtime that takes the least to be turned into one of the
//! wanted key.

use std::cmp::Reverse;
use std::sync::Arc;

use pilot_model::runtime_key::{Difference, RuntimeKey};

use super::words::RuntimeId;
use super::{KeyedState, RuntimeState};

/// A runtime that can be turned into the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::keyed) struct Near {
    pub(in crate::keyed) id: RuntimeId,
    /// What it is now.
    pub(in crate::keyed) from: Arc<RuntimeKey>,
    /// What is to be applied.
    pub(in crate::keyed) differences: Vec<Difference>,
}

impl<R> KeyedState<R> {
    /// The available runtime whose differences cost least. Of equal ones the owner's own comes first, so that nobody's are left
    /// for others; then the one that became available last. Never one of another owner: [`RuntimeKey::adaptation`] sees to that.
    ///
    /// One pass over the keys of the base key, for nothing can become what has another base key.
    pub(super) fn nearest(&self, key: &Arc<RuntimeKey>) -> Option<Near> {
        let base = self.base_keys.get(&self.keys.get(key)?.base_key)?;
        let candidates = base.keys.iter().filter(|from| *from != key);
        let near = candidates.filter_map(|from| {
            let id = self.newest(from)?;
            let since = match self.runtimes.get(&id)?.state {
                RuntimeState::Available { since, .. } => since,
                _ => return None,
            };
            let differences = from.adaptation(key)?;
            let rank = (
                cost(&differences),
                from.owner().is_none(),
                Reverse((since, id)),
            );
            Some((rank, id, from, differences))
        });
        let (_, id, from, differences) = near.min_by_key(|(rank, ..)| *rank)?;
        Some(Near {
            id,
            from: Arc::clone(from),
            differences,
        })
    }
}

/// What differences take to apply, in steps of about a write to a control file. An order, not a measurement: variables, command and
/// host name are said when a process is started; limits are written to several files; mounts are made one by one; a network is
/// a device, its addresses and rules. That nobody owned it takes nothing.
fn cost(differences: &[Difference]) -> u32 {
    let each = differences.iter().map(|difference| match difference {
        Difference::Owner => 0,
        Difference::Environment | Difference::Command | Difference::HostName => 1,
        Difference::Limits => 2,
        Difference::Mounts => 4,
        Difference::Network => 16,
    });
    each.sum()
}
