//! How much of their allocation the requests of a trace used, and what granularities round up: Figures 3 and 5 of the paper (Figure
//! 2 is in `distribution`, Figure 4 in `starts`). Sums of whole numbers, so the order of the rows does not matter, and the memory
//! that they take does not depend on the number of rows.

use std::ops::AddAssign;

use serde::Serialize;

use super::distribution::Distribution;
use super::starts::{PERCENTILES, Starts};
use crate::bill::Usage;
use crate::platform::{Size, round_up};

/// What the requests of a trace used, and what is rounded up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Requests whose CPU time and memory are known: the others are not in the shares and correlations.
    pub known: u64,
    /// CPU time divided by what was allocated.
    pub cpu: Option<Utilisation>,
    /// Memory divided by what was allocated.
    pub memory: Option<Utilisation>,
    /// Pearson's correlation of both. `None`: one of them is always the same.
    pub pearson: Option<f64>,
    /// Spearman's correlation of both, of their percents.
    pub spearman: Option<f64>,
    /// What is added to the duration of a request on average.
    pub rounding: Vec<Rounding>,
    /// Memory beyond what was used, in steps of 128 MB and for 100 ms at least: GB-seconds per request on average.
    pub memory_rounding_gb_s: Option<f64>,
    /// Starts of workers beside their requests. `None`: the trace says nothing about starts.
    pub starts: Option<Starts>,
    /// Billable amounts per request beside what was used.
    pub distribution: Option<Distribution>,
}

/// How much of an allocation is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Utilisation {
    /// Requests that use less than half, thousandths of all.
    pub below_half_thousandths: u64,
    /// The 5th, 25th, 50th, 75th and 95th percentile, percent.
    pub percentiles: [u64; 5],
}

/// A granularity of time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rounding {
    /// Times are multiples of this, milliseconds.
    pub step_ms: u64,
    /// Times are at least this, milliseconds.
    pub min_ms: u64,
    /// What is added on average, microseconds.
    pub mean_us: u64,
}

/// What is added up.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    requests: u128,
    /// By percent of CPU, and within by percent of memory.
    counts: Vec<u64>,
    known: u64,
    /// Of the shares `x` (CPU) and `y` (memory) in ten-thousandths: of x, y, x², y², xy.
    moments: [u128; 5],
    /// Nanoseconds, by granularity.
    rounded: [u128; GRANULARITIES.len()],
    /// Requests whose used memory is known, and their byte-milliseconds.
    memory: (u128, u128),
}

impl Sums {
    pub(super) fn new() -> Self {
        Self {
            requests: 0,
            counts: vec![0; BINS * BINS],
            known: 0,
            moments: [0; 5],
            rounded: [0; GRANULARITIES.len()],
            memory: (0, 0),
        }
    }

    /// Adds so many requests that are alike.
    pub(super) fn add(&mut self, allocated: Size, usage: &Usage, count: u64) {
        let times = u128::from(count);
        self.requests += times;
        let execution = usage.execution_ns;
        for (sum, (step_ms, min_ms)) in self.rounded.iter_mut().zip(GRANULARITIES) {
            let billed = round_up(execution, step_ms * MS).max(min_ms * MS);
            *sum += u128::from(billed.saturating_sub(execution)) * times;
        }
        let Some(used) = usage.memory_used else {
            return;
        };
        self.memory.0 += times;
        self.memory.1 += memory_rounded(used, execution) * times;
        let Some(cpu_ns) = usage.cpu_ns else {
            return;
        };
        let allocated_cpu = u128::from(execution) * u128::from(allocated.cpu_milli);
        let x = share(u128::from(cpu_ns) * 1000, allocated_cpu);
        let y = share(u128::from(used), u128::from(allocated.memory_bytes));
        let (Some(x), Some(y)) = (x, y) else {
            return;
        };
        self.known += count;
        for (sum, value) in self.moments.iter_mut().zip([x, y, x * x, y * y, x * y]) {
            *sum += u128::from(value) * times;
        }
        let bin = |share: u64| usize::try_from(share / (ALL / 100)).unwrap_or(0);
        if let Some(bin) = self.counts.get_mut(bin(x) * BINS + bin(y)) {
            *bin += count;
        }
    }

