//! A resolved profile: everything is checked, nothing is optional. Its arrivals are generated on demand.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use crate::arrivals::{Arrivals, Stream};
use crate::azure::Trace;
use crate::azure::choice::{Chosen, TraceConfig, Window};
use crate::error::WorkloadError;
use crate::file::{Document, Durations, Functions, PhaseSpec, TraceSpec, line_of};
use crate::function::WorkloadFunction;
use crate::random::{Purpose, Random};
use crate::schedule::{PhaseStream, Segment, Spacing};

/// A workload: which functions, and when each is invoked. `Clone` copies a trace's counts.
#[derive(Debug, Clone)]
pub struct Profile {
    name: String,
    seed: u64,
    functions: Vec<WorkloadFunction>,
    phases: Vec<LoadPhase>,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Phases {
        segments: Vec<Segment>,
        spacing: Spacing,
    },
    Trace(Trace),
}

/// A named part of the run; a trace is one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadPhase {
    /// The name in the file.
    pub name: String,
    /// Which repetition of the phases, from 1.
    pub cycle: u32,
    /// When it begins, since the start of the run.
    pub start: Duration,
    /// When it ends.
    pub end: Duration,
}

/// What the command line changes in a profile.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// The folder that a trace's paths are relative to, in place of the profile's own.
    pub data: Option<PathBuf>,
    /// Values to replace: `time_scale=2`, `trace.minutes=10`, `warm-up.duration_s=60` (every phase called warm-up).
    pub set: Vec<String>,
}

impl Profile {
    /// Reads a profile, and the trace it names.
    ///
    /// # Errors
    /// The first problem, with file, line and key.
    pub fn read(path: &Path) -> Result<Self, WorkloadError> {
        Self::read_with(path, &Overrides::default())
    }

    /// Reads a profile with some of its values replaced.
    ///
    /// # Errors
    /// As [`Profile::read`], and overrides that name an unknown key or phase.
    pub fn read_with(path: &Path, overrides: &Overrides) -> Result<Self, WorkloadError> {
        let file = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|source| WorkloadError::Read {
            file: file.clone(),
            source,
            hint: "; a profile is a TOML file, bench/edge-faas/profiles has some",
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let data = overrides.data.as_deref().unwrap_or(folder);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&text, &file, &name, data, &overrides.set)
    }

    /// Makes a profile of a text. `file` is for messages, `name` is the workload's name, `data` the folder of traces, `set` as in
    /// [`Overrides::set`].
    ///
    /// # Errors
    /// As [`Profile::read_with`].
    pub fn parse(
        text: &str,
        file: &str,
        name: &str,
        data: &Path,
        set: &[String],
    ) -> Result<Self, WorkloadError> {
        let mut document = Document::parse(text, file)?;
        for setting in set {
            document.set(setting)?;
        }
        Check { text, file }.profile(&document, name, data)
    }

    /// The workload's name: the file's name without its extension.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its functions; [`Arrival::function`](crate::Arrival) is an index of this list. Never empty.
    #[must_use]
    pub fn functions(&self) -> &[WorkloadFunction] {
        &self.functions
    }

    /// The parts of the run, in order and without gaps.
    #[must_use]
    pub fn phases(&self) -> &[LoadPhase] {
        &self.phases
    }

    /// Duration of the run. Every arrival is before it.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.phases.last().map_or(Duration::ZERO, |phase| phase.end)
    }

    /// The expected number of arrivals in the whole run.
    #[must_use]
    pub fn expected(&self) -> f64 {
        self.functions
            .iter()
            .map(|function| function.expected)
            .sum()
    }

    /// All arrivals, ordered by time; every call returns the same. Memory: a constant per function.
    #[must_use]
    pub fn arrivals(&self) -> Arrivals<'_> {
        let random = |name: &str, purpose| Random::new(self.seed, name, purpose);
        Arrivals::merge(match &self.source {
            Source::Phases { segments, spacing } => {
                // Not the file's name: renaming the file must not change a measurement.
                let random = random("phases", Purpose::Arrivals);
                vec![Stream::Phases(PhaseStream::new(segments, *spacing, random))]
            }
            Source::Trace(trace) => trace.streams(&self.functions, random),
        })
    }
}

