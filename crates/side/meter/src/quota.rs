//! The CPU quota of a group as the kernel applies it: how long a task takes under it (Equation (2) of the paper), and what it does with
//! the time (section 4.2). Pure arithmetic; `infer` finds the parameters in a log, `fit` compares the model with one.
//!
//! The kernel's parts (kernel/sched/fair.c), for one task that always wants the CPU:
//!
//! - A timer fills the group's *pool* with the quota once per period. What was left in the pool is lost.
//! - The CPU takes *slices* of 5 ms from the pool. Used time is subtracted from its slice only at the *ticks* of the scheduler.
//! - A task whose CPU finds nothing in slice and pool stops. The time that it had too much is a debt, which the next refills pay first.
//!
//! So a task runs until a tick, and what it gets is a number of ticks. CFS and EEVDF do the same here. They differ in where the ticks lie
//! ([`Scheduler`]).
//!
//! Not here: several CPUs or tasks of one group, and other load on the CPU.

pub mod fit;

use serde::{Deserialize, Serialize};

/// Quota and period of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    period_ns: u64,
    quota_ns: u64,
}

impl Limit {
    /// A limit: CPU time `quota_us` in each `period_us`, microseconds. A quota of a period or more limits nothing for one task.
    ///
    /// # Errors
    /// The period is not between 100 us and 1 s (which is the kernel's most), or the quota is 0.
    pub fn new(period_us: u64, quota_us: u64) -> Result<Self, String> {
        if !(100..=1_000_000).contains(&period_us) {
            return Err(format!(
                "a period of {period_us} us is not between 100 us and 1 s"
            ));
        }
        if quota_us == 0 {
            return Err("a quota of 0 us lets nothing run".to_owned());
        }
        Ok(Self {
            period_ns: period_us * 1000,
            quota_ns: quota_us.min(period_us) * 1000,
        })
    }

    /// The limit of a share of a CPU, thousandths, over a period, in the whole microseconds that the kernel takes. At least 1 us.
    ///
    /// # Errors
    /// As [`Limit::new`].
    pub fn of_share(period_us: u64, milli: u64) -> Result<Self, String> {
        Self::new(period_us, (period_us.saturating_mul(milli) / 1000).max(1))
    }

    /// The period, nanoseconds.
    #[must_use]
    pub fn period_ns(self) -> u64 {
        self.period_ns
    }

    /// The quota, nanoseconds; at most the period.
    #[must_use]
    pub fn quota_ns(self) -> u64 {
        self.quota_ns
    }

    /// Equation (2): how long a task with so much CPU time takes that begins with a refill, if usage is accounted at once.
    #[must_use]
    pub fn duration_ns(self, cpu_ns: u64) -> u64 {
        let (periods, rest) = (cpu_ns / self.quota_ns, cpu_ns % self.quota_ns);
        match (periods, rest) {
            (0, _) => rest,
            (_, 0) => (periods - 1)
                .saturating_mul(self.period_ns)
                .saturating_add(self.quota_ns),
            _ => periods.saturating_mul(self.period_ns).saturating_add(rest),
        }
    }

