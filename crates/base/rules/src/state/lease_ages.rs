//! When the current leases began, in order, so that they can be counted by age. The pool asks for every waiting request whether
//! one more start pays, and must not examine a thousand busy workers each time.
//!
//! Only for workers with one slot. Times never decrease: a lease that is older than its predecessor gets the predecessor's time.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use pilot_model::Instant;

/// The current leases, the oldest first. Most leases end in about the order in which they began, so few entries move.
#[derive(Debug, Default)]
pub(super) struct LeaseAges(VecDeque<Instant>);

impl LeaseAges {
    /// A lease begins. Returns the time that counts as its beginning.
    pub(super) fn begin(&mut self, now: Instant) -> Instant {
        let since = self.0.back().map_or(now, |newest| now.max(*newest));
        self.0.push_back(since);
        since
    }

    /// A lease ended that began at `since`, as returned by [`LeaseAges::begin`].
    pub(super) fn end(&mut self, since: Instant) {
        if let Ok(at) = self.0.binary_search(&since) {
            self.0.remove(at);
        }
    }

    /// When the oldest one began.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.front().copied()
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The number of leases whose age is in `ages` at `now`, in nanoseconds. A lease that begins later has the age 0.
    pub(super) fn aged(&self, now: Instant, ages: RangeInclusive<u64>) -> u64 {
        if ages.is_empty() || *ages.start() > now.0 {
            return 0;
        }
        let oldest = Instant(now.0.saturating_sub(*ages.end()));
        let behind = match *ages.start() {
            0 => self.0.len(),
            youngest => self.0.partition_point(|since| since.0 <= now.0 - youngest),
        };
        let before = self.0.partition_point(|since| *since < oldest);
        behind.saturating_sub(before) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn counts_are_those_of_looking_at_each(
            steps in prop::collection::vec((0_usize..20, 0_u64..5, any::<bool>()), 0..400),
            from in 0_u64..1200,
            span in 0_u64..1200,
        ) {
            let mut leases = LeaseAges::default();
            let mut model: Vec<Option<Instant>> = vec![None; 20];
            let mut now = 0;
            for (worker, later, begins) in steps {
                now += later;
                if let Some(since) = model[worker].take() {
                    leases.end(since);
                }
                if begins {
                    // Some begin a little before their predecessor.
                    model[worker] = Some(leases.begin(Instant(now.saturating_sub(later / 4))));
                }
                prop_assert_eq!(leases.len(), model.iter().flatten().count() as u64);
            }
            let ages = from..=from + span;
            let plainly = model.iter().flatten().filter(|since| ages.contains(&now.saturating_sub(since.0))).count();
            prop_assert_eq!(leases.aged(Instant(now), ages), plainly as u64);
        }
    }
}
