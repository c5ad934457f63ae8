//! Which size a function should have: how long its calls take at each size of a platform, and what they cost there.
//!
//! The CPU time of a call is known. What it takes beyond that at its own size, it waits for something else, and does so at every size.
//! The rest follows from the quota of a size and the model of `quota`, with the settings that the paper found (Table 3). Durations fall in
//! jumps (section 4.1), so from one size to the next they often do not change: such a step only costs.
//!
//! Not here: calls that use more than one CPU at once, and initialisation.

use std::io::Read;

use serde::Serialize;

use crate::bill::{Amounts, Usage};
use crate::platform::{Match, Platform, Size, Sizing};
use crate::quota::{Limit, Scheduler, Ticks};
use crate::table::Table;
use crate::trace::{self, TraceError};

/// CPU time and waiting of some calls that stand for all, and what else is known of them.
#[derive(Debug, Clone)]
pub struct Calls {
    /// Equal shares of the calls, in the order of their CPU time.
    chosen: Vec<Chosen>,
    /// Warm calls with a CPU time.
    pub counted: u64,
    /// Calls without CPU time, or with the start of a worker in it.
    pub left_out: u64,
    /// Calls that used clearly more CPU time than they took.
    pub parallel: u64,
    /// What the function has: the size of the last call.
    pub own: Size,
    /// Not all calls had that size.
    pub several_sizes: bool,
    /// The most memory that a call used, bytes. `None`: it is not known.
    pub memory_max: Option<u64>,
    /// The line of the last row, if that has no line end: it may be cut off.
    pub unended: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Chosen {
    /// Of the CPU that the function had at that time.
    cpu_milli: u64,
    cpu_ns: u64,
    execution_ns: u64,
    memory_used: Option<u64>,
}

/// Why there are no calls to go by.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The records cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// None of them says enough.
    #[error(
        "there is no warm call with a measured CPU time (calls in all: {calls}): call the function a few more times, or take a trace that says \
         how much CPU time its calls used"
    )]
    None {
        /// All calls.
        calls: u64,
    },
}

impl Calls {
    /// Reads records of one function, as CSV with a header (`pilot cost export`, or Huawei's requests). Memory does not grow with them.
    ///
    /// # Errors
    /// See [`CallsError`]. A malformed row is an error.
    pub fn read(source: impl Read + Send) -> Result<Self, CallsError> {
        let mut kept: Vec<Chosen> = Vec::new();
        let (mut counted, mut left_out, mut parallel) = (0_u64, 0_u64, 0_u64);
        let (mut own, mut memory_max) = (None::<Size>, None::<u64>);
        let mut several_sizes = false;
        let unended = trace::each_row(source, |row| {
            let Usage {
                execution_ns,
                init_ns,
                cpu_ns,
                memory_used,
            } = row.usage;
            if let (Some(memory_bytes), Some(cpu_milli)) = (row.memory_bytes, row.cpu_milli) {
                let size = Size {
                    cpu_milli,
                    memory_bytes,
                };
                several_sizes |= own.is_some_and(|own| own != size);
                own = Some(size);
            }
            memory_max = memory_max.max(memory_used);
            // The CPU time of a start counts in the first call.
            let cpu_ns = cpu_ns.filter(|_| init_ns == 0 && execution_ns > 0);
            let (Some(cpu_ns), Some(size)) = (cpu_ns, own) else {
                left_out += 1;
                return;
            };
            let with_one_cpu = execution_ns + execution_ns / 10 + AROUND_NS;
            parallel += u64::from(cpu_ns > with_one_cpu);
            let chosen = Chosen {
                cpu_milli: size.cpu_milli,
                cpu_ns,
                execution_ns,
                memory_used,
            };
            // Each of the calls so far is kept with the same probability.
            let place = scrambled(counted) % (counted + 1);
            counted += 1;
            if kept.len() < KEPT_MAX {
                kept.push(chosen);
            } else if let Some(kept) = usize::try_from(place).ok().and_then(|at| kept.get_mut(at)) {
                *kept = chosen;
            }
        })?;
        if kept.is_empty() {
            return Err(CallsError::None {
                calls: counted + left_out,
            });
        }
        kept.sort_unstable_by_key(|call| (call.cpu_ns, call.execution_ns, call.cpu_milli));
        let shares = kept.len().min(SHARES_MAX);
        let middles = (0..shares).map(|share| (2 * share + 1) * kept.len() / (2 * shares));
        let chosen = middles.filter_map(|at| kept.get(at).copied()).collect();
        Ok(Self {
            chosen,
            counted,
            left_out,
            parallel,
            own: own.unwrap_or_default(),
            several_sizes,
            memory_max,
            unended,
        })
    }
}

/// A place and its sizes, with durations and bills.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// The platform's key in the table; `own` for this machine.
    pub id: String,
    /// For people.
    pub name: String,
    /// Period of the CPU quota, microseconds.
    pub period_us: u64,
    /// Ticks of the scheduler per second.
    pub tick_hz: u64,
    /// The scheduler that its durations are like.
    pub scheduler: Scheduler,
    /// The sizes, smallest first. None: the platform has none with as much memory as the calls used.
    pub sizes: Vec<Sized>,
}

