//! Which starts are ordered for waiting requests, and which request caused each.

use pilot_model::{Instant, Reuse};

use super::answered::Answered;
use super::estimate::nanos;
use super::rule::{Question, SHORT, Situation, Starting, horizon, patience, questions};
use super::sizing::{Availability, Load, start_pays, start_pays_by_counts};
use super::words::{Action, Key, WaiterId};
use super::{PoolState, Waiter, WorkerState};

impl<W: Clone, Q> PoolState<W, Q> {
    /// Starts for requests that have not been sent. Whoever announces requests and never sends them pays for none of them. Others are
    /// started for when they have arrived.
    pub(super) const UNSENT_MAX: usize = 16;
    const REVIEW_MIN: u64 = 1_000_000;
    const REVIEW_MAX: u64 = 50_000_000;

    /// Orders every start that pays. The first is caused by `arrived`, or else by the oldest request that caused none.
    pub(super) fn order_starts(
        &mut self,
        now: Instant,
        arrived: Option<WaiterId>,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        if self.queue.is_empty() || self.announced > 0 && self.wanting() == 0 {
            return;
        }
        let mut cause = arrived;
        while self.lasting() < self.settings.max
            && !self.starts_are_held()
            && self.one_more_pays(now)
        {
            let cause = cause.take().or_else(|| self.oldest_without_start());
            self.start(now, cause, actions);
        }
        // Starts serve the front of the queue.
        let slots = self.starting.saturating_mul(self.settings.concurrency) as usize;
        for waiter in self.queue.iter_mut().take(slots) {
            waiter.hoped = true;
        }
        if self.lasting() < self.settings.max {
            let pause = self.review_pause();
            self.want(Instant(now.0.saturating_add(pause)));
        }
    }

    /// The time until starts are reconsidered for those who wait, nanoseconds.
    fn review_pause(&self) -> u64 {
        let latency = self.start_times.latency();
        // While S is unknown, a long start is ordered once what runs has run for longer than the others should wait.
        let pause = if latency > SHORT && self.service.nanos().is_none() {
            patience(latency) / 2
        } else {
            latency
        };
        pause.clamp(Self::REVIEW_MIN, Self::REVIEW_MAX)
    }

    /// Whether as many short starts are in progress as may be at once. When one of them ends, the next ones are ordered, if they pay then.
    /// A worker that serves one invocation in its life is started for each request, and is not held.
    pub(super) fn starts_are_held(&self) -> bool {
        let is_short = |latency: u64| latency <= SHORT;
        self.starting >= self.settings.short_starts_max
            && self.settings.reuse == Reuse::Always
            && self.start_times.measured().is_some_and(is_short)
    }

    fn one_more_pays(&self, now: Instant) -> bool {
        let latency = self.start_times.measured();
        let situation = Situation {
            rule: self.settings.start_rule,
            waiting: self.wanting() as u64,
            coming: u64::from(self.starting) * u64::from(self.settings.concurrency),
            running: u64::from(self.leased),
            service: self.service.nanos(),
            start: self.start_times.expected(self.starting),
            latency,
            expected: self.recent.expected(now, horizon(latency.unwrap_or(0))),
            once: self.settings.reuse == Reuse::Once,
        };
        let questions = questions(situation);
        questions.is_some_and(|all| all.into_iter().flatten().all(|one| self.pays(now, one)))
    }

    /// The answer to one question of the rule.
    fn pays(&self, now: Instant, question: Question) -> bool {
        let demand = question.demand;
        // The counts take no notice of leases that are about to end.
        if self.settings.concurrency > 1 || self.answered > 0 {
            return self.start_pays_to_each(now, question);
        }
        let left_out = question.starting == Starting::LeftOut;
        let load = Load {
            busy: self.lease_ages.len(),
            starting: if left_out {
                0
            } else {
                u64::from(self.starting)
            },
            aged: |ages| self.lease_ages.aged(now, ages),
        };
        let counted = start_pays_by_counts(demand, &load);
        debug_assert!(
            counted.is_none_or(|pays| pays == self.start_pays_to_each(now, question)),
            "counts and looking at each worker differ: {question:?}"
        );
        counted.unwrap_or_else(|| self.start_pays_to_each(now, question))
    }

