//! The results of a closed loop or of bursts. Times are microseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::answer::Answer;
use crate::times::{Summary, Times};

/// Collects results.
#[derive(Debug)]
pub struct Report {
    first_byte: Times,
    complete: Times,
    rounds: Times,
    samples: Samples,
    statuses: BTreeMap<u16, u64>,
    failed: u64,
    start: BTreeMap<String, u64>,
    phases: BTreeMap<String, (usize, Times)>,
    want: Want,
    elapsed: Duration,
    first_problem: Option<String>,
}

/// What is collected in addition to the times.
#[derive(Debug, Clone, Default)]
pub struct Want {
    /// The header whose values are counted, such as `x-pilot-start`.
    pub start_header: Option<&'static str>,
    /// The header that marks a response as a failure, whatever its status is, such as `x-amz-function-error`.
    pub failure_header: Option<&'static str>,
    /// The durations of the `Server-Timing` header.
    pub phases: bool,
    /// Every single time.
    pub samples: bool,
}

/// Single times, in the order of the requests, µs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Samples {
    /// To the first byte of the response.
    pub first_byte_us: Vec<f64>,
    /// To its last byte.
    pub complete_us: Vec<f64>,
    /// For bursts: from the first write to the last byte of the last response.
    pub round_us: Vec<f64>,
}

/// The results as JSON. All times and rates are those of successful responses; failures are in `status` and `failed` only.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    /// Total time.
    pub seconds: f64,
    /// Successful responses per second.
    pub per_second: f64,
    /// From the request's write to the first byte of its response.
    pub first_byte_us: Summary,
    /// To its last byte.
    pub complete_us: Summary,
    /// For bursts: from the first write to the last byte of the last response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_us: Option<Summary>,
    /// Responses by status.
    pub status: BTreeMap<u16, u64>,
    /// Responses with an error status, or with the failure header.
    pub failed: u64,
    /// Responses by the start header's value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub start: BTreeMap<String, u64>,
    /// The phases of `Server-Timing`, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseTimes>,
    /// Every single time, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<Samples>,
    /// The beginning of the first failure's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_problem: Option<String>,
}

