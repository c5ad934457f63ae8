//! CPUs that are shared evenly by all jobs: with `k` jobs on `n` CPUs, each job advances at the rate `min(1, n/k)`.
//!
//! All jobs advance at the same rate, so one common clock that runs at this rate is enough: a job with work `w` is done when the
//! clock shows `w` more than at its start. A job that starts or ends changes the clock's rate, but not the order of the jobs.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use pilot_rules::Key;

/// The machine's CPUs.
#[derive(Debug)]
pub(super) struct Cpus {
    cores: f64,
    jobs: BinaryHeap<Reverse<Job>>,
    /// The value of the common clock, nanoseconds of work.
    clock: f64,
    /// When the clock had that value, nanoseconds.
    looked: u64,
    pushed: u64,
}

/// A job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    /// The clock's value at its end.
    done: f64,
    /// Orders jobs that end at once: by their start.
    order: u64,
    pub(super) function: u32,
    pub(super) part: Part,
}

/// The work of the job. `rest` is the remaining duration without a CPU, nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Start {
        key: Key,
        asked: u64,
        rest: u64,
    },
    Invocation {
        key: Key,
        since: u64,
        rest: u64,
        /// Its duration with a CPU of its own.
        work: u64,
        /// Its wait before.
        waited: u64,
    },
}

impl Cpus {
    pub(super) fn new(cores: f64) -> Self {
        Self {
            cores,
            jobs: BinaryHeap::new(),
            clock: 0.0,
            looked: 0,
            pushed: 0,
        }
    }

    /// Adds a job of `work` nanoseconds of one CPU, which starts at `now`.
    pub(super) fn push(&mut self, now: u64, work: u64, function: u32, part: Part) {
        self.look(now);
        let (done, order) = (self.clock + work as f64, self.pushed);
        self.pushed += 1;
        self.jobs.push(Reverse(Job {
            done,
            order,
            function,
            part,
        }));
    }

    /// When the next job ends; `u64::MAX`: there is no job.
    pub(super) fn next_at(&self) -> u64 {
        let Some(Reverse(job)) = self.jobs.peek() else {
            return u64::MAX;
        };
        let lacks = ((job.done - self.clock) / self.rate()).max(0.0).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative; what is longer than 584 years is that"
        )]
        let lacks = lacks as u64;
        self.looked.saturating_add(lacks)
    }

    /// The job that ends at `now`, which is a result of [`Cpus::next_at`].
    pub(super) fn pop(&mut self, now: u64) -> Option<Job> {
        self.look(now);
        let Reverse(job) = self.jobs.pop()?;
        // Corrects a rounding error.
        self.clock = self.clock.max(job.done);
        Some(job)
    }

    /// Starts among the jobs: the function, and when the start was ordered.
    pub(super) fn starting(&self) -> impl Iterator<Item = (u32, u64)> {
        self.jobs.iter().filter_map(|Reverse(job)| match job.part {
            Part::Start { asked, .. } => Some((job.function, asked)),
            Part::Invocation { .. } => None,
        })
    }

    fn rate(&self) -> f64 {
        (self.cores / self.jobs.len().max(1) as f64).min(1.0)
    }

    fn look(&mut self, now: u64) {
        self.clock += now.saturating_sub(self.looked) as f64 * self.rate();
        self.looked = now;
        if self.jobs.is_empty() {
            // Otherwise a long run would lose precision.
            self.clock = 0.0;
        }
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = self.done.total_cmp(&other.done);
        by_time.then(self.order.cmp(&other.order))
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::{Instant, Reuse};
    use pilot_rules::{Action, PoolState, Settings};

    use super::*;

    /// Only a pool creates keys.
    fn a_key() -> Key {
        let mut state = PoolState::<(), ()>::new(Settings {
            min: 0,
            max: 1,
            spare: 0,
            reap_after: std::time::Duration::ZERO,
            hot_for: std::time::Duration::ZERO,
            concurrency: 1,
            reuse: Reuse::Always,
            queue_max: 1,
            rest: None,
            start_rule: pilot_model::StartRule::default(),
            short_starts_max: u32::MAX,
        });
        let mut actions = Vec::new();
        state.arrive(Instant(0), || (), &mut actions);
        match actions[..] {
            [Action::Start(key)] => key,
            _ => panic!("{actions:?}"),
        }
    }

    fn part() -> Part {
        let (key, asked, rest) = (a_key(), 0, 0);
        Part::Start { key, asked, rest }
    }

    fn drain(cpus: &mut Cpus) -> Vec<(u64, u32)> {
        let mut order = Vec::new();
        while cpus.next_at() < u64::MAX {
            let at = cpus.next_at();
            order.push((at, cpus.pop(at).unwrap().function));
        }
        order
    }

    #[test]
    fn as_many_as_there_are_cpus_do_not_slow_one_another() {
        let mut cpus = Cpus::new(2.0);
        cpus.push(0, 100, 0, part());
        cpus.push(50, 100, 1, part());
        assert_eq!(drain(&mut cpus), [(100, 0), (150, 1)]);
    }

    /// One CPU. A has work for 100 from 0, B for 100 from 50: A is done at 50 + 2·50, B at 150 + 50.
    #[test]
    fn two_on_one_cpu_take_twice_as_long_while_both_are_there() {
        let mut cpus = Cpus::new(1.0);
        cpus.push(0, 100, 0, part());
        cpus.push(50, 100, 1, part());
        assert_eq!(drain(&mut cpus), [(150, 0), (200, 1)]);
    }

    #[test]
    fn who_comes_after_a_pause_finds_the_cpu_free() {
        let mut cpus = Cpus::new(1.0);
        cpus.push(0, 10, 0, part());
        assert_eq!(drain(&mut cpus), [(10, 0)]);
        cpus.push(1_000, 10, 1, part());
        assert_eq!(drain(&mut cpus), [(1_010, 1)]);
    }

    #[test]
    fn those_who_are_done_at_once_come_in_their_order() {
        let mut cpus = Cpus::new(1.0);
        for function in 0..3 {
            cpus.push(0, 10, function, part());
        }
        assert_eq!(drain(&mut cpus), [(30, 0), (30, 1), (30, 2)]);
    }
}