    /// Requests that a start would serve: waiting ones, and announced ones that have neither a free worker nor one that was
    /// started for them. Of those whose senders may never send them, only [`Self::UNSENT_MAX`] count.
    fn wanting(&self) -> usize {
        if self.announced == 0 {
            return self.queue.len();
        }
        let (mut unmet, mut unsent, mut unsent_met) = (0, 0, 0);
        for waiter in &self.queue {
            match (waiter.is_unmet(), waiter.is_unsent()) {
                (true, false) => unmet += 1,
                (true, true) => unsent += 1,
                (false, true) => unsent_met += 1,
                (false, false) => {}
            }
        }
        let free = self.free.iter().filter_map(|key| match self.place(*key) {
            Some(WorkerState::Up { leases, .. }) => {
                Some(self.settings.concurrency.saturating_sub(*leases))
            }
            _ => None,
        });
        let free = free.sum::<u32>() as usize;
        // The workers that came up for some who gave up are free.
        unmet += unsent.min(Self::UNSENT_MAX.saturating_sub(free.max(unsent_met)));
        let without = self.queue.len().saturating_sub(free);
        without.min(self.waiting() + unmet)
    }

    /// The answer of [`start_pays`] after examining every worker.
    fn start_pays_to_each(&self, now: Instant, question: Question) -> bool {
        let slots = self.settings.concurrency;
        let starting = |expected: Instant| {
            let ready_in = match question.starting {
                Starting::By(latest) => nanos(expected.since(now)).min(latest),
                Starting::Ready => 0,
                Starting::LeftOut => return None,
            };
            Some(Availability::Starting { ready_in, slots })
        };
        let age = |sum: u128, leases: u32| {
            // A division of 128 bits takes as long as the rest of this function.
            let mean = match leases {
                1 => u64::try_from(sum),
                more => u64::try_from(sum / u128::from(more)),
            };
            nanos(now.since(Instant(mean.unwrap_or(now.0))))
        };
        let busy = |leases: u32, since_sum: u128, answered: Answered| {
            let runs = leases.saturating_sub(answered.leases);
            let running = (runs > 0).then(|| Availability::Busy {
                age: age(since_sum, leases),
                leases: runs,
            });
            let ending = (answered.leases > 0).then(|| Availability::Answered {
                age: age(answered.at_sum, answered.leases),
                leases: answered.leases,
            });
            [running, ending]
        };
        let of_place = |place: &WorkerState<W>| match *place {
            WorkerState::Starting { expected, .. } => [starting(expected), None],
            WorkerState::Up {
                draining: Some(_), ..
            }
            | WorkerState::Up { leases: 0, .. } => [None; 2],
            WorkerState::Up {
                leases,
                since_sum,
                answered,
                ..
            } => busy(leases, since_sum, answered),
        };
        let places = self.places.iter().flatten();
        start_pays(question.demand, places.flat_map(of_place).flatten())
    }

    pub(super) fn oldest_without_start(&self) -> Option<WaiterId> {
        self.queue
            .iter()
            .find(|waiter| !waiter.caused && !waiter.met)
            .or(self.queue.front())
            .map(|waiter| waiter.id)
    }

    pub(super) fn start(
        &mut self,
        now: Instant,
        cause: Option<WaiterId>,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        if let Some(waiter) = cause.and_then(|id| self.waiter(id)) {
            waiter.caused = true;
        }
        let expected = self.start_times.expected(self.starting);
        let place = WorkerState::Starting {
            asked: now,
            expected: Instant(now.0.saturating_add(expected)),
            alone: self.starting == 0,
            cause,
            stale: None,
        };
        self.starting += 1;
        let key = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            // A pool has at most `scale.max` workers, 10,000.
            Key(u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX))
        });
        self.places[key.0 as usize] = Some(place);
        actions.push(Action::Start(key));
    }

    /// A failed start counts against the request for which it was ordered. After its last attempt, the request fails with that error.
    pub(super) fn charge_failure(
        &mut self,
        cause: Option<WaiterId>,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        let still_waits = cause.filter(|id| self.waiter(*id).is_some());
        let Some(id) = still_waits.or(self.queue.front().map(|waiter| waiter.id)) else {
            return;
        };
        if let Some(waiter) = self.waiter(id) {
            waiter.failures += 1;
            if waiter.failures >= Self::ATTEMPTS_MAX {
                actions.extend(self.abandon(id).map(Action::Fail));
            }
        }
    }

    pub(super) fn waiter(&mut self, id: WaiterId) -> Option<&mut Waiter<Q>> {
        let at = self.position(id)?;
        self.queue.get_mut(at)
    }
}
