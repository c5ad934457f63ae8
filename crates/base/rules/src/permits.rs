//! Who gets the next permit of a limited number, as a pure state machine: the permits of all workers together, for which functions
//! compete. No I/O, no clock, no lock.
//!
//! Rules: a function gets a permit at once while there are some that are not reserved for others. Otherwise it waits, and the next
//! permit goes to the function that holds fewest; one that holds fewer than are reserved for it comes before all others. So a
//! function that asks a thousand times waits behind one that asks once, and is served between its requests.
//!
//! Invariants, property-tested below: never more permits are held than there are; a function that holds fewer than its reservation
//! waits only while no permit is free at all; nobody waits for a permit that it may have; every request is granted, or leaves, once.

use std::collections::{BTreeMap, VecDeque};

/// A number of permits, and the functions that hold and want them. `F` is a function, `Q` the handle of a waiting request.
#[derive(Debug)]
pub struct FairPermits<F, Q> {
    total: usize,
    /// Whether those that have some leave some free for those that have none.
    leaves_room: bool,
    held: usize,
    /// Permits that are reserved for functions and not held by them.
    owed: usize,
    functions: BTreeMap<F, Share<Q>>,
    next: u64,
}

/// A request for a permit, numbered in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Share<Q> {
    held: usize,
    reserved: usize,
    waiting: VecDeque<(Ticket, Q)>,
}

impl<Q> Share<Q> {
    fn owed(&self) -> usize {
        self.reserved.saturating_sub(self.held)
    }

    fn is_unused(&self) -> bool {
        self.held == 0 && self.reserved == 0 && self.waiting.is_empty()
    }
}

impl<F: Ord + Clone, Q> FairPermits<F, Q> {
    /// So many permits, all free.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self {
            total,
            leaves_room: false,
            held: 0,
            owed: 0,
            functions: BTreeMap::new(),
            next: 0,
        }
    }

    /// So many permits, for holders that may keep them for long. One that has some gets another only while more than three times as
    /// many are free. So one alone gets a quarter, and the next ones need not wait for it.
    #[must_use]
    pub fn leaving_room(total: usize) -> Self {
        Self {
            leaves_room: true,
            ..Self::new(total)
        }
    }

    /// Other functions leave this many permits to this one from now on. The caller makes sure that all reservations fit together.
    pub fn reserve(&mut self, function: &F, permits: usize) -> Vec<Q> {
        self.with(function, |share| share.reserved = permits);
        self.grant()
    }

    /// A permit for this function. `None`: it has one. `handle` is made only if it has to wait.
    pub fn ask(&mut self, function: &F, handle: impl FnOnce() -> Q) -> Option<Ticket> {
        if self.may_have_one(function) {
            self.take(function);
            return None;
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        let handle = handle();
        self.with(function, |share| share.waiting.push_back((ticket, handle)));
        Some(ticket)
    }

    /// A request waits no more. `None`: it has been granted.
    pub fn leave(&mut self, function: &F, ticket: Ticket) -> Option<Q> {
        self.with(function, |share| {
            let at = share.waiting.binary_search_by_key(&ticket, |(of, _)| *of);
            let left = share.waiting.remove(at.ok()?);
            left.map(|(_, handle)| handle)
        })
    }

    /// A permit of this function is free again. Returns those who have a permit now.
    #[must_use]
    pub fn release(&mut self, function: &F) -> Vec<Q> {
        let held = self.with(function, |share| {
            let held = share.held > 0;
            share.held -= usize::from(held);
            held
        });
        self.held -= usize::from(held);
        self.grant()
    }

    /// Whether this function has fewer permits than it is entitled to: its reservation, or an equal share of all.
    #[must_use]
    pub fn is_short(&self, function: &F) -> bool {
        let share = self.functions.get(function);
        let (held, reserved) = share.map_or((0, 0), |share| (share.held, share.reserved));
        held < reserved.max(self.equal_share())
    }

    /// The function that has most of those that have more than they are entitled to.
    #[must_use]
    pub fn richest(&self) -> Option<&F> {
        let equal = self.equal_share();
        let above = self
            .functions
            .iter()
            .filter(|(_, share)| share.held > share.reserved.max(equal));
        above
            .max_by_key(|(_, share)| share.held)
            .map(|(function, _)| function)
    }

    /// Whether this function may lose an unused permit: it has more than are reserved for it.
    #[must_use]
    pub fn may_lose_one(&self, function: &F) -> bool {
        self.functions
            .get(function)
            .is_some_and(|share| share.held > share.reserved)
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.functions
            .values()
            .map(|share| share.waiting.len())
            .sum()
    }

    /// How many waiting requests are of functions that have fewer permits than they are entitled to, up to those permits.
    #[must_use]
    pub fn claims(&self) -> usize {
        let equal = self.equal_share();
        let shares = self.functions.values();
        let claims = shares.map(|share| {
            let entitled = share.reserved.max(equal);
            share.waiting.len().min(entitled.saturating_sub(share.held))
        });
        claims.sum()
    }

    /// The permits divided by the functions that have some or want some.
    fn equal_share(&self) -> usize {
        let shares = self.functions.values();
        let active = shares.filter(|share| share.held > 0 || !share.waiting.is_empty());
        self.total / active.count().max(1)
    }

    fn may_have_one(&self, function: &F) -> bool {
        let share = self.functions.get(function);
        let (owed, held) = share.map_or((0, 0), |share| (share.owed(), share.held));
        let free = self.total.saturating_sub(self.held);
        let leaves_room = !self.leaves_room || held == 0 || held * FREE_PER_HELD < free;
        free > 0 && leaves_room && (owed > 0 || free > self.owed)
    }

    fn take(&mut self, function: &F) {
        self.with(function, |share| share.held += 1);
        self.held += 1;
    }

    /// Gives free permits to those who wait, as long as somebody may have one.
    fn grant(&mut self) -> Vec<Q> {
        let mut granted = Vec::new();
        while self.held < self.total {
            let waiting = self.functions.iter().filter_map(|(function, share)| {
                let (ticket, _) = share.waiting.front()?;
                let rank = (share.owed() == 0, share.held, *ticket);
                self.may_have_one(function).then_some((rank, function))
            });
            let Some((_, next)) = waiting.min_by_key(|(rank, _)| *rank) else {
                break;
            };
            let next = next.clone();
            let handle = self.with(&next, |share| share.waiting.pop_front());
            self.take(&next);
            granted.extend(handle.map(|(_, handle)| handle));
        }
        granted
    }

    /// Changes one function's share, and keeps the sum of what is owed.
    fn with<T>(&mut self, function: &F, change: impl FnOnce(&mut Share<Q>) -> T) -> T {
        let share = self
            .functions
            .entry(function.clone())
            .or_insert_with(|| Share {
                held: 0,
                reserved: 0,
                waiting: VecDeque::new(),
            });
        let before = share.owed();
        let result = change(share);
        self.owed = self.owed + share.owed() - before;
        if share.is_unused() {
            self.functions.remove(function);
        }
        result
    }
}

