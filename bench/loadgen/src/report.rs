//! What was measured, as one JSON object. Times are microseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::answer::Answer;

/// Longest time that is told from longer ones: ten minutes.
const NANOS_MAX: u64 = 600_000_000_000;

/// Collects.
#[derive(Debug)]
pub(crate) struct Report {
    first_byte: Times,
    complete: Times,
    rounds: Times,
    statuses: BTreeMap<u16, u64>,
    headers: BTreeMap<String, BTreeMap<String, u64>>,
    phases: BTreeMap<String, Times>,
    count_headers: Vec<String>,
    want_phases: bool,
    want_samples: bool,
    elapsed: Duration,
    first_problem: Option<String>,
}

#[derive(Debug)]
struct Times {
    histogram: Histogram<u64>,
    samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Summary {
    count: u64,
    mean: f64,
    min: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    seconds: f64,
    per_second: f64,
    first_byte_us: Summary,
    complete_us: Summary,
    /// Of bursts: from the first write to the last answer's last byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_us: Option<Summary>,
    status: &'a BTreeMap<u16, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, BTreeMap<String, u64>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    phases_us: BTreeMap<&'a str, Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_problem: Option<&'a str>,
}

impl Report {
    pub(crate) fn new(count_headers: Vec<String>, want_phases: bool, want_samples: bool) -> Self {
        Self {
            first_byte: Times::new(),
            complete: Times::new(),
            rounds: Times::new(),
            statuses: BTreeMap::new(),
            headers: BTreeMap::new(),
            phases: BTreeMap::new(),
            count_headers,
            want_phases,
            want_samples,
            elapsed: Duration::ZERO,
            first_problem: None,
        }
    }

    /// One answered request.
    pub(crate) fn answered(
        &mut self,
        first_byte: Duration,
        complete: Duration,
        answer: &Answer,
    ) -> anyhow::Result<()> {
        self.first_byte.record(first_byte);
        self.complete.record(complete);
        let status = answer.status()?;
        *self.statuses.entry(status).or_default() += 1;
        if status >= 400 && self.first_problem.is_none() {
            self.first_problem = Some(answer.body_text().chars().take(300).collect());
        }
        for name in &self.count_headers {
            let value = answer.header(name).unwrap_or("(absent)").to_owned();
            *self
                .headers
                .entry(name.clone())
                .or_default()
                .entry(value)
                .or_default() += 1;
        }
        if self.want_phases {
            for (name, took) in answer
                .header("server-timing")
                .map(phases)
                .unwrap_or_default()
            {
                self.phases
                    .entry(name)
                    .or_insert_with(Times::new)
                    .record(took);
            }
        }
        Ok(())
    }

    /// One burst, from its first write to its last byte.
    pub(crate) fn round(&mut self, took: Duration) {
        self.rounds.record(took);
    }

    /// The timed part is over.
    pub(crate) fn finished(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    pub(crate) fn to_json(&self) -> anyhow::Result<String> {
        let seconds = self.elapsed.as_secs_f64();
        let rounds = self.rounds.summary(self.want_samples);
        let document = Document {
            seconds,
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            per_second: self.complete.histogram.len() as f64 / seconds.max(1e-9),
            first_byte_us: self.first_byte.summary(self.want_samples),
            complete_us: self.complete.summary(self.want_samples),
            round_us: (rounds.count > 0).then_some(rounds),
            status: &self.statuses,
            headers: &self.headers,
            phases_us: self
                .phases
                .iter()
                .map(|(name, times)| (name.as_str(), times.summary(false)))
                .collect(),
            first_problem: self.first_problem.as_deref(),
        };
        serde_json::to_string(&document).context("report")
    }
}

impl Times {
    fn new() -> Self {
        Self {
            histogram: Histogram::new_with_max(NANOS_MAX, 3)
                .expect("three significant digits are allowed"),
            samples: Vec::new(),
        }
    }

    fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(nanos);
        self.samples.push(took.as_secs_f64() * 1e6);
    }

    fn summary(&self, with_samples: bool) -> Summary {
        #[expect(clippy::cast_precision_loss, reason = "a time in ns is far below 2^52")]
        let at = |quantile: f64| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let (min, max) = (
            self.histogram.min() as f64 / 1e3,
            self.histogram.max() as f64 / 1e3,
        );
        Summary {
            count: self.histogram.len(),
            mean: self.histogram.mean() / 1e3,
            min,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max,
            samples: if with_samples {
                self.samples.clone()
            } else {
                Vec::new()
            },
        }
    }
}

/// `fork;dur=1.23, init;dur=0.4` as names and times; what has no duration is left out.
fn phases(header: &str) -> Vec<(String, Duration)> {
    header
        .split(',')
        .filter_map(|entry| {
            let mut parts = entry.trim().split(';');
            let name = parts.next()?.trim();
            let ms: f64 = parts.find_map(|part| part.trim().strip_prefix("dur=")?.parse().ok())?;
            Some((name.to_owned(), Duration::try_from_secs_f64(ms / 1e3).ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_to_three_digits() {
        let mut times = Times::new();
        for ms in 1..=100 {
            times.record(Duration::from_millis(ms));
        }
        let summary = times.summary(false);
        assert_eq!(summary.count, 100);
        assert!(
            (summary.p50 / 50_000.0 - 1.0).abs() < 0.002,
            "{}",
            summary.p50
        );
        assert!(
            (summary.max / 100_000.0 - 1.0).abs() < 0.002,
            "{}",
            summary.max
        );
    }

    #[test]
    fn server_timing_is_read_with_and_without_descriptions() {
        let read = phases("admit;dur=0.1, fork;desc=\"x\";dur=1.5, cache");
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], ("fork".to_owned(), Duration::from_micros(1500)));
    }
}
