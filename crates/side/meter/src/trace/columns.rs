//! The columns of a trace, by the names in its header. Known are the request tables of Huawei's 2025 traces, Azure's durations of 2019 and
//! invocations of 2021, and Pilotlight's own records (`pilot cost export`); and beside request tables, Huawei's tables of cold starts.

use std::hash::{BuildHasher as _, RandomState};

use super::parse::{Row, field_count, fields, first_field, number, unquoted};
use crate::bill::{MEMORY_BYTES_MAX, TIME_NS_MAX, Usage};

/// Where the values of a row are, and in which unit.
#[derive(Debug, Clone)]
pub struct Columns {
    /// What is in the column at each place; `None`: nothing that is needed.
    roles: Vec<Option<(Role, &'static str)>>,
    kind: Kind,
    /// Hashes the names of workers. `None`: they do not matter.
    workers: Option<RandomState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Huawei2025,
    HuaweiStarts,
    Azure2019,
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
    /// The pool's name, which says what is allocated, with the number of the worker.
    Pod,
    /// The worker's name.
    Worker,
    /// The same as [`Role::At`], on a clock that nobody sets, milliseconds.
    Elapsed,
    /// Whether it waited for the start of a worker.
    Start,
    /// What counts where no memory use was measured, bytes.
    MemoryBefore,
    /// Allocated memory, MB.
    MemoryMb,
    /// Allocated thousandths of a CPU.
    CpuMilli,
    /// Used memory, and the bytes of its unit.
    MemoryUsed(u64),
    BytesIn,
    BytesOut,
    /// Requests of the row.
    Count,
    /// A percentile of the durations, milliseconds: its place in [`PERCENTILES`].
    Percentile(usize),
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
const HUAWEI_STARTS: &[(&str, Role)] = &[
    ("podID", Role::Pod),
    ("totalCost_cold_start", Role::Init(SECOND)),
];
/// The percentiles of the durations, and their columns.
const PERCENTILES: [u64; 7] = [0, 1, 25, 50, 75, 99, 100];
const AZURE_2019: &[(&str, Role)] = &[
    ("Count", Role::Count),
    ("percentile_Average_0", Role::Percentile(0)),
    ("percentile_Average_1", Role::Percentile(1)),
    ("percentile_Average_25", Role::Percentile(2)),
    ("percentile_Average_50", Role::Percentile(3)),
    ("percentile_Average_75", Role::Percentile(4)),
    ("percentile_Average_99", Role::Percentile(5)),
    ("percentile_Average_100", Role::Percentile(6)),
];
/// A row with fewer percentiles says too little.
const AZURE_2019_NEEDED: &[&str] = &[
    "Count",
    "percentile_Average_0",
    "percentile_Average_1",
    "percentile_Average_25",
    "percentile_Average_50",
    "percentile_Average_75",
    "percentile_Average_99",
    "percentile_Average_100",
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
    ("worker", Role::Worker),
    ("start", Role::Start),
    ("elapsed_ms", Role::Elapsed),
    ("memory_before_bytes", Role::MemoryBefore),
];

impl Columns {
    /// The columns of a header.
    ///
    /// # Errors
    /// It is of no known trace; the message says what is known.
    pub fn of(header: &[u8]) -> Result<Self, String> {
        let (text, names) = names_of(header)?;
        let kinds = [
            (Kind::Huawei2025, HUAWEI, &["podID", "runtimeCost"][..]),
            (Kind::Azure2019, AZURE_2019, AZURE_2019_NEEDED),
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
                 Azure's durations of 2019 (Count, percentile_Average_0, …) or its invocations of 2021 (end_timestamp, duration), or `pilot cost export` (unix_ms, execution_ns, memory_mb, …)",
                shown.escape_debug()
            ));
        };
        Self::with(*kind, roles, &names)
    }

    /// The columns of a table of cold starts.
    ///
    /// # Errors
    /// It is none; the message says what is known.
    pub(super) fn of_starts(header: &[u8]) -> Result<Self, String> {
        let (text, names) = names_of(header)?;
        let is_there = |(name, _): &(&str, Role)| names.contains(name);
        if !HUAWEI_STARTS.iter().all(is_there) {
            let shown: String = text.chars().take(80).collect();
            return Err(format!(
                "the header '{}' is of no table of cold starts: use Huawei's of 2025 (podID, totalCost_cold_start)",
                shown.escape_debug()
            ));
        }
        Self::with(Kind::HuaweiStarts, HUAWEI_STARTS, &names)
    }

