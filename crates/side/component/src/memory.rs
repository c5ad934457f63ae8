//! The memory that the instances of a worker share. A component that asks for too much is refused by `memory.grow`; the worker's process,
//! and with it the other requests, live on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::{ResourceLimiter, Result};

/// Memories and tables of one component. Languages with adapters have one memory and two tables.
pub(crate) const MEMORIES_MAX: u32 = 4;
pub(crate) const TABLES_MAX: u32 = 10;
/// Elements of one table.
pub(crate) const TABLE_LEN_MAX: usize = 100_000;

/// What the worker itself needs of its limit, bytes: its threads, buffers and the pages of its program.
const OWN_LEN: u64 = 32 << 20;

/// The memory of all instances of a worker.
#[derive(Debug)]
pub(crate) struct WorkerMemory {
    free: AtomicU64,
}

impl WorkerMemory {
    /// Of a worker with this limit.
    pub(crate) fn of(memory_bytes: u64) -> Arc<Self> {
        let free = memory_bytes.saturating_sub(OWN_LEN).max(memory_bytes / 2);
        Arc::new(Self {
            free: AtomicU64::new(free),
        })
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = |free: u64| free.checked_sub(bytes);
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken)
            .is_ok()
    }
}

/// The memory of one instance, given back at its end.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<WorkerMemory>,
    taken: u64,
    /// Whether it was refused memory.
    pub(crate) refused: bool,
}

impl Share {
    pub(crate) fn of(memory: &Arc<WorkerMemory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            taken: 0,
            refused: false,
        }
    }
}

impl ResourceLimiter for Share {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let fits = self.memory.take(more);
        if fits {
            self.taken = self.taken.saturating_add(more);
        } else {
            self.refused = true;
        }
        Ok(fits)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        Ok(desired <= TABLE_LEN_MAX)
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.free.fetch_add(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_instance_took_is_free_after_its_end() {
        let memory = WorkerMemory::of(128 << 20);
        let mut greedy = Share::of(&memory);
        assert!(greedy.memory_growing(0, 64 << 20, None).unwrap());
        assert!(!greedy.memory_growing(64 << 20, 128 << 20, None).unwrap());
        assert!(greedy.refused);
        let mut other = Share::of(&memory);
        assert!(other.memory_growing(0, 32 << 20, None).unwrap());
        assert!(!other.memory_growing(32 << 20, 33 << 20, None).unwrap());
        drop(greedy);
        assert!(other.memory_growing(32 << 20, 96 << 20, None).unwrap());
    }

    #[test]
    fn a_small_worker_leaves_half_to_its_instances() {
        let memory = WorkerMemory::of(16 << 20);
        assert_eq!(memory.free.load(Ordering::Relaxed), 8 << 20);
    }
}
