//! A platform's billing model: a row of Table 1 of the paper. What is billed for how long, in which steps, at which price, and in
//! which sizes it can be had. Checked: see `table` for the text form.

use crate::money::Money;

/// A billing model.
#[derive(Debug, Clone)]
pub struct Platform {
    /// Its key in the table.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// T of Equation (1).
    pub time: BillableTime,
    /// G_T: T is rounded up to a multiple of it, nanoseconds; at least 1.
    pub step_ns: u64,
    /// T counts at least so much, nanoseconds.
    pub min_ns: u64,
    /// Memory, if it has a price.
    pub memory: Option<Resource>,
    /// CPU, if it has a price.
    pub cpu: Option<Resource>,
    /// The price of the whole machine or instance, whatever its size, per nanosecond.
    pub fixed: Money,
    /// C_0, per request.
    pub fee: Money,
    /// The sizes that it offers.
    pub sizing: Sizing,
    /// Where the figures come from.
    pub source: String,
    /// When they were read there, `2025-05-15`.
    pub as_of: String,
}

/// What counts as billable wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BillableTime {
    /// The execution of each request.
    Execution,
    /// The execution of each request, and the initialisation before it.
    Turnaround,
    /// The consumed CPU time of each request.
    Cpu,
    /// The life of each instance.
    Instance,
    /// All the time from the first request to the last: one machine that always runs.
    Machine,
}

impl BillableTime {
    /// The word in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Execution => "execution",
            Self::Turnaround => "turnaround",
            Self::Cpu => "cpu",
            Self::Instance => "instance",
            Self::Machine => "machine",
        }
    }
}

/// A billable resource. Memory is counted in bytes, CPU in thousandths of a vCPU.
#[derive(Debug, Clone)]
pub struct Resource {
    /// Whether the amount that was used counts instead of the allocation.
    pub basis: Basis,
    /// G_r: the amount is rounded up to a multiple of it; at least 1.
    pub step: u64,
    /// C_r: dollars per unit and nanosecond.
    pub price: Money,
}

/// Which amount of a resource is billed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The allocation.
    #[default]
    Allocated,
    /// The consumption.
    Used,
}

/// The sizes that a platform offers: its control knobs and their steps.
#[derive(Debug, Clone)]
pub enum Sizing {
    /// Memory is chosen, and CPU follows it.
    Proportional {
        /// The memory sizes, bytes.
        memory: Knob,
        /// Memory of a whole vCPU, bytes.
        bytes_per_vcpu: u64,
    },
    /// Memory and CPU are chosen apart.
    Separate {
        /// The memory sizes, bytes.
        memory: Knob,
        /// The CPU sizes, thousandths of a vCPU.
        cpu: Knob,
        /// Which of them go together.
        ties: Ties,
    },
    /// There is a list of sizes, smallest first.
    Listed(Vec<Size>),
}

/// A setting with steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knob {
    /// Least.
    pub min: u64,
    /// Most.
    pub max: u64,
    /// Multiples of it; at least 1.
    pub step: u64,
    /// Above the first, multiples of the second.
    pub above: Option<(u64, u64)>,
}

impl Knob {
    /// The smallest setting of at least `need`; `None` if there is none.
    fn at_least(self, need: u64) -> Option<u64> {
        let mut setting = round_up(need.max(self.min), self.step);
        if let Some((_, step)) = self.above.filter(|(above, _)| setting > *above) {
            setting = round_up(setting, step);
        }
        (setting <= self.max).then_some(setting)
    }
}

/// What the one resource of a size says about the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ties {
    /// Least and most memory per vCPU, bytes.
    pub bytes_per_vcpu: Option<(u64, u64)>,
    /// From this many bytes on, at least this many thousandths of a vCPU. Both rise.
    pub cpu_from_memory: Vec<(u64, u64)>,
    /// From this many thousandths of a vCPU on, at least this many bytes. Both rise.
    pub memory_from_cpu: Vec<(u64, u64)>,
}

impl Ties {
    fn cpu_of(&self, memory_bytes: u64) -> u64 {
        let most = self.bytes_per_vcpu.map(|(_, most)| most);
        let of_ratio = most.map_or(0, |most| times_over(memory_bytes, 1000, most));
        of_ratio.max(least_from(&self.cpu_from_memory, memory_bytes))
    }