    /// The reciprocal: how long it would take if the share applied to every instant.
    #[must_use]
    pub fn ideal_ns(self, cpu_ns: u64) -> u64 {
        let scaled = u128::from(cpu_ns) * u128::from(self.period_ns) / u128::from(self.quota_ns);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// How long a task with so much CPU time takes if usage is accounted at ticks: the mean over where in a period it begins, and where the
    /// ticks lie, and the shortest and the longest of these times.
    #[must_use]
    pub fn spread_ns(self, cpu_ns: u64, tick_ns: u64, scheduler: Scheduler) -> Spread {
        let whole = (cpu_ns / self.quota_ns).saturating_sub(SIMULATED_QUOTAS);
        let left = cpu_ns - whole * self.quota_ns;
        let beyond = |took: u64| {
            if self.quota_ns.saturating_add(tick_ns) < self.period_ns {
                // Each stretch ends before the next refill, so nothing of a quota is lost, and each whole quota takes a period.
                return took.saturating_add(whole.saturating_mul(self.period_ns));
            }
            let scaled = u128::from(took) * u128::from(cpu_ns) / u128::from(left.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let times = (0..SPREAD_STARTS).map(|start| {
            // Points that fill the square of both unknowns evenly: one in order, the other in the order of reversed bits.
            let begins = self.period_ns * (2 * start + 1) / (2 * SPREAD_STARTS);
            let reversed = start.reverse_bits() >> (u64::BITS - SPREAD_STARTS.trailing_zeros());
            let offset = match scheduler {
                Scheduler::Cfs => 0,
                Scheduler::Eevdf => tick_ns * (2 * reversed + 1) / (2 * SPREAD_STARTS),
            };
            let ticks = Ticks::new(tick_ns, offset);
            beyond(Group::fresh(self, ticks, begins).run(left))
        });
        let (mut sum, mut least, mut most) = (0_u128, u64::MAX, 0);
        for took in times {
            sum += u128::from(took);
            least = least.min(took);
            most = most.max(took);
        }
        Spread {
            mean_ns: u64::try_from(sum / u128::from(SPREAD_STARTS)).unwrap_or(u64::MAX),
            least_ns: least,
            most_ns: most,
        }
    }
}

/// Where the ticks lie between the refills of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Kernels with CFS: the timer of the period runs on the clock's own grid, as the ticks do, so a refill is at a tick. (Linux 6.4 and
    /// 6.5 already begin it at a random time.)
    Cfs,
    /// Kernels with EEVDF, from 6.6 on: the timer of each group begins at a random time (init_cfs_bandwidth()).
    Eevdf,
}

/// How long a task takes, nanoseconds, over all beginnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// On average.
    pub mean_ns: u64,
    /// At best.
    pub least_ns: u64,
    /// At worst.
    pub most_ns: u64,
}

/// The ticks of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    every_ns: u64,
    offset_ns: u64,
}

impl Ticks {
    /// A tick at `offset_ns`, and one every `every_ns`.
    #[must_use]
    pub fn new(every_ns: u64, offset_ns: u64) -> Self {
        let every_ns = every_ns.max(1);
        Self {
            every_ns,
            offset_ns: offset_ns % every_ns,
        }
    }

    /// Ticks of a rate.
    ///
    /// # Errors
    /// The rate is not between 1 and 1,000 Hz, which is the kernel's most.
    pub fn of_rate(hz: u64, offset_ns: u64) -> Result<Self, String> {
        if !(1..=1_000).contains(&hz) {
            return Err(format!("a tick of {hz} Hz is not between 1 and 1,000 Hz"));
        }
        Ok(Self::new(1_000_000_000 / hz, offset_ns))
    }

    /// The time between two.
    #[must_use]
    pub fn every_ns(self) -> u64 {
        self.every_ns
    }

    /// The first one after a time.
    fn after(self, now: u64) -> u64 {
        let past = (now + self.every_ns - self.offset_ns) % self.every_ns;
        now + self.every_ns - past
    }
}

/// A stretch of running, and what came after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// When it began, nanoseconds.
    pub began_ns: u64,
    /// When the task was stopped.
    pub stopped_ns: u64,
    /// When it was allowed to run again.
    pub resumed_ns: u64,
}

/// A group with one task that always wants the CPU. The refills are at the multiples of its period.
#[derive(Debug, Clone)]
pub struct Group {
    limit: Limit,
    ticks: Ticks,
    now: u64,
    /// Until when usage is accounted.
    accounted: u64,
    refill: u64,
    pool: u64,
    /// What its CPU has of the pool; a debt if it is negative.
    slice: i64,
}

