//! A profile as written: TOML, in which only keys and types have been checked. Every key is optional here, so that `--set
//! KEY=VALUE` is a document, too.

use std::path::PathBuf;

use pilot_model::manifest::in_words;
use pilot_model::nearest::nearest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::error::WorkloadError;
use crate::schedule::Spacing;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) seed: Option<u64>,
    pub(crate) time_scale: Option<f64>,
    pub(crate) spacing: Option<Spacing>,
    pub(crate) repeat: Option<u32>,
    #[serde(default)]
    pub(crate) phases: Vec<Spanned<PhaseSpec>>,
    pub(crate) trace: Option<Spanned<TraceSpec>>,
}

/// An entry of `[[phases]]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseSpec {
    pub(crate) name: Option<String>,
    pub(crate) duration_s: Option<Durations>,
    pub(crate) rate: Option<f64>,
    pub(crate) from: Option<f64>,
    pub(crate) to: Option<f64>,
}

/// The duration of a phase.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "must be a number of seconds, or a list with one number per repetition"
)]
pub(crate) enum Durations {
    Always(f64),
    PerRepetition(Vec<f64>),
}

/// `[trace]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceSpec {
    pub(crate) format: Option<TraceFormat>,
    pub(crate) path: Option<PathBuf>,
    pub(crate) durations: Option<PathBuf>,
    pub(crate) memory: Option<PathBuf>,
    pub(crate) functions: Option<Functions>,
    pub(crate) busiest: Option<u32>,
    pub(crate) start_minute: Option<u32>,
    pub(crate) minutes: Option<u32>,
}

/// The format of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TraceFormat {
    Azure2019,
    Azure2021,
}

/// The chosen functions of a trace.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "must be a number of functions, or a list of their hashes"
)]
pub(crate) enum Functions {
    First(u32),
    Named(Vec<String>),
}

impl Document {
    /// Reads the text of a profile. `file` is for messages.
    pub(crate) fn parse(text: &str, file: &str) -> Result<Self, WorkloadError> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| span.start);
            let key = at.map_or("", |at| key_at(text, at));
            WorkloadError::Syntax {
                file: file.to_owned(),
                line: at.map(|at| line_of(text, at)),
                problem: in_words(key, error.message()),
            }
        })
    }

    /// Replaces one value: `KEY=VALUE`, `trace.KEY=VALUE`, or `PHASE.KEY=VALUE` for every phase of that name.
    pub(crate) fn set(&mut self, setting: &str) -> Result<(), WorkloadError> {
        let wrong = |problem: String| WorkloadError::Set {
            setting: setting.to_owned(),
            problem,
        };
        let (place, value) = setting.split_once('=').ok_or_else(|| {
            wrong("is not KEY=VALUE, for example time_scale=2 or warm-up.duration_s=60".to_owned())
        })?;
        match place.trim().rsplit_once('.') {
            None => self.replace(one_key(place.trim(), value).map_err(wrong)?),
            Some(("trace", key)) => match &mut self.trace {
                Some(trace) => trace.get_mut().replace(one_key(key, value).map_err(wrong)?),
                None => return Err(wrong("the profile has no [trace]".to_owned())),
            },
            Some((name, key)) => {
                let change: PhaseSpec = one_key(key, value).map_err(wrong)?;
                let mut found = false;
                for phase in &mut self.phases {
                    let phase = phase.get_mut();
                    if phase.name.as_deref() == Some(name) {
                        found = true;
                        phase.replace(change.clone());
                    }
                }
                if !found {
                    return Err(wrong(self.no_phase(name)));
                }
            }
        }
        Ok(())
    }

    fn no_phase(&self, name: &str) -> String {
        let names: Vec<&str> = self
            .phases
            .iter()
            .filter_map(|phase| phase.get_ref().name.as_deref())
            .collect();
        let hint = nearest(name, names.iter().copied())
            .map_or_else(String::new, |near| format!(", did you mean '{near}'?"));
        format!(
            "there is no phase '{name}'{hint} (there are: {})",
            names.join(", ")
        )
    }

    fn replace(&mut self, change: Self) {
        put(&mut self.seed, change.seed);
        put(&mut self.time_scale, change.time_scale);
        put(&mut self.spacing, change.spacing);
        put(&mut self.repeat, change.repeat);
    }
}

impl PhaseSpec {
    fn replace(&mut self, change: Self) {
        put(&mut self.name, change.name);
        put(&mut self.duration_s, change.duration_s);
        put(&mut self.rate, change.rate);
        put(&mut self.from, change.from);
        put(&mut self.to, change.to);
    }
}

impl TraceSpec {
    fn replace(&mut self, change: Self) {
        put(&mut self.format, change.format);
        put(&mut self.path, change.path);
        put(&mut self.durations, change.durations);
        put(&mut self.memory, change.memory);
        put(&mut self.functions, change.functions);
        put(&mut self.busiest, change.busiest);
        put(&mut self.start_minute, change.start_minute);
        put(&mut self.minutes, change.minutes);
    }
}

fn put<T>(into: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *into = value;
    }
}

/// A document of one key. A value that is not TOML is a string without quotation marks.
fn one_key<T: DeserializeOwned>(key: &str, value: &str) -> Result<T, String> {
    let written = format!("{key} = {value}");
    let text = match toml::from_str::<toml::Table>(&written) {
        Ok(_) => written,
        Err(_) => format!("{key} = {}", toml::Value::String(value.trim().to_owned())),
    };
    toml::from_str(&text).map_err(|error| in_words("", error.message()))
}

/// The key of the value at a byte, if it is in front of the value. Otherwise empty.
fn key_at(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default().trim_end();
    let key = before.strip_suffix('=').map_or("", str::trim_end);
    let is_other = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    key.rsplit(is_other).next().unwrap_or_default()
}

/// The line of a byte, counted from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}