/// A size, with what a call takes and costs in it on average.
#[derive(Debug, Clone, Serialize)]
pub struct Sized {
    /// Thousandths of a vCPU.
    pub cpu_milli: u64,
    /// Memory, MB.
    pub memory_mb: u64,
    /// How long a call takes, microseconds.
    pub duration_us: u64,
    /// How long it would take if it got exactly its share of the CPU at every instant.
    pub ideal_us: u64,
    /// US dollars for a million calls. `None`: this machine is not billed by calls, nor is a platform that bills instances.
    pub per_million: Option<String>,
    /// Calls are at least a tenth shorter than in the size before which the last such step is.
    pub step: bool,
    /// No size is cheaper.
    pub cheapest: bool,
    /// No larger size makes calls more than a twentieth shorter, but every smaller one makes them longer than that.
    pub enough: bool,
}

/// The settings of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Period of the CPU quota, microseconds.
    pub period_us: u64,
    /// Ticks of the scheduler per second.
    pub tick_hz: u64,
}

/// The sizes of this machine, of AWS Lambda and of Cloud Run.
///
/// # Errors
/// The machine's settings are impossible, or the table lacks a platform.
pub fn settings(calls: &Calls, table: &Table, machine: Machine) -> Result<Vec<Setting>, String> {
    let (period_us, tick_hz) = (machine.period_us, machine.tick_hz);
    let own = Host::new(None, (period_us, tick_hz, Scheduler::Eevdf))?;
    let waits = calls.waits(own)?;
    let mut settings = vec![own.setting(calls, &waits, own_sizes(calls))?];
    for (id, found) in PLATFORMS {
        let platform = table.platform(id)?;
        let place = Host::new(Some(platform), found)?;
        settings.push(place.setting(calls, &waits, sizes_of(platform, calls))?);
    }
    Ok(settings)
}

impl Calls {
    /// How long each of the chosen calls waits for something else than the CPU: what it took beyond its CPU time at its own size. The
    /// function may have had another size since.
    fn waits(&self, own: Host) -> Result<Vec<u64>, String> {
        self.chosen
            .iter()
            .map(|call| {
                let takes = own.takes(call.cpu_milli, call.cpu_ns)?;
                Ok(call.execution_ns.saturating_sub(takes))
            })
            .collect()
    }
}

/// A platform, or this machine.
#[derive(Clone, Copy)]
struct Host<'a> {
    platform: Option<&'a Platform>,
    period_us: u64,
    tick_hz: u64,
    tick_ns: u64,
    scheduler: Scheduler,
}

impl<'a> Host<'a> {
    fn new(
        platform: Option<&'a Platform>,
        (period_us, tick_hz, scheduler): (u64, u64, Scheduler),
    ) -> Result<Self, String> {
        Limit::new(period_us, 1)?;
        Ok(Self {
            platform,
            period_us,
            tick_hz,
            tick_ns: Ticks::of_rate(tick_hz, 0)?.every_ns(),
            scheduler,
        })
    }

    /// How long so much CPU time takes with a share of a CPU, on average.
    fn takes(self, cpu_milli: u64, cpu_ns: u64) -> Result<u64, String> {
        let limit = Limit::of_share(self.period_us, cpu_milli)?;
        Ok(self.under(limit, cpu_ns))
    }

    fn under(self, limit: Limit, cpu_ns: u64) -> u64 {
        let spread = limit.spread_ns(cpu_ns, self.tick_ns, self.scheduler);
        spread.mean_ns
    }

    fn setting(self, calls: &Calls, waits: &[u64], sizes: Vec<Size>) -> Result<Setting, String> {
        let mut rows: Vec<Sized> = Vec::new();
        for size in sizes {
            rows.push(self.sized(calls, waits, size)?);
        }
        mark(&mut rows);
        Ok(Setting {
            id: self
                .platform
                .map_or_else(|| "own".to_owned(), |platform| platform.id.clone()),
            name: self.platform.map_or_else(
                || "This machine".to_owned(),
                |platform| platform.name.clone(),
            ),
            period_us: self.period_us,
            tick_hz: self.tick_hz,
            scheduler: self.scheduler,
            sizes: rows,
        })
    }

    fn sized(self, calls: &Calls, waits: &[u64], size: Size) -> Result<Sized, String> {
        let limit = Limit::of_share(self.period_us, size.cpu_milli)?;
        let (mut took, mut ideal) = (0_u128, 0_u128);
        let mut billed = None::<Amounts>;
        for (call, wait) in calls.chosen.iter().zip(waits) {
            let execution_ns = self.under(limit, call.cpu_ns) + wait;
            took += u128::from(execution_ns);
            ideal += u128::from(limit.ideal_ns(call.cpu_ns) + wait);
            let usage = Usage {
                execution_ns,
                init_ns: 0,
                cpu_ns: Some(call.cpu_ns),
                memory_used: call.memory_used,
            };
            let bill = self
                .platform
                .and_then(|platform| platform.bill(size, &usage));
            if let Some(bill) = bill {
                *billed.get_or_insert_default() += bill.billed;
            }
        }
        let count = calls.chosen.len().max(1) as u128;
        let mean_us = |sum: u128| u64::try_from(sum / count / 1000).unwrap_or(u64::MAX);
        let per_million = self.platform.zip(billed).map(|(platform, billed)| {
            let million = billed.cost(platform).times(1_000_000);
            million.over(count).decimal(PLACES)
        });
        Ok(Sized {
            cpu_milli: size.cpu_milli,
            memory_mb: size.memory_bytes >> 20,
            duration_us: mean_us(took),
            ideal_us: mean_us(ideal),
            per_million,
            step: false,
            cheapest: false,
            enough: false,
        })
    }
}

