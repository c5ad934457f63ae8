//! One lock per key, so that deployments of one function, or builds of one environment, run one after another.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Locks by key. Unused locks are dropped with the next call.
#[derive(Debug, Default)]
pub(crate) struct KeyedLocks {
    /// Guards only the map; never held across an await.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl KeyedLocks {
    /// Waits for the key's lock.
    pub(crate) async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(key.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// The key's lock, if nobody has it.
    pub(crate) fn try_lock(&self, key: &str) -> Option<OwnedMutexGuard<()>> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(key.to_owned()).or_default())
        };
        lock.try_lock_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_key_excludes_and_two_do_not() {
        let locks = KeyedLocks::default();
        let held = locks.lock("a").await;
        let _other = locks.lock("b").await;
        assert!(locks.try_lock("a").is_none() && locks.try_lock("c").is_some());
        let mut second = Box::pin(locks.lock("a"));
        let waited = futures_poll(second.as_mut());
        assert!(waited.is_pending());
        drop(held);
        let _now_mine = second.await;
    }

    #[tokio::test]
    async fn locks_that_nobody_holds_are_dropped() {
        let locks = KeyedLocks::default();
        for key in 0..100 {
            drop(locks.lock(&key.to_string()).await);
        }
        drop(locks.lock("last").await);
        assert_eq!(locks.locks.lock().len(), 1);
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
