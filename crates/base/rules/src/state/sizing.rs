//! Whether one more start pays: the rule that serves a burst of short calls with few workers, and gives each of many long calls a
//! worker of its own.
//!
//! A worker that is ordered now is ready after the time `start`. The start pays if by then the existing workers and those that are
//! starting would not have taken every waiting request: the new worker serves the rest sooner. How many they would have taken follows
//! from the time at which each becomes free, and from S. An invocation that has run for longer than S (or if S is unknown) is expected
//! to run for as long again, because nothing else is known about it.
//!
//! An invocation whose answer is complete counts as free: its worker says within microseconds that the exchange is over. Only if that
//! has taken for longer than [`OVER_WITHIN`], it is expected to take for as long again.

use std::ops::RangeInclusive;

/// An exchange whose answer is complete is over within this time, nanoseconds, also on a busy machine. Most take some microseconds.
const OVER_WITHIN: u64 = 20_000_000;

/// When one worker can take waiting requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Availability {
    /// It is ready in `ready_in` nanoseconds, with this many slots.
    Starting { ready_in: u64, slots: u32 },
    /// It serves this many invocations, whose mean age is `age` nanoseconds.
    Busy { age: u64, leases: u32 },
    /// The answers of this many invocations are with their callers since `age` nanoseconds on average; their exchanges are about to end.
    Answered { age: u64, leases: u32 },
}

/// The input of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Requests that wait.
    pub(crate) waiting: u64,
    /// S, nanoseconds; `None`: not known yet.
    pub(crate) service: Option<u64>,
    /// A worker that is ordered now is ready after this many nanoseconds.
    pub(crate) start: u64,
    /// Each worker serves one invocation in its life.
    pub(crate) once: bool,
}

/// The load of a pool whose workers have one slot each.
pub(crate) struct Load<F> {
    /// Busy workers.
    pub(crate) busy: u64,
    /// Starting workers.
    pub(crate) starting: u64,
    /// The number of busy workers whose invocation has run for a time in this range, nanoseconds.
    pub(crate) aged: F,
}

/// The answer of [`start_pays`] from counts alone. `None`: the counts do not decide, and each worker has to be examined.
///
/// With `start = q·S + rest`: a worker whose invocation has run for less than S is free within S. It takes q waiting requests,
/// and one more if it is free within `rest`. A worker whose invocation has run for longer, but at most for `start`, takes between
/// 1 and q. A starting worker takes between 1 and q + 1. If a worker serves one invocation in its life, only starting workers
/// take requests.
pub(crate) fn start_pays_by_counts(
    demand: Demand,
    load: &Load<impl Fn(RangeInclusive<u64>) -> u64>,
) -> Option<bool> {
    if demand.once {
        return Some(load.starting < demand.waiting);
    }
    let service = demand.service.filter(|service| *service > 0)?;
    let overdue = (load.aged)(service..=u64::MAX);
    if overdue * 2 > load.busy {
        return None;
    }
    let (each, rest) = (demand.start / service, demand.start % service);
    let soon = (load.aged)(service - rest..=service - 1);
    let mut least = (load.busy - overdue)
        .saturating_mul(each)
        .saturating_add(soon);
    let late = if overdue > 0 {
        (load.aged)(service..=demand.start)
    } else {
        0
    };
    let coming = load.starting.saturating_mul(each.saturating_add(1));
    let most = least
        .saturating_add(late.saturating_mul(each))
        .saturating_add(coming);
    least = least.saturating_add(late + load.starting);
    if least >= demand.waiting {
        Some(false)
    } else if most < demand.waiting {
        Some(true)
    } else {
        None
    }
}

/// Whether one more start pays.
///
/// To estimate how long the waiting requests will run, every busy worker must be examined. Mostly that is not needed: a worker that
/// is free in time takes at least one request, and at most the number that follows from the known S. (If S is out of date, it is too
/// short, so this is an upper limit.)
pub(crate) fn start_pays(
    demand: Demand,
    workers: impl Iterator<Item = Availability> + Clone,
) -> bool {
    let known = demand.service.unwrap_or(0).max(1);
    let (mut least, mut most) = (0_u64, 0_u64);
    for worker in workers.clone() {
        let Some((slots, time)) = free_in_time(demand, worker) else {
            continue;
        };
        least = least.saturating_add(slots);
        if least >= demand.waiting {
            return false;
        }
        most = most.saturating_add(taken_by(demand, slots, time, known));
    }
    if most < demand.waiting {
        return true;
    }
    let service = expected_service(demand.service, workers.clone());
    let free = workers.filter_map(|worker| free_in_time(demand, worker));
    let taken = free.fold(0_u64, |taken, (slots, time)| {
        taken.saturating_add(taken_by(demand, slots, time, service))
    });
    taken < demand.waiting
}

