//! A number of things that owners share: the bytes of uploads that arrive or wait, and the deployments that run or wait. An owner
//! has at most half of what the others leave. So there is always something left for the next one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::access::Caller;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    total: u64,
    /// What each has. The lock is held for one change.
    taken: Arc<Mutex<HashMap<String, u64>>>,
}

/// What one user of the whole has of it. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Share {
    of: String,
    shares: Shares,
    held: u64,
}

impl Shares {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            taken: Arc::default(),
        }
    }

    /// A share that has nothing yet, of somebody.
    pub(crate) fn of(&self, of: &str) -> Share {
        Share {
            of: of.to_owned(),
            shares: self.clone(),
            held: 0,
        }
    }
}

impl Share {
    /// Makes it this large, if it is smaller. False: then its owner would have too much.
    pub(crate) fn grow(&mut self, wanted: u64) -> bool {
        let more = wanted.saturating_sub(self.held);
        if more == 0 {
            return true;
        }
        let mut taken = self.shares.taken.lock();
        let all: u64 = taken.values().sum();
        let own = taken.get(&self.of).copied().unwrap_or(0);
        let left_by_others = self.shares.total.saturating_sub(all - own);
        if own.saturating_add(more) > left_by_others / 2 {
            return false;
        }
        taken.insert(self.of.clone(), own + more);
        self.held = wanted;
        true
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> &str {
        &self.of
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        let left = taken.get(&self.of).map_or(0, |own| own - self.held);
        if left == 0 {
            taken.remove(&self.of);
        } else {
            taken.insert(self.of.clone(), left);
        }
    }
}

/// Whose uploads and deployments count together, for people: those of an owner, or of a token without one.
pub(crate) fn share_of(caller: &Caller) -> String {
    match caller {
        Caller::Known(grant) => match &grant.owner {
            Some(owner) => share_of_owner(owner),
            None => format!("the token '{}'", grant.name),
        },
        Caller::WrongToken | Caller::Nobody => "nobody".to_owned(),
    }
}

/// The same, of an owner.
pub(crate) fn share_of_owner(owner: &str) -> String {
    format!("the owner '{owner}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_what_the_next_one_needs() {
        let shares = Shares::new(100);
        let (mut one, mut again) = (shares.of("a"), shares.of("a"));
        assert!(one.grow(30) && one.grow(20) && again.grow(20));
        assert!(!again.grow(21), "half is 50");
        let mut next = shares.of("b");
        assert!(next.grow(25) && !next.grow(26));
        assert!(shares.of("c").grow(12));
        drop(one);
        assert!(again.grow(37) && !again.grow(38));
        drop((again, next));
        assert!(shares.taken.lock().is_empty());
    }
}
