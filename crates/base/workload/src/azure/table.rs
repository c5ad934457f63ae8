//! A file of a trace: CSV with a header, read line by line.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csv::{Reader, StringRecord};

use crate::error::WorkloadError;

/// A CSV file with a header, and its lines.
pub(super) struct Csv {
    path: PathBuf,
    reader: Reader<File>,
    pub(super) header: StringRecord,
}

impl Csv {
    pub(super) fn open(path: &Path) -> Result<Self, WorkloadError> {
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

    pub(super) fn column(&self, name: &str) -> Result<usize, WorkloadError> {
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
    pub(super) fn read(&mut self, record: &mut StringRecord) -> Result<bool, WorkloadError> {
        self.reader
            .read_record(record)
            .map_err(|error| csv_error(&self.path, &error))
    }

    /// A cell as a number.
    pub(super) fn number(
        &self,
        record: &StringRecord,
        column: usize,
    ) -> Result<f64, WorkloadError> {
        let cell = record.get(column).unwrap_or_default().trim();
        let number = cell.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| {
            let name = self.header.get(column).unwrap_or_default();
            self.wrong(record, format!("{name} is '{cell}', not a number"))
        })
    }

    pub(super) fn wrong(&self, record: &StringRecord, problem: impl Into<String>) -> WorkloadError {
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

pub(super) fn data_error(
    path: &Path,
    line: Option<usize>,
    problem: impl Into<String>,
) -> WorkloadError {
    WorkloadError::Data {
        file: path.display().to_string(),
        line,
        problem: problem.into(),
    }
}

/// Converts seconds of the trace to the time of the run.
pub(super) fn scaled(seconds: f64, scale: f64) -> Duration {
    Duration::try_from_secs_f64(seconds / scale).unwrap_or(Duration::MAX)
}
