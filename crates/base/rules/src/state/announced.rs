//! Requests that are announced before they can use a worker. They have a place in the queue and hold no worker.

use pilot_model::Instant;

use super::words::{Action, Awaited, WaiterId};
use super::{Mode, PoolState, Wait, Waiter};

impl<W: Clone, Q> PoolState<W, Q> {
    /// A request is on its way: its head has arrived, its payload has not. It counts as an arrival. `None`: the queue is full or
    /// the pool is closed, and the request does not count.
    pub fn announce(
        &mut self,
        now: Instant,
        awaited: Awaited,
        actions: &mut Vec<Action<W, Q>>,
    ) -> Option<WaiterId> {
        if self.mode == Mode::Closed || self.queue.len() >= self.settings.queue_max {
            return None;
        }
        self.count_arrival(now);
        let id = self.enqueue(None, Wait::UNBOUNDED);
        if let Some(waiter) = self.queue.back_mut() {
            waiter.awaited = awaited;
        }
        self.announced += 1;
        self.order_starts(now, Some(id), actions);
        self.note_hope();
        Some(id)
    }

    /// An announced request has been sent, and waits for its inputs.
    pub fn sent(&mut self, now: Instant, id: WaiterId, actions: &mut Vec<Action<W, Q>>) {
        if let Some(waiter) = self.waiter(id) {
            waiter.awaited = Awaited::Inputs;
            self.order_starts(now, Some(id), actions);
        }
    }

    /// An announced request will not arrive: it no longer counts as an arrival.
    pub fn retract(&mut self, id: WaiterId) {
        if let Some(at) = self.position(id)
            && self.queue[at].handle.is_none()
        {
            self.remove(at);
        }
        self.arrivals = self.arrivals.saturating_sub(1);
    }
}

impl<Q> Waiter<Q> {
    /// Announced, and no worker became ready for it.
    pub(super) fn is_unmet(&self) -> bool {
        self.handle.is_none() && !self.met
    }

    /// Announced, and perhaps never sent.
    pub(super) fn is_unsent(&self) -> bool {
        self.handle.is_none() && self.awaited == Awaited::Sender
    }
}
