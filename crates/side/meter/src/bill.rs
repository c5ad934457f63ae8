//! Equation (1) of the paper, once. Its sums are kept as whole numbers of bytes, thousandths of a vCPU and nanoseconds, so a bill of
//! many requests is exactly the sum of their bills. They become money at the end.

use std::ops::AddAssign;

use crate::money::Money;
use crate::platform::{Basis, BillableTime, Platform, Resource, Size, round_up};

/// What one request used: the arguments of Equation (1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The execution, nanoseconds of wall-clock time.
    pub execution_ns: u64,
    /// The initialisation that it waited for, nanoseconds; 0 if it was warm.
    pub init_ns: u64,
    /// Its CPU time, nanoseconds. `None`: not known.
    pub cpu_ns: Option<u64>,
    /// The memory that was really used, bytes. `None`: not known; then it counts as much as was allocated.
    pub memory_used: Option<u64>,
}

/// Largest time of a record, about 104 days in nanoseconds. Sums of such records fit.
pub const TIME_NS_MAX: u64 = 1 << 53;
/// Largest memory of a record, 16 TiB.
pub const MEMORY_BYTES_MAX: u64 = 1 << 44;

/// Billable amounts. They add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Byte-nanoseconds.
    pub memory: u128,
    /// Nanoseconds of a thousandth of a vCPU.
    pub cpu: u128,
    /// Nanoseconds of what has a fixed price.
    pub fixed: u128,
    /// Requests.
    pub requests: u64,
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Self) {
        self.memory = self.memory.saturating_add(other.memory);
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.fixed = self.fixed.saturating_add(other.fixed);
        self.requests = self.requests.saturating_add(other.requests);
    }
}

impl Amounts {
    /// What they cost on a platform: the last step of Equation (1).
    #[must_use]
    pub fn cost(&self, platform: &Platform) -> Money {
        let price = |resource: &Option<Resource>, amount| {
            let price = resource.as_ref().map(|resource| &resource.price);
            price.map_or_else(Money::zero, |price| price.times(amount))
        };
        [
            price(&platform.memory, self.memory),
            price(&platform.cpu, self.cpu),
            platform.fixed.times(self.fixed),
            platform.fee.times(u128::from(self.requests)),
        ]
        .iter()
        .sum()
    }
}

/// A bill, and the bills that it would be without each of the reasons that make it larger. Each resource of each is at least that of
/// the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bill {
    /// What is billed. Only this has the requests, for the fee.
    pub billed: Amounts,
    /// The same without rounding and without least amounts.
    pub unrounded: Amounts,
    /// The same without initialisation.
    pub execution: Amounts,
    /// What was used.
    pub used: Amounts,
}

impl Bill {
    /// The bill of this many requests of this kind.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        let times = |amounts: Amounts| Amounts {
            memory: amounts.memory.saturating_mul(u128::from(count)),
            cpu: amounts.cpu.saturating_mul(u128::from(count)),
            fixed: amounts.fixed.saturating_mul(u128::from(count)),
            requests: amounts.requests.saturating_mul(count),
        };
        Self {
            billed: times(self.billed),
            unrounded: times(self.unrounded),
            execution: times(self.execution),
            used: times(self.used),
        }
    }
}

impl AddAssign for Bill {
    fn add_assign(&mut self, other: Self) {
        self.billed += other.billed;
        self.unrounded += other.unrounded;
        self.execution += other.execution;
        self.used += other.used;
    }
}

impl Platform {
    /// The bill of one request in this size. `None`: the platform bills something that is not known of the request, or does not bill
    /// requests.
    #[must_use]
    pub fn bill(&self, size: Size, usage: &Usage) -> Option<Bill> {
        let (time, execution, size) = match self.time {
            BillableTime::Execution => (usage.execution_ns, usage.execution_ns, size),
            BillableTime::Turnaround => {
                let time = usage.execution_ns.saturating_add(usage.init_ns);
                (time, usage.execution_ns, size)
            }
            // A second of CPU time is a second of a whole vCPU.
            BillableTime::Cpu => {
                let cpu_milli = 1000;
                let whole = Size { cpu_milli, ..size };
                (usage.cpu_ns?, usage.cpu_ns?, whole)
            }
            BillableTime::Instance | BillableTime::Machine => return None,
        };
        let mut bill = self.for_time(size, time, execution, usage.memory_used);
        if self.bills_used_cpu() {
            // The amount is a time already, so no granularity makes it larger, and idle time is no part of it.
            let consumed = u128::from(usage.cpu_ns?) * 1000;
            bill.billed.cpu = consumed;
            bill.unrounded.cpu = consumed;
            bill.execution.cpu = consumed;
        }
        bill.billed.requests = 1;
        let cpu_used = u128::from(usage.cpu_ns.unwrap_or(0)) * 1000;
        bill.used.cpu = cpu_used.min(bill.execution.cpu);
        Some(bill)
    }

    /// The bill of one instance, or of the machine, that was there for this long, nanoseconds. What was used of it is not part of it.
    #[must_use]
    pub fn bill_instance(&self, size: Size, time_ns: u64) -> Bill {
        let mut bill = self.for_time(size, time_ns, time_ns, None);
        bill.used = Amounts::default();
        bill
    }

    fn bills_used_cpu(&self) -> bool {
        let cpu = self.cpu.as_ref();
        cpu.is_some_and(|cpu| cpu.basis == Basis::Used) && self.time != BillableTime::Cpu
    }

    fn for_time(&self, size: Size, time: u64, execution: u64, memory_used: Option<u64>) -> Bill {
        let billed_time = round_up(time, self.step_ns).max(self.min_ns);
        let (memory_basis, memory_step) = parts(self.memory.as_ref());
        let (_, cpu_step) = parts(self.cpu.as_ref());
        let used = memory_used.unwrap_or(size.memory_bytes);
        let used = used.min(size.memory_bytes);
        let memory = match memory_basis {
            Basis::Allocated => size.memory_bytes,
            Basis::Used => used,
        };
        let amounts = |memory: u64, cpu_milli: u64, time: u64| Amounts {
            memory: u128::from(memory) * u128::from(time),
            cpu: u128::from(cpu_milli) * u128::from(time),
            fixed: u128::from(time),
            requests: 0,
        };
        let memory_billed = round_up(memory, memory_step);
        let cpu_billed = round_up(size.cpu_milli, cpu_step);
        let mut used_amounts = amounts(used, size.cpu_milli, execution);
        used_amounts.cpu = 0;
        Bill {
            billed: amounts(memory_billed, cpu_billed, billed_time),
            unrounded: amounts(memory, size.cpu_milli, time),
            execution: amounts(memory, size.cpu_milli, execution),
            used: used_amounts,
        }
    }
}

fn parts(resource: Option<&Resource>) -> (Basis, u64) {
    resource.map_or((Basis::Allocated, 1), |resource| {
        (resource.basis, resource.step)
    })
}
