//! The result of a load, as JSON and as tables. Times in JSON are microseconds, in the same form as in the other benchmarks.

use std::collections::BTreeMap;
use std::time::Duration;

use pilot_loadgen::times::Summary;
use pilot_workload::Profile;
use serde::Serialize;

use super::super::super::output::{self, Align, Table, WARN};
use super::super::watched::Ending;
use super::tally::{Group, Tally};
use super::targets::Targets;

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    kind: &'static str,
    profile: String,
    target: String,
    /// Duration of the profile.
    profile_s: f64,
    /// Time until the last response.
    seconds: f64,
    /// Whether Ctrl-C ended it. Then the figures are those until then.
    interrupted: bool,
    total: GroupReport,
    /// How late the generator itself was with its requests.
    lag_us: Summary,
    phases: Vec<PhaseReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions: Vec<FunctionReport>,
    /// Phases with the same name together, for the table.
    #[serde(skip)]
    names: Vec<(String, GroupReport)>,
}

/// A group of requests. Times count from the intended send time to the first byte and to the end of the response. All times are those
/// of successful responses.
#[derive(Debug, Clone, Serialize)]
struct GroupReport {
    requests: u64,
    /// Responses, errors too.
    answered: u64,
    /// Responses that are errors. They are in no time.
    failed: u64,
    /// Requests without a response, by cause. They are in no percentile.
    unanswered: BTreeMap<&'static str, u64>,
    status: BTreeMap<u16, u64>,
    first_byte_us: Summary,
    complete_us: Summary,
    /// Times to the end of the response, by the value of `X-Pilot-Start`.
    start: BTreeMap<String, Summary>,
    /// Requests that took longer than this number of milliseconds, failed, or had no response.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    over_ms: BTreeMap<u32, u64>,
}

#[derive(Debug, Serialize)]
struct PhaseReport {
    name: String,
    cycle: u32,
    start_s: f64,
    end_s: f64,
    #[serde(flatten)]
    report: GroupReport,
}

#[derive(Debug, Serialize)]
struct FunctionReport {
    name: String,
    target: String,
    #[serde(flatten)]
    report: GroupReport,
}

impl Document {
    pub(super) fn new(
        profile: &Profile,
        target: &str,
        over_ms: &[u32],
        targets: &Targets,
        tally: &Tally,
        took: Duration,
        ending: Ending,
    ) -> Self {
        let report = |group: &Group| GroupReport::new(group, over_ms);
        let mut names: Vec<(String, Group)> = Vec::new();
        for (phase, group) in profile.phases().iter().zip(&tally.phases) {
            match names.iter_mut().find(|(name, _)| *name == phase.name) {
                Some((_, all)) => all.add(group),
                None => names.push((phase.name.clone(), group.clone())),
            }
        }
        let phases = profile.phases().iter().zip(&tally.phases);
        let functions = profile.functions().iter().zip(&tally.functions);
        Self {
            kind: "load",
            profile: profile.name().to_owned(),
            target: target.to_owned(),
            profile_s: profile.duration().as_secs_f64(),
            seconds: took.as_secs_f64(),
            interrupted: ending == Ending::Interrupted,
            total: report(&tally.total),
            lag_us: tally.lag.summary(),
            phases: phases
                .map(|(phase, group)| PhaseReport {
                    name: phase.name.clone(),
                    cycle: phase.cycle,
                    start_s: phase.start.as_secs_f64(),
                    end_s: phase.end.as_secs_f64(),
                    report: report(group),
                })
                .collect(),
            functions: functions
                .enumerate()
                .map(|(index, (function, group))| FunctionReport {
                    name: function.name.clone(),
                    target: targets.target(index).to_owned(),
                    report: report(group),
                })
                .collect(),
            names: names
                .into_iter()
                .map(|(name, group)| (name, report(&group)))
                .collect(),
        }
    }

    /// The tables: phases, then functions, then starts, then notes.
    pub(super) fn table(&self) -> String {
        let mut text = rows("PHASE", &self.names, &self.total);
        if !self.functions.is_empty() {
            let functions: Vec<(String, GroupReport)> = self
                .functions
                .iter()
                .map(|function| {
                    // If all have the same target, their names distinguish them.
                    let name = if function.target == self.target {
                        &function.name
                    } else {
                        &function.target
                    };
                    (name.clone(), function.report.clone())
                })
                .collect();
            text.push('\n');
            text.push_str(&rows("FUNCTION", &functions, &self.total));
        }
        text.push('\n');
        text.push_str(&self.starts());
        let seconds = Duration::try_from_secs_f64(self.seconds).unwrap_or_default();
        text.push_str(&format!(
            "{} in {}, {} answered",
            output::count(self.total.requests, "request"),
            output::duration(seconds),
            self.total.answered
        ));
        for (status, count) in &self.total.status {
            text.push_str(&format!(", {count} × {status}"));
        }
        for (failure, count) in &self.total.unanswered {
            text.push_str(&format!(", {count} × {failure}"));
        }
        text.push('\n');
        for (limit, count) in &self.total.over_ms {
            text.push_str(&format!(
                "{count} took longer than {limit} ms, failed, or had no answer\n"
            ));
        }
        text.push_str(&self.lag());
        text
    }

