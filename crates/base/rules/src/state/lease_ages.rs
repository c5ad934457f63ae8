//! The ages of the leases that are out, counted in logarithmic time. Whether one more start pays is asked at every request
//! that waits; a pool with a thousand busy workers must not look at each of them every time.
//!
//! Of workers with one slot alone: one lease each. Times are in order, for one that goes back counts as the newest before it.

use std::ops::RangeInclusive;

use pilot_model::Instant;

use super::words::Key;

/// The leases.
#[derive(Debug, Default)]
pub(super) struct LeaseAges {
    /// In order of their beginning, those that ended among them until the room is used up.
    entries: Vec<Entry>,
    /// Which entries are out, as sums: a Fenwick tree (Fenwick, "A New Data Structure for Cumulative Frequency Tables", 1994).
    sums: Vec<u32>,
    /// By key: where its lease stands in `entries`.
    places: Vec<Option<u32>>,
    out: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    since: u64,
    key: Key,
}

impl LeaseAges {
    const ROOM_MIN: usize = 64;

    /// A lease of this worker, which has none, begins. Its beginning as it is counted from now on.
    pub(super) fn begin(&mut self, key: Key, now: Instant) -> Instant {
        self.end(key);
        if self.entries.len() == self.sums.len() {
            self.make_room();
        }
        let since = self
            .entries
            .last()
            .map_or(now.0, |newest| now.0.max(newest.since));
        let place = self.entries.len();
        self.entries.push(Entry { since, key });
        self.put(key, place);
        self.out += 1;
        self.add(place, 1);
        Instant(since)
    }

    /// It ended. Nothing, if there was none.
    pub(super) fn end(&mut self, key: Key) {
        let place = self.places.get_mut(key.0 as usize).and_then(Option::take);
        if let Some(place) = place {
            self.out -= 1;
            self.add(place as usize, -1);
        }
    }

    /// Leases that are out.
    pub(super) fn len(&self) -> u64 {
        u64::from(self.out)
    }

    /// How many of them are so many nanoseconds old at `now`; what begins later has the age 0.
    pub(super) fn aged(&self, now: Instant, ages: RangeInclusive<u64>) -> u64 {
        if ages.is_empty() || *ages.start() > now.0 {
            return 0;
        }
        let oldest = now.0.saturating_sub(*ages.end());
        let behind = match *ages.start() {
            0 => self.entries.len(),
            youngest => self
                .entries
                .partition_point(|entry| entry.since <= now.0 - youngest),
        };
        let before = self.entries.partition_point(|entry| entry.since < oldest);
        self.sum(behind).saturating_sub(self.sum(before))
    }

    /// Forgets what ended, and takes twice the room of what is left: a rebuilding is paid by as many beginnings.
    fn make_room(&mut self) {
        let out = self.out as usize;
        let mut kept = Vec::with_capacity((2 * out).max(Self::ROOM_MIN));
        for (place, entry) in self.entries.iter().enumerate() {
            if self.place(entry.key) == Some(place) {
                kept.push(*entry);
            }
        }
        self.sums.clear();
        self.sums.resize(kept.capacity(), 0);
        self.entries = kept;
        for place in 0..self.entries.len() {
            self.put(self.entries[place].key, place);
            self.add(place, 1);
        }
    }

    fn place(&self, key: Key) -> Option<usize> {
        self.places.get(key.0 as usize)?.map(|place| place as usize)
    }

    fn put(&mut self, key: Key, place: usize) {
        let at = key.0 as usize;
        if at >= self.places.len() {
            self.places.resize(at + 1, None);
        }
        // Room is at most twice the workers of a pool.
        self.places[at] = u32::try_from(place).ok();
    }

    /// Entry `place` is out (+1), or no longer (-1).
    fn add(&mut self, place: usize, change: i32) {
        let mut at = place + 1;
        while at <= self.sums.len() {
            self.sums[at - 1] = self.sums[at - 1].wrapping_add_signed(change);
            at += at & at.wrapping_neg();
        }
    }

    /// How many of the first `places` entries are out.
    fn sum(&self, places: usize) -> u64 {
        let (mut at, mut sum) = (places, 0);
        while at > 0 {
            sum += u64::from(self.sums[at - 1]);
            at &= at - 1;
        }
        sum
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
            steps in prop::collection::vec((0_u32..20, 0_u64..5, any::<bool>()), 0..400),
            from in 0_u64..1200,
            span in 0_u64..1200,
        ) {
            let mut leases = LeaseAges::default();
            let mut model: Vec<Option<u64>> = vec![None; 20];
            let mut now = 0;
            for (key, later, begins) in steps {
                now += later;
                if begins {
                    // Some of them a little before the one before.
                    let since = leases.begin(Key(key), Instant(now.saturating_sub(later / 4)));
                    model[key as usize] = Some(since.0);
                } else {
                    leases.end(Key(key));
                    model[key as usize] = None;
                }
                prop_assert_eq!(leases.len(), model.iter().flatten().count() as u64);
            }
            let ages = from..=from + span;
            let plainly = model.iter().flatten().filter(|since| ages.contains(&now.saturating_sub(**since))).count();
            prop_assert_eq!(leases.aged(Instant(now), ages), plainly as u64);
        }
    }

    #[test]
    fn room_is_kept_within_twice_of_what_is_out() {
        let mut leases = LeaseAges::default();
        for turn in 0..10_000 {
            leases.begin(Key(turn % 100), Instant(u64::from(turn)));
        }
        assert_eq!(leases.len(), 100);
        assert!(leases.sums.len() <= 256, "{}", leases.sums.len());
        assert_eq!(leases.aged(Instant(10_000), 1..=100), 100);
        assert_eq!(leases.aged(Instant(10_000), 1..=50), 50);
    }
}