impl Group {
    /// A group that has not run for a while: its pool is full. The task begins at `now_ns`.
    #[must_use]
    pub fn fresh(limit: Limit, ticks: Ticks, now_ns: u64) -> Self {
        Self {
            limit,
            ticks,
            now: now_ns,
            accounted: now_ns,
            refill: (now_ns / limit.period_ns + 1) * limit.period_ns,
            pool: limit.quota_ns,
            slice: 0,
        }
    }

    /// A group that is stopped and has a debt. It waits for the refill number `refill`.
    #[must_use]
    pub fn indebted(limit: Limit, ticks: Ticks, refill: u64, debt_ns: u64) -> Self {
        let mut group = Self {
            limit,
            ticks,
            now: 0,
            accounted: 0,
            refill: refill * limit.period_ns,
            pool: 0,
            slice: 0 - i64::try_from(debt_ns).unwrap_or(i64::MAX),
        };
        group.wait();
        group
    }

    /// Runs a task of so much CPU time to its end, and returns how long that took.
    #[must_use]
    pub fn run(mut self, cpu_ns: u64) -> u64 {
        let (began, mut left) = (self.now, cpu_ns);
        loop {
            let from = self.now;
            let ended = self.until_stopped(Some(left));
            left -= (self.now - from).min(left);
            if ended == Ended::Done {
                return self.now - began;
            }
            self.wait();
        }
    }

    /// Runs until the task has the CPU time that it wants, or until it is stopped.
    fn until_stopped(&mut self, wants: Option<u64>) -> Ended {
        let done = wants.map(|left| self.now.saturating_add(left));
        loop {
            let tick = self.ticks.after(self.now);
            if let Some(done) = done.filter(|done| *done <= tick) {
                self.now = done;
                return Ended::Done;
            }
            while self.refill <= tick {
                self.pool = self.limit.quota_ns;
                self.refill += self.limit.period_ns;
            }
            self.now = tick;
            self.slice -= signed(tick - self.accounted);
            self.accounted = tick;
            if self.slice <= 0 {
                self.take(signed(SLICE_NS));
            }
            if self.slice <= 0 {
                return Ended::Stopped;
            }
        }
    }

    /// Waits until refills have paid the debt.
    fn wait(&mut self) {
        loop {
            self.now = self.refill;
            self.refill += self.limit.period_ns;
            self.pool = self.limit.quota_ns;
            // distribute_cfs_runtime(): the debt and one nanosecond.
            self.take(1);
            if self.slice > 0 {
                self.accounted = self.now;
                return;
            }
        }
    }

    /// Takes from the pool what the slice lacks to `wanted`, as far as there is so much.
    fn take(&mut self, wanted: i64) {
        let lacking = u64::try_from(wanted - self.slice).unwrap_or(0);
        let taken = lacking.min(self.pool);
        self.pool -= taken;
        self.slice += signed(taken);
    }
}

impl Iterator for Group {
    type Item = Stretch;

    /// The next stretch of a task that never ends. `None` if it is never stopped.
    fn next(&mut self) -> Option<Stretch> {
        if self.limit.quota_ns >= self.limit.period_ns {
            return None;
        }
        let began_ns = self.now;
        // Within so much time its quota is used up, because in each period it uses more than it gets.
        let horizon = self.limit.period_ns.saturating_mul(UNTHROTTLED_PERIODS);
        if self.until_stopped(Some(horizon)) == Ended::Done {
            return None;
        }
        let stopped_ns = self.now;
        self.wait();
        Some(Stretch {
            began_ns,
            stopped_ns,
            resumed_ns: self.now,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    Stopped,
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// What a CPU takes from the pool at once (sched_cfs_bandwidth_slice_us).
const SLICE_NS: u64 = 5_000_000;
/// Beginnings of which a spread is the mean; a power of two.
const SPREAD_STARTS: u64 = 64;
/// A spread simulates so many quotas. What is beyond them follows from the rate.
const SIMULATED_QUOTAS: u64 = 48;
/// A task that is not stopped in so many periods is never stopped: its quota is so near the period that each tick finds some.
const UNTHROTTLED_PERIODS: u64 = 1000;

#[cfg(test)]
mod tests;
