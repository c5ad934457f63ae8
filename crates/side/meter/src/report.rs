//! What was used, and what every platform bills for it. Sums only: a report over any number of records takes the same memory.

use std::ops::AddAssign;

use pilot_model::cost::{CostParts, CostReport, PlatformCost, UsageTotals};

use crate::bill::{Amounts, Bill, Usage};
use crate::money::Money;
use crate::platform::{BillableTime, Match, Platform, Size, Sizing};
use crate::table::Table;

/// The sizes of a function on all platforms of a table, in the table's order. `None`: too large for it.
#[derive(Debug, Clone)]
pub struct Sizes(Vec<Option<Size>>);

/// Adds up records under all platforms of a table.
#[derive(Debug, Clone)]
pub struct Tally {
    used: Used,
    platforms: Vec<PlatformTally>,
}

#[derive(Debug, Clone, Default)]
struct PlatformTally {
    bill: Bill,
    /// Requests that could not be billed, because they do not fit, or because their CPU time is not known.
    too_large: u64,
    unknown: u64,
    /// The largest size that was needed: of the machine.
    machine: Option<Size>,
}

/// What was used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    calls: u64,
    cold: u64,
    execution_ns: u128,
    init_ns: u128,
    cpu_ns: u128,
    cpu_unknown: u64,
    memory_byte_ns: u128,
    memory_unknown: u64,
    instances: u64,
    instances_ns: u128,
    bytes_in: u64,
    bytes_out: u64,
}

/// From the first request to the end of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The date of the begin, Unix milliseconds.
    pub since_unix_ms: u64,
    /// The date of the end.
    pub until_unix_ms: u64,
    /// How long it was. The clock may have been set meanwhile.
    pub lasted_ms: u64,
}

impl Span {
    /// Where the dates are all that is known: as long as one is after the other.
    #[must_use]
    pub fn between_dates(since_unix_ms: u64, until_unix_ms: u64) -> Self {
        Self {
            since_unix_ms,
            until_unix_ms,
            lasted_ms: until_unix_ms.saturating_sub(since_unix_ms),
        }
    }
}

/// What is counted of a request, apart from what is billed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// It waited for a worker to start.
    pub cold: bool,
    /// Bytes of its body.
    pub bytes_in: u64,
    /// Bytes of its response.
    pub bytes_out: u64,
}

impl Used {
    fn add(&mut self, need: Size, usage: &Usage, counted: Counted, count: u64) {
        let times = |amount: u64| u128::from(amount) * u128::from(count);
        self.calls += count;
        self.cold += if counted.cold { count } else { 0 };
        self.execution_ns += times(usage.execution_ns);
        self.init_ns += times(usage.init_ns);
        self.cpu_ns += times(usage.cpu_ns.unwrap_or(0));
        self.cpu_unknown += if usage.cpu_ns.is_none() { count } else { 0 };
        let memory = usage.memory_used.unwrap_or(need.memory_bytes);
        let memory = memory.min(need.memory_bytes);
        self.memory_byte_ns += u128::from(memory) * times(usage.execution_ns);
        self.memory_unknown += if usage.memory_used.is_none() {
            count
        } else {
            0
        };
        self.bytes_in = self.bytes_in.saturating_add(counted.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(counted.bytes_out);
    }
}

impl Sizes {
    /// The sizes for a need.
    #[must_use]
    pub fn of(table: &Table, need: Size, matched: Match) -> Self {
        let platforms = table.platforms().iter();
        Self(
            platforms
                .map(|platform| platform.size(need, matched))
                .collect(),
        )
    }
}

impl Tally {
    /// Nothing yet.
    #[must_use]
    pub fn new(table: &Table) -> Self {
        Self {
            used: Used::default(),
            platforms: vec![PlatformTally::default(); table.platforms().len()],
        }
    }

    /// Adds a request to a function with this allocation.
    pub fn request(
        &mut self,
        table: &Table,
        need: Size,
        sizes: &Sizes,
        usage: &Usage,
        counted: Counted,
    ) {
        self.requests(table, (need, sizes), usage, (counted, 1), |_, _| {});
    }

