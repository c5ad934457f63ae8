//! Nodes by key. Each is built by at most one task at a time; other tasks that need it wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

/// Nodes that are kept until they are removed.
pub(crate) type Slots<K, V> = SlotsOf<K, Option<Arc<V>>>;

/// Nodes that end with their last user.
pub(crate) type SharedSlots<K, V> = SlotsOf<K, Weak<V>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct SlotsOf<K, H> {
    /// Guards the map; never held while a node is built. Each slot has its own lock for that.
    slots: Mutex<HashMap<K, Slot<H>>>,
}

type Slot<H> = Arc<AsyncMutex<H>>;

/// How a slot holds its node. The default is an empty slot.
pub(crate) trait Handle: Default {
    type Node;

    /// Holds this node from now on.
    fn hold(&mut self, node: &Arc<Self::Node>);

    fn node(&self) -> Option<Arc<Self::Node>>;

    /// Lets go of the node. The handle may keep what the next one needs as well.
    fn let_go(&mut self) {
        *self = Self::default();
    }

    /// Whether it holds nothing.
    fn is_empty(&self) -> bool {
        self.node().is_none()
    }
}

impl<V> Handle for Option<Arc<V>> {
    type Node = V;

    fn hold(&mut self, node: &Arc<V>) {
        *self = Some(Arc::clone(node));
    }

    fn node(&self) -> Option<Arc<V>> {
        self.clone()
    }
}

impl<V> Handle for Weak<V> {
    type Node = V;

    fn hold(&mut self, node: &Arc<V>) {
        *self = Arc::downgrade(node);
    }

    fn node(&self) -> Option<Arc<V>> {
        self.upgrade()
    }
}

