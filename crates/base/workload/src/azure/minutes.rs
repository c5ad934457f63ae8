//! Azure 2019: invocations per minute. Other files contain percentiles of execution time per function and of memory per app.
//!
//! The n invocations of a minute are n independent points, as in a Poisson process that is known to have n events. They are drawn
//! in order, each from the rest of the minute after the previous one, so none is stored.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csv::StringRecord;

use super::choice::{Candidate, TraceConfig, Window, choose};
use super::table::{Csv, data_error, scaled};
use crate::error::WorkloadError;
use crate::function::WorkloadFunction;
use crate::random::{Purpose, Random};
use crate::service::ServiceTimes;

/// The counts of the chosen functions and minutes.
#[derive(Debug, Clone)]
pub(crate) struct MinuteTrace {
    counts: Vec<Vec<u32>>,
    scale: f64,
}

struct Row {
    name: String,
    app: String,
    counts: Vec<u32>,
}

impl Candidate for Row {
    fn name(&self) -> &str {
        &self.name
    }

    fn invocations(&self) -> u64 {
        self.counts.iter().copied().map(u64::from).sum()
    }
}

/// Reads the three files.
pub(super) fn read(
    config: &TraceConfig,
) -> Result<(MinuteTrace, Vec<WorkloadFunction>, Duration), WorkloadError> {
    let rows = choose(
        invocations(&config.path, config.window)?,
        &config.chosen,
        &config.path,
    )?;
    let beside = |given: &Option<PathBuf>, kind| match given {
        Some(path) => Some(path.clone()),
        None => sibling(&config.path, kind).filter(|path| path.exists()),
    };
    let mut durations = match beside(&config.durations, Kind::Durations) {
        Some(path) => durations(&path, &rows)?,
        None => HashMap::new(),
    };
    let memory = match beside(&config.memory, Kind::Memory) {
        Some(path) => memory(&path, &rows)?,
        None => HashMap::new(),
    };
    let functions = rows
        .iter()
        .map(|row| WorkloadFunction {
            name: row.name.clone(),
            service: Some(
                durations
                    .remove(&row.name)
                    .unwrap_or_else(|| ServiceTimes::constant(SERVICE_FALLBACK)),
            ),
            memory_bytes: Some(
                memory
                    .get(&row.app)
                    .copied()
                    .unwrap_or(MEMORY_FALLBACK_BYTES),
            ),
            expected: row.invocations() as f64,
        })
        .collect();
    let minutes = rows.first().map_or(0, |row| row.counts.len());
    let trace = MinuteTrace {
        counts: rows.into_iter().map(|row| row.counts).collect(),
        scale: config.scale,
    };
    Ok((
        trace,
        functions,
        scaled(minutes as f64 * 60.0, config.scale),
    ))
}

fn invocations(path: &Path, window: Window) -> Result<Vec<Row>, WorkloadError> {
    let mut csv = Csv::open(path)?;
    let (function, app) = (csv.column("HashFunction")?, csv.column("HashApp")?);
    let mut minutes: Vec<(u32, usize)> = (0..)
        .zip(csv.header.iter())
        .filter_map(|(column, name)| Some((minute(name)?, column)))
        .collect();
    if minutes.is_empty() {
        let problem = "has no columns of minutes: 1, 1_minute or minute_1 and so on";
        return Err(data_error(path, Some(1), problem));
    }
    minutes.sort_unstable();
    let last = minutes.last().map_or(0, |(minute, _)| *minute);
    let from = window.start_minute;
    let end = window
        .minutes
        .map_or(last, |minutes| from.saturating_add(minutes));
    if from >= last || end > last {
        let problem =
            format!("has {last} minutes, but start_minute and minutes ask for {from} to {end}");
        return Err(data_error(path, None, problem));
    }
    minutes.retain(|(minute, _)| (from + 1..=end).contains(minute));
    let mut rows = Vec::new();
    let mut record = StringRecord::new();
    while csv.read(&mut record)? {
        let mut counts = Vec::with_capacity(minutes.len());
        for (minute, column) in &minutes {
            let cell = record.get(*column).unwrap_or_default().trim();
            let count = cell.parse().map_err(|_| {
                csv.wrong(
                    &record,
                    format!("minute {minute} is '{cell}', not a number of invocations"),
                )
            })?;
            counts.push(count);
        }
        rows.push(Row {
            name: record.get(function).unwrap_or_default().to_owned(),
            app: record.get(app).unwrap_or_default().to_owned(),
            counts,
        });
    }
    Ok(rows)
}

/// The number of a minute's column, from 1. The publications of the data spell it differently.
fn minute(column: &str) -> Option<u32> {
    let number = column
        .strip_prefix("minute_")
        .or_else(|| column.strip_suffix("_minute"))
        .unwrap_or(column);
    number.parse().ok().filter(|minute| *minute > 0)
}

