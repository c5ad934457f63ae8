//! The Azure Functions traces of 2019 (Shahrad et al., USENIX ATC 2020) and 2021 (Zhang et al., SOSP 2021): what is chosen
//! of them, and their files as functions with streams of arrivals.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csv::{Reader, StringRecord};

use crate::arrivals::Stream;
use crate::error::WorkloadError;
use crate::file::TraceFormat;
use crate::profile::WorkloadFunction;
use crate::random::{Purpose, Random};

mod minutes;
mod recorded;

pub(crate) use minutes::MinuteStream;
pub(crate) use recorded::RecordedStream;

use minutes::MinuteTrace;
use recorded::RecordedTrace;

/// What is read from where.
#[derive(Debug)]
pub(crate) struct TraceConfig {
    pub(crate) path: PathBuf,
    pub(crate) durations: Option<PathBuf>,
    pub(crate) memory: Option<PathBuf>,
    pub(crate) chosen: Chosen,
    pub(crate) window: Window,
    /// 2.0: twice as fast.
    pub(crate) scale: f64,
}

/// Which functions.
#[derive(Debug, Clone)]
pub(crate) enum Chosen {
    All,
    /// So many, in the order of the file.
    First(usize),
    /// Those with the most invocations in the window, most first.
    Busiest(usize),
    /// Whole hashes or their beginnings.
    Named(Vec<String>),
}

/// Which minutes of the trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Minutes left out before it.
    pub(crate) start_minute: u32,
    /// `None`: all that follow.
    pub(crate) minutes: Option<u32>,
}

/// A trace in memory: of the chosen functions and minutes alone.
#[derive(Debug, Clone)]
pub(crate) enum Trace {
    Minutes(MinuteTrace),
    Recorded(RecordedTrace),
}

impl Trace {
    /// The trace, its functions, and how long it is in the time of the run.
    pub(crate) fn read(
        format: TraceFormat,
        config: &TraceConfig,
    ) -> Result<(Self, Vec<WorkloadFunction>, Duration), WorkloadError> {
        let (trace, functions, length) = match format {
            TraceFormat::Azure2019 => {
                let (trace, functions, length) = minutes::read(config)?;
                (Self::Minutes(trace), functions, length)
            }
            TraceFormat::Azure2021 => {
                let (trace, functions, length) = recorded::read(config)?;
                (Self::Recorded(trace), functions, length)
            }
        };
        if functions.iter().all(|function| function.expected == 0.0) {
            let problem =
                "none of the chosen functions is invoked in the chosen minutes; choose others";
            return Err(data_error(&config.path, None, problem));
        }
        Ok((trace, functions, length))
    }

    /// A stream for each function, in their order.
    pub(crate) fn streams<'a>(
        &'a self,
        functions: &'a [WorkloadFunction],
        random: impl Fn(&str, Purpose) -> Random,
    ) -> Vec<Stream<'a>> {
        match self {
            Self::Minutes(trace) => trace
                .streams(functions, random)
                .map(Stream::Minutes)
                .collect(),
            Self::Recorded(trace) => trace.streams().map(Stream::Recorded).collect(),
        }
    }
}

/// Something of a trace that can be chosen.
trait Candidate {
    fn name(&self) -> &str;
    fn invocations(&self) -> u64;
}

/// Those that are wanted, of all that were read from `path`.
fn choose<T: Candidate>(
    mut all: Vec<T>,
    chosen: &Chosen,
    path: &Path,
) -> Result<Vec<T>, WorkloadError> {
    let number = match chosen {
        Chosen::All => return Ok(all),
        Chosen::Named(names) => {
            let mut found = Vec::with_capacity(names.len());
            for name in names {
                let at = position(&all, name, path)?;
                found.push(all.remove(at));
            }
            return Ok(found);
        }
        Chosen::First(number) | Chosen::Busiest(number) => *number,
    };
    if number > all.len() {
        let problem = format!("has {} functions, but {number} are wanted", all.len());
        return Err(data_error(path, None, problem));
    }
    if matches!(chosen, Chosen::Busiest(_)) {
        // Stable: among equals the order of the file.
        all.sort_by_key(|function| std::cmp::Reverse(function.invocations()));
    }
    all.truncate(number);
    Ok(all)
}

fn position<T: Candidate>(all: &[T], name: &str, path: &Path) -> Result<usize, WorkloadError> {
    let beginning: Vec<usize> = (0..all.len())
        .filter(|at| all[*at].name().starts_with(name))
        .collect();
    match beginning[..] {
        [at] => Ok(at),
        [] => {
            let problem = format!("there is no function '{name}', or it is in the list twice");
            Err(data_error(path, None, problem))
        }
        _ => {
            let problem = format!(
                "{} functions begin with '{name}'; give more of the hash",
                beginning.len()
            );
            Err(data_error(path, None, problem))
        }
    }
}

/// A CSV file with a header, and its lines.
struct Csv {
    path: PathBuf,
    reader: Reader<File>,
    header: StringRecord,
}

impl Csv {
    fn open(path: &Path) -> Result<Self, WorkloadError> {
        let file = File::open(path).map_err(|source| WorkloadError::Read {
            file: path.display().to_string(),
            source,
            hint: "; name the folder that has the trace's files with --data DIR",
        })?;
        let mut reader = Reader::from_reader(file);
        let header = reader.headers().cloned();
        let header = header.map_err(|error| csv_error(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            reader,
            header,
        })
    }

    fn column(&self, name: &str) -> Result<usize, WorkloadError> {
        self.header
            .iter()
            .position(|column| column == name)
            .ok_or_else(|| {
                let first: Vec<&str> = self.header.iter().take(8).collect();
                let problem = format!(
                    "has no column {name} (it begins with: {})",
                    first.join(", ")
                );
                data_error(&self.path, Some(1), problem)
            })
    }

    /// The next line; false after the last.
    fn read(&mut self, record: &mut StringRecord) -> Result<bool, WorkloadError> {
        self.reader
            .read_record(record)
            .map_err(|error| csv_error(&self.path, &error))
    }

    /// A cell as a number.
    fn number(&self, record: &StringRecord, column: usize) -> Result<f64, WorkloadError> {
        let cell = record.get(column).unwrap_or_default().trim();
        let number = cell.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| {
            let name = self.header.get(column).unwrap_or_default();
            self.wrong(record, format!("{name} is '{cell}', not a number"))
        })
    }

    fn wrong(&self, record: &StringRecord, problem: impl Into<String>) -> WorkloadError {
        let line = record
            .position()
            .and_then(|at| usize::try_from(at.line()).ok());
        data_error(&self.path, line, problem)
    }
}

fn csv_error(path: &Path, error: &csv::Error) -> WorkloadError {
    let line = error
        .position()
        .and_then(|at| usize::try_from(at.line()).ok());
    data_error(path, line, format!("is not the CSV it should be: {error}"))
}

fn data_error(path: &Path, line: Option<usize>, problem: impl Into<String>) -> WorkloadError {
    WorkloadError::Data {
        file: path.display().to_string(),
        line,
        problem: problem.into(),
    }
}

/// Seconds of the trace in the time of the run.
fn scaled(seconds: f64, scale: f64) -> Duration {
    Duration::try_from_secs_f64(seconds / scale).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
