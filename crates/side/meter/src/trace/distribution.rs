//! How billable amounts are distributed over the requests of a trace, beside what they used: Figure 2 of the paper. Amounts are counted in
//! bins, so the order of the rows does not matter, and the memory does not grow with their number.

use std::ops::AddAssign;

use serde::Serialize;

use crate::bill::{Amounts, Usage};
use crate::platform::{BillableTime, Platform, Size};
use crate::report::has_cpu;
use crate::table::Table;

/// What requests use, and what platforms bill for each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Distribution {
    /// So many percent of the requests have at most the amount at the same place of the others.
    pub percents: [u64; POINTS],
    /// What was used, of the requests of which it is known.
    pub used: Amounted,
    /// What is billed, in the table's order. Those that bill no requests are not there.
    pub platforms: Vec<Billed>,
}

/// What a platform bills per request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Billed {
    /// The platform's id in the table.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The amounts.
    #[serde(flatten)]
    pub billed: Amounted,
}

/// Amounts of one request. Each is up to a 32nd too large.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Amounted {
    /// Memory, kilobyte-milliseconds of 2^10 bytes. `None`: it is not billed, or not of all requests, or not known.
    pub memory_kb_ms: Option<[u64; POINTS]>,
    /// CPU, nanoseconds of a whole vCPU.
    pub cpu_ns: Option<[u64; POINTS]>,
}

/// What is counted.
#[derive(Debug, Clone)]
pub(super) struct Distributions {
    requests: u64,
    memory_used: Histogram,
    cpu_used: Histogram,
    /// Memory and CPU of each platform of the table.
    platforms: Vec<(Histogram, Histogram)>,
}

impl Distributions {
    pub(super) fn new(table: &Table) -> Self {
        let empty = || (Histogram::default(), Histogram::default());
        Self {
            requests: 0,
            memory_used: Histogram::default(),
            cpu_used: Histogram::default(),
            platforms: table.platforms().iter().map(|_| empty()).collect(),
        }
    }

    /// Adds what so many requests that are alike used.
    pub(super) fn used(&mut self, allocated: Size, usage: &Usage, count: u64) {
        self.requests += count;
        if let Some(used) = usage.memory_used {
            let used = used.min(allocated.memory_bytes);
            let amount = u128::from(used) * u128::from(usage.execution_ns);
            self.memory_used.add(memory_units(amount), count);
        }
        if let Some(cpu_ns) = usage.cpu_ns {
            self.cpu_used.add(cpu_ns.saturating_mul(1000), count);
        }
    }

    /// Adds what the platform at this place of the table bills for one of them.
    pub(super) fn billed(&mut self, at: usize, billed: &Amounts, count: u64) {
        if let Some((memory, cpu)) = self.platforms.get_mut(at) {
            memory.add(memory_units(billed.memory), count);
            cpu.add(narrow(billed.cpu), count);
        }
    }

    pub(super) fn finish(&self, table: &Table) -> Distribution {
        let platforms = table.platforms().iter().zip(&self.platforms);
        let bills_requests = |platform: &Platform| {
            !matches!(
                platform.time,
                BillableTime::Instance | BillableTime::Machine
            )
        };
        let billed = |(platform, (memory, cpu)): (&Platform, &(Histogram, Histogram))| {
            // Those of a part of the requests would be beside those of all of another platform.
            let whole = memory.count == self.requests;
            Billed {
                id: platform.id.clone(),
                name: platform.name.clone(),
                billed: Amounted {
                    memory_kb_ms: memory
                        .percentiles(kb_ms)
                        .filter(|_| whole && platform.memory.is_some()),
                    cpu_ns: cpu
                        .percentiles(whole_cpu)
                        .filter(|_| whole && has_cpu(platform)),
                },
            }
        };
        Distribution {
            percents: PERCENTS,
            used: Amounted {
                memory_kb_ms: self.memory_used.percentiles(kb_ms),
                cpu_ns: self.cpu_used.percentiles(whole_cpu),
            },
            platforms: platforms
                .filter(|(platform, _)| bills_requests(platform))
                .map(billed)
                .collect(),
        }
    }
}

impl AddAssign<&Self> for Distributions {
    fn add_assign(&mut self, other: &Self) {
        self.requests += other.requests;
        self.memory_used += &other.memory_used;
        self.cpu_used += &other.cpu_used;
        for ((memory, cpu), (more_memory, more_cpu)) in
            self.platforms.iter_mut().zip(&other.platforms)
        {
            *memory += more_memory;
            *cpu += more_cpu;
        }
    }
}