/// See [`FairPermits::leaving_room`].
const FREE_PER_HELD: usize = 3;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn asked(permits: &mut FairPermits<u8, u32>, function: u8, count: u32) -> Vec<u32> {
        let numbers = 0..count;
        numbers
            .filter(|number| permits.ask(&function, || *number).is_some())
            .collect()
    }

    #[test]
    fn who_asks_once_does_not_wait_behind_who_asks_a_thousand_times() {
        let mut permits = FairPermits::new(4);
        assert_eq!(asked(&mut permits, 1, 1000).len(), 996);
        assert!(permits.ask(&2, || 5000).is_some());
        assert!(permits.ask(&2, || 5001).is_some());
        assert_eq!(permits.claims(), 2);
        assert_eq!(permits.richest(), Some(&1));
        assert_eq!(permits.release(&1), [5000]);
        assert_eq!(permits.release(&1), [5001]);
        assert!(!permits.is_short(&2));
        assert_eq!(permits.richest(), None);
        // Both have two: the older request is next.
        assert_eq!(permits.release(&2), [4]);
    }

    #[test]
    fn what_is_reserved_is_left_free_and_given_first() {
        let mut permits = FairPermits::new(4);
        assert!(permits.reserve(&9, 2).is_empty());
        assert_eq!(asked(&mut permits, 1, 5).len(), 3);
        assert_eq!(
            asked(&mut permits, 9, 3).len(),
            1,
            "the third is an ordinary one"
        );
        assert!(!permits.may_lose_one(&9));
        assert!(permits.may_lose_one(&1));
        // A reservation of a full daemon is met as permits become free.
        let mut permits = FairPermits::new(2);
        assert_eq!(asked(&mut permits, 1, 3), [2]);
        assert!(permits.reserve(&9, 1).is_empty());
        assert!(permits.ask(&9, || 7).is_some());
        assert_eq!(permits.release(&1), [7]);
        // And given up when it ends.
        let mut permits = FairPermits::new(2);
        permits.reserve(&9, 1);
        assert_eq!(asked(&mut permits, 1, 2), [1]);
        assert_eq!(permits.reserve(&9, 0), [1]);
    }

    #[test]
    fn who_holds_many_for_long_leaves_room_for_those_that_have_none() {
        let mut permits = FairPermits::leaving_room(16);
        let hold =
            |permits: &mut FairPermits<u8, u32>, function| 20 - asked(permits, function, 20).len();
        assert_eq!(hold(&mut permits, 1), 4);
        assert_eq!(
            (2..=8)
                .map(|function| hold(&mut permits, function))
                .sum::<usize>(),
            12
        );
        // Those that have most wait longest.
        assert_eq!(permits.ask(&9, || 900).map(|_| ()), Some(()));
        assert_eq!(permits.release(&1), [900]);
        // Alone, it has no more than before.
        let mut alone = FairPermits::leaving_room(16);
        assert_eq!(hold(&mut alone, 1), 4);
        assert_eq!(alone.release(&1), [4]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Ask(u8),
        Release(usize),
        Leave(usize),
        Reserve(u8, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0_u8..4).prop_map(Step::Ask),
            4 => any::<usize>().prop_map(Step::Release),
            1 => any::<usize>().prop_map(Step::Leave),
            1 => (0_u8..4, 0_usize..3).prop_map(|(function, permits)| Step::Reserve(function, permits)),
        ];
        prop::collection::vec(step, 0..300)
    }

    /// What the permits are, as a list.
    #[derive(Default)]
    struct Model {
        held: Vec<u8>,
        waiting: Vec<(u8, Ticket, u32)>,
        reserved: BTreeMap<u8, usize>,
        granted: BTreeSet<u32>,
    }

    impl Model {
        fn grant(&mut self, granted: Vec<u32>) {
            for request in granted {
                let at = self.waiting.iter().position(|(.., of)| *of == request);
                let (function, ..) = self.waiting.remove(at.expect("granted twice"));
                self.held.push(function);
                assert!(self.granted.insert(request));
            }
        }

        fn held_by(&self, function: u8) -> usize {
            self.held.iter().filter(|of| **of == function).count()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_place_is_given_twice_and_nobody_waits_for_one_that_it_may_have(total in 1_usize..8, steps in steps()) {
            let mut permits = FairPermits::new(total);
            let mut model = Model::default();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Ask(function) => {
                        next += 1;
                        match permits.ask(&function, || next) {
                            None => model.held.push(function),
                            Some(ticket) => model.waiting.push((function, ticket, next)),
                        }
                    }
                    Step::Release(at) if !model.held.is_empty() => {
                        let function = model.held.remove(at % model.held.len());
                        model.grant(permits.release(&function));
                    }
                    Step::Leave(at) if !model.waiting.is_empty() => {
                        let (function, ticket, request) = model.waiting.remove(at % model.waiting.len());
                        prop_assert_eq!(permits.leave(&function, ticket), Some(request));
                        prop_assert_eq!(permits.leave(&function, ticket), None);
                    }
                    Step::Release(_) | Step::Leave(_) => {}
                    Step::Reserve(function, reserved) => {
                        let others: usize = model.reserved.iter().filter(|(of, _)| **of != function).map(|(_, of)| of).sum();
                        let reserved = reserved.min(total.saturating_sub(others));
                        model.reserved.insert(function, reserved);
                        model.grant(permits.reserve(&function, reserved));
                    }
                }
                prop_assert!(model.held.len() <= total);
                prop_assert_eq!(permits.held, model.held.len());
                let owed = |of: u8| model.reserved.get(&of).copied().unwrap_or(0).saturating_sub(model.held_by(of));
                prop_assert_eq!(permits.owed, (0..4).map(owed).sum::<usize>());
                let free = total - model.held.len();
                for (function, ..) in &model.waiting {
                    prop_assert!(free == 0 || owed(*function) == 0, "its reservation is not given");
                    let of_others: usize = (0..4).filter(|of| of != function).map(owed).sum();
                    prop_assert!(free <= of_others, "a free permit is not given");
                }
            }
        }
    }
}
