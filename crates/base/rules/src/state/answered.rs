//! Leases whose answer is complete, and whose exchange has not ended. Their workers are about to be free, so requests wait for them for a
//! moment (`sizing.rs`): their callers may send the next request at once.

use pilot_model::Instant;

use super::words::Key;
use super::{PoolState, WorkerState};

/// Such leases of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) leases: u32,
    /// Sum of the times of the answers, nanoseconds.
    pub(super) at_sum: u128,
}

impl<W: Clone, Q> PoolState<W, Q> {
    /// The whole answer of a lease is with its caller, but its exchange has not ended.
    pub fn answered(&mut self, now: Instant, key: Key) {
        if let Some(WorkerState::Up { answered, .. }) = self.place_mut(key) {
            answered.leases += 1;
            answered.at_sum += u128::from(now.0);
            self.answered += 1;
        }
    }

    /// A lease that was answered at `at` is about to be released. To be called before [`PoolState::release`].
    pub fn answered_lease_ends(&mut self, at: Instant, key: Key) {
        if let Some(WorkerState::Up { answered, .. }) = self.place_mut(key) {
            answered.leases = answered.leases.saturating_sub(1);
            answered.at_sum = answered.at_sum.saturating_sub(u128::from(at.0));
            self.answered = self.answered.saturating_sub(1);
        }
    }
}
