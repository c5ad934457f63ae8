//! Not in the paper (its section VII mentions it): if no runtime has the wanted key, finds the available one that is cheapest to
//! adapt.

use std::cmp::Reverse;
use std::sync::Arc;

use pilot_model::runtime_key::{Difference, RuntimeKey};

use super::words::Near;
use super::{KeyedState, RuntimeState};

impl<R> KeyedState<R> {
    /// The available runtime whose differences cost least. Among equal ones, the owner's own comes first, so that those without
    /// owner are left for others; then the one that became available last. Never one of another owner: [`RuntimeKey::adaptation`]
    /// excludes it.
    ///
    /// One pass over the keys of the base key, because a runtime cannot be adapted to another base key.
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

/// The cost of applying differences; the unit is about a write to a control file. It is an order, not a measurement. Variables,
/// command and host name are set when a process is started. Limits are written to several files. Mounts are made one by one. A
/// network is a device, its addresses and rules. Setting the owner costs nothing.
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
