//! Who may wait, and for how long: admission by deadline, and the order in which waiting requests are served.
//!
//! A request is refused when it arrives if the queue before it takes longer than it may wait. A waiting request that cannot end
//! before its deadline any more is refused when its turn comes, so that it delays nobody. Requests for which no caller waits are
//! served after all others.
//!
//! The estimate is a lower bound on purpose: nothing is refused because of a guess. While no invocation has been timed, nothing is
//! refused for its wait. A free worker serves whoever comes, whatever the estimate says, so a wrong estimate is always corrected.

use std::time::Duration;

use pilot_model::{Instant, Reuse};

use super::words::{Action, Urgency, WaiterId};
use super::{PoolState, Waiter};

/// How a request may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The longest wait for a busy worker.
    pub longest: Duration,
    /// Whether somebody waits for it, and until when.
    pub urgency: Urgency,
}

impl Wait {
    /// A caller waits for as long as it takes.
    pub const UNBOUNDED: Self = Self {
        longest: Duration::MAX,
        urgency: Urgency::CALLER,
    };
}

impl<W: Clone, Q> PoolState<W, Q> {
    /// How long a request that arrives now would wait for a busy worker, at least. `None`: it is not known.
    #[must_use]
    pub fn expected_wait(&self, now: Instant) -> Option<Duration> {
        self.wait_behind(now, self.waiting())
            .map(Duration::from_nanos)
    }

    /// How long a request waits that has `ahead` others before it, at least, nanoseconds.
    fn wait_behind(&self, now: Instant, ahead: usize) -> Option<u64> {
        let service = self.least_service()?;
        let turn = match self.settings.reuse {
            Reuse::Once => service.saturating_add(self.start_times.measured().unwrap_or(0)),
            Reuse::Always => service,
        };
        let slots = u64::from(self.total_soon()) * u64::from(self.settings.concurrency);
        let oldest = self.lease_ages.oldest().filter(|_| self.starting == 0);
        let first = oldest.map_or(0, |since| {
            service.saturating_sub(now.0.saturating_sub(since.0))
        });
        let others = turn.saturating_mul(ahead as u64).checked_div(slots)?;
        Some(first.saturating_add(others))
    }

    /// The workers that there may be soon: while starts are held, any number of them may follow.
    fn total_soon(&self) -> u32 {
        if self.starts_are_held() {
            self.settings.max
        } else {
            self.lasting()
        }
    }

    /// S, as the lower one of its two means: a single long invocation hardly moves it.
    fn least_service(&self) -> Option<u64> {
        let (recent, steady) = (self.service.nanos()?, self.service_steady.nanos()?);
        Some(recent.min(steady))
    }

    /// Whether this request, which has just been queued, cannot be served in time. Returns its expected wait if so. A request for
    /// which a start was ordered, or will be, waits for that; while no worker is up, nothing says how long the others wait.
    pub(super) fn too_late(&self, now: Instant, id: WaiterId) -> Option<Duration> {
        let at = self.position(id)?;
        let waiter = self.queue.get(at).filter(|waiter| !waiter.caused)?;
        if self.up == 0 {
            return None;
        }
        let ahead = self.ahead_of(at, waiter);
        let starts = self.total_soon().saturating_sub(self.lasting());
        if (ahead as u64) < u64::from(starts) * u64::from(self.settings.concurrency) {
            return None;
        }
        let wait = Duration::from_nanos(self.wait_behind(now, ahead)?);
        let by_deadline = self.time_left(now, waiter.wait.urgency);
        let longest = by_deadline.map_or(waiter.wait.longest, |left| left.min(waiter.wait.longest));
        (wait > longest).then_some(wait)
    }