    fn memory_of(&self, cpu_milli: u64) -> u64 {
        let least = self.bytes_per_vcpu.map_or(0, |(least, _)| least);
        let of_ratio = times_over(cpu_milli, least, 1000);
        of_ratio.max(least_from(&self.memory_from_cpu, cpu_milli))
    }
}

fn least_from(steps: &[(u64, u64)], amount: u64) -> u64 {
    let reached = steps.iter().take_while(|(from, _)| *from <= amount);
    reached.last().map_or(0, |(_, least)| *least)
}

/// What a function has on a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Size {
    /// Thousandths of a vCPU.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
}

/// How a size is chosen where CPU follows memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Match {
    /// By the memory alone, as a function is moved to another platform in practice.
    #[default]
    Memory,
    /// With at least the CPU that it has, too: what the paper does with traces (section 2.3).
    MemoryAndCpu,
}

impl Platform {
    /// The smallest size that has what a function needs; `None`: the platform has none so large.
    #[must_use]
    pub fn size(&self, need: Size, matched: Match) -> Option<Size> {
        let cpu_counts = matched == Match::MemoryAndCpu || self.cpu.is_some();
        let cpu_needed = if cpu_counts { need.cpu_milli } else { 0 };
        match &self.sizing {
            Sizing::Listed(sizes) => sizes.iter().copied().find(|size| {
                size.memory_bytes >= need.memory_bytes && size.cpu_milli >= cpu_needed
            }),
            Sizing::Proportional {
                memory,
                bytes_per_vcpu,
            } => {
                let for_cpu = times_over(cpu_needed, *bytes_per_vcpu, 1000);
                let memory_bytes = memory.at_least(need.memory_bytes.max(for_cpu))?;
                Some(Size {
                    cpu_milli: times_over(memory_bytes, 1000, *bytes_per_vcpu),
                    memory_bytes,
                })
            }
            Sizing::Separate { memory, cpu, ties } => {
                let mut memory_bytes = memory.at_least(need.memory_bytes)?;
                let mut cpu_milli = cpu.at_least(cpu_needed)?;
                // Each makes the other larger, and is rounded up itself, until both fit.
                for _ in 0..ROUNDS_MAX {
                    let with_cpu = cpu.at_least(cpu_milli.max(ties.cpu_of(memory_bytes)))?;
                    let with_memory =
                        memory.at_least(memory_bytes.max(ties.memory_of(with_cpu)))?;
                    if (with_cpu, with_memory) == (cpu_milli, memory_bytes) {
                        return Some(Size {
                            cpu_milli,
                            memory_bytes,
                        });
                    }
                    (cpu_milli, memory_bytes) = (with_cpu, with_memory);
                }
                None
            }
        }
    }

    /// What a size costs per second, without the fee.
    #[must_use]
    pub fn rate(&self, size: Size) -> Money {
        const SECOND: u128 = 1_000_000_000;
        let memory = self.memory.as_ref().map(|resource| {
            let bytes = round_up(size.memory_bytes, resource.step);
            resource.price.times(u128::from(bytes) * SECOND)
        });
        let cpu = self.cpu.as_ref().map(|resource| {
            let milli = round_up(size.cpu_milli, resource.step);
            resource.price.times(u128::from(milli) * SECOND)
        });
        let fixed = self.fixed.times(SECOND);
        [memory, cpu, Some(fixed)].iter().flatten().sum()
    }

    /// What a month of 730 hours of an instance costs.
    #[must_use]
    pub fn month(&self, size: Size) -> Money {
        self.bill_instance(size, 730 * 3600 * 1_000_000_000)
            .billed
            .cost(self)
    }

    /// The time of a size that costs as much as the fee of one request (section 2.5), nanoseconds. `None`: a size without price.
    #[cfg(test)]
    pub(crate) fn fee_equivalent_ns(&self, size: Size) -> Option<u128> {
        self.fee.ratio_nano(&self.rate(size))
    }
}

/// A table in which no memory goes with any CPU is not searched to its end.
const ROUNDS_MAX: usize = 100;

/// `amount` rounded up to a multiple of `step`.
#[must_use]
pub(crate) fn round_up(amount: u64, step: u64) -> u64 {
    match step {
        0 | 1 => amount,
        step => amount.div_ceil(step).saturating_mul(step),
    }
}

/// `amount * factor / divisor`, rounded up.
fn times_over(amount: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(amount) * u128::from(factor);
    u64::try_from(product.div_ceil(u128::from(divisor.max(1)))).unwrap_or(u64::MAX)
}
