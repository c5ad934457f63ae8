//! All buffers: those that are being filled or used, those that are kept for the next fetch, and those that workers keep.

pub(crate) mod buffer;
pub(crate) mod cache;
pub(crate) mod index;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::memory::Memory;
use crate::room::Turns;

use buffer::Buffer;
use cache::Cache;
use index::Index;

/// All buffers, and what they share.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) memory: Memory,
    pub(crate) cache: Cache,
    pub(crate) index: Index,
    pub(crate) held: HeldBuffers,
    pub(crate) turns: Turns,
    /// The longest object.
    pub(crate) bytes_max: u64,
}

impl Buffers {
    /// Drops what nobody uses, if somebody waits for memory.
    pub(crate) fn give_way(&self) {
        while self.memory.is_wanted() && self.cache.evict_idle() {}
    }
}

/// Buffers without users that a worker still has.
#[derive(Debug, Default)]
pub(crate) struct HeldBuffers {
    buffers: Mutex<Vec<Arc<Buffer>>>,
}

impl HeldBuffers {
    pub(crate) fn add(&self, all: &Arc<Buffers>, buffer: Arc<Buffer>) {
        let mut buffers = self.buffers.lock();
        if buffers.iter().any(|held| Arc::ptr_eq(held, &buffer)) {
            return;
        }
        buffers.push(buffer);
        let is_first = buffers.len() == 1;
        drop(buffers);
        if is_first && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(release(Arc::clone(all)));
        }
    }
}

/// Gives back what is released, until nothing is held.
async fn release(all: Arc<Buffers>) {
    let mut pause = PAUSE_MIN;
    loop {
        tokio::time::sleep(pause).await;
        let mut buffers = all.held.buffers.lock();
        let (held, released): (Vec<_>, Vec<_>) = std::mem::take(&mut *buffers)
            .into_iter()
            .partition(|buffer| buffer.is_held());
        let is_last = held.is_empty();
        *buffers = held;
        drop(buffers);
        pause = if released.is_empty() {
            (pause * 2).min(PAUSE_MAX)
        } else {
            PAUSE_MIN
        };
        drop(released);
        all.give_way();
        if is_last {
            return;
        }
    }
}

/// A worker lets go of its inputs soon after its answer.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