/// Counts amounts in bins. Below [`PARTS`] an amount has a bin of its own; from there on, each power of two has so many bins. This is done
/// for every platform and request, so the amounts are numbers of 64 bits.
#[derive(Debug, Clone)]
struct Histogram {
    bins: Box<[u64; BINS]>,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            bins: Box::new([0; BINS]),
            count: 0,
        }
    }
}

impl Histogram {
    fn add(&mut self, amount: u64, count: u64) {
        if let Some(bin) = self.bins.get_mut(bin_of(amount)) {
            *bin += count;
        }
        self.count += count;
    }

    /// In another unit. `None`: nothing was added.
    fn percentiles(&self, convert: fn(u64) -> u64) -> Option<[u64; POINTS]> {
        (self.count > 0).then(|| {
            PERCENTS.map(|percent| {
                let wanted = u128::from(self.count) * u128::from(percent);
                let mut sum = 0;
                let reached = self.bins.iter().position(|count| {
                    sum += u128::from(*count) * 100;
                    sum >= wanted
                });
                convert(reached.map_or(0, most_of))
            })
        })
    }
}

impl AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        for (bin, more) in self.bins.iter_mut().zip(other.bins.iter()) {
            *bin += more;
        }
        self.count += other.count;
    }
}

/// The bin of an amount.
fn bin_of(amount: u64) -> usize {
    let magnitude = (amount | PARTS as u64).ilog2();
    let shift = magnitude - PARTS.ilog2();
    // What is shifted is below twice the parts.
    let part = usize::try_from(amount >> shift).unwrap_or(0);
    part + PARTS * shift as usize
}

/// The largest amount of a bin.
fn most_of(bin: usize) -> u64 {
    let shift = (bin / PARTS).saturating_sub(1);
    let next = (bin - PARTS * shift) as u128 + 1;
    narrow((next << shift) - 1)
}

fn narrow(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// Byte-nanoseconds as they are counted: in 2^20 of them.
fn memory_units(amount: u128) -> u64 {
    narrow(amount >> MEMORY_SHIFT)
}

/// What was counted as [`memory_units`], in kilobyte-milliseconds of 2^10 bytes.
fn kb_ms(units: u64) -> u64 {
    let most = ((u128::from(units) + 1) << MEMORY_SHIFT) - 1;
    narrow(most / (1_000_000 << 10))
}

/// Nanoseconds of a thousandth of a vCPU, in those of a whole one.
fn whole_cpu(amount: u64) -> u64 {
    amount / 1000
}

/// Bins of a power of two.
const PARTS: usize = 32;
/// Those below the first power, and those of the powers up to the largest amount.
const BINS: usize = PARTS * 60;
const MEMORY_SHIFT: u32 = 20;
const POINTS: usize = 21;
const PERCENTS: [u64; POINTS] = [
    1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99,
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MB: u64 = 1 << 20;

    fn of(amounts: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for amount in amounts {
            histogram.add(*amount, 1);
        }
        histogram
    }

    #[test]
    fn percentiles_are_those_of_the_amounts() {
        let hundred: Vec<u64> = (1..=100).map(|amount| amount * 1000).collect();
        let found = of(&hundred).percentiles(whole_cpu).unwrap();
        for (percent, amount) in PERCENTS.iter().zip(found) {
            assert!(
                (*percent..=percent + percent / 32 + 1).contains(&amount),
                "{percent}: {amount}"
            );
        }
        let plain = |amounts: &[u64]| of(amounts).percentiles(|amount| amount);
        assert_eq!(plain(&[7; 3]), Some([7; POINTS]));
        assert_eq!(plain(&[0]), Some([0; POINTS]));
        assert_eq!(plain(&[]), None);
        assert_eq!(plain(&[u64::MAX]), Some([u64::MAX; POINTS]));
        // 3 MB for 2 ms.
        let memory = u128::from(3 * MB) * 2_000_000;
        assert_eq!(kb_ms(memory_units(memory)), 3 * 1024 * 2);
        assert_eq!(memory_units(u128::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn a_bin_is_at_most_a_32nd_wide(amount in any::<u64>(), smaller in 0..64_u32) {
            let amount = amount >> smaller;
            let most = most_of(bin_of(amount));
            prop_assert!(most >= amount);
            prop_assert!(most - amount <= amount / 32, "{} {}", amount, most);
            if let Some(next) = most.checked_add(1) {
                prop_assert_eq!(bin_of(next), bin_of(amount) + 1);
            }
        }

        #[test]
        fn parts_add_up_to_the_whole_in_any_order(amounts in prop::collection::vec(any::<u64>(), 0..60), at in 0..60_usize) {
            let (one, other) = amounts.split_at(at.min(amounts.len()));
            let mut sum = of(other);
            sum += &of(one);
            prop_assert_eq!(sum.bins, of(&amounts).bins);
        }
    }
}
