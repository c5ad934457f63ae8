//! Which buffer has which object, or will have it.
//!
//! Fetches are shared without anybody's getting an older object than if it had fetched by itself. So a request to the store is shared
//! only by those that asked before it was sent. Of one object there is one request at a time that the store has not answered. Whoever
//! asks meanwhile waits for its answer together with all others, and then one request for all of them asks whether the object is still
//! that one. If it is, they get the same buffer, which may still be filling.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pilot_model::inputs::{Decoder, Form};
use tokio::sync::Semaphore;

use crate::buffers::buffer::Buffer;

/// An object, for the functions of one owner. Functions of another owner have buffers of their own: they cannot find out by the time
/// that a fetch takes what others have read, and not keep others' memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId {
    pub(crate) owner: String,
    pub(crate) store: String,
    pub(crate) key: String,
    /// What was made of it.
    pub(crate) decoder: Option<(Decoder, Form)>,
}

#[derive(Debug)]
pub(crate) struct Index {
    shares: bool,
    objects: Mutex<Objects>,
}

#[derive(Debug, Default)]
struct Objects {
    by_id: HashMap<ObjectId, Entry>,
    /// Above this many entries, the unused ones are removed.
    sweep_above: usize,
}

#[derive(Debug)]
struct Entry {
    /// The newest that the store has answered with.
    latest: Weak<Buffer>,
    /// Its request is not sent yet.
    next: Weak<Buffer>,
    /// One permit: the right to have a request that is not answered.
    gate: Arc<Semaphore>,
}

impl Index {
    /// `shares`: whether fetches are shared.
    pub(crate) fn new(shares: bool) -> Self {
        Self {
            shares,
            objects: Mutex::default(),
        }
    }

    pub(crate) fn shares(&self) -> bool {
        self.shares
    }

    /// The buffer of the next request, and whether somebody else has asked for it already. `make` begins one.
    pub(crate) fn next(
        &self,
        id: &ObjectId,
        make: impl FnOnce(Arc<Semaphore>) -> Arc<Buffer>,
    ) -> (Arc<Buffer>, bool) {
        let mut objects = self.objects.lock();
        objects.sweep();
        let entry = objects.by_id.entry(id.clone()).or_insert_with(|| Entry {
            latest: Weak::new(),
            next: Weak::new(),
            gate: Arc::new(Semaphore::new(1)),
        });
        if self.shares
            && let Some(next) = entry.next.upgrade()
        {
            return (next, true);
        }
        let buffer = make(Arc::clone(&entry.gate));
        entry.next = Arc::downgrade(&buffer);
        (buffer, false)
    }

    /// The request of `buffer` is about to be sent: nobody can join it any more. Returns the newest buffer of the object.
    pub(crate) fn sent(&self, id: &ObjectId, buffer: &Weak<Buffer>) -> Option<Arc<Buffer>> {
        let mut objects = self.objects.lock();
        let entry = objects.by_id.get_mut(id)?;
        if entry.next.ptr_eq(buffer) {
            entry.next = Weak::new();
        }
        if entry.latest.ptr_eq(buffer) {
            return None;
        }
        entry.latest.upgrade()
    }

    /// The store has answered with an object for `buffer`.
    pub(crate) fn answered(&self, id: &ObjectId, buffer: &Weak<Buffer>) {
        let mut objects = self.objects.lock();
        if let Some(entry) = objects.by_id.get_mut(id) {
            entry.latest = buffer.clone();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let mut objects = self.objects.lock();
        objects.sweep_above = 0;
        objects.sweep();
        objects.by_id.len()
    }
}

impl Objects {
    fn sweep(&mut self) {
        if self.by_id.len() < self.sweep_above {
            return;
        }
        self.by_id.retain(|_, entry| {
            let buffers = entry.latest.strong_count() + entry.next.strong_count();
            // A flight has a reference to its gate.
            buffers > 0 || Arc::strong_count(&entry.gate) > 1
        });
        self.sweep_above = (2 * self.by_id.len()).max(SWEEP_LEN_MIN);
    }
}

const SWEEP_LEN_MIN: usize = 64;