/// The slots of a worker that is free no later than a new one would be ready, and how much earlier.
fn free_in_time(demand: Demand, worker: Availability) -> Option<(u64, u64)> {
    let (free_in, slots) = match worker {
        // A new worker cannot overtake a starting one, even if the estimate for that one was longer.
        Availability::Starting { ready_in, slots } => (ready_in.min(demand.start), slots),
        Availability::Busy { .. } | Availability::Answered { .. } if demand.once => return None,
        Availability::Busy { age, leases } => (remaining(demand.service, age), leases),
        Availability::Answered { age, leases } => (until_over(age), leases),
    };
    let time = demand.start.checked_sub(free_in)?;
    Some((u64::from(slots), time))
}

/// How many waiting requests these slots take in `time` nanoseconds.
fn taken_by(demand: Demand, slots: u64, time: u64, service: u64) -> u64 {
    let each = if demand.once { 1 } else { 1 + time / service };
    each.saturating_mul(slots)
}

/// How much longer an exchange is expected to go on whose answer is complete since `age`.
fn until_over(age: u64) -> u64 {
    if age < OVER_WITHIN { 0 } else { age }
}

/// How much longer an invocation of this age is expected to run.
fn remaining(service: Option<u64>, age: u64) -> u64 {
    match service {
        Some(service) if age < service => service - age,
        _ => age,
    }
}

