//! What will happen, in the order of time. Plain values in a binary heap; a round of ticks, whose times come in order by
//! themselves, in a queue beside it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use pilot_rules::Key;

/// Something that happens to one function's pool. Events of the same instant come in the order of `What`, then of the
/// function: whoever is served next finds what became free just then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// Nanoseconds.
    pub(super) at: u64,
    pub(super) what: What,
    pub(super) function: u32,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// An invocation that began at `since` ends.
    End { key: Key, since: u64 },
    /// A worker that was asked for at `asked` is up.
    Ready { key: Key, asked: u64 },
    /// The pool wants to be told the time.
    Due,
    /// The forecaster ticks.
    Tick,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Event>>,
    /// Sorted by time.
    ticks: VecDeque<(u64, u32)>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.heap.push(Reverse(event));
    }

    /// This function's forecaster ticks at `at`. Where all tick at the same pace, which is the rule, this takes no search.
    pub(super) fn push_tick(&mut self, at: u64, function: u32) {
        let behind = self.ticks.iter().rev().take_while(|tick| tick.0 > at);
        let place = self.ticks.len() - behind.count();
        if place == self.ticks.len() {
            self.ticks.push_back((at, function));
        } else {
            self.ticks.insert(place, (at, function));
        }
    }

    /// When something happens next; `u64::MAX`: nothing does.
    pub(super) fn next_at(&self) -> u64 {
        let heap = self.heap.peek().map_or(u64::MAX, |Reverse(event)| event.at);
        self.ticks.front().map_or(heap, |tick| heap.min(tick.0))
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let heap_at = self.heap.peek().map_or(u64::MAX, |Reverse(event)| event.at);
        if let Some((at, function)) = self.ticks.front().copied()
            && at < heap_at
        {
            self.ticks.pop_front();
            let what = What::Tick;
            return Some(Event { at, what, function });
        }
        self.heap.pop().map(|Reverse(event)| event)
    }

    /// Starts under way: which function's, and when they were ordered.
    pub(super) fn starting(&self) -> impl Iterator<Item = (u32, u64)> {
        self.heap
            .iter()
            .filter_map(|Reverse(event)| match event.what {
                What::Ready { asked, .. } => Some((event.function, asked)),
                _ => None,
            })
    }
}

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
