//! Complete buffers that are kept for the next fetch of the same object. The least recently used goes first, and as soon as inputs
//! need the memory.
//!
//! A buffer is used again only after the store has said that the object is still the same one: see `flight`.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffers::buffer::Buffer;

/// The kept buffers.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: u64,
    /// With what each counts. The last was used last.
    buffers: VecDeque<(Arc<Buffer>, u64)>,
}

impl Cache {
    /// `bytes_max`: 0 keeps nothing.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            kept: Mutex::default(),
        }
    }

    /// Whether it keeps anything.
    pub(crate) fn keeps(&self) -> bool {
        self.bytes_max > 0
    }

    /// It was used: keeps it, if the store can say later whether it is current.
    pub(crate) fn used(&self, buffer: Option<&Arc<Buffer>>) {
        let Some(buffer) = buffer else { return };
        let Some(counted) = buffer.counts_in_memory() else {
            return;
        };
        if counted > self.bytes_max || buffer.validator().is_none() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.take(buffer);
        kept.bytes += counted;
        kept.buffers.push_back((Arc::clone(buffer), counted));
        let mut evicted = Vec::new();
        while kept.bytes > self.bytes_max
            && let Some((oldest, counted)) = kept.buffers.pop_front()
        {
            kept.bytes -= counted;
            evicted.push(oldest);
        }
        // Memory is given back without the lock.
        drop(kept);
    }

    /// It is not current any more.
    pub(crate) fn forget(&self, buffer: &Arc<Buffer>) {
        let forgotten = self.kept.lock().take(buffer);
        drop(forgotten);
    }

    /// Drops the least recently used buffer without a user. False: there is none.
    pub(crate) fn evict_idle(&self) -> bool {
        let mut kept = self.kept.lock();
        let idle = kept
            .buffers
            .iter()
            .position(|(buffer, _)| Arc::strong_count(buffer) == 1);
        let evicted = idle.and_then(|at| kept.buffers.remove(at));
        if let Some((_, counted)) = &evicted {
            kept.bytes -= counted;
        }
        drop(kept);
        evicted.is_some()
    }
}

impl Kept {
    fn take(&mut self, buffer: &Arc<Buffer>) -> Option<Arc<Buffer>> {
        let at = self
            .buffers
            .iter()
            .rposition(|(kept, _)| Arc::ptr_eq(kept, buffer))?;
        let (buffer, counted) = self.buffers.remove(at)?;
        self.bytes -= counted;
        Some(buffer)
    }
}
