//! The columns of a trace, by the names in its header. Known are the request tables of Huawei's 2025 traces, Azure's invocation trace
//! of 2021, and Pilotlight's own records (`pilot cost export`).

use super::parse::{Row, field_count, number};
use crate::bill::{MEMORY_BYTES_MAX, TIME_NS_MAX, Usage};

/// Where the values of a row are, and in which unit.
#[derive(Debug, Clone)]
pub struct Columns {
    /// What is in the column at each place; `None`: nothing that is needed.
    roles: Vec<Option<(Role, &'static str)>>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Huawei2025,
    Azure2021,
    Own,
}

/// What a column says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Begin or end, and the nanoseconds of its unit.
    At(u64),
    /// Execution, and the nanoseconds of its unit.
    Execution(u64),
    /// Initialisation, in nanoseconds of its unit.
    Init(u64),
    /// CPU time in nanoseconds.
    Cpu,
    /// CPUs in use on average.
    CpuUsage,
    /// The pool's name, which says what is allocated.
    Pod,
    /// Allocated memory, MB.
    MemoryMb,
    /// Allocated thousandths of a CPU.
    CpuMilli,
    /// Used memory, and the bytes of its unit.
    MemoryUsed(u64),
    BytesIn,
    BytesOut,
}

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const MB: u64 = 1 << 20;

const HUAWEI: &[(&str, Role)] = &[
    ("time_worker", Role::At(SECOND)),
    ("podID", Role::Pod),
    ("runtimeCost", Role::Execution(SECOND)),
    ("cpu_usage", Role::CpuUsage),
    ("memory_usage", Role::MemoryUsed(MB)),
    ("requestBodySize", Role::BytesIn),
];
const AZURE_2021: &[(&str, Role)] = &[
    ("end_timestamp", Role::At(SECOND)),
    ("duration", Role::Execution(SECOND)),
];
const OWN: &[(&str, Role)] = &[
    ("unix_ms", Role::At(MS)),
    ("memory_mb", Role::MemoryMb),
    ("cpu_milli", Role::CpuMilli),
    ("execution_ns", Role::Execution(1)),
    ("init_ns", Role::Init(1)),
    ("cpu_user_ns", Role::Cpu),
    ("cpu_system_ns", Role::Cpu),
    ("memory_used_bytes", Role::MemoryUsed(1)),
    ("bytes_in", Role::BytesIn),
    ("bytes_out", Role::BytesOut),
];

impl Columns {
    /// The columns of a header.
    ///
    /// # Errors
    /// It is of no known trace; the message says what is known.
    pub fn of(header: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(header).map_err(|_| "the header is not text".to_owned())?;
        let text = text.trim_start_matches('\u{feff}').trim_end();
        let names: Vec<&str> = text.split(',').map(|name| name.trim_matches('"')).collect();
        let kinds = [
            (Kind::Huawei2025, HUAWEI, &["podID", "runtimeCost"][..]),
            (Kind::Azure2021, AZURE_2021, &["end_timestamp", "duration"]),
            (Kind::Own, OWN, &["unix_ms", "execution_ns", "memory_mb"]),
        ];
        let known = kinds
            .iter()
            .find(|(_, _, needed)| needed.iter().all(|name| names.contains(name)));
        let Some((kind, roles, _)) = known else {
            let shown: String = text.chars().take(80).collect();
            return Err(format!(
                "the header '{}' is of no known trace: use Huawei's request tables of 2025 (podID, runtimeCost, cpu_usage, memory_usage), \
                 Azure's invocations of 2021 (end_timestamp, duration), or `pilot cost export` (unix_ms, execution_ns, memory_mb, …)",
                shown.escape_debug()
            ));
        };
        let role = |name: &&str| roles.iter().find(|(known, _)| known == name);
        Ok(Self {
            roles: names
                .iter()
                .map(|name| role(name).map(|(name, role)| (*role, *name)))
                .collect(),
            kind: *kind,
        })
    }

