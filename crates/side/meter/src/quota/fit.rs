//! How far the model is from a log of throttles: Kolmogorov-Smirnov distances of the intervals between throttles, their lengths, and
//! the CPU time obtained before each.
//!
//! Period, quota and tick come from `infer`. The model needs two things more, which each run says itself: where the ticks lie between
//! the refills, and how many microseconds late the task noticed a refill and was stopped at a tick. The latencies are drawn in their
//! order, apart for each position of a refill among the ticks, because they depend on what else the kernel does at that moment. The debt
//! at the start of a run is not known, so all debts below a tick are equally likely.
//!
//! The second distance does without latencies: the plain model, where values that differ by less than [`TOLERANCE_NS`] count as equal.

use serde::Serialize;

use super::{Group, Limit, Ticks};
use crate::infer::{Inferred, Runs, Throttle, direction};

/// The distances of the model from a log, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fit {
    /// With the latencies of the log, at full resolution.
    pub with_latencies: Distances,
    /// The plain model, to within 100 us.
    pub plain: Distances,
}

/// One Kolmogorov-Smirnov distance for each of the three.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distances {
    /// Of the times between two resumptions.
    pub intervals: f64,
    /// Of the times without CPU.
    pub lengths: f64,
    /// Of the CPU times between two throttles.
    pub obtained: f64,
}

#[cfg(test)]
impl Distances {
    /// The largest.
    pub(crate) fn worst(&self) -> f64 {
        self.intervals.max(self.lengths).max(self.obtained)
    }
}

/// Compares the model with a log.
///
/// # Errors
/// What was inferred is no limit, or the model is never throttled under it.
pub fn fit(runs: &Runs, found: &Inferred) -> Result<Fit, String> {
    let limit = Limit::new(found.period_us, found.quota_us)?;
    let tick_ns = Ticks::of_rate(found.tick_hz, 0)?.every_ns();
    let (mut seen, mut late, mut plain) = <(Samples, Samples, Samples)>::default();
    for run in runs {
        let Some(begin) = run.first().map(|first| first.noticed_ns - first.lasted_ns) else {
            continue;
        };
        for pair in run.windows(2) {
            if let [one, next] = pair {
                let resumed = [one.noticed_ns, next.noticed_ns].map(signed);
                seen.push(resumed, signed(next.noticed_ns - next.lasted_ns));
            }
        }
        let run = Run::of(run, begin, limit, tick_ns);
        for start in 0..STARTS {
            run.simulate(start, &mut late, &mut plain)?;
        }
    }
    Ok(Fit {
        with_latencies: seen.distances(&mut late, 0),
        plain: seen.distances(&mut plain, TOLERANCE_NS),
    })
}

/// The throttles of a log that the model makes: of a task that wants the CPU for `seconds`, from the time 0 on.
#[must_use]
pub fn modelled(limit: Limit, ticks: Ticks, seconds: u64) -> Vec<Throttle> {
    let until = seconds.saturating_mul(1_000_000_000);
    Group::fresh(limit, ticks, 0)
        .take_while(|stretch| stretch.resumed_ns <= until)
        .map(|stretch| Throttle {
            noticed_ns: stretch.resumed_ns,
            lasted_ns: stretch.resumed_ns - stretch.stopped_ns,
        })
        .collect()
}

/// What one run says about ticks and latencies.
struct Run {
    limit: Limit,
    tick_ns: u64,
    /// Of a tick after a refill.
    tick_offset_ns: u64,
    /// One for each position of a refill among the ticks, after which the positions repeat.
    latencies: Vec<Latencies>,
    throttles: u64,
}

/// Nanoseconds after the refill, and after the tick; in the order of the log.
#[derive(Default, Clone)]
struct Latencies(Vec<(i64, i64)>);

impl Run {
    fn of(run: &[Throttle], begin: u64, limit: Limit, tick_ns: u64) -> Self {
        let period = limit.period_ns;
        let noticed = || run.iter().map(move |throttle| throttle.noticed_ns - begin);
        let stopped = || noticed().zip(run).map(|(at, it)| at - it.lasted_ns);
        let (refill, _) = direction(noticed(), period);
        let (tick, _) = direction(stopped(), tick_ns);
        let cycle = match tick_ns / gcd(period, tick_ns) {
            cycle @ 1..=CYCLE_MAX => cycle,
            // A rate whose ticks are at another place after nearly every refill.
            _ => 1,
        };
        let mut latencies = vec![Latencies::default(); usize::try_from(cycle).unwrap_or(1)];
        for (noticed, stopped) in noticed().zip(stopped()) {
            let number = (noticed + period / 2).saturating_sub(refill) / period;
            let position = usize::try_from(number % cycle).unwrap_or(0);
            if let Some(latencies) = latencies.get_mut(position) {
                let late = (
                    offset(noticed, refill, period),
                    offset(stopped, tick, tick_ns),
                );
                latencies.0.push(late);
            }
        }
        Self {
            limit,
            tick_ns,
            tick_offset_ns: (tick + tick_ns - refill % tick_ns) % tick_ns,
            latencies,
            throttles: run.len() as u64,
        }
    }