impl<K, H> Default for SlotsOf<K, H> {
    fn default() -> Self {
        Self {
            slots: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, H: Handle> SlotsOf<K, H> {
    /// The node of this key, if it is still `usable`; otherwise builds a new one. After a failed build the next task tries
    /// again.
    pub(crate) async fn find_or_build<E, F>(
        &self,
        key: &K,
        usable: impl Fn(&H::Node) -> bool,
        build: impl FnOnce() -> F,
    ) -> Result<Arc<H::Node>, E>
    where
        F: Future<Output = Result<H::Node, E>>,
    {
        let slot = self.slot(key);
        let mut slot = slot.lock().await;
        if let Some(node) = slot.node().filter(|node| usable(node)) {
            return Ok(node);
        }
        // Drop the old node first, so that its processes and limits end before new ones are made.
        slot.let_go();
        let node = Arc::new(build().await?);
        slot.hold(&node);
        Ok(node)
    }

    /// Puts another node in its place, once that is built. Tasks that need it wait. If `build` returns none, it stays.
    pub(crate) async fn replace<F>(
        &self,
        key: &K,
        build: impl FnOnce() -> F,
    ) -> Option<Arc<H::Node>>
    where
        F: Future<Output = Option<Arc<H::Node>>>,
    {
        let slot = self.slot(key);
        let mut slot = slot.lock().await;
        let node = build().await?;
        slot.hold(&node);
        Some(node)
    }

    fn slot(&self, key: &K) -> Slot<H> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(key) {
            return Arc::clone(slot);
        }
        // Without those that are empty and that nobody fills.
        slots.retain(|_, slot| {
            let handle = Arc::get_mut(slot).map(AsyncMutex::get_mut);
            handle.is_none_or(|handle| !handle.is_empty())
        });
        Arc::clone(slots.entry(key.clone()).or_default())
    }

    /// Lets go of a node, and leaves the handle what it keeps. The node ends with its last user.
    pub(crate) fn let_go(&self, key: &K) {
        let slot = self.slots.lock().get(key).map(Arc::clone);
        let Some(slot) = slot else { return };
        match slot.try_lock() {
            Ok(mut handle) => handle.let_go(),
            // Somebody is checking it, or builds it. Then they keep it, and others build another one.
            Err(_) => self.remove(key),
        }
    }

    /// Visits the handles, except for those whose nodes are being built or checked.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&mut H)) {
        for slot in self.all() {
            if let Ok(mut handle) = slot.try_lock() {
                visit(&mut handle);
            }
        }
    }

    fn all(&self) -> Vec<Slot<H>> {
        self.slots.lock().values().cloned().collect()
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
    pub(crate) fn built(&self) -> Vec<Arc<H::Node>> {
        self.all()
            .iter()
            .filter_map(|slot| slot.try_lock().ok()?.node())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn a_kept_node_ends_when_it_is_removed_and_a_failed_build_is_tried_again() {
        let slots = Slots::<&str, u32>::default();
        let failed = slots.find_or_build(&"a", |_| true, || async { Err("no") });
        assert_eq!(failed.await.unwrap_err(), "no");
        let build = |number| move || async move { Ok::<_, Infallible>(number) };
        let first = slots.find_or_build(&"b", |_| true, build(1)).await.unwrap();
        assert_eq!(
            slots.slots.lock().len(),
            1,
            "the place of the failed one is gone"
        );
        let ended = Arc::downgrade(&first);
        drop(first);
        let again = slots.find_or_build(&"b", |_| true, build(2)).await.unwrap();
        assert_eq!(*again, 1);
        drop(again);
        assert!(slots.replace(&"b", || async { None }).await.is_none());
        assert!(ended.upgrade().is_some());
        slots.replace(&"b", || async { Some(Arc::new(3)) }).await;
        assert!(ended.upgrade().is_none());
        let ended = Arc::downgrade(&slots.built()[0]);
        slots.remove(&"b");
        assert!(ended.upgrade().is_none() && slots.built().is_empty());
    }

    /// Keeps a second reference when it lets go of its node.
    #[derive(Default)]
    struct Keeping(Option<Arc<u32>>, Option<Arc<u32>>);

    impl Handle for Keeping {
        type Node = u32;

        fn hold(&mut self, node: &Arc<u32>) {
            *self = Self(Some(Arc::clone(node)), Some(Arc::clone(node)));
        }

        fn node(&self) -> Option<Arc<u32>> {
            self.0.clone()
        }

        fn let_go(&mut self) {
            self.0 = None;
        }

        fn is_empty(&self) -> bool {
            self.1.is_none()
        }
    }

    #[tokio::test]
    async fn a_slot_keeps_what_its_handle_keeps_until_it_is_removed() {
        let slots = SlotsOf::<&str, Keeping>::default();
        let build = |number| move || async move { Ok::<_, Infallible>(number) };
        let first = slots.find_or_build(&"a", |_| true, build(1)).await.unwrap();
        let kept = Arc::downgrade(&first);
        drop(first);
        slots.let_go(&"a");
        slots.let_go(&"another");
        assert!(slots.built().is_empty() && kept.strong_count() == 1);
        slots.find_or_build(&"b", |_| true, build(2)).await.unwrap();
        let mut seen = 0;
        slots.visit(|handle| seen += u32::from(handle.0.is_none() && !handle.is_empty()));
        assert_eq!(seen, 1, "its place is not given up for another key");
        let while_it_is_built = || async {
            assert_eq!(kept.strong_count(), 1, "it is kept for the next one");
            Err(())
        };
        let failed = slots.find_or_build(&"a", |_| true, while_it_is_built);
        assert_eq!(failed.await, Err(()));
        assert_eq!(kept.strong_count(), 1);
        slots.remove(&"a");
        assert_eq!(kept.strong_count(), 0);
    }

    #[tokio::test]
    async fn a_node_that_is_being_built_while_it_is_let_go_is_kept_by_its_builder_alone() {
        let slots = SlotsOf::<&str, Keeping>::default();
        let build = || async {
            slots.let_go(&"a");
            Ok::<_, Infallible>(1)
        };
        let node = slots.find_or_build(&"a", |_| true, build).await.unwrap();
        assert_eq!(Arc::strong_count(&node), 1);
    }

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
