//! The idle workers; the one that has been idle longest is first. A linked list over the places, so that adding and removing a
//! worker takes constant time.

use pilot_model::Instant;

use super::words::Key;

/// The list.
#[derive(Debug, Default)]
pub(super) struct IdleList {
    /// Indexed by place; stale if `is_in` is false.
    links: Vec<Link>,
    first: Option<Key>,
    last: Option<Key>,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    is_in: bool,
    since: Instant,
    before: Option<Key>,
    behind: Option<Key>,
}

impl IdleList {
    const OUT: Link = Link {
        is_in: false,
        since: Instant(0),
        before: None,
        behind: None,
    };

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The worker that has been idle longest, and since when.
    pub(super) fn first(&self) -> Option<(Key, Instant)> {
        self.first.map(|key| (key, self.link(key).since))
    }

    /// All workers, each with the start of its idle time; the longest idle is first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, Instant)> {
        let next = |(key, _): &(Key, Instant)| {
            let behind = self.link(*key).behind?;
            Some((behind, self.link(behind).since))
        };
        std::iter::successors(self.first(), next)
    }

    /// As [`IdleList::iter`], but the longest idle is last.
    pub(super) fn iter_newest(&self) -> impl Iterator<Item = (Key, Instant)> {
        let last = self.last.map(|key| (key, self.link(key).since));
        let next = |(key, _): &(Key, Instant)| {
            let before = self.link(*key).before?;
            Some((before, self.link(before).since))
        };
        std::iter::successors(last, next)
    }

    /// This worker is idle since `since`. Times nearly always rise; if one does not, the worker is inserted in order.
    pub(super) fn push(&mut self, key: Key, since: Instant) {
        let place = key.0 as usize;
        if place >= self.links.len() {
            self.links.resize(place + 1, Self::OUT);
        }
        self.remove(key);
        let mut before = self.last;
        while let Some(other) = before.filter(|other| self.link(*other).since > since) {
            before = self.link(other).before;
        }
        let behind = match before {
            Some(before) => self.link(before).behind,
            None => self.first,
        };
        self.links[place] = Link {
            is_in: true,
            since,
            before,
            behind,
        };
        self.tie(before, Some(key));
        self.tie(Some(key), behind);
        self.len += 1;
    }

    /// This worker is no longer idle. Does nothing if it was not.
    pub(super) fn remove(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key.0 as usize).filter(|link| link.is_in) else {
            return;
        };
        link.is_in = false;
        let (before, behind) = (link.before, link.behind);
        self.tie(before, behind);
        self.len -= 1;
    }

    /// Makes `behind` the successor of `before`; `None` is the end of the list.
    fn tie(&mut self, before: Option<Key>, behind: Option<Key>) {
        match before {
            Some(before) => self.links[before.0 as usize].behind = behind,
            None => self.first = behind,
        }
        match behind {
            Some(behind) => self.links[behind.0 as usize].before = before,
            None => self.last = before,
        }
    }

    fn link(&self, key: Key) -> Link {
        self.links.get(key.0 as usize).copied().unwrap_or(Self::OUT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whoever_comes_and_goes_the_list_is_in_order_and_complete(
            steps in prop::collection::vec((0_u32..12, prop::option::of(0_u64..40)), 0..200),
        ) {
            let mut list = IdleList::default();
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (place, since) in steps {
                model.retain(|(_, other)| *other != place);
                match since {
                    Some(since) => {
                        list.push(Key(place), Instant(since));
                        // After those with the same time.
                        let at = model.partition_point(|(other, _)| *other <= since);
                        model.insert(at, (since, place));
                    }
                    None => list.remove(Key(place)),
                }
                let found: Vec<_> = list.iter().map(|(key, since)| (since.0, key.0)).collect();
                prop_assert_eq!(&found, &model);
                prop_assert_eq!(list.len() as usize, model.len());
                let mut newest: Vec<_> = list.iter_newest().map(|(key, since)| (since.0, key.0)).collect();
                newest.reverse();
                prop_assert_eq!(&newest, &model);
                prop_assert_eq!(list.last.map(|key| key.0), model.last().map(|(_, place)| *place));
            }
        }
    }
}