/// One entry of `Server-Timing` over all responses that have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseTimes {
    /// Its name.
    pub name: String,
    /// Its times.
    #[serde(flatten)]
    pub times: Summary,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(want: Want) -> Self {
        Self {
            first_byte: Times::new(),
            complete: Times::new(),
            rounds: Times::new(),
            samples: Samples::default(),
            statuses: BTreeMap::new(),
            failed: 0,
            start: BTreeMap::new(),
            phases: BTreeMap::new(),
            want,
            elapsed: Duration::ZERO,
            first_problem: None,
        }
    }

    /// Adds one answered request.
    pub(crate) fn answered(&mut self, first_byte: Duration, complete: Duration, answer: &Answer) {
        let status = answer.status();
        *self.statuses.entry(status).or_default() += 1;
        let marked = |name| answer.header(name).is_some();
        if status >= 400 || self.want.failure_header.is_some_and(marked) {
            self.failed += 1;
            if self.first_problem.is_none() {
                self.first_problem = Some(answer.body_start());
            }
            // A refusal is often faster than an answer. No figure is made of it.
            return;
        }
        self.first_byte.record(first_byte);
        self.complete.record(complete);
        if self.want.samples {
            self.samples.first_byte_us.push(micros(first_byte));
            self.samples.complete_us.push(micros(complete));
        }
        if let Some(name) = self.want.start_header
            && let Some(value) = answer.header(name)
        {
            match self.start.get_mut(value) {
                Some(count) => *count += 1,
                None => {
                    self.start.insert(value.to_owned(), 1);
                }
            }
        }
        if self.want.phases {
            let header = answer.header("server-timing").unwrap_or_default();
            for (place, (name, took)) in phases(header).enumerate() {
                let known = self
                    .phases
                    .entry(name.to_owned())
                    .or_insert_with(|| (0, Times::new()));
                // A cold start has more phases than a warm one, so the position of an entry is the last one seen.
                known.0 = known.0.max(place);
                known.1.record(took);
            }
        }
    }

    /// Number of responses that are failures.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Adds one burst without a failure, from its first write to its last byte.
    pub(crate) fn round(&mut self, took: Duration) {
        self.rounds.record(took);
        if self.want.samples {
            self.samples.round_us.push(micros(took));
        }
    }

    /// The measured part has ended.
    pub(crate) fn finished(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    /// The results as JSON.
    #[must_use]
    pub fn document(&self) -> Document {
        let seconds = self.elapsed.as_secs_f64();
        let mut phases: Vec<_> = self.phases.iter().collect();
        phases.sort_by_key(|(_, (place, _))| *place);
        Document {
            seconds,
            per_second: self.complete.count() as f64 / seconds.max(1e-9),
            first_byte_us: self.first_byte.summary(),
            complete_us: self.complete.summary(),
            round_us: (self.rounds.count() > 0).then(|| self.rounds.summary()),
            status: self.statuses.clone(),
            failed: self.failed,
            start: self.start.clone(),
            phases: phases
                .into_iter()
                .map(|(name, (_, times))| PhaseTimes {
                    name: name.clone(),
                    times: times.summary(),
                })
                .collect(),
            samples: self.want.samples.then(|| self.samples.clone()),
            first_problem: self.first_problem.clone(),
        }
    }
}

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// `fork;dur=1.23, init;dur=0.4` as names and times. Entries without a duration are left out.
fn phases(header: &str) -> impl Iterator<Item = (&str, Duration)> {
    header.split(',').filter_map(|entry| {
        let mut parts = entry.trim().split(';');
        let name = parts.next()?.trim();
        let ms: f64 = parts.find_map(|part| part.trim().strip_prefix("dur=")?.parse().ok())?;
        Some((name, Duration::try_from_secs_f64(ms / 1e3).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_timing_is_read_with_and_without_descriptions() {
        let read: Vec<_> = phases("admit;dur=0.1, fork;desc=\"x\";dur=1.5, cache").collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], ("fork", Duration::from_micros(1500)));
    }

    #[test]
    fn failures_are_counted_and_are_in_no_figure() {
        let mut report = Report::new(Want {
            start_header: Some("x-pilot-start"),
            failure_header: Some("x-amz-function-error"),
            phases: true,
            samples: true,
        });
        for head in [
            "200 OK\r\nx-pilot-start: warm",
            "403 Forbidden",
            "503 Service Unavailable",
            "200 OK\r\nx-pilot-start: cold\r\nserver-timing: total;dur=1\r\nx-amz-function-error: Unhandled",
        ] {
            let mut answer = Answer::default();
            let text = format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
            assert!(answer.push(text.as_bytes()).unwrap());
            report.answered(Duration::from_millis(3), Duration::from_millis(4), &answer);
        }
        report.finished(Duration::from_secs(1));
        let document = report.document();
        assert_eq!(document.failed, 3);
        assert_eq!(
            document.status,
            BTreeMap::from([(200, 2), (403, 1), (503, 1)])
        );
        assert_eq!(document.complete_us.count, 1);
        assert_eq!(document.start, BTreeMap::from([("warm".to_owned(), 1)]));
        assert!(document.phases.is_empty());
        assert_eq!(document.samples.unwrap().complete_us.len(), 1);
        assert!((document.per_second - 1.0).abs() < 1e-9);
    }

    #[test]
    fn phases_stand_in_the_order_of_a_cold_start() {
        let mut report = Report::new(Want {
            start_header: Some("x-pilot-start"),
            phases: true,
            ..Want::default()
        });
        for (start, timing) in [
            ("warm", "admit;dur=1, handler;dur=2, total;dur=3"),
            (
                "cold",
                "admit;dur=1, fork;dur=5, init;dur=1, handler;dur=2, total;dur=9",
            ),
        ] {
            let mut answer = Answer::default();
            let text = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-pilot-start: {start}\r\nserver-timing: {timing}\r\n\r\n"
            );
            assert!(answer.push(text.as_bytes()).unwrap());
            report.answered(Duration::from_millis(3), Duration::from_millis(4), &answer);
        }
        let document = report.document();
        let names: Vec<&str> = document
            .phases
            .iter()
            .map(|phase| phase.name.as_str())
            .collect();
        assert_eq!(names, ["admit", "fork", "init", "handler", "total"]);
        assert_eq!(
            document.start,
            BTreeMap::from([("cold".to_owned(), 1), ("warm".to_owned(), 1)])
        );
    }
}
