//! Memory of the daemon that functions make it use: one budget for all functions, and a share of it that one function can have. There is
//! one for what workers answer, and one for inputs. Memory is reserved before it is filled. Where nothing is left, its user waits: for
//! answers, the worker's socket then pushes back.
//!
//! What a worker answers is given back when the last reference to its bytes is dropped, which is when the client has it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::FunctionName;
use tokio::sync::Notify;

/// An answer that is at most this long needs no reservation, bytes. The number of workers and of connections bounds it.
pub const FREE_LEN: usize = 64 * 1024;

/// The memory of all functions.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes_max: usize,
    share_max: usize,
    /// What is at most this long needs no reservation.
    free_len: usize,
    held: Mutex<Held>,
    /// Something was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    by_function: HashMap<FunctionName, usize>,
    /// How many wait for memory, by function; only functions for which somebody waits.
    waiting: HashMap<FunctionName, usize>,
    /// Functions of which a part of something has arrived that now waits, the one that has waited longest first, and how many parts.
    partly: VecDeque<(FunctionName, usize)>,
    /// Something arrives beyond the limits.
    is_beyond: bool,
}

impl Held {
    fn share(&self, function: &FunctionName) -> usize {
        self.by_function.get(function).copied().unwrap_or(0)
    }

    fn add(&mut self, function: &FunctionName, len: usize) {
        self.bytes += len;
        match self.by_function.get_mut(function) {
            Some(share) => *share += len,
            None => drop(self.by_function.insert(function.clone(), len)),
        }
    }
}

impl MemoryBudget {
    /// For answers. `bytes_max`: for all functions together. One function has at most `share_max`. Both are at least the longest
    /// answer, or such an answer could never be read. What has at most [`FREE_LEN`] does not count.
    #[must_use]
    pub fn for_answers(bytes_max: usize, share_max: usize) -> Self {
        let bytes_max = bytes_max.max(crate::RESPONSE_LEN_MAX);
        let share_max = share_max.clamp(crate::RESPONSE_LEN_MAX, bytes_max);
        Self::with(bytes_max, share_max, FREE_LEN)
    }

    /// A budget in which every byte counts.
    #[must_use]
    pub fn new(bytes_max: usize, share_max: usize) -> Self {
        Self::with(bytes_max, share_max, 0)
    }

