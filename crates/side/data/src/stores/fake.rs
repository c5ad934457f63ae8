//! A store in memory, for tests. A test can hold its answers and its bytes back, and count what was asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::InputFaultKind as Kind;
use tokio::sync::watch;

use super::{Got, Object, Store, StoreError, Validator};

#[derive(Debug, Default)]
pub(crate) struct FakeStore {
    pub(crate) objects: Mutex<HashMap<String, (Bytes, usize)>>,
    pub(crate) puts: AtomicUsize,
    /// Requests so far.
    pub(crate) asked: AtomicUsize,
    /// Requests that were answered with bytes.
    pub(crate) sent: AtomicUsize,
    /// So many requests fail, after half of the bytes.
    pub(crate) break_off: AtomicU32,
    pub(crate) retries: u32,
    pub(crate) places: Option<usize>,
    /// Objects have no length and no tag.
    pub(crate) tells_nothing: bool,
    pub(crate) held: watch::Sender<Held>,
    /// Each transfer that runs has a reference.
    pub(crate) running: Arc<()>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Held {
    answers: bool,
    bytes: bool,
}

impl FakeStore {
    pub(crate) fn put(&self, key: &str, body: impl Into<Bytes>) {
        let number = self.puts.fetch_add(1, Ordering::SeqCst);
        let object = (body.into(), number);
        self.objects.lock().insert(key.to_owned(), object);
    }

    pub(crate) fn remove(&self, key: &str) {
        self.objects.lock().remove(key);
    }

    pub(crate) fn hold_answers(&self, held: bool) {
        self.held.send_modify(|now| now.answers = held);
    }

    pub(crate) fn hold_bytes(&self, held: bool) {
        self.held.send_modify(|now| now.bytes = held);
    }

    pub(crate) fn transfers(&self) -> usize {
        Arc::strong_count(&self.running) - 1
    }
}

impl Store for FakeStore {
    fn retries(&self) -> u32 {
        self.retries
    }

    fn places(&self) -> Option<usize> {
        self.places
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        // It answers with what there is when the request arrives, however late the answer is.
        let found = self.objects.lock().get(key).cloned();
        let mut held = self.held.subscribe();
        Box::pin(async move {
            let _ = held.wait_for(|held| !held.answers).await;
            let Some((body, number)) = found else {
                return Err(StoreError::new(Kind::NotFound, "there is no such object"));
            };
            let validator = Validator::of_tag(&format!("\"{number}\""));
            let validator = validator.filter(|_| !self.tells_nothing);
            if validator.is_some() && validator.as_ref() == known {
                return Ok(Got::Unchanged(None));
            }
            self.sent.fetch_add(1, Ordering::SeqCst);
            let breaks = self
                .break_off
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok();
            let second = body.slice(body.len() / 2..);
            let parts = [
                Ok(body.slice(..body.len() / 2)),
                match breaks {
                    true => Err(StoreError::new(Kind::Unavailable, "broke off")),
                    false => Ok(second),
                },
            ];
            let running = Arc::clone(&self.running);
            let parts = stream::iter(parts).then(move |part| {
                // The stream has the reference, and the closure is a part of it.
                let _of_the_stream = &running;
                let mut held = held.clone();
                async move {
                    let _ = held.wait_for(|held| !held.bytes).await;
                    part
                }
            });
            Ok(Got::Object(Object {
                len: (!self.tells_nothing).then_some(body.len() as u64),
                validator,
                headers: Vec::new(),
                body: parts.boxed(),
            }))
        })
    }
}