    /// Whether a start is ordered for this request, which has just been queued, although the busy workers would serve it before the
    /// new one: it may not wait for them for so long, but for a start (`scale.max_wait_s`, with 0 as on AWS Lambda).
    pub(super) fn needs_start(&self, now: Instant, id: WaiterId) -> bool {
        let waiter = self
            .position(id)
            .and_then(|at| Some((at, self.queue.get(at)?)));
        let Some((at, waiter)) = waiter.filter(|(_, waiter)| !waiter.caused && !waiter.hoped)
        else {
            return false;
        };
        if self.up == 0 || self.lasting() >= self.settings.max || self.starts_are_held() {
            return false;
        }
        let longest = waiter.wait.longest;
        let wait = || self.wait_behind(now, self.ahead_of(at, waiter));
        if !longest.is_zero() && wait().is_none_or(|wait| Duration::from_nanos(wait) <= longest) {
            return false;
        }
        let start = Duration::from_nanos(self.start_times.expected(self.starting));
        let left = self.time_left(now, waiter.wait.urgency);
        left.is_none_or(|left| start <= left)
    }

    /// How much later a request may begin and still end before its deadline. `None`: it has none.
    fn time_left(&self, now: Instant, urgency: Urgency) -> Option<Duration> {
        let service = Duration::from_nanos(self.least_service().unwrap_or(0));
        let end = urgency.finish_by?;
        Some(end.since(now).saturating_sub(service))
    }

    /// Requests that are served before the one at `at`, as far as they are here.
    fn ahead_of(&self, at: usize, waiter: &Waiter<Q>) -> usize {
        let is_caller = waiter.is_caller();
        if at + 1 == self.queue.len() {
            let others = self.waiting() - 1;
            return if is_caller {
                others - self.background
            } else {
                others
            };
        }
        let before = self.queue.iter().take(at);
        let before = before.filter(|other| other.handle.is_some());
        before
            .filter(|other| !is_caller || other.is_caller())
            .count()
    }

    /// The place in the queue of the request that is served next. There must be one that has arrived.
    pub(super) fn next_in_turn(&self) -> usize {
        if self.announced == 0 && self.background == 0 {
            return 0;
        }
        let is_here = |waiter: &Waiter<Q>| waiter.handle.is_some();
        let caller = |waiter: &Waiter<Q>| is_here(waiter) && waiter.is_caller();
        let next = match self.waiting() - self.background {
            0 => self.queue.iter().position(is_here),
            _ => self.queue.iter().position(caller),
        };
        next.unwrap_or(0)
    }

    /// Refuses the request at `at` if its turn comes too late for its deadline. Returns whether it was.
    pub(super) fn refuse_if_late(
        &mut self,
        now: Instant,
        at: usize,
        actions: &mut Vec<Action<W, Q>>,
    ) -> bool {
        let urgency = self.queue.get(at).map(|waiter| waiter.wait.urgency);
        let Some(end) = urgency.and_then(|urgency| urgency.finish_by) else {
            return false;
        };
        let service = self.least_service().unwrap_or(0);
        if now.0.saturating_add(service) <= end.0 {
            return false;
        }
        let late = self.remove(at).and_then(|waiter| waiter.handle);
        actions.extend(late.map(Action::Refuse));
        true
    }

    /// The queue is full, and a caller has come: the youngest request for which nobody waits gives its place up. Returns whether
    /// there was one.
    pub(super) fn displace(&mut self, actions: &mut Vec<Action<W, Q>>) -> bool {
        if self.background == 0 {
            return false;
        }
        let at = self
            .queue
            .iter()
            .rposition(|waiter| waiter.handle.is_some() && !waiter.is_caller());
        let displaced = at.and_then(|at| self.remove(at));
        let handle = displaced.and_then(|waiter| waiter.handle);
        let was = handle.is_some();
        actions.extend(handle.map(Action::Refuse));
        was
    }

    /// Takes a request out of the queue.
    pub(super) fn remove(&mut self, at: usize) -> Option<Waiter<Q>> {
        let waiter = self.queue.remove(at)?;
        if waiter.handle.is_none() {
            self.announced -= 1;
        } else if !waiter.is_caller() {
            self.background -= 1;
        }
        Some(waiter)
    }
}