/// How long the waiting requests will run: S, unless more than half of the running ones show that S is out of date.
fn expected_service(service: Option<u64>, workers: impl Iterator<Item = Availability>) -> u64 {
    let known = service.unwrap_or(0);
    let (mut leases, mut overdue, mut ages) = (0_u64, 0_u64, 0_u128);
    for worker in workers {
        if let Availability::Busy { age, leases: count } = worker {
            let count = u64::from(count);
            leases += count;
            ages += u128::from(age) * u128::from(count);
            if age >= known {
                overdue += count;
            }
        }
    }
    let expected = if overdue * 2 > leases {
        let mean = u64::try_from(ages / u128::from(leases)).unwrap_or(u64::MAX);
        known.max(mean.saturating_mul(2))
    } else {
        known
    };
    expected.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Orders starts until one more does not pay, as the pool does, with a latency of 1.5 ms and a spacing of 0.7 ms.
    fn starts_for(waiting: u64, service: Option<u64>, running: &[Availability]) -> usize {
        let mut workers = running.to_vec();
        loop {
            let ahead = (workers.len() - running.len()) as u64;
            let start = 1_500_000 + ahead * 700_000;
            let demand = Demand {
                waiting,
                service,
                start,
                once: false,
            };
            if !start_pays(demand, workers.iter().copied()) {
                return workers.len() - running.len();
            }
            workers.push(Availability::Starting {
                ready_in: start,
                slots: 1,
            });
        }
    }

    #[test]
    fn fifty_short_calls_get_a_few_workers() {
        let starts = starts_for(50, Some(MS / 2), &[]);
        assert!((3..=9).contains(&starts), "{starts} starts");
    }

    #[test]
    fn fifty_long_calls_get_fifty_workers() {
        assert_eq!(starts_for(50, Some(100 * MS), &[]), 50);
    }

    #[test]
    fn of_an_unknown_service_time_one_start_is_ordered() {
        assert_eq!(starts_for(50, None, &[]), 1);
    }

    #[test]
    fn the_age_of_what_runs_stands_in_for_an_unknown_service_time() {
        let busy = |age| [Availability::Busy { age, leases: 1 }];
        let young = starts_for(49, None, &busy(MS / 10));
        let old = starts_for(49, None, &busy(20 * MS));
        assert!(young <= 5, "{young} starts after 0.1 ms");
        assert!(old >= 40, "{old} starts after 20 ms");
    }

    #[test]
    fn one_stuck_worker_among_many_does_not_change_the_service_time() {
        let mut busy = vec![
            Availability::Busy {
                age: MS / 10,
                leases: 1
            };
            7
        ];
        busy.push(Availability::Busy {
            age: 10_000 * MS,
            leases: 1,
        });
        assert_eq!(starts_for(7, Some(MS / 2), &busy), 0);
    }

    #[test]
    fn who_would_be_free_before_a_new_worker_is_up_needs_none() {
        let busy = [Availability::Busy { age: 0, leases: 1 }];
        assert_eq!(starts_for(1, Some(MS), &busy), 0);
        assert_eq!(starts_for(1, Some(3 * MS), &busy), 1);
    }

    #[test]
    fn what_comes_up_already_is_not_overtaken_by_a_new_start() {
        // Ordered when starts were thought to take longer than they do.
        let slow = Availability::Starting {
            ready_in: 2_000 * MS,
            slots: 1,
        };
        assert_eq!(starts_for(3, Some(100 * MS), &[slow; 3]), 0);
        assert_eq!(starts_for(4, Some(100 * MS), &[slow; 3]), 1);
    }

    #[test]
    fn a_start_for_one_invocation_each_counts_once() {
        let demand = Demand {
            waiting: 3,
            service: Some(1),
            start: MS,
            once: true,
        };
        let starting = Availability::Starting {
            ready_in: 0,
            slots: 1,
        };
        let busy = Availability::Busy { age: 5, leases: 1 };
        assert!(start_pays(demand, [starting, starting, busy].into_iter()));
        assert!(!start_pays(demand, [starting; 3].into_iter()));
    }

    /// The rule as described at the top of this file, without shortcuts.
    fn start_pays_plainly(demand: Demand, workers: &[Availability]) -> bool {
        let service = expected_service(demand.service, workers.iter().copied());
        let taken = workers.iter().fold(0_u64, |taken, worker| {
            let (free_in, slots) = match *worker {
                Availability::Starting { ready_in, slots } => (ready_in.min(demand.start), slots),
                Availability::Busy { .. } | Availability::Answered { .. } if demand.once => {
                    return taken;
                }
                Availability::Busy { age, leases } => (remaining(demand.service, age), leases),
                Availability::Answered { age, leases } => (until_over(age), leases),
            };
            let each = match demand.start.checked_sub(free_in) {
                None => 0,
                Some(_) if demand.once => 1,
                Some(time) => 1 + time / service,
            };
            taken.saturating_add(each * u64::from(slots))
        });
        taken < demand.waiting
    }

    fn availability() -> impl Strategy<Value = Availability> {
        let starting = (0..4 * MS, 1_u32..4);
        let busy = (0..8 * MS, 1_u32..4);
        let answered = (0..8 * MS, 1_u32..4);
        prop_oneof![
            1 => answered.prop_map(|(age, leases)| Availability::Answered { age, leases }),
            1 => starting.prop_map(|(ready_in, slots)| Availability::Starting { ready_in, slots }),
            3 => busy.prop_map(|(age, leases)| Availability::Busy { age, leases }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn the_short_cuts_change_no_decision(
            waiting in 1_u64..40,
            service in prop::option::of(0..5 * MS),
            start in 0..5 * MS,
            once in any::<bool>(),
            workers in prop::collection::vec(availability(), 0..20),
        ) {
            let demand = Demand { waiting, service, start, once };
            let plainly = start_pays_plainly(demand, &workers);
            prop_assert_eq!(start_pays(demand, workers.iter().copied()), plainly);
        }

        #[test]
        fn counting_decides_as_looking_at_each_does(
            waiting in 0_u64..60,
            service in prop::option::of(0..5_u64),
            start in 0..20_u64,
            once in any::<bool>(),
            starting in prop::collection::vec(0..30_u64, 0..4),
            ages in prop::collection::vec(0..8_u64, 0..20),
        ) {
            let demand = Demand { waiting, service, start, once };
            let coming = starting.iter().map(|ready_in| Availability::Starting { ready_in: *ready_in, slots: 1 });
            let busy = ages.iter().map(|age| Availability::Busy { age: *age, leases: 1 });
            let workers: Vec<_> = coming.chain(busy).collect();
            let load = Load {
                busy: ages.len() as u64,
                starting: starting.len() as u64,
                aged: |range: RangeInclusive<u64>| ages.iter().filter(|age| range.contains(age)).count() as u64,
            };
            let counted = start_pays_by_counts(demand, &load);
            let plainly = start_pays_plainly(demand, &workers);
            prop_assert!(counted.is_none_or(|pays| pays == plainly), "{counted:?}");
            let in_doubt = !once && (!starting.is_empty() || service.is_none_or(|service| service == 0 || ages.iter().any(|age| *age >= service)));
            prop_assert!(in_doubt || counted.is_some());
        }
    }
}
