//! Nodes by key, each built at most once at a time: whoever asks while one is being built waits for that one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

type Slot<V> = Arc<AsyncMutex<Option<Arc<V>>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots<K, V> {
    /// Guards the map, never held while something is built; a slot's own lock is.
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
    /// The node of this key, if it is still `usable`; otherwise a new one. A failed build leaves nothing behind: the
    /// next who asks tries again.
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
        // The old one goes first: its processes and limits end before new ones are made.
        *slot = None;
        let node = Arc::new(build().await?);
        *slot = Some(Arc::clone(&node));
        Ok(node)
    }

    /// Lets go of a node; it ends with its last user.
    pub(crate) fn remove(&self, key: &K) {
        self.slots.lock().remove(key);
    }

    /// Lets go of all.
    pub(crate) fn clear(&self) {
        self.slots.lock().clear();
    }

    /// The nodes that are up. One being built, or being looked at, is left out.
    pub(crate) fn built(&self) -> Vec<Arc<V>> {
        let slots: Vec<Slot<V>> = self.slots.lock().values().cloned().collect();
        slots
            .iter()
            .filter_map(|slot| slot.try_lock().ok()?.clone())
            .collect()
    }
}
