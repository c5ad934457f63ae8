//! Nodes by key. Each is built by at most one task at a time; other tasks that need it wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

type Slot<V> = Arc<AsyncMutex<Option<Arc<V>>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots<K, V> {
    /// Guards the map; never held while a node is built. Each slot has its own lock for that.
    slots: Mutex<HashMap<K, Slot<V>>>,
}

impl<K, V> Default for Slots<K, V> {
    fn default() -> Self {
        Self {
            slots: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, V> Slots<K, V> {
    /// The node of this key, if it is still `usable`; otherwise builds a new one. After a failed build the next task tries
    /// again.
    pub(crate) async fn find_or_build<E, F>(
        &self,
        key: &K,
        usable: impl Fn(&V) -> bool,
        build: impl FnOnce() -> F,
    ) -> Result<Arc<V>, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        let slot = Arc::clone(self.slots.lock().entry(key.clone()).or_default());
        let mut slot = slot.lock().await;
        if let Some(node) = slot.as_ref().filter(|node| usable(node)) {
            return Ok(Arc::clone(node));
        }
        // Drop the old node first, so that its processes and limits end before new ones are made.
        *slot = None;
        let node = Arc::new(build().await?);
        *slot = Some(Arc::clone(&node));
        Ok(node)
    }

    /// Removes a node. It ends with its last user.
    pub(crate) fn remove(&self, key: &K) {
        self.slots.lock().remove(key);
    }

    /// Removes all nodes.
    pub(crate) fn clear(&self) {
        self.slots.lock().clear();
    }

    /// The nodes that are built. Leaves out those that are being built or checked.
    pub(crate) fn built(&self) -> Vec<Arc<V>> {
        let slots: Vec<Slot<V>> = self.slots.lock().values().cloned().collect();
        slots
            .iter()
            .filter_map(|slot| slot.try_lock().ok()?.clone())
            .collect()
    }
}

type SharedSlot<V> = Arc<AsyncMutex<Weak<V>>>;

/// The same for nodes that end with their last user.
#[derive(Debug)]
pub(crate) struct SharedSlots<K, V> {
    /// As [`Slots`] has them.
    slots: Mutex<HashMap<K, SharedSlot<V>>>,
}

impl<K, V> Default for SharedSlots<K, V> {
    fn default() -> Self {
        Self {
            slots: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, V> SharedSlots<K, V> {
    /// As [`Slots::find_or_build`].
    pub(crate) async fn find_or_build<E, F>(
        &self,
        key: &K,
        usable: impl Fn(&V) -> bool,
        build: impl FnOnce() -> F,
    ) -> Result<Arc<V>, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        let slot = self.slot(key);
        let mut slot = slot.lock().await;
        if let Some(node) = slot.upgrade().filter(|node| usable(node)) {
            return Ok(node);
        }
        let node = Arc::new(build().await?);
        *slot = Arc::downgrade(&node);
        Ok(node)
    }

    fn slot(&self, key: &K) -> SharedSlot<V> {
        let mut slots = self.slots.lock();
        // Those of nodes that have ended, and that nobody builds.
        slots.retain(|_, slot| {
            let node = Arc::get_mut(slot).map(AsyncMutex::get_mut);
            node.is_none_or(|node| node.strong_count() > 0)
        });
        let slot = slots.entry(key.clone());
        Arc::clone(slot.or_insert_with(|| Arc::new(AsyncMutex::new(Weak::new()))))
    }

    /// The nodes that are built. Leaves out those that are being built or checked.
    pub(crate) fn built(&self) -> Vec<Arc<V>> {
        let slots: Vec<SharedSlot<V>> = self.slots.lock().values().cloned().collect();
        slots
            .iter()
            .filter_map(|slot| slot.try_lock().ok()?.upgrade())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn a_shared_node_is_built_once_and_ends_with_its_last_user() {
        let slots = SharedSlots::<&str, u32>::default();
        let build = |number| move || async move { Ok::<_, Infallible>(number) };
        let first = slots.find_or_build(&"a", |_| true, build(1)).await.unwrap();
        let again = slots.find_or_build(&"a", |_| true, build(2)).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(slots.built().len(), 1);
        let renewed = slots
            .find_or_build(&"a", |_| false, build(3))
            .await
            .unwrap();
        assert_eq!((*renewed, slots.built().len()), (3, 1));
        drop((first, again, renewed));
        assert!(slots.built().is_empty());
        let _other = slots.find_or_build(&"b", |_| true, build(4)).await.unwrap();
        assert_eq!(
            slots.slots.lock().len(),
            1,
            "the place of the ended one is gone"
        );
    }
}