    pub(super) fn finish(&self) -> Analysis {
        let mut cpu = vec![0; BINS];
        let mut memory = vec![0; BINS];
        for (sum, row) in cpu.iter_mut().zip(self.counts.chunks(BINS)) {
            *sum = row.iter().sum();
            for (sum, count) in memory.iter_mut().zip(row) {
                *sum += count;
            }
        }
        let (requests, megabyte_ms) = self.memory;
        let mean_us = |sum: u128| {
            let mean = sum / 1000 / self.requests.max(1);
            u64::try_from(mean).unwrap_or(u64::MAX)
        };
        Analysis {
            known: self.known,
            cpu: self.utilisation(&cpu),
            memory: self.utilisation(&memory),
            pearson: self.pearson(),
            spearman: self.spearman(&cpu, &memory),
            rounding: GRANULARITIES
                .into_iter()
                .zip(self.rounded)
                .map(|((step_ms, min_ms), sum)| Rounding {
                    step_ms,
                    min_ms,
                    mean_us: mean_us(sum),
                })
                .collect(),
            memory_rounding_gb_s: (requests > 0)
                .then(|| megabyte_ms as f64 / requests as f64 / GB as f64 / 1000.0),
            starts: None,
            distribution: None,
        }
    }

    fn utilisation(&self, counts: &[u64]) -> Option<Utilisation> {
        if self.known == 0 {
            return None;
        }
        let below: u64 = counts.iter().take(BINS / 2).sum();
        let thousandths = u128::from(below) * 1000 / u128::from(self.known);
        Some(Utilisation {
            below_half_thousandths: u64::try_from(thousandths).unwrap_or(1000),
            percentiles: PERCENTILES.map(|percent| percentile(counts, self.known, percent)),
        })
    }

    fn pearson(&self) -> Option<f64> {
        let n = self.known as f64;
        let [x, y, xx, yy, xy] = self.moments.map(|sum| sum as f64 / n.max(1.0));
        correlation(xy - x * y, xx - x * x, yy - y * y)
    }

    /// The values in a bin have the mean of their ranks.
    fn spearman(&self, cpu: &[u64], memory: &[u64]) -> Option<f64> {
        let (of_cpu, of_memory) = (ranks(cpu), ranks(memory));
        let mean = (self.known as f64 + 1.0) / 2.0;
        let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
        for (row, x) in self.counts.chunks(BINS).zip(&of_cpu) {
            for (count, y) in row.iter().zip(&of_memory) {
                let (count, x, y) = (*count as f64, x - mean, y - mean);
                xy += count * x * y;
                xx += count * x * x;
                yy += count * y * y;
            }
        }
        correlation(xy, xx, yy)
    }
}

impl AddAssign<&Self> for Sums {
    fn add_assign(&mut self, other: &Self) {
        self.requests += other.requests;
        self.known += other.known;
        self.memory.0 += other.memory.0;
        self.memory.1 += other.memory.1;
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
        let moments = self.moments.iter_mut().zip(other.moments);
        for (sum, more) in moments.chain(self.rounded.iter_mut().zip(other.rounded)) {
            *sum += more;
        }
    }
}

fn correlation(covariance: f64, one: f64, other: f64) -> Option<f64> {
    let size = (one * other).sqrt();
    (size > 0.0).then(|| (covariance / size).clamp(-1.0, 1.0))
}

/// A part of a whole in ten-thousandths, at most all of it. `None`: there is no whole.
fn share(part: u128, whole: u128) -> Option<u64> {
    let share = (part * u128::from(ALL)).checked_div(whole)?;
    Some(u64::try_from(share).unwrap_or(ALL).min(ALL))
}

/// Memory in steps of 128 MB for 100 ms at least, beyond what was used, byte-milliseconds.
fn memory_rounded(used: u64, execution_ns: u64) -> u128 {
    let billed_ms = round_up(execution_ns, MS).max(100 * MS) / MS;
    let billed = u128::from(round_up(used, 128 << 20)) * u128::from(billed_ms);
    billed.saturating_sub(u128::from(used) * u128::from(execution_ns) / u128::from(MS))
}

/// The mean rank of the values in each bin, from 1.
fn ranks(counts: &[u64]) -> Vec<f64> {
    let mut before = 0.0;
    let of_bin = |count: &u64| {
        let rank = before + (*count as f64 + 1.0) / 2.0;
        before += *count as f64;
        rank
    };
    counts.iter().map(of_bin).collect()
}

