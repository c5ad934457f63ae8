//! Nodes by key. Each is built by at most one task at a time; other tasks that need it wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

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
