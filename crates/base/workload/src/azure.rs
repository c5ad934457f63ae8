//! The Azure Functions traces of 2019 (Shahrad et al., USENIX ATC 2020) and 2021 (Zhang et al., SOSP 2021): reads their files as
//! functions with streams of arrivals.

use std::time::Duration;

use self::choice::TraceConfig;
use self::minutes::MinuteTrace;
use self::recorded::RecordedTrace;
use self::table::data_error;
use crate::arrivals::Stream;
use crate::error::WorkloadError;
use crate::file::TraceFormat;
use crate::function::WorkloadFunction;
use crate::random::{Purpose, Random};

pub(crate) mod choice;
pub(crate) mod minutes;
pub(crate) mod recorded;
mod table;

/// The chosen functions and minutes of a trace, in memory.
#[derive(Debug, Clone)]
pub(crate) enum Trace {
    Minutes(MinuteTrace),
    Recorded(RecordedTrace),
}

impl Trace {
    /// The trace, its functions, and its duration in the time of the run.
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

    /// A stream for each function, in the same order.
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

#[cfg(test)]
mod tests;