    /// Adds so many requests that are alike. `see` gets what each platform bills for one of them, with the platform's place in the table.
    pub fn requests(
        &mut self,
        table: &Table,
        (need, sizes): (Size, &Sizes),
        usage: &Usage,
        (counted, count): (Counted, u64),
        mut see: impl FnMut(usize, &Amounts),
    ) {
        self.used.add(need, usage, counted, count);
        let tallies = self.platforms.iter_mut().zip(&sizes.0);
        for (at, ((tally, size), platform)) in tallies.zip(table.platforms()).enumerate() {
            let Some(size) = *size else {
                tally.too_large += count;
                continue;
            };
            match platform.time {
                BillableTime::Machine => {
                    let largest = tally.machine.get_or_insert(size);
                    if size.memory_bytes > largest.memory_bytes {
                        *largest = size;
                    }
                }
                BillableTime::Instance => {}
                BillableTime::Execution | BillableTime::Turnaround | BillableTime::Cpu => {
                    let Some(bill) = platform.bill(size, usage) else {
                        tally.unknown += count;
                        continue;
                    };
                    see(at, &bill.billed);
                    tally.bill += match count {
                        1 => bill,
                        count => bill.times(count),
                    };
                }
            }
        }
    }

    /// Adds a worker of a function that was there for this long, nanoseconds.
    pub fn instance(&mut self, table: &Table, sizes: &Sizes, time_ns: u64) {
        self.used.instances += 1;
        self.used.instances_ns += u128::from(time_ns);
        let tallies = self.platforms.iter_mut().zip(&sizes.0);
        for ((tally, size), platform) in tallies.zip(table.platforms()) {
            if let (BillableTime::Instance, Some(size)) = (platform.time, *size) {
                tally.bill += platform.bill_instance(size, time_ns);
            }
        }
    }

    /// Number of requests.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.used.calls
    }