/// Marks the steps, the cheapest size and the one that is enough.
fn mark(rows: &mut [Sized]) {
    let mut last = u64::MAX;
    for row in rows.iter_mut() {
        row.step = last == u64::MAX || row.duration_us < last - last / 10;
        if row.step {
            last = row.duration_us;
        }
    }
    // Amounts have the same number of places, so their digits compare as numbers.
    let digits = |row: &Sized| {
        let digits = row.per_million.as_deref()?.replace('.', "");
        digits.parse::<u128>().ok()
    };
    let least = rows.iter().filter_map(digits).min();
    if let Some(row) = rows
        .iter_mut()
        .find(|row| least.is_some() && digits(row) == least)
    {
        row.cheapest = true;
    }
    let shortest = rows.iter().map(|row| row.duration_us).min().unwrap_or(0);
    // From here on, no size is much longer than the shortest.
    let last_long = rows
        .iter()
        .rposition(|row| row.duration_us > shortest + shortest / 20);
    if let Some(row) = rows.get_mut(last_long.map_or(0, |at| at + 1)) {
        row.enough = true;
    }
}

fn own_sizes(calls: &Calls) -> Vec<Size> {
    let sizes = (OWN_STEP_MILLI..=1000).step_by(10).map(|cpu_milli| Size {
        cpu_milli,
        memory_bytes: calls.own.memory_bytes,
    });
    sizes.collect()
}

/// The sizes of a platform up to one vCPU in which the calls have enough memory; the smallest one, if that has more than one vCPU.
fn sizes_of(platform: &Platform, calls: &Calls) -> Vec<Size> {
    const MB: u64 = 1 << 20;
    let used = calls.memory_max.unwrap_or(calls.own.memory_bytes);
    match &platform.sizing {
        Sizing::Listed(sizes) => sizes
            .iter()
            .copied()
            .filter(|size| size.memory_bytes >= used)
            .collect(),
        Sizing::Proportional {
            memory,
            bytes_per_vcpu,
        } => {
            let first = used.max(memory.min).next_multiple_of(memory.step.max(1));
            if first > memory.max {
                return Vec::new();
            }
            let last = memory.max.min(*bytes_per_vcpu).max(first);
            let step = memory.step.max(MEMORY_STEP_MB * MB);
            let mut all: Vec<u64> = (0..)
                .map(|n| first + n * step)
                .take_while(|bytes| *bytes < last)
                .collect();
            all.push(last);
            all.into_iter()
                .map(|memory_bytes| Size {
                    cpu_milli: memory_bytes / MB * 1000 / (*bytes_per_vcpu / MB).max(1),
                    memory_bytes,
                })
                .collect()
        }
        Sizing::Separate { cpu, .. } => {
            let memory_bytes = used.max(calls.own.memory_bytes);
            let step = usize::try_from(cpu.step.max(1)).unwrap_or(1);
            let needs = (cpu.min..=1000.min(cpu.max)).step_by(step).chain([1000]);
            let sizes = needs.filter_map(|cpu_milli| {
                let need = Size {
                    cpu_milli,
                    memory_bytes,
                };
                platform.size(need, Match::MemoryAndCpu)
            });
            let mut all: Vec<Size> = sizes.collect();
            all.dedup();
            // The memory may need more than one vCPU.
            let smallest = all.first().copied();
            all.retain(|size| size.cpu_milli <= 1000 || Some(*size) == smallest);
            all
        }
    }
}

/// A number without pattern for each number (the finaliser of splitmix64).
fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Platforms whose period (microseconds) and tick rate the paper found (Table 3). The durations of Figure 10 on Lambda fall where ticks are
/// at refills.
const PLATFORMS: [(&str, (u64, u64, Scheduler)); 2] = [
    ("aws-lambda-x86", (20_000, 250, Scheduler::Cfs)),
    ("gcp-request", (100_000, 1000, Scheduler::Eevdf)),
];
/// CPU time that a worker uses around a call's execution, at most, nanoseconds: it receives the event and sends the answer.
const AROUND_NS: u64 = 1_000_000;
/// Calls that are remembered.
const KEPT_MAX: usize = 4096;
/// Of these, so many stand for all.
const SHARES_MAX: usize = 16;
/// The smallest share of this machine, thousandths.
const OWN_STEP_MILLI: u64 = 50;
/// From one size to the next, where a platform has more.
const MEMORY_STEP_MB: u64 = 8;
/// Places of an amount.
const PLACES: u32 = 6;

#[cfg(test)]
mod tests;
