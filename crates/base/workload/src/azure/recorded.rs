//! Azure 2021: every invocation with its end and its duration. An invocation arrives at `end_timestamp - duration`. The file is
//! ordered by the ends, so the chosen invocations are stored and sorted: 32 bytes each.

use std::collections::HashMap;
use std::slice;
use std::time::Duration;

use csv::StringRecord;

use super::choice::{Candidate, TraceConfig, choose};
use super::table::{Csv, scaled};
use crate::error::WorkloadError;
use crate::function::WorkloadFunction;

/// The invocations of the chosen functions and minutes.
#[derive(Debug, Clone)]
pub(crate) struct RecordedTrace {
    functions: Vec<Recorded>,
}

#[derive(Debug, Clone)]
struct Recorded {
    name: String,
    /// (arrival in the time of the run, duration).
    invocations: Vec<(Duration, Duration)>,
}

impl Candidate for Recorded {
    fn name(&self) -> &str {
        &self.name
    }

    fn invocations(&self) -> u64 {
        self.invocations.len() as u64
    }
}

/// Reads the file.
pub(super) fn read(
    config: &TraceConfig,
) -> Result<(RecordedTrace, Vec<WorkloadFunction>, Duration), WorkloadError> {
    let mut csv = Csv::open(&config.path)?;
    let app = csv.column("app")?;
    let func = csv.column("func")?;
    let (end, duration) = (csv.column("end_timestamp")?, csv.column("duration")?);
    let from = f64::from(config.window.start_minute) * 60.0;
    let length = config
        .window
        .minutes
        .map(|minutes| f64::from(minutes) * 60.0);
    let mut all: Vec<Recorded> = Vec::new();
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    let mut last: f64 = 0.0;
    let mut record = StringRecord::new();
    while csv.read(&mut record)? {
        let took = csv.number(&record, duration)?;
        if took < 0.0 {
            return Err(csv.wrong(&record, format!("duration is {took}, below 0")));
        }
        // Invocations that already ran when the recording began arrive at its beginning.
        let at = (csv.number(&record, end)? - took).max(0.0) - from;
        let name = |column| record.get(column).unwrap_or_default().to_owned();
        let place = *places.entry((name(app), name(func))).or_insert_with(|| {
            all.push(Recorded {
                name: name(func),
                invocations: Vec::new(),
            });
            all.len() - 1
        });
        if at >= 0.0 && length.is_none_or(|length| at < length) {
            last = last.max(at);
            let took = Duration::try_from_secs_f64(took).unwrap_or(Duration::MAX);
            all[place]
                .invocations
                .push((scaled(at, config.scale), took));
        }
    }
    let mut functions = choose(all, &config.chosen, &config.path)?;
    for function in &mut functions {
        function.invocations.sort_unstable();
    }
    let described = functions
        .iter()
        .map(|function| WorkloadFunction {
            name: function.name.clone(),
            service: None,
            memory_bytes: None,
            expected: function.invocations.len() as f64,
        })
        .collect();
    // Without a length, the run ends with the minute of the last arrival.
    let length = length.unwrap_or((last / 60.0).floor() * 60.0 + 60.0);
    Ok((
        RecordedTrace { functions },
        described,
        scaled(length, config.scale),
    ))
}

impl RecordedTrace {
    pub(super) fn streams(&self) -> impl Iterator<Item = RecordedStream<'_>> {
        let all = self.functions.iter();
        all.map(|function| RecordedStream(function.invocations.iter()))
    }
}

/// One function's arrivals.
#[derive(Debug, Clone)]
pub(crate) struct RecordedStream<'a>(slice::Iter<'a, (Duration, Duration)>);

impl RecordedStream<'_> {
    pub(crate) fn next(&mut self) -> Option<(Duration, Option<Duration>)> {
        let (at, took) = self.0.next()?;
        Some((*at, Some(*took)))
    }
}