    /// The report. Machines are billed for the span.
    #[must_use]
    pub fn report(&self, table: &Table, span: Option<Span>) -> CostReport {
        let mut platforms: Vec<(Option<Money>, PlatformCost)> = table
            .platforms()
            .iter()
            .zip(&self.platforms)
            .map(|(platform, tally)| self.platform(platform, tally, span))
            .collect();
        platforms.sort_by(|(one, _), (other, _)| match (one, other) {
            (Some(one), Some(other)) => one.cmp(other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        });
        let used = &self.used;
        CostReport {
            since_unix_ms: span.map(|span| span.since_unix_ms),
            until_unix_ms: span.map(|span| span.until_unix_ms),
            used: UsageTotals {
                calls: used.calls,
                cold: used.cold,
                execution_us: us(used.execution_ns),
                init_us: us(used.init_ns),
                cpu_us: us(used.cpu_ns),
                cpu_unknown: used.cpu_unknown,
                memory_kb_ms: narrow((used.memory_byte_ns / u128::from(MS_NS)) >> 10),
                memory_unknown: used.memory_unknown,
                instances_ms: ms(used.instances_ns),
                instances: used.instances,
                bytes_in: used.bytes_in,
                bytes_out: used.bytes_out,
            },
            platforms: platforms.into_iter().map(|(_, cost)| cost).collect(),
            notes: Vec::new(),
        }
    }

    fn platform(
        &self,
        platform: &Platform,
        tally: &PlatformTally,
        span: Option<Span>,
    ) -> (Option<Money>, PlatformCost) {
        let mut bill = tally.bill;
        if let (BillableTime::Machine, Some(size), Some(span)) =
            (platform.time, tally.machine, span)
        {
            bill += platform.bill_instance(size, span.lasted_ms.saturating_mul(MS_NS));
        }
        if matches!(
            platform.time,
            BillableTime::Instance | BillableTime::Machine
        ) {
            // What was used of instances is what their requests used.
            bill.used.memory = self.used.memory_byte_ns.min(bill.execution.memory);
            bill.used.cpu = (self.used.cpu_ns * 1000).min(bill.execution.cpu);
        }
        let calls = self.used.calls;
        let billed = calls - tally.too_large - tally.unknown;
        let problem = if tally.too_large > 0 {
            Some(format!(
                "{} of {calls} calls need a larger size than it has",
                tally.too_large
            ))
        } else if tally.unknown > 0 {
            Some(format!(
                "the CPU time of {} of {calls} calls is not known",
                tally.unknown
            ))
        } else if platform.time == BillableTime::Instance && self.used.instances == 0 && calls > 0 {
            Some("the lifetimes of the instances are not known".to_owned())
        } else if platform.time == BillableTime::Machine && span.is_none() {
            Some("the time from the first call to the last is not known".to_owned())
        } else {
            None
        };
        let whole = problem.is_none() && billed > 0;
        let total = bill.billed.cost(platform);
        let cost = PlatformCost {
            id: platform.id.clone(),
            name: platform.name.clone(),
            time: platform.time.as_str().to_owned(),
            problem,
            bill: whole.then(|| {
                let month = tally.machine.map(|size| platform.month(size));
                parts(platform, &bill, &total, calls, month)
            }),
            memory_inflation_hundredths: (whole && platform.memory.is_some())
                .then(|| hundredths(bill.billed.memory, self.used.memory_byte_ns))
                .flatten(),
            cpu_inflation_hundredths: (whole && self.used.cpu_unknown == 0 && has_cpu(platform))
                .then(|| hundredths(bill.billed.cpu, self.used.cpu_ns * 1000))
                .flatten(),
            source: platform.source.clone(),
            as_of: platform.as_of.clone(),
        };
        (whole.then_some(total), cost)
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        let (used, more) = (&mut self.used, &other.used);
        used.calls += more.calls;
        used.cold += more.cold;
        used.execution_ns += more.execution_ns;
        used.init_ns += more.init_ns;
        used.cpu_ns += more.cpu_ns;
        used.cpu_unknown += more.cpu_unknown;
        used.memory_byte_ns += more.memory_byte_ns;
        used.memory_unknown += more.memory_unknown;
        used.instances += more.instances;
        used.instances_ns += more.instances_ns;
        used.bytes_in = used.bytes_in.saturating_add(more.bytes_in);
        used.bytes_out = used.bytes_out.saturating_add(more.bytes_out);
        for (tally, more) in self.platforms.iter_mut().zip(&other.platforms) {
            tally.bill += more.bill;
            tally.too_large += more.too_large;
            tally.unknown += more.unknown;
            tally.machine = [tally.machine, more.machine]
                .into_iter()
                .flatten()
                .max_by_key(|size| size.memory_bytes);
        }
    }
}

/// Whether CPU is billed, apart or as part of the memory (section 2.2).
pub(crate) fn has_cpu(platform: &Platform) -> bool {
    let follows_memory = matches!(platform.sizing, Sizing::Proportional { .. });
    platform.cpu.is_some() || (follows_memory && platform.memory.is_some())
}

fn parts(
    platform: &Platform,
    bill: &Bill,
    total: &Money,
    calls: u64,
    month: Option<Money>,
) -> CostParts {
    let fee = platform.fee.times(u128::from(bill.billed.requests));
    let [unrounded, execution, used] =
        [bill.unrounded, bill.execution, bill.used].map(|amounts| amounts.cost(platform));
    // What has a fixed price is used by nobody in particular: all of it is idle unless memory or CPU has a price.
    let used = match (&platform.memory, &platform.cpu) {
        (None, None) => Money::zero(),
        _ => used.min(execution.clone()),
    };
    let without_fee = total.minus(&fee);
    let parts = [
        fee,
        without_fee.minus(&unrounded),
        unrounded.minus(&execution),
        execution.minus(&used),
        used,
    ];
    let shares = parts.each_ref().map(|part| {
        let share = part.ratio_nano(total).unwrap_or(0);
        narrow((share + 500_000) / 1_000_000)
    });
    let [fee, rounding, cold_start, idle, used] = parts.map(|part| part.decimal(PLACES));
    CostParts {
        total: total.decimal(PLACES),
        per_month: month.map(|month| month.decimal(2)),
        per_million: total.times(1_000_000).over(u128::from(calls)).decimal(2),
        fee,
        rounding,
        cold_start,
        idle,
        used,
        shares_thousandths: shares,
    }
}

fn hundredths(billed: u128, used: u128) -> Option<u64> {
    let ratio = billed.checked_mul(100)?.checked_div(used)?;
    Some(narrow(ratio))
}

fn us(ns: u128) -> u64 {
    narrow(ns / 1000)
}

fn ms(ns: u128) -> u64 {
    narrow(ns / u128::from(MS_NS))
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

const MS_NS: u64 = 1_000_000;
/// Decimal places of amounts.
const PLACES: u32 = 12;

#[cfg(test)]
mod tests;