/// Checks a document, and knows the place of each error.
struct Check<'a> {
    text: &'a str,
    file: &'a str,
}

impl Check<'_> {
    fn profile(
        &self,
        document: &Document,
        name: &str,
        data: &Path,
    ) -> Result<Profile, WorkloadError> {
        let scale = document.time_scale.unwrap_or(1.0);
        if !(scale.is_finite() && scale > 0.0) {
            return Err(self.wrong(None, "time_scale", "must be above 0; 2.0 is twice as fast"));
        }
        let seed = document.seed.unwrap_or(1);
        let name = name.to_owned();
        if let Some(trace) = &document.trace {
            for (key, is_there) in [
                ("phases", !document.phases.is_empty()),
                ("repeat", document.repeat.is_some()),
                ("spacing", document.spacing.is_some()),
            ] {
                if is_there {
                    return Err(self.wrong(
                        None,
                        key,
                        "does not go with [trace]: a trace says when requests come",
                    ));
                }
            }
            let (trace, functions, length) = self.trace(trace, data, scale)?;
            let phase = LoadPhase {
                name: "trace".to_owned(),
                cycle: 1,
                start: Duration::ZERO,
                end: length,
            };
            return Ok(Profile {
                name,
                seed,
                functions,
                phases: vec![phase],
                source: Source::Trace(trace),
            });
        }
        let (phases, segments) = self.phases(document, scale)?;
        let function = WorkloadFunction {
            name: name.clone(),
            service: None,
            memory_bytes: None,
            expected: segments.iter().map(Segment::expected).sum(),
        };
        Ok(Profile {
            name,
            seed,
            functions: vec![function],
            phases,
            source: Source::Phases {
                segments,
                spacing: document.spacing.unwrap_or_default(),
            },
        })
    }

    /// The phases, with all repetitions in sequence.
    fn phases(
        &self,
        document: &Document,
        scale: f64,
    ) -> Result<(Vec<LoadPhase>, Vec<Segment>), WorkloadError> {
        if document.phases.is_empty() {
            return Err(self.wrong(
                None,
                "phases",
                "there are none, and no [trace]; add [[phases]] with duration_s and rate",
            ));
        }
        let repeat = document.repeat.unwrap_or(1);
        let many = u64::from(repeat) * document.phases.len() as u64;
        if repeat == 0 || many > PHASES_MAX {
            let problem = format!("must be 1 or more, and repeat × phases {PHASES_MAX} at most");
            return Err(self.wrong(None, "repeat", problem));
        }
        let (mut phases, mut segments) = (Vec::new(), Vec::new());
        let (mut start_s, mut before) = (0.0, 0.0);
        for cycle in 1..=repeat {
            for (number, phase) in (1..).zip(&document.phases) {
                let (length_s, from, to) = self.phase(phase, cycle, repeat)?;
                let segment = Segment {
                    start_s,
                    length_s: length_s / scale,
                    from: from * scale,
                    to: to * scale,
                    before,
                };
                let end_s = start_s + segment.length_s;
                let name = phase.get_ref().name.clone();
                phases.push(LoadPhase {
                    name: name.unwrap_or_else(|| format!("phase {number}")),
                    cycle,
                    start: self.seconds(start_s)?,
                    end: self.seconds(end_s)?,
                });
                start_s = end_s;
                before += segment.expected();
                if segment.length_s > 0.0 {
                    segments.push(segment);
                }
            }
        }
        Ok((phases, segments))
    }

    /// Length (s) and the rates at its beginning and end (1/s), as written.
    fn phase(
        &self,
        phase: &Spanned<PhaseSpec>,
        cycle: u32,
        repeat: u32,
    ) -> Result<(f64, f64, f64), WorkloadError> {
        let line = Some(phase.span().start);
        let spec = phase.get_ref();
        let (from, to) = match (spec.rate, spec.from, spec.to) {
            (Some(rate), None, None) => (rate, rate),
            (None, Some(from), Some(to)) => (from, to),
            (None, None, None) => {
                return Err(self.wrong(
                    line,
                    "rate",
                    "is missing; give rate, or from and to, in requests per second",
                ));
            }
            (Some(_), _, _) => {
                return Err(self.wrong(
                    line,
                    "rate",
                    "does not go with from and to; give one or the other",
                ));
            }
            (None, _, _) => {
                return Err(self.wrong(line, "from", "and to come together: a ramp has two ends"));
            }
        };
        for rate in [from, to] {
            if !(0.0..=RATE_MAX).contains(&rate) {
                let problem =
                    format!("{rate} is not between 0 and {RATE_MAX:e} requests per second");
                return Err(self.wrong(line, "rate", problem));
            }
        }
        let length_s = match &spec.duration_s {
            None => return Err(self.wrong(line, "duration_s", "is missing; give it in seconds")),
            Some(Durations::Always(length_s)) => *length_s,
            Some(Durations::PerRepetition(lengths)) => {
                if lengths.len() as u64 != u64::from(repeat) {
                    let problem = format!(
                        "has {} numbers, but repeat is {repeat}: one for each",
                        lengths.len()
                    );
                    return Err(self.wrong(line, "duration_s", problem));
                }
                lengths[cycle as usize - 1]
            }
        };
        if !(0.0..=DURATION_S_MAX).contains(&length_s) {
            let problem = format!("{length_s} is not between 0 and {DURATION_S_MAX:e} seconds");
            return Err(self.wrong(line, "duration_s", problem));
        }
        Ok((length_s, from, to))
    }

    fn trace(
        &self,
        spec: &Spanned<TraceSpec>,
        data: &Path,
        scale: f64,
    ) -> Result<(Trace, Vec<WorkloadFunction>, Duration), WorkloadError> {
        let line = Some(spec.span().start);
        let spec = spec.get_ref();
        let Some(format) = spec.format else {
            return Err(self.wrong(
                line,
                "trace.format",
                "is missing; \"azure2019\" or \"azure2021\"",
            ));
        };
        let Some(path) = &spec.path else {
            return Err(self.wrong(line, "trace.path", "is missing; the trace's CSV file"));
        };
        let chosen = match (&spec.functions, spec.busiest) {
            (None, None) => Chosen::All,
            (Some(Functions::First(number)), None) => Chosen::First(*number as usize),
            (Some(Functions::Named(names)), None) => Chosen::Named(names.clone()),
            (None, Some(number)) => Chosen::Busiest(number as usize),
            (Some(_), Some(_)) => {
                return Err(self.wrong(
                    line,
                    "trace.busiest",
                    "does not go with functions; give one of them",
                ));
            }
        };
        if matches!(chosen, Chosen::First(0) | Chosen::Busiest(0)) || spec.minutes == Some(0) {
            return Err(self.wrong(
                line,
                "trace",
                "functions, busiest and minutes must be 1 or more",
            ));
        }
        Trace::read(
            format,
            &TraceConfig {
                path: data.join(path),
                durations: spec.durations.as_ref().map(|path| data.join(path)),
                memory: spec.memory.as_ref().map(|path| data.join(path)),
                chosen,
                window: Window {
                    start_minute: spec.start_minute.unwrap_or(0),
                    minutes: spec.minutes,
                },
                scale,
            },
        )
    }

    fn seconds(&self, seconds: f64) -> Result<Duration, WorkloadError> {
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| self.wrong(None, "duration_s", "all phases together are too long"))
    }

    fn wrong(&self, at: Option<usize>, key: &str, problem: impl Into<String>) -> WorkloadError {
        WorkloadError::Value {
            file: self.file.to_owned(),
            line: at.map(|at| line_of(self.text, at)),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }
}

/// Maximum number of phases, including repetitions. More are probably a typing error.
const PHASES_MAX: u64 = 100_000;
/// Requests per second.
const RATE_MAX: f64 = 1e8;
/// Thirty years.
const DURATION_S_MAX: f64 = 1e9;

#[cfg(test)]
mod tests;
