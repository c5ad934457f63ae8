//! The queue of future events, ordered by time. At the same instant, ends come first, then the event that was ordered first.
//! Events are plain values in a binary heap. Ticks, whose times already come in order, are in a separate queue.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use pilot_rules::Key;

/// An event of one function's pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    /// Nanoseconds.
    pub(super) at: u64,
    pub(super) function: u32,
    pub(super) what: What,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// An invocation that began at `since` ends.
    End { key: Key, since: u64 },
    /// A worker that was ordered at `asked` is ready.
    Ready { key: Key, asked: u64 },
    /// The pool's tick is due.
    Due,
    /// The forecaster ticks.
    Tick,
}

impl What {
    /// At the same instant, the lower rank comes first: the next request must see what became free at that instant.
    fn rank(self) -> u64 {
        match self {
            Self::End { .. } => 0,
            Self::Ready { .. } => 1,
            Self::Due => 2,
            Self::Tick => 3,
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Pending>>,
    /// Sorted by time.
    ticks: VecDeque<(u64, u32)>,
    pushed: u64,
}

/// An event in the heap.
#[derive(Debug, Clone, Copy)]
struct Pending {
    event: Event,
    /// Its rank and, in the lower bits, how many were pushed before it.
    order: u64,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        let order = event.what.rank() << RANK_SHIFT | self.pushed;
        self.pushed += 1;
        self.heap.push(Reverse(Pending { event, order }));
    }

    /// This function's forecaster ticks at `at`. If all tick at the same interval, which is usual, this needs no search.
    pub(super) fn push_tick(&mut self, at: u64, function: u32) {
        let behind = self.ticks.iter().rev().take_while(|tick| tick.0 > at);
        let place = self.ticks.len() - behind.count();
        if place == self.ticks.len() {
            self.ticks.push_back((at, function));
        } else {
            self.ticks.insert(place, (at, function));
        }
    }

    /// When the next event happens; `u64::MAX`: there is none.
    pub(super) fn next_at(&self) -> u64 {
        let heap_at = self.heap_at();
        self.ticks
            .front()
            .map_or(heap_at, |tick| heap_at.min(tick.0))
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        if let Some((at, function)) = self.ticks.front().copied()
            && at < self.heap_at()
        {
            self.ticks.pop_front();
            let what = What::Tick;
            return Some(Event { at, function, what });
        }
        self.heap.pop().map(|Reverse(pending)| pending.event)
    }

    /// Starts in progress: the function, and when the start was ordered.
    pub(super) fn starting(&self) -> impl Iterator<Item = (u32, u64)> {
        let events = self.heap.iter().map(|Reverse(pending)| pending.event);
        events.filter_map(|event| match event.what {
            What::Ready { asked, .. } => Some((event.function, asked)),
            _ => None,
        })
    }

    /// The number of events so far, without ticks.
    #[cfg(test)]
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of events for which memory is allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.heap.capacity() + self.ticks.capacity()
    }

    fn heap_at(&self) -> u64 {
        self.heap
            .peek()
            .map_or(u64::MAX, |Reverse(pending)| pending.event.at)
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.event.at, self.order).cmp(&(other.event.at, other.order))
    }
}

const RANK_SHIFT: u32 = 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_whatever_the_order_they_were_pushed_in() {
        let mut events = Events::default();
        for (at, function) in [(5, 0), (3, 1), (9, 2), (3, 3)] {
            events.push_tick(at, function);
        }
        for (at, function) in [(7, 4), (3, 5), (1, 6)] {
            let what = What::Due;
            events.push(Event { at, what, function });
        }
        let mut order = Vec::new();
        while let Some(event) = events.pop() {
            order.push((event.at, event.function));
        }
        assert_eq!(
            order,
            [(1, 6), (3, 5), (3, 1), (3, 3), (5, 0), (7, 4), (9, 2)]
        );
        assert_eq!(events.next_at(), u64::MAX);
    }
}