    /// How many requests have no successful response, and why not. `None`: all have one.
    pub(super) fn failures(&self) -> Option<String> {
        let GroupReport {
            requests,
            failed,
            unanswered,
            status,
            ..
        } = &self.total;
        let all = failed + unanswered.values().sum::<u64>();
        if all == 0 {
            return None;
        }
        let refused: u64 = status.range(400..).map(|(_, count)| count).sum();
        let raised = failed.saturating_sub(refused);
        let mut causes: Vec<String> = status
            .range(400..)
            .map(|(status, count)| format!("{count} × {status}"))
            .collect();
        if raised > 0 {
            causes.push(format!("{raised} × the function raised an error"));
        }
        let unanswered = unanswered.iter();
        causes.extend(unanswered.map(|(cause, count)| format!("{count} × {cause}")));
        Some(format!(
            "{all} of {requests} requests failed ({}), and are in no figure",
            causes.join(", ")
        ))
    }

    fn starts(&self) -> String {
        if self.total.start.is_empty() {
            return String::new();
        }
        let mut table = Table::new(&[
            ("START", Align::Left),
            ("ANSWERS", Align::Right),
            ("P50", Align::Right),
            ("P99", Align::Right),
            ("MAX", Align::Right),
        ]);
        for (start, times) in &self.total.start {
            let cells = [times.p50, times.p99, times.max].map(output::micros);
            let first = [start.clone(), times.count.to_string()];
            table.row(first.into_iter().chain(cells).collect());
        }
        format!("{}\n", table.render())
    }

    /// How late the generator was, with a warning if that affects the figures.
    fn lag(&self) -> String {
        let lag = &self.lag_us;
        let mut text = format!(
            "times count from when a request was meant to be sent; the generator itself was late by {} (p50), {} (p99), \
             {} (max)\n",
            output::micros(lag.p50),
            output::micros(lag.p99),
            output::micros(lag.max)
        );
        if lag.p99 > LAG_P99_US_MAX {
            text.push_str(&format!(
                "{WARN}the generator fell behind{WARN:#}: this machine is busy, or one thread is too few (--threads)\n"
            ));
        }
        text
    }
}

impl GroupReport {
    fn new(group: &Group, over_ms: &[u32]) -> Self {
        let unanswered = group.unanswered.iter();
        Self {
            requests: group.requests,
            answered: group.complete.count() + group.failed,
            failed: group.failed,
            unanswered: unanswered
                .map(|(failure, count)| (failure.as_str(), *count))
                .collect(),
            status: group.status.clone(),
            first_byte_us: group.first_byte.summary(),
            complete_us: group.complete.summary(),
            start: group
                .start
                .iter()
                .map(|(start, times)| (start.clone(), times.summary()))
                .collect(),
            over_ms: over_ms
                .iter()
                .copied()
                .zip(group.over.iter().copied())
                .collect(),
        }
    }
}

fn rows(heading: &str, groups: &[(String, GroupReport)], total: &GroupReport) -> String {
    let mut table = Table::new(&[
        (heading, Align::Left),
        ("REQUESTS", Align::Right),
        ("COLD", Align::Right),
        ("FAILED", Align::Right),
        ("P50", Align::Right),
        ("P90", Align::Right),
        ("P99", Align::Right),
        ("MAX", Align::Right),
    ]);
    let all = ("all".to_owned(), total.clone());
    let one_alone = groups.len() == 1;
    for (name, report) in groups.iter().chain((!one_alone).then_some(&all)) {
        let cold = report.start.get("cold").map_or(0, |times| times.count);
        let failed = report.failed + report.unanswered.values().sum::<u64>();
        let counts = [report.requests, cold, failed].map(|count| count.to_string());
        let times = &report.complete_us;
        let times = if times.count > 0 {
            [times.p50, times.p90, times.p99, times.max].map(output::micros)
        } else {
            [const { String::new() }; 4]
        };
        table.row(
            [shortened(name)]
                .into_iter()
                .chain(counts)
                .chain(times)
                .collect(),
        );
    }
    table.render()
}

/// Shortens a trace's hash, which is longer than a line.
fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_COLUMNS_MAX {
        return name.to_owned();
    }
    let start: String = name.chars().take(NAME_COLUMNS_MAX - 1).collect();
    format!("{start}…")
}

const NAME_COLUMNS_MAX: usize = 20;
/// Above this, the generator's delay affects the figures of a function that takes milliseconds.
const LAG_P99_US_MAX: f64 = 5_000.0;