/// The smallest percent that so many percent of the values do not exceed.
fn percentile(counts: &[u64], all: u64, percent: u64) -> u64 {
    let wanted = u128::from(all) * u128::from(percent);
    let mut sum = 0;
    let reached = counts.iter().position(|count| {
        sum += u128::from(*count) * 100;
        sum >= wanted
    });
    reached.map_or(100, |at| at as u64)
}

/// The whole, in the unit of shares.
const ALL: u64 = 10_000;
/// 0 to 100 percent.
const BINS: usize = 101;
/// Steps and least amounts of time, milliseconds: those of Table 1 that the paper compares.
const GRANULARITIES: [(u64, u64); 3] = [(1, 0), (100, 0), (1, 100)];
const MS: u64 = 1_000_000;
const GB: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: Size = Size {
        cpu_milli: 500,
        memory_bytes: 256 << 20,
    };

    /// A request of 40 ms with these percents of CPU and memory.
    fn usage(cpu: u64, memory: u64) -> Usage {
        Usage {
            execution_ns: 40 * MS,
            cpu_ns: Some(20 * MS * cpu / 100),
            memory_used: Some((256 << 20) * memory / 100),
            ..Usage::default()
        }
    }

    fn of(requests: &[(u64, u64)]) -> Analysis {
        let mut sums = Sums::new();
        for (cpu, memory) in requests {
            sums.add(SIZE, &usage(*cpu, *memory), 1);
        }
        sums.finish()
    }

    #[test]
    fn shares_and_correlations_are_those_of_the_requests() {
        let rising = of(&[(10, 20), (20, 40), (30, 60), (80, 100)]);
        assert_eq!(rising.known, 4);
        let cpu = rising.cpu.unwrap();
        assert_eq!(cpu.below_half_thousandths, 750);
        assert_eq!(cpu.percentiles, [10, 10, 20, 30, 80]);
        assert_eq!(rising.memory.unwrap().below_half_thousandths, 500);
        assert!(rising.pearson.unwrap() > 0.9);
        assert!((rising.spearman.unwrap() - 1.0).abs() < 1e-9);
        let falling = of(&[(10, 90), (20, 50), (30, 1)]);
        assert!((falling.spearman.unwrap() + 1.0).abs() < 1e-9);
        let even = of(&[(10, 10), (10, 90), (90, 10), (90, 90)]);
        assert!(even.pearson.unwrap().abs() < 1e-9);
        assert!(even.spearman.unwrap().abs() < 1e-9);
        // More than was allocated counts as all of it; what is always the same has no correlation.
        let all = of(&[(300, 100), (100, 100)]);
        assert_eq!(all.cpu.unwrap().percentiles, [100; 5]);
        assert_eq!((all.pearson, all.spearman), (None, None));
    }

    #[test]
    fn what_is_not_known_is_in_no_share() {
        let mut sums = Sums::new();
        sums.add(SIZE, &Usage::default(), 1);
        let without_cpu = Usage {
            cpu_ns: None,
            ..usage(0, 10)
        };
        sums.add(SIZE, &without_cpu, 3);
        let found = sums.finish();
        assert_eq!((found.known, found.cpu, found.pearson), (0, None, None));
        assert!(found.memory_rounding_gb_s.is_some());
    }

    #[test]
    fn rounding_is_the_mean_of_what_is_added() {
        let mut sums = Sums::new();
        for execution_ns in [40 * MS, 130 * MS + 1] {
            let usage = Usage {
                execution_ns,
                ..Usage::default()
            };
            sums.add(SIZE, &usage, 2);
        }
        let rounding = sums.finish().rounding;
        let means: Vec<u64> = rounding.iter().map(|one| one.mean_us).collect();
        // 0 and 999.999 us; 60 and 69.999999 ms; 60 and 0.999999 ms.
        assert_eq!(means, [499, 64_999, 30_499]);
    }

    proptest! {
        #[test]
        fn parts_add_up_to_the_whole_in_any_order(requests in prop::collection::vec((0..=120_u64, 1..=100_u64), 0..40), at in 0..40_usize) {
            let whole = of(&requests);
            let at = at.min(requests.len());
            let mut sums = [Sums::new(), Sums::new()];
            for (number, (cpu, memory)) in requests.iter().enumerate().rev() {
                sums[usize::from(number < at)].add(SIZE, &usage(*cpu, *memory), 1);
            }
            let [mut one, other] = sums;
            one += &other;
            prop_assert_eq!(one.finish(), whole);
        }
    }
}