/// Execution times of these functions, by name. Milliseconds in the file.
fn durations(path: &Path, rows: &[Row]) -> Result<HashMap<String, ServiceTimes>, WorkloadError> {
    let mut csv = Csv::open(path)?;
    let function = csv.column("HashFunction")?;
    let percentiles = percentile_columns(&csv, "percentile_Average_");
    let mut found = HashMap::new();
    let mut record = StringRecord::new();
    while csv.read(&mut record)? {
        let name = record.get(function).unwrap_or_default();
        if !rows.iter().any(|row| row.name == name) {
            continue;
        }
        let mut points = Vec::with_capacity(percentiles.len());
        for (probability, column) in &percentiles {
            points.push((*probability, csv.number(&record, *column)?.max(0.0) / 1e3));
        }
        let times = ServiceTimes::from_percentiles(&points).ok_or_else(|| {
            csv.wrong(
                &record,
                "percentile_Average_0 to percentile_Average_100 are not all there",
            )
        })?;
        found.insert(name.to_owned(), times);
    }
    Ok(found)
}

/// (probability, column), in rising order.
fn percentile_columns(csv: &Csv, prefix: &str) -> Vec<(f64, usize)> {
    let mut columns: Vec<(f64, usize)> = (0..)
        .zip(csv.header.iter())
        .filter_map(|(column, name)| {
            let percent: f64 = name.strip_prefix(prefix)?.parse().ok()?;
            Some((percent / 100.0, column))
        })
        .collect();
    columns.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    columns
}

/// The median of the allocated memory of these rows' apps, bytes. Megabytes in the file.
fn memory(path: &Path, rows: &[Row]) -> Result<HashMap<String, u64>, WorkloadError> {
    let mut csv = Csv::open(path)?;
    let app = csv.column("HashApp")?;
    let median = csv
        .column("AverageAllocatedMb_pct50")
        .or_else(|_| csv.column("AverageAllocatedMb"))?;
    let mut found = HashMap::new();
    let mut record = StringRecord::new();
    while csv.read(&mut record)? {
        let name = record.get(app).unwrap_or_default();
        if rows.iter().any(|row| row.app == name) {
            let bytes = Duration::try_from_secs_f64(csv.number(&record, median)?.max(0.0))
                .map_or(0, |megabytes| megabytes.as_secs() << 20);
            found.insert(name.to_owned(), bytes);
        }
    }
    Ok(found)
}

#[derive(Clone, Copy)]
enum Kind {
    Durations,
    Memory,
}

/// The file of another kind that belongs to a file of invocations. `100_inv.csv` has `100_run.csv` and `100_mem.csv`; Microsoft's
/// own names are mapped, too.
fn sibling(invocations: &Path, kind: Kind) -> Option<PathBuf> {
    let name = invocations.file_name()?.to_str()?;
    let names = [
        ("_inv.", "_run.", "_mem."),
        (
            "invocations_per_function_md",
            "function_durations_percentiles",
            "app_memory_percentiles",
        ),
    ];
    names.iter().find_map(|(ours, durations, memory)| {
        let theirs = match kind {
            Kind::Durations => durations,
            Kind::Memory => memory,
        };
        name.contains(ours)
            .then(|| invocations.with_file_name(name.replace(ours, theirs)))
    })
}

impl MinuteTrace {
    pub(super) fn streams<'a>(
        &'a self,
        functions: &'a [WorkloadFunction],
        random: impl Fn(&str, Purpose) -> Random,
    ) -> impl Iterator<Item = MinuteStream<'a>> {
        let all = self.counts.iter().zip(functions);
        all.map(move |(counts, function)| MinuteStream {
            counts,
            service: function.service.as_ref(),
            scale: self.scale,
            minute: 0.0,
            left: 0,
            rest: 1.0,
            arrivals: random(&function.name, Purpose::Arrivals),
            services: random(&function.name, Purpose::Service),
        })
    }
}

/// One function's arrivals.
#[derive(Debug, Clone)]
pub(crate) struct MinuteStream<'a> {
    /// The counts of the remaining minutes.
    counts: &'a [u32],
    service: Option<&'a ServiceTimes>,
    scale: f64,
    /// The current minute; the first is 1.
    minute: f64,
    /// The invocations that remain in this minute.
    left: u32,
    /// The share of this minute that remains.
    rest: f64,
    arrivals: Random,
    services: Random,
}

impl MinuteStream<'_> {
    pub(crate) fn next(&mut self) -> Option<(Duration, Option<Duration>)> {
        while self.left == 0 {
            let (count, rest) = self.counts.split_first()?;
            self.counts = rest;
            self.left = *count;
            self.rest = 1.0;
            self.minute += 1.0;
        }
        // The earliest of m independent points: the share after it is the m-th root of one draw.
        self.rest *= (self.arrivals.unit().ln() / f64::from(self.left)).exp();
        self.left -= 1;
        let at = scaled((self.minute - self.rest) * 60.0, self.scale);
        let service = self.service.map(|times| times.sample(&mut self.services));
        Some((at, service))
    }
}

/// If the durations have no row for a function: the median of the log-normal distribution that Shahrad et al. fit to the average
/// execution times of all functions (ATC 2020, figure 7: μ = −0.38).
const SERVICE_FALLBACK: Duration = Duration::from_millis(684);
/// If the memory file has no row for an app: half of all apps allocate no more than this (Shahrad et al., section 3.5).
const MEMORY_FALLBACK_BYTES: u64 = 170 << 20;
