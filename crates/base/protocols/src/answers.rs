//! The memory for what workers answer: one budget for all functions, and a share of it that one function can have. What is longer
//! than [`FREE_LEN`] is reserved before it is read, and given back when the last reference to its bytes is dropped, which is when
//! the client has it. Where nothing is left, the reader waits and the worker's socket pushes back.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::FunctionName;
use tokio::sync::Notify;

/// What is at most so long needs no reservation, bytes. The number of workers and of connections bounds it.
pub const FREE_LEN: usize = 64 * 1024;

/// The memory for the answers of all functions.
#[derive(Debug, Clone)]
pub struct AnswerMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes_max: usize,
    share_max: usize,
    held: Mutex<Held>,
    /// Something was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    by_function: HashMap<FunctionName, usize>,
}

impl AnswerMemory {
    /// `bytes_max`: for all functions together. One function has at most `share_max`. Both are at least the longest answer, or
    /// such an answer could never be read.
    #[must_use]
    pub fn new(bytes_max: usize, share_max: usize) -> Self {
        let bytes_max = bytes_max.max(crate::RESPONSE_LEN_MAX);
        Self(Arc::new(Inner {
            bytes_max,
            share_max: share_max.clamp(crate::RESPONSE_LEN_MAX, bytes_max),
            held: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// The share of a function.
    #[must_use]
    pub fn of(&self, function: &FunctionName) -> FunctionMemory {
        FunctionMemory {
            memory: self.clone(),
            function: function.clone(),
        }
    }

    /// Bytes that are reserved now, of all functions.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.lock().bytes
    }

    fn take(&self, function: &FunctionName, len: usize) -> bool {
        let mut held = self.0.held.lock();
        let share = held.by_function.get(function).copied().unwrap_or(0);
        if held.bytes + len > self.0.bytes_max || share + len > self.0.share_max {
            return false;
        }
        held.bytes += len;
        match held.by_function.get_mut(function) {
            Some(share) => *share += len,
            None => drop(held.by_function.insert(function.clone(), len)),
        }
        true
    }

    fn give_back(&self, function: &FunctionName, len: usize) {
        let mut held = self.0.held.lock();
        held.bytes -= len;
        let share = held.by_function.get_mut(function);
        let is_last = share.is_some_and(|share| {
            *share -= len;
            *share == 0
        });
        if is_last {
            held.by_function.remove(function);
        }
        drop(held);
        self.0.freed.notify_waiters();
    }
}

impl Default for AnswerMemory {
    /// Enough for about forty of the longest answers, eight of them of one function.
    fn default() -> Self {
        Self::new(256 << 20, 48 << 20)
    }
}

/// The memory for the answers of one function.
#[derive(Debug, Clone)]
pub struct FunctionMemory {
    memory: AnswerMemory,
    function: FunctionName,
}

impl FunctionMemory {
    /// No memory yet.
    #[must_use]
    pub fn nothing(&self) -> Reserved {
        Reserved {
            of: self.clone(),
            len: 0,
        }
    }

    /// Waits until `len` bytes are free, and takes them. Nothing is taken for what has at most [`FREE_LEN`].
    pub async fn reserve(&self, len: usize) -> Reserved {
        let mut reserved = self.nothing();
        reserved.grow_to(len).await;
        reserved
    }
}

/// Memory that is reserved until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    of: FunctionMemory,
    len: usize,
}

impl Reserved {
    /// Waits until there are `len` bytes in all. What exceeds the function's whole share counts as the share, because it could
    /// never be had.
    pub async fn grow_to(&mut self, len: usize) {
        let memory = &self.of.memory;
        let len = len.min(memory.0.share_max);
        if len <= FREE_LEN.max(self.len) {
            return;
        }
        let freed = memory.0.freed.notified();
        let mut freed = std::pin::pin!(freed);
        loop {
            // Before the look, so that nothing is missed that is given back after it.
            freed.as_mut().enable();
            if memory.take(&self.of.function, len - self.len) {
                self.len = len;
                return;
            }
            freed.as_mut().await;
            freed.set(memory.0.freed.notified());
        }
    }

    /// Takes bytes until there are `len` in all, without waiting. False: so many are not free, and nothing has changed.
    #[must_use]
    pub fn try_grow_to(&mut self, len: usize) -> bool {
        let more = len.saturating_sub(self.len);
        let taken = more == 0 || self.of.memory.take(&self.of.function, more);
        if taken {
            self.len = self.len.max(len);
        }
        taken
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        let len = std::mem::take(&mut self.len);
        if len > 0 {
            self.of.memory.give_back(&self.of.function, len);
        }
    }

    /// The bytes, with their memory: it is given back when the last reference to them is dropped.
    #[must_use]
    pub fn keep(self, bytes: Bytes) -> Bytes {
        if self.len == 0 {
            return bytes;
        }
        Bytes::from_owner(Kept {
            bytes,
            _reserved: self,
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.clear();
    }
}

struct Kept {
    bytes: Bytes,
    _reserved: Reserved,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const MIB: usize = 1 << 20;

    fn name(text: &str) -> FunctionName {
        text.parse().unwrap()
    }

    async fn must_wait(memory: &FunctionMemory, len: usize) -> bool {
        timeout(Duration::from_millis(20), memory.reserve(len))
            .await
            .is_err()
    }

    #[tokio::test]
    async fn one_function_cannot_take_the_memory_of_another() {
        let memory = AnswerMemory::new(64 * MIB, 16 * MIB);
        let (greedy, other) = (memory.of(&name("greedy")), memory.of(&name("other")));
        let mut held = vec![greedy.reserve(6 * MIB).await, greedy.reserve(6 * MIB).await];
        assert!(must_wait(&greedy, 6 * MIB).await);
        assert!(!must_wait(&other, 6 * MIB).await);
        held.pop();
        assert!(!must_wait(&greedy, 6 * MIB).await);
    }

    #[tokio::test]
    async fn all_functions_together_have_a_limit() {
        let memory = AnswerMemory::new(16 * MIB, 16 * MIB);
        let held = memory.of(&name("a")).reserve(12 * MIB).await;
        assert!(must_wait(&memory.of(&name("b")), 6 * MIB).await);
        drop(held);
        assert!(!must_wait(&memory.of(&name("b")), 6 * MIB).await);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn what_waits_goes_on_when_bytes_are_dropped() {
        let memory = AnswerMemory::new(16 * MIB, 16 * MIB).of(&name("a"));
        let kept = memory
            .reserve(12 * MIB)
            .await
            .keep(Bytes::from_static(b"x"));
        let part = kept.slice(..);
        let waiting = tokio::spawn({
            let memory = memory.clone();
            async move { memory.reserve(6 * MIB).await }
        });
        drop(kept);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(part);
        drop(waiting.await.unwrap());
        assert!(memory.memory.0.held.lock().by_function.is_empty());
    }

    #[tokio::test]
    async fn what_is_short_needs_nothing() {
        let memory = AnswerMemory::new(0, 0).of(&name("a"));
        let _all = memory.reserve(crate::RESPONSE_LEN_MAX).await;
        assert!(!must_wait(&memory, FREE_LEN).await);
        assert!(must_wait(&memory, FREE_LEN + 1).await);
    }
}