    /// Adds what the model does from one of the possible beginnings.
    fn simulate(&self, start: u64, late: &mut Samples, plain: &mut Samples) -> Result<(), String> {
        let debt = self.tick_ns * (2 * start + 1) / (2 * STARTS);
        let ticks = Ticks::new(self.tick_ns, self.tick_offset_ns);
        let first = start % (self.latencies.len() as u64);
        let group = Group::indebted(self.limit, ticks, first, debt);
        let count = (self.throttles / STARTS).max(STRETCHES_MIN);
        let mut drawn = vec![0_u64; self.latencies.len()];
        let mut draw = |at_ns: u64| -> (i64, i64) {
            let position = at_ns / self.limit.period_ns % (self.latencies.len() as u64);
            let position = usize::try_from(position).unwrap_or(0);
            let (Some(known), Some(drawn)) =
                (self.latencies.get(position), drawn.get_mut(position))
            else {
                return (0, 0);
            };
            let length = (known.0.len() as u64).max(1);
            let at = (start * length / STARTS + *drawn) % length;
            *drawn += 1;
            let at = usize::try_from(at).unwrap_or(0);
            known.0.get(at).copied().unwrap_or((0, 0))
        };
        let mut began_late: Option<i64> = None;
        let mut made = 0;
        for stretch in group.take(usize::try_from(count).unwrap_or(usize::MAX)) {
            let [began, stopped, resumed] =
                [stretch.began_ns, stretch.stopped_ns, stretch.resumed_ns].map(signed);
            plain.push([began, resumed], stopped);
            let from = began_late.unwrap_or_else(|| began + draw(stretch.began_ns).0);
            let (woken, ended) = draw(stretch.resumed_ns);
            late.push([from, resumed + woken], stopped + ended);
            began_late = Some(resumed + woken);
            made += 1;
        }
        if made == 0 {
            return Err("the model of this limit is never throttled".to_owned());
        }
        Ok(())
    }
}

/// The three values of all throttles, nanoseconds.
#[derive(Default)]
struct Samples {
    intervals: Vec<i64>,
    lengths: Vec<i64>,
    obtained: Vec<i64>,
}

impl Samples {
    /// A task ran from the first of two resumptions until it stopped, and then waited for the second.
    fn push(&mut self, [from, resumed]: [i64; 2], stopped: i64) {
        self.intervals.push(resumed - from);
        self.lengths.push(resumed - stopped);
        self.obtained.push(stopped - from);
    }

    fn distances(&mut self, other: &mut Self, tolerance: i64) -> Distances {
        Distances {
            intervals: distance(&mut self.intervals, &mut other.intervals, tolerance),
            lengths: distance(&mut self.lengths, &mut other.lengths, tolerance),
            obtained: distance(&mut self.obtained, &mut other.obtained, tolerance),
        }
    }
}

/// The Kolmogorov-Smirnov distance of two samples, where values within the tolerance count as equal. 1 if one is empty.
pub fn distance(one: &mut [i64], other: &mut [i64], tolerance: i64) -> f64 {
    one.sort_unstable();
    other.sort_unstable();
    beyond(one, other, tolerance).max(beyond(other, one, tolerance))
}

/// The most by which the share of `one` up to a value exceeds the share of `other` up to it and the tolerance.
fn beyond(one: &[i64], other: &[i64], tolerance: i64) -> f64 {
    let share = |count: usize, of: &[i64]| {
        let [count, of] = [count, of.len()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        f64::from(count) / f64::from(of.max(1))
    };
    if one.is_empty() || other.is_empty() {
        return 1.0;
    }
    let (mut most, mut at) = (0.0_f64, 0);
    for (before, value) in one.iter().enumerate() {
        // Of equal values, the last one has the whole share. A smaller share of an earlier one changes no maximum.
        while other
            .get(at)
            .is_some_and(|known| *known <= value.saturating_add(tolerance))
        {
            at += 1;
        }
        most = most.max(share(before + 1, one) - share(at, other));
    }
    most
}

/// How far a time is from the nearest of `phase`, `phase + every`, …
fn offset(at: u64, phase: u64, every: u64) -> i64 {
    let past = (at % every + every - phase % every) % every;
    if past > every / 2 {
        signed(past) - signed(every)
    } else {
        signed(past)
    }
}

fn gcd(one: u64, other: u64) -> u64 {
    match other {
        0 => one.max(1),
        other => gcd(other, one % other),
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// The plain model says nothing about differences below this.
const TOLERANCE_NS: i64 = 100_000;
/// Beginnings of each run that are simulated.
const STARTS: u64 = 64;
/// Stretches of each, at least.
const STRETCHES_MIN: u64 = 12;
/// Most positions of a refill among the ticks that are told apart.
const CYCLE_MAX: u64 = 16;

#[cfg(test)]
mod tests;
