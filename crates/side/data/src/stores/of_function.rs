//! A store as one function has it: the objects that the function reads at the same time take at most half of the store's
//! places. So a store that does not answer one function is there for others.

use std::sync::Arc;

use futures_util::StreamExt;
use pilot_model::inputs::Location;
use pilot_model::ports::{InputFaultKind as Kind, StoreObject};
use pilot_model::{BoxFuture, FunctionName};
use tokio::sync::OwnedSemaphorePermit;

use super::{Got, Store, StoreError, Validator};
use crate::shares::Shares;

/// A store that functions share.
#[derive(Debug)]
pub(crate) struct SharedStore {
    store: Arc<dyn Store>,
    /// `None`: nobody can keep its places.
    shares: Option<Shares>,
}

impl SharedStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let shares = store.places().map(|places| Shares::new(places / 2));
        Arc::new(Self { store, shares })
    }

    /// As one function has it.
    pub(crate) fn of_function(self: &Arc<Self>, function: &FunctionName) -> Arc<dyn Store> {
        Arc::new(OfFunction {
            shared: Arc::clone(self),
            function: function.clone(),
        })
    }

    /// Whether a location can be one of this store, see [`Store::check`].
    pub(crate) fn check(&self, location: &Location) -> Result<(), String> {
        self.store.check(location)
    }
}

#[derive(Debug)]
struct OfFunction {
    shared: Arc<SharedStore>,
    function: FunctionName,
}

impl OfFunction {
    /// Waits for a place.
    async fn place(&self) -> Result<Option<OwnedSemaphorePermit>, StoreError> {
        let Some(shares) = &self.shared.shares else {
            return Ok(None);
        };
        let place = shares.of(&self.function).acquire_owned().await;
        let place = place.map_err(|_| StoreError::new(Kind::Unavailable, "it is closed"))?;
        Ok(Some(place))
    }
}

/// The object has its place until it is read or dropped.
fn keep(place: Option<OwnedSemaphorePermit>, got: Got) -> Got {
    let Got::Object(mut object) = got else {
        return got;
    };
    let body = object.body.inspect(move |_| {
        let _ = &place;
    });
    object.body = body.boxed();
    Got::Object(object)
}

impl Store for OfFunction {
    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let place = self.place().await?;
            Ok(keep(place, self.shared.store.get(key, known).await?))
        })
    }

    fn rest<'a>(
        &'a self,
        key: &'a str,
        known: &'a Validator,
        at: u64,
    ) -> BoxFuture<'a, Result<(u64, Got), StoreError>> {
        Box::pin(async move {
            let place = self.place().await?;
            let (at, got) = self.shared.store.rest(key, known, at).await?;
            Ok((at, keep(place, got)))
        })
    }

    fn check(&self, location: &Location) -> Result<(), String> {
        self.shared.store.check(location)
    }

    fn check_key(&self, location: &Location, key: &str) -> Result<(), String> {
        self.shared.store.check_key(location, key)
    }

    fn retries(&self) -> u32 {
        self.shared.store.retries()
    }

    fn named(&self, key: &str, headers: &[(String, String)]) -> Option<StoreObject> {
        self.shared.store.named(key, headers)
    }

    fn places(&self) -> Option<usize> {
        self.shared.store.places()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tokio::task::JoinSet;

    use super::*;
    use crate::stores::fake::FakeStore;

    #[tokio::test(start_paused = true)]
    async fn one_function_has_at_most_half_of_the_places_of_a_store() {
        let fake = Arc::new(FakeStore {
            places: Some(4),
            ..FakeStore::default()
        });
        fake.put("k", "value");
        let shared = SharedStore::new(Arc::clone(&fake) as Arc<dyn Store>);
        let read = |function: &str| {
            let store = shared.of_function(&function.parse().unwrap());
            async move {
                let Got::Object(object) = store.get("k", None).await.unwrap() else {
                    panic!("nothing is known");
                };
                object.body.count().await
            }
        };
        // The answers come, and their bytes do not.
        fake.hold_bytes(true);
        let mut reads = JoinSet::new();
        for _ in 0..9 {
            reads.spawn(read("hangs"));
        }
        // Time goes on when nobody can go on.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(fake.asked.load(Ordering::SeqCst), 2);
        let other = tokio::spawn(read("other"));
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(fake.asked.load(Ordering::SeqCst), 3);
        fake.hold_bytes(false);
        assert_eq!(other.await.unwrap(), 2);
        assert_eq!(reads.join_all().await, [2; 9]);
        assert_eq!(fake.transfers(), 0);
    }
}
