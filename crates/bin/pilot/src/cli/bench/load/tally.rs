//! Counts of the requests: in total, by phase and by function. Each thread has its own; they are added up at the end.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use pilot_loadgen::answer::Answer;
use pilot_loadgen::open::{Failure, Outcome};
use pilot_loadgen::times::Times;
use pilot_workload::Profile;

/// What is counted in addition to the times.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// Limits. A request that took longer, failed, or has no response, is counted as over the limit.
    pub(super) over: Vec<Duration>,
    /// Keep every request.
    pub(super) samples: bool,
}

/// What is known about a request while it is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tag {
    /// Which function of the profile.
    pub(super) function: u32,
    /// Its duration in the trace.
    pub(super) service: Option<Duration>,
}

/// All counts.
#[derive(Debug)]
pub(super) struct Tally {
    watch: Watch,
    /// When each phase ends.
    ends: Vec<Duration>,
    pub(super) total: Group,
    pub(super) phases: Vec<Group>,
    /// Empty if there is only one function.
    pub(super) functions: Vec<Group>,
    /// How late the generator itself was.
    pub(super) lag: Times,
    samples: Vec<Sample>,
}

/// The counts of some requests. Times count from the intended send time, and are those of successful responses.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) requests: u64,
    pub(super) first_byte: Times,
    pub(super) complete: Times,
    /// Times to the whole response, by the value of `X-Pilot-Start`.
    pub(super) start: BTreeMap<String, Times>,
    pub(super) status: BTreeMap<u16, u64>,
    /// Responses that are errors: by their status, or because the function raised an exception.
    pub(super) failed: u64,
    /// Requests without a response.
    pub(super) unanswered: BTreeMap<Failure, u64>,
    /// One per limit.
    pub(super) over: Vec<u64>,
}

/// One request, as written to the file.
#[derive(Debug)]
struct Sample {
    function: u32,
    phase: usize,
    at: Duration,
    taken_up: Duration,
    sent: Option<Duration>,
    first_byte: Option<Duration>,
    done: Duration,
    end: Result<u16, Failure>,
    start: Option<Box<str>>,
}

impl Tally {
    pub(super) fn new(profile: &Profile, watch: &Watch) -> Self {
        let functions = profile.functions().len();
        let empty = Group::new(watch);
        Self {
            watch: watch.clone(),
            ends: profile.phases().iter().map(|phase| phase.end).collect(),
            phases: vec![empty.clone(); profile.phases().len()],
            functions: vec![empty.clone(); if functions > 1 { functions } else { 0 }],
            total: empty,
            lag: Times::new(),
            samples: Vec::new(),
        }
    }

    /// Adds one finished request.
    pub(super) fn take(&mut self, outcome: &Outcome<'_, Tag>) {
        let function = outcome.shot.tag.function;
        let at = outcome.shot.at;
        self.lag.record(outcome.taken_up.saturating_sub(at));
        let last = self.ends.len().saturating_sub(1);
        let phase = self.ends.partition_point(|end| *end <= at).min(last);
        let groups = [
            Some(&mut self.total),
            self.phases.get_mut(phase),
            self.functions.get_mut(function as usize),
        ];
        for group in groups.into_iter().flatten() {
            group.take(outcome, &self.watch);
        }
        if self.watch.samples {
            self.samples.push(Sample {
                function,
                phase,
                at,
                taken_up: outcome.taken_up,
                sent: outcome.sent,
                first_byte: outcome.first_byte,
                done: outcome.done,
                end: outcome.end.map(Answer::status),
                start: outcome.end.ok().and_then(start_of).map(Box::from),
            });
        }
    }

    /// Adds the counts of another thread for the same profile.
    pub(super) fn add(&mut self, other: Self) {
        self.total.add(&other.total);
        let pairs = self.phases.iter_mut().zip(&other.phases);
        let functions = self.functions.iter_mut().zip(&other.functions);
        for (ours, theirs) in pairs.chain(functions) {
            ours.add(theirs);
        }
        self.lag.add(&other.lag);
        self.samples.extend(other.samples);
    }

    /// Every request as a line of CSV, ordered by intended send time.
    pub(super) fn write_samples(
        &self,
        profile: &Profile,
        to: &mut impl io::Write,
    ) -> io::Result<()> {
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        samples.sort_by_key(|sample| (sample.at, sample.function));
        writeln!(
            to,
            "function,phase,cycle,intended_s,taken_up_s,sent_s,first_byte_s,done_s,status,start,failure"
        )?;
        for sample in samples {
            let phase = &profile.phases()[sample.phase];
            let (status, failure) = match sample.end {
                Ok(status) => (status.to_string(), ""),
                Err(failure) => (String::new(), failure.as_str()),
            };
            writeln!(
                to,
                "{},{},{},{},{},{},{},{},{status},{},{failure}",
                quoted(&profile.functions()[sample.function as usize].name),
                quoted(&phase.name),
                phase.cycle,
                seconds(Some(sample.at)),
                seconds(Some(sample.taken_up)),
                seconds(sample.sent),
                seconds(sample.first_byte),
                seconds(Some(sample.done)),
                sample.start.as_deref().map(quoted).unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}

impl Group {
    fn new(watch: &Watch) -> Self {
        Self {
            over: vec![0; watch.over.len()],
            ..Self::default()
        }
    }

    fn take(&mut self, outcome: &Outcome<'_, Tag>, watch: &Watch) {
        self.requests += 1;
        let since = |then: Duration| then.saturating_sub(outcome.shot.at);
        let complete = since(outcome.done);
        for (limit, over) in watch.over.iter().zip(&mut self.over) {
            if !is_success(outcome) || complete > *limit {
                *over += 1;
            }
        }
        let answer = match outcome.end {
            Ok(answer) => answer,
            Err(failure) => {
                *self.unanswered.entry(failure).or_default() += 1;
                return;
            }
        };
        *self.status.entry(answer.status()).or_default() += 1;
        if !is_success(outcome) {
            // A refusal is often faster than an answer. No figure is made of it.
            self.failed += 1;
            return;
        }
        self.first_byte
            .record(since(outcome.first_byte.unwrap_or(outcome.done)));
        self.complete.record(complete);
        if let Some(start) = start_of(answer) {
            match self.start.get_mut(start) {
                Some(times) => times.record(complete),
                None => self
                    .start
                    .entry(start.to_owned())
                    .or_default()
                    .record(complete),
            }
        }
    }

    /// Adds another group.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.first_byte.add(&other.first_byte);
        self.complete.add(&other.complete);
        for (start, times) in &other.start {
            self.start.entry(start.clone()).or_default().add(times);
        }
        for (status, count) in &other.status {
            *self.status.entry(*status).or_default() += count;
        }
        self.failed += other.failed;
        for (failure, count) in &other.unanswered {
            *self.unanswered.entry(*failure).or_default() += count;
        }
        self.over.resize(other.over.len().max(self.over.len()), 0);
        for (ours, theirs) in self.over.iter_mut().zip(&other.over) {
            *ours += theirs;
        }
    }
}

/// Whether there is a response that is no error.
fn is_success(outcome: &Outcome<'_, Tag>) -> bool {
    outcome.end.is_ok_and(|answer| {
        answer.status() < 400 && answer.header("x-amz-function-error").is_none()
    })
}

fn start_of(answer: &Answer) -> Option<&str> {
    answer.header("x-pilot-start")
}

fn seconds(time: Option<Duration>) -> String {
    time.map(|time| format!("{:.6}", time.as_secs_f64()))
        .unwrap_or_default()
}

/// A cell, in quotation marks if CSV requires them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