    /// A budget in which nothing counts that has at most `free_len`.
    #[must_use]
    pub fn with(bytes_max: usize, share_max: usize, free_len: usize) -> Self {
        Self(Arc::new(Inner {
            bytes_max,
            share_max: share_max.min(bytes_max),
            free_len,
            held: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// The most that one function can have.
    #[must_use]
    pub fn share_max(&self) -> usize {
        self.0.share_max
    }

    /// The share of a function.
    #[must_use]
    pub fn of(&self, function: &FunctionName) -> FunctionBudget {
        FunctionBudget {
            memory: self.clone(),
            function: function.clone(),
        }
    }

    /// Bytes that are reserved now, of all functions.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.lock().bytes
    }

    /// Takes bytes that are there already, also beyond the limits. What comes next waits until it is below them.
    fn take_anyway(&self, function: &FunctionName, len: usize) {
        self.0.held.lock().add(function, len);
    }

    fn take(&self, function: &FunctionName, len: usize) -> bool {
        let mut held = self.0.held.lock();
        let share = held.share(function);
        if held.bytes + len > self.0.bytes_max || share + len > self.0.share_max {
            return false;
        }
        held.add(function, len);
        true
    }

    /// Lets one function go beyond the limits with something of which a part has arrived: those that wait for each other's parts would
    /// wait for ever. The functions take turns, without those that have more than their share. What went beyond the limit of all must have
    /// been given back before the next one goes.
    fn go_beyond(&self, function: &FunctionName) -> bool {
        let mut held = self.0.held.lock();
        let share_max = self.0.share_max;
        let next = held
            .partly
            .iter()
            .position(|(of, _)| held.share(of) <= share_max);
        let Some(next) = next.filter(|next| held.partly[*next].0 == *function) else {
            return false;
        };
        if held.is_beyond || held.bytes > self.0.bytes_max {
            return false;
        }
        held.is_beyond = true;
        let turn = held.partly.remove(next);
        held.partly.extend(turn);
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

impl Default for MemoryBudget {
    /// Enough for about forty of the longest answers, eight of them of one function.
    fn default() -> Self {
        Self::for_answers(256 << 20, 48 << 20)
    }
}

/// The memory of one function.
#[derive(Debug, Clone)]
pub struct FunctionBudget {
    memory: MemoryBudget,
    function: FunctionName,
}

impl FunctionBudget {
    /// Whether somebody waits for memory that the answers of this function hold.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let inner = &self.memory.0;
        let held = inner.held.lock();
        let all_is_taken =
            inner.bytes_max - held.bytes.min(inner.bytes_max) < crate::RESPONSE_LEN_MAX;
        held.waiting.contains_key(&self.function) || (all_is_taken && !held.waiting.is_empty())
    }

    /// Counts `made`, which was made of the answer `held`, in place of it. `made` is hardly longer, so this does not wait: a wait for
    /// memory by who has some could last for ever.
    #[must_use]
    pub fn in_place_of(&self, held: Bytes, made: Bytes) -> Bytes {
        let part_of_it = held.as_ptr_range().contains(&made.as_ptr());
        let mut reserved = self.nothing();
        if made.len() > FREE_LEN && !part_of_it {
            self.memory.take_anyway(&self.function, made.len());
            reserved.len = made.len();
        }
        drop(held);
        reserved.keep(made)
    }

    /// No memory yet.
    #[must_use]
    pub fn nothing(&self) -> Reserved {
        Reserved {
            of: self.clone(),
            len: 0,
            is_beyond: false,
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
    of: FunctionBudget,
    len: usize,
    /// May grow without regard to the limits.
    is_beyond: bool,
}

impl Reserved {
    /// Waits until there are `len` bytes in all. What exceeds the function's whole share counts as the share, because it could
    /// never be had.
    pub async fn grow_to(&mut self, len: usize) {
        if len > self.of.memory.0.free_len {
            self.grow_to_all_of(len).await;
        }
    }

    /// The same where every byte counts, however few there are: many small things are kept.
    pub async fn grow_to_all_of(&mut self, len: usize) {
        let memory = &self.of.memory;
        let len = len.min(memory.0.share_max);
        if len <= self.len {
            return;
        }
        let mut waits = None;
        let freed = memory.0.freed.notified();
        let mut freed = std::pin::pin!(freed);
        loop {
            // Before the look, so that nothing is missed that is given back after it.
            freed.as_mut().enable();
            if memory.take(&self.of.function, len - self.len) {
                self.len = len;
                return;
            }
            waits.get_or_insert_with(|| Waits::new(&self.of));
            freed.as_mut().await;
            freed.set(memory.0.freed.notified());
        }
    }

    /// Waits until there are `len` bytes in all, for something of which a part has arrived. Unlike with [`Reserved::grow_to`], those that
    /// have a part each do not wait for each other for ever. [`Reserved::has_arrived`] is due when it is complete.
    pub(crate) async fn grow_arriving_to(&mut self, len: usize) {
        if self.len == 0 {
            return self.grow_to(len).await;
        }
        let of = self.of.clone();
        let freed = of.memory.0.freed.notified();
        let mut freed = std::pin::pin!(freed);
        let mut waits = None;
        loop {
            freed.as_mut().enable();
            if self.try_grow_to(len) {
                return;
            }
            waits.get_or_insert_with(|| (Waits::new(&of), WaitsPartly::new(&of)));
            self.is_beyond = self.is_beyond || of.memory.go_beyond(&of.function);
            if self.is_beyond {
                of.memory.take_anyway(&of.function, len - self.len);
                self.len = len;
                return;
            }
            freed.as_mut().await;
            freed.set(of.memory.0.freed.notified());
        }
    }

    /// Waits until there are `len` bytes in all, which is the most that something needs of which a part has arrived. Those that have a
    /// part each do not wait for each other for ever: one at a time goes beyond the limits, and then it needs no more.
    pub async fn grow_to_whole(&mut self, len: usize) {
        self.grow_arriving_to(len).await;
        // However long the rest takes, others may go on.
        self.has_arrived();
    }

    /// What arrived is complete, or nothing else comes.
    pub(crate) fn has_arrived(&mut self) {
        if std::mem::take(&mut self.is_beyond) {
            let memory = &self.of.memory.0;
            memory.held.lock().is_beyond = false;
            memory.freed.notify_waiters();
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

    /// Whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
    pub fn keep(mut self, bytes: Bytes) -> Bytes {
        self.has_arrived();
        if self.len == 0 {
            return bytes;
        }
        Bytes::from_owner(Kept {
            bytes,
            _reserved: self,
        })
    }
}

/// Somebody waits, until this is dropped.
struct Waits(FunctionBudget);

impl Waits {
    fn new(of: &FunctionBudget) -> Self {
        let mut held = of.memory.0.held.lock();
        *held.waiting.entry(of.function.clone()).or_default() += 1;
        Self(of.clone())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut held = self.0.memory.0.held.lock();
        let count = held.waiting.get_mut(&self.0.function);
        let is_last = count.is_some_and(|count| {
            *count -= 1;
            *count == 0
        });
        if is_last {
            held.waiting.remove(&self.0.function);
        }
    }
}

/// Somebody waits who has a part of something, until this is dropped.
struct WaitsPartly(FunctionBudget);

impl WaitsPartly {
    fn new(of: &FunctionBudget) -> Self {
        let mut held = of.memory.0.held.lock();
        let mut known = held.partly.iter_mut();
        match known.find(|(function, _)| *function == of.function) {
            Some((_, count)) => *count += 1,
            None => held.partly.push_back((of.function.clone(), 1)),
        }
        Self(of.clone())
    }
}

impl Drop for WaitsPartly {
    fn drop(&mut self) {
        let mut held = self.0.memory.0.held.lock();
        let mut known = held.partly.iter_mut();
        if let Some((_, count)) = known.find(|(function, _)| *function == self.0.function) {
            *count -= 1;
        }
        held.partly.retain(|(_, count)| *count > 0);
        drop(held);
        // It may be the turn of another function now.
        self.0.memory.0.freed.notify_waiters();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.has_arrived();
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

    async fn must_wait(memory: &FunctionBudget, len: usize) -> bool {
        timeout(Duration::from_millis(20), memory.reserve(len))
            .await
            .is_err()
    }

    #[tokio::test]
    async fn one_function_cannot_take_the_memory_of_another() {
        let memory = MemoryBudget::for_answers(64 * MIB, 16 * MIB);
        let (greedy, other) = (memory.of(&name("greedy")), memory.of(&name("other")));
        let mut held = vec![greedy.reserve(6 * MIB).await, greedy.reserve(6 * MIB).await];
        assert!(must_wait(&greedy, 6 * MIB).await);
        assert!(!must_wait(&other, 6 * MIB).await);
        held.pop();
        assert!(!must_wait(&greedy, 6 * MIB).await);
    }

    #[tokio::test]
    async fn all_functions_together_have_a_limit() {
        let memory = MemoryBudget::for_answers(16 * MIB, 16 * MIB);
        let held = memory.of(&name("a")).reserve(12 * MIB).await;
        assert!(must_wait(&memory.of(&name("b")), 6 * MIB).await);
        drop(held);
        assert!(!must_wait(&memory.of(&name("b")), 6 * MIB).await);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn what_waits_goes_on_when_bytes_are_dropped() {
        let memory = MemoryBudget::for_answers(16 * MIB, 16 * MIB).of(&name("a"));
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
    async fn a_function_whose_answers_wait_wants_its_memory() {
        let memory = MemoryBudget::for_answers(64 * MIB, 16 * MIB);
        let (a, b) = (memory.of(&name("a")), memory.of(&name("b")));
        let held = a.reserve(12 * MIB).await;
        assert!(!a.is_wanted());
        let waiting = tokio::spawn({
            let a = a.clone();
            async move { a.reserve(6 * MIB).await }
        });
        tokio::task::yield_now().await;
        assert!(a.is_wanted() && !b.is_wanted());
        drop(held);
        let _second = waiting.await.unwrap();
        assert!(!a.is_wanted());
        // Who stops waiting wants nothing any more.
        assert!(must_wait(&a, 12 * MIB).await);
        assert!(!a.is_wanted());
    }

    #[tokio::test]
    async fn all_functions_want_the_memory_if_all_of_it_is_taken() {
        let memory = MemoryBudget::for_answers(16 * MIB, 16 * MIB);
        let (a, b) = (memory.of(&name("a")), memory.of(&name("b")));
        let _held = a.reserve(12 * MIB).await;
        let waiting = tokio::spawn(async move { b.reserve(6 * MIB).await });
        tokio::task::yield_now().await;
        assert!(a.is_wanted());
        waiting.abort();
    }

    #[tokio::test]
    async fn what_is_made_of_an_answer_counts_in_its_place() {
        let memory = MemoryBudget::for_answers(16 * MIB, 16 * MIB);
        let of = memory.of(&name("a"));
        let answer = of
            .reserve(12 * MIB)
            .await
            .keep(Bytes::from(vec![0; 12 * MIB]));
        let made = of.in_place_of(answer, Bytes::from(vec![0; 9 * MIB]));
        assert_eq!(memory.held(), 9 * MIB);
        drop(made);
        assert_eq!(memory.held(), 0);
        let answer = of
            .reserve(12 * MIB)
            .await
            .keep(Bytes::from(vec![0; 12 * MIB]));
        let part = of.in_place_of(answer.clone(), answer.slice(MIB..));
        drop(answer);
        assert_eq!(memory.held(), 12 * MIB);
        drop(part);
        let short = of.in_place_of(Bytes::new(), Bytes::from_static(b"x"));
        assert_eq!((memory.held(), short.len()), (0, 1));
    }

    #[tokio::test]
    async fn what_is_short_needs_nothing() {
        let memory = MemoryBudget::for_answers(0, 0).of(&name("a"));
        let _all = memory.reserve(crate::RESPONSE_LEN_MAX).await;
        assert!(!must_wait(&memory, FREE_LEN).await);
        assert!(must_wait(&memory, FREE_LEN + 1).await);
    }
}