    fn with(kind: Kind, roles: &[(&'static str, Role)], names: &[&str]) -> Result<Self, String> {
        let role = |name: &&str| roles.iter().find(|(known, _)| known == name);
        for (name, _) in roles {
            if names.iter().filter(|found| *found == name).count() > 1 {
                return Err(format!("it has several columns {name}"));
            }
        }
        Ok(Self {
            roles: names
                .iter()
                .map(|name| role(name).map(|(name, role)| (*role, *name)))
                .collect(),
            kind,
            workers: None,
        })
    }

    /// Rows have a hash of their worker's name from here on.
    pub(super) fn with_workers(self, hasher: RandomState) -> Self {
        Self {
            workers: Some(hasher),
            ..self
        }
    }

    /// Whether the rows say which worker served them, and how long its start took.
    pub(super) fn has_starts(&self) -> bool {
        self.kind == Kind::Own && self.names_workers()
    }

    /// Whether the rows say which worker served them.
    pub(super) fn names_workers(&self) -> bool {
        let is_worker =
            |role: &Option<(Role, &str)>| matches!(role, Some((Role::Pod | Role::Worker, _)));
        self.roles.iter().any(is_worker)
    }

    /// Those of some names that are read of a trace that has them all. If it is no known trace, those that some trace has.
    #[must_use]
    pub fn read_of<'a>(names: &[&'a str]) -> Vec<&'a str> {
        let header = names.join(",");
        let known = [
            Self::of(header.as_bytes()),
            Self::of_starts(header.as_bytes()),
        ];
        let mut of_known = known.iter().flatten().peekable();
        let any = [HUAWEI, HUAWEI_STARTS, AZURE_2019, AZURE_2021, OWN];
        let read: Vec<&str> = match of_known.peek() {
            Some(_) => of_known
                .flat_map(|columns| columns.roles.iter().flatten().map(|(_, name)| *name))
                .collect(),
            None => any
                .iter()
                .copied()
                .flatten()
                .map(|(name, _)| *name)
                .collect(),
        };
        let is_read = |name: &&&str| read.contains(name);
        names.iter().filter(is_read).copied().collect()
    }

    /// The nanoseconds of the unit of a column with dates. `None`: it has none.
    #[must_use]
    pub fn unit_of_dates(name: &str) -> Option<u64> {
        let all = [HUAWEI, AZURE_2021, OWN];
        let mut roles = all.iter().copied().flatten();
        let (_, role) = roles.find(|(known, _)| *known == name)?;
        match role {
            Role::At(unit) => Some(*unit),
            _ => None,
        }
    }

    /// Reads a row.
    pub(super) fn row(&self, row: &[u8]) -> Result<Row, String> {
        let mut read = Row::default();
        // The CPU time is known if both of its parts are.
        let (mut cpu, mut cpu_parts, mut cpu_usage) = (0_u64, 0, None);
        let (mut execution, mut init) = (None, None);
        let (mut count, mut percentiles) = (None, [0; PERCENTILES.len()]);
        let mut rest = Some(row);
        for role in &self.roles {
            let Some(left) = rest else {
                let (found, wanted) = (field_count(row), self.roles.len());
                return Err(format!("it has {found} fields instead of {wanted}"));
            };
            let (field, after) = first_field(left);
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
                Role::Init(unit) => init = value(unit)?,
                Role::Cpu => {
                    if let Some(part) = value(1)? {
                        cpu = cpu.saturating_add(part);
                        cpu_parts += 1;
                    }
                }
                Role::CpuUsage => cpu_usage = value(1_000_000)?,
                Role::Pod => {
                    (read.cpu_milli, read.memory_bytes) = allocation(field)?;
                    read.worker = self.worker(field);
                }
                Role::Worker => read.worker = self.worker(field),
                Role::Elapsed => read.elapsed_ms = value(1)?,
                Role::Start => read.waited = waited(field, name)?,
                Role::MemoryBefore => read.memory_before = value(1)?,
                Role::MemoryMb => read.memory_bytes = value(MB)?,
                Role::CpuMilli => read.cpu_milli = value(1)?,
                Role::MemoryUsed(unit) => read.usage.memory_used = value(unit)?,
                Role::BytesIn => read.bytes_in = value(1)?.unwrap_or(0),
                Role::BytesOut => read.bytes_out = value(1)?.unwrap_or(0),
                Role::Count => count = value(1)?,
                Role::Percentile(at) => {
                    let missing = || format!("{name} is empty");
                    let duration = value(MS)?.ok_or_else(missing)?;
                    if let Some(percentile) = percentiles.get_mut(at) {
                        *percentile = duration;
                    }
                }
            }
        }
        if rest.is_some() {
            let (found, wanted) = (field_count(row), self.roles.len());
            return Err(format!("it has {found} fields instead of {wanted}"));
        }
        if self.kind == Kind::Azure2019 {
            read.bands = Some(bands(count.ok_or("Count is empty")?, percentiles)?);
            return Ok(read);
        }
        read.usage.init_ns = match (init, self.kind) {
            (None, Kind::HuaweiStarts) => return Err("it has no duration".to_owned()),
            (init, _) => init.unwrap_or(0),
        };
        let execution_ns = match (execution, self.kind) {
            (Some(execution), _) => execution,
            (None, Kind::HuaweiStarts) => 0,
            (None, Kind::Own) => {
                read.did_not_run = true;
                0
            }
            (None, _) => return Err("it has no duration".to_owned()),
        };
        read.usage.execution_ns = execution_ns;
        let cpu = (cpu_parts == 2).then_some(cpu);
        if cpu_usage.is_some_and(|millionths| millionths > CPU_MILLI_MAX * 1000) {
            return Err("the CPU usage is too large: is it in another unit?".to_owned());
        }
        read.usage.cpu_ns = self.cpu_ns(execution_ns, cpu_usage, cpu);
        if self.kind == Kind::Azure2021 {
            let begin = read
                .begin_ms
                .map(|end| end.saturating_sub(execution_ns / MS));
            read.begin_ms = begin;
        }
        bounded(&read)?;
        Ok(read)
    }

    /// The CPU time of a request: of its average use, in millionths of a CPU, or as the row has it.
    fn cpu_ns(&self, execution_ns: u64, usage: Option<u64>, cpu: Option<u64>) -> Option<u64> {
        match self.kind {
            Kind::Huawei2025 => usage.map(|millionths| {
                let cpu = u128::from(execution_ns) * u128::from(millionths) / 1_000_000;
                u64::try_from(cpu).unwrap_or(u64::MAX)
            }),
            Kind::Own => cpu,
            Kind::HuaweiStarts | Kind::Azure2019 | Kind::Azure2021 => None,
        }
    }

    /// A hash of a worker's name. `None`: it has none, or nobody asks.
    fn worker(&self, name: &[u8]) -> Option<u64> {
        let name = unquoted(name);
        let hasher = self.workers.as_ref().filter(|_| !name.is_empty())?;
        Some(hasher.hash_one(name))
    }
}