    /// Reads a row.
    pub(super) fn row(&self, row: &[u8]) -> Result<Row, String> {
        let mut read = Row::default();
        let (mut cpu, mut cpu_missing, mut cpu_usage) = (0_u64, false, None);
        let mut execution = None;
        let mut rest = Some(row);
        for role in &self.roles {
            let Some(left) = rest else {
                let (found, wanted) = (field_count(row), self.roles.len());
                return Err(format!("it has {found} fields instead of {wanted}"));
            };
            let (field, after) = match memchr::memchr(b',', left) {
                Some(at) => (left.get(..at).unwrap_or_default(), left.get(at + 1..)),
                None => (left, None),
            };
            rest = after;
            let Some((role, name)) = *role else { continue };
            let value = |unit| {
                number(field, unit).map_err(|problem| {
                    let shown = String::from_utf8_lossy(field.get(..40).unwrap_or(field));
                    format!("{name} = '{}' {problem}", shown.escape_debug())
                })
            };
            match role {
                Role::At(unit) => read.begin_ms = value(unit)?.map(|at| at / MS),
                Role::Execution(unit) => execution = value(unit)?,
                Role::Init(unit) => read.usage.init_ns = value(unit)?.unwrap_or(0),
                Role::Cpu => match value(1)? {
                    Some(part) => cpu = cpu.saturating_add(part),
                    None => cpu_missing = true,
                },
                Role::CpuUsage => cpu_usage = value(1_000_000)?,
                Role::Pod => (read.cpu_milli, read.memory_bytes) = allocation(field)?,
                Role::MemoryMb => read.memory_bytes = value(MB)?,
                Role::CpuMilli => read.cpu_milli = value(1)?,
                Role::MemoryUsed(unit) => read.usage.memory_used = value(unit)?,
                Role::BytesIn => read.bytes_in = value(1)?.unwrap_or(0),
                Role::BytesOut => read.bytes_out = value(1)?.unwrap_or(0),
            }
        }
        if rest.is_some() {
            let (found, wanted) = (field_count(row), self.roles.len());
            return Err(format!("it has {found} fields instead of {wanted}"));
        }
        let execution_ns = match (execution, self.kind) {
            (Some(execution), _) => execution,
            // A record of a function that did not run has no execution.
            (None, Kind::Own) => 0,
            (None, _) => return Err("it has no duration".to_owned()),
        };
        read.usage.execution_ns = execution_ns;
        read.usage.cpu_ns = match self.kind {
            // CPUs in use on average over the execution, in millionths.
            Kind::Huawei2025 => cpu_usage.map(|millionths| {
                let cpu = u128::from(execution_ns) * u128::from(millionths) / 1_000_000;
                u64::try_from(cpu).unwrap_or(u64::MAX)
            }),
            Kind::Own => (!cpu_missing).then_some(cpu),
            Kind::Azure2021 => None,
        };
        if self.kind == Kind::Azure2021 {
            let begin = read
                .begin_ms
                .map(|end| end.saturating_sub(execution_ns / MS));
            read.begin_ms = begin;
        }
        bounded(&read)?;
        Ok(read)
    }
}

/// Refuses what cannot be, and probably is in another unit.
fn bounded(row: &Row) -> Result<(), String> {
    let Usage {
        execution_ns,
        init_ns,
        cpu_ns,
        memory_used,
    } = row.usage;
    for (name, value, most) in [
        ("the duration", Some(execution_ns), TIME_NS_MAX),
        ("the initialisation", Some(init_ns), TIME_NS_MAX),
        ("the CPU time", cpu_ns, TIME_NS_MAX),
        ("the used memory", memory_used, MEMORY_BYTES_MAX),
        ("the allocated memory", row.memory_bytes, MEMORY_BYTES_MAX),
        ("the allocated CPU", row.cpu_milli, 1 << 24),
    ] {
        if value.is_some_and(|value| value > most) {
            return Err(format!("{name} is too large: is it in another unit?"));
        }
    }
    Ok(())
}

/// `pool22-300-128-0000618412`: thousandths of a CPU, and MB of memory.
fn allocation(pod: &[u8]) -> Result<(Option<u64>, Option<u64>), String> {
    let wrong = || {
        let shown = String::from_utf8_lossy(pod.get(..40).unwrap_or(pod));
        format!(
            "podID = '{}' is not like pool22-300-128-0000618412",
            shown.escape_debug()
        )
    };
    let mut parts = pod.split(|byte| *byte == b'-').skip(1);
    let mut part = || parts.next().and_then(|part| number(part, 1).ok().flatten());
    match (part(), part()) {
        (Some(cpu_milli @ 1..), Some(memory_mb @ 1..)) => {
            Ok((Some(cpu_milli), memory_mb.checked_mul(MB)))
        }
        _ => Err(wrong()),
    }
}
