//! The deployments and rollbacks that run or wait, by function. A removal or a rollback ends them, so that it need not wait until
//! an import has reached its limit. What ends before its commit has changed nothing; a commit itself is always finished.

use std::collections::HashMap;

use parking_lot::Mutex;
use pilot_model::FunctionName;
use tokio::sync::oneshot;

/// See the module. The lock guards only the map.
#[derive(Debug, Default)]
pub(super) struct Underway(Mutex<HashMap<FunctionName, Vec<Change>>>);

/// A deployment or a rollback.
#[derive(Debug)]
struct Change {
    owner: String,
    end: oneshot::Sender<Overtaken>,
}

/// What ends a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overtaken {
    /// The function was removed.
    Removed,
    /// A rollback was asked for.
    RolledBack,
}

impl Overtaken {
    /// What was done with the function.
    pub(super) fn done(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::RolledBack => "rolled back",
        }
    }
}

impl Underway {
    /// A change of a function begins. It must end when the receiver gets something.
    pub(super) fn enter(&self, name: &FunctionName, owner: &str) -> oneshot::Receiver<Overtaken> {
        let (end, ended) = oneshot::channel();
        let mut changes = self.0.lock();
        changes.retain(|_, of_one| {
            of_one.retain(|change| !change.end.is_closed());
            !of_one.is_empty()
        });
        changes.entry(name.clone()).or_default().push(Change {
            owner: owner.to_owned(),
            end,
        });
        ended
    }

    /// Ends the changes of a function; with `only_of`, those of this owner. Returns whether there were some.
    pub(super) fn overtake(
        &self,
        name: &FunctionName,
        only_of: Option<&str>,
        by: Overtaken,
    ) -> bool {
        let mut changes = self.0.lock();
        let Some(of_one) = changes.get_mut(name) else {
            return false;
        };
        let ended = of_one.extract_if(.., |change| {
            only_of.is_none_or(|owner| owner == change.owner)
        });
        let ended: Vec<bool> = ended.map(|change| change.end.send(by).is_ok()).collect();
        ended.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_changes_of_this_owner_and_function_end() {
        let underway = Underway::default();
        let (f, g): (FunctionName, FunctionName) = ("f".parse().unwrap(), "g".parse().unwrap());
        let (of_a, of_b) = (underway.enter(&f, "a"), underway.enter(&f, "b"));
        let mut other = underway.enter(&g, "a");
        assert!(underway.overtake(&f, Some("a"), Overtaken::Removed));
        assert_eq!(of_a.await, Ok(Overtaken::Removed));
        assert!(!underway.overtake(&f, Some("a"), Overtaken::Removed));
        assert!(underway.overtake(&f, None, Overtaken::RolledBack));
        assert_eq!(of_b.await, Ok(Overtaken::RolledBack));
        assert!(other.try_recv().is_err());
        drop(other);
        drop(underway.enter(&f, "a"));
        assert!(!underway.overtake(&f, None, Overtaken::Removed));
        let _last = underway.enter(&f, "a");
        assert_eq!(underway.0.lock().len(), 1);
    }
}