/// Whether a request waited for the start of a worker. `None`: the row does not say it.
fn waited(field: &[u8], name: &str) -> Result<Option<bool>, String> {
    match unquoted(field) {
        b"" => Ok(None),
        b"warm" => Ok(Some(false)),
        b"cold" => Ok(Some(true)),
        _ => {
            let shown = String::from_utf8_lossy(field.get(..40).unwrap_or(field));
            let shown = shown.escape_debug();
            Err(format!("{name} = '{shown}' is neither cold nor warm"))
        }
    }
}

/// A header as text, and its names.
fn names_of(header: &[u8]) -> Result<(&str, Vec<&str>), String> {
    if let Some((_, kind)) = FORMS.iter().find(|(magic, _)| header.starts_with(magic)) {
        return Err(format!(
            "it is {kind}: use CSV, CSV compressed with gzip, or a Parquet file with a name"
        ));
    }
    let text = std::str::from_utf8(header).map_err(|_| "the header is not text".to_owned())?;
    let text = text.trim_start_matches('\u{feff}').trim_end();
    let names = fields(text.as_bytes()).map(|name| {
        // The commas and quotes at which it is cut are characters of their own.
        std::str::from_utf8(unquoted(name)).unwrap_or_default()
    });
    Ok((text, names.collect()))
}

/// The requests between two percentiles take the mean of both.
fn bands(count: u64, percentiles: [u64; 7]) -> Result<[(u64, u64); 6], String> {
    const COUNT_MAX: u64 = 1 << 40;
    if count > COUNT_MAX || percentiles.iter().any(|ns| *ns > TIME_NS_MAX) {
        return Err("a count or duration is too large: is it in another unit?".to_owned());
    }
    if !percentiles.is_sorted() {
        return Err("its percentiles do not rise".to_owned());
    }
    let mut bands = [(0, 0); 6];
    let steps = PERCENTILES.windows(2).zip(percentiles.windows(2));
    for (band, (share, duration)) in bands.iter_mut().zip(steps) {
        if let ([from, to], [least, most]) = (share, duration) {
            *band = (
                count * to / 100 - count * from / 100,
                least + (most - least) / 2,
            );
        }
    }
    Ok(bands)
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
        ("the memory before", row.memory_before, MEMORY_BYTES_MAX),
        ("the allocated memory", row.memory_bytes, MEMORY_BYTES_MAX),
        ("the allocated CPU", row.cpu_milli, CPU_MILLI_MAX),
    ] {
        if value.is_some_and(|value| value > most) {
            return Err(format!("{name} is too large: is it in another unit?"));
        }
    }
    Ok(())
}

/// What other files begin with. A Parquet file is here if it came through a pipe.
const FORMS: [(&[u8], &str); 6] = [
    (b"PAR1", "Parquet through a pipe"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"PK\x03\x04", "an archive (zip)"),
    (b"ARROW1", "an Arrow file"),
];
/// Most vCPU of a request.
const CPU_MILLI_MAX: u64 = 1 << 24;

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
