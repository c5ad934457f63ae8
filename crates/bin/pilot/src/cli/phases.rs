//! A timeline as text: each phase with its time, a bar that begins where the previous phase ended, and an explanation. Used for
//! the `Server-Timing` header of a response and for the invocations that the daemon remembers.

use pilot_model::Timeline;
use serde::Serialize;

use super::output::{self, Align, BAR, DIM, STRONG};

/// One phase of an invocation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TimelinePhase {
    /// `admit`, `lease`, `fork` …
    pub(super) name: String,
    /// Its duration, ms.
    pub(super) ms: f64,
}

/// The phases of a remembered invocation.
pub(super) fn of_timeline(timeline: &Timeline) -> Vec<TimelinePhase> {
    let phases = timeline.phases().map(|(name, took)| TimelinePhase {
        name: name.to_owned(),
        ms: took.as_secs_f64() * 1e3,
    });
    phases.collect()
}

/// The phases in a `Server-Timing` header: `admit;dur=0.05, fork;dur=0.6;desc="…"`. Leaves out entries without a duration, and
/// the sum.
pub(super) fn of_header(header: &str) -> Vec<TimelinePhase> {
    let phases = header.split(',').filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let name = parts
            .next()
            .filter(|name| !name.is_empty() && *name != TOTAL)?;
        let ms = parts.find_map(|part| part.strip_prefix("dur="))?;
        Some(TimelinePhase {
            name: name.to_owned(),
            ms: ms.trim_matches('"').parse().ok()?,
        })
    });
    phases.collect()
}

/// The phases as an indented chart, one per line, and their sum.
pub(super) fn chart(phases: &[TimelinePhase]) -> String {
    let of_runtime = phases.iter().any(|phase| phase.name == "runtime");
    let total: f64 = phases.iter().map(|phase| phase.ms).sum();
    let mut text = String::new();
    let mut begun = 0.0;
    for phase in phases {
        let bar = bar(begun, phase.ms, total);
        let bar = output::pad(&bar, BAR_COLUMNS, Align::Left);
        let line = format!(
            "  {}{}  {BAR}{bar}{BAR:#}  {DIM}{}{DIM:#}",
            output::pad(&phase.name, NAME_COLUMNS, Align::Left),
            time(phase.ms),
            meaning(&phase.name, of_runtime),
        );
        text.push_str(line.trim_end());
        text.push('\n');
        begun += phase.ms;
    }
    let total = format!(
        "  {STRONG}{}{}{STRONG:#}\n",
        output::pad(TOTAL, NAME_COLUMNS, Align::Left),
        time(total)
    );
    text + &total
}

/// Names with a time and a bar each, for times that are not phases of one sequence. The longest bar has the longest time.
pub(super) fn bars(entries: &[(&str, f64)]) -> String {
    let most = entries.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
    let names = entries.iter().map(|(name, _)| name.chars().count());
    let columns = names
        .max()
        .unwrap_or(0)
        .clamp(NAME_COLUMNS, BARS_NAME_COLUMNS_MAX)
        + 2;
    let lines = entries.iter().map(|(name, ms)| {
        let bar = bar(0.0, *ms, most);
        format!(
            "  {}{}  {BAR}{}{BAR:#}\n",
            output::pad(name, columns, Align::Left),
            time(*ms),
            bar.trim_end()
        )
    });
    lines.collect()
}

fn time(ms: f64) -> String {
    let text = output::duration(output::from_ms(ms));
    output::pad(&text, TIME_COLUMNS, Align::Right)
}

/// A bar: spaces up to its beginning, then blocks. One that is too short for a block is a line.
fn bar(begun: f64, took: f64, total: f64) -> String {
    if total <= 0.0 {
        return String::new();
    }
    let from = column(begun / total).min(BAR_COLUMNS - 1);
    let to = column((begun + took) / total);
    if to > from {
        " ".repeat(from) + &"█".repeat(to - from)
    } else {
        " ".repeat(from) + "▏"
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the share is clamped to 0..=1 first, a bar is a few dozen columns"
)]
fn column(share: f64) -> usize {
    (share.clamp(0.0, 1.0) * BAR_COLUMNS as f64).round() as usize
}

/// `of_runtime`: the worker was neither forked nor executed for the invocation, but got a runtime.
fn meaning(phase: &str, of_runtime: bool) -> &'static str {
    match phase {
        "admit" => "request read, function found",
        "lease" => "waiting for a worker",
        "inputs" => "request body read",
        "fork" => "forked from the template",
        "exec" => "interpreter started",
        "runtime" => "a runtime kept, adapted or new",
        "sandbox" => "namespaces, limits, no rights",
        "init" if of_runtime => "program up, ready",
        "init" => "hooks run, handler ready",
        "start" => "request handed over",
        "handler" => "your code",
        "answer" => "answer handed back",
        _ => "",
    }
}

const TOTAL: &str = "total";
const NAME_COLUMNS: usize = 9;
const TIME_COLUMNS: usize = 8;
const BAR_COLUMNS: usize = 26;
const BARS_NAME_COLUMNS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_server_timing_header_is_read_and_its_sum_left_out() {
        let phases =
            of_header("admit;dur=0.05, fork;dur=0.61;desc=\"a\", cache, x;desc=y, total;dur=0.66");
        let expected = [("admit", 0.05), ("fork", 0.61)].map(|(name, ms)| TimelinePhase {
            name: name.to_owned(),
            ms,
        });
        assert_eq!(phases, expected);
        assert_eq!(of_header(""), []);
    }

    #[test]
    fn a_chart_shows_each_phase_where_it_began() {
        let phases = of_header(
            "admit;dur=0.05, fork;dur=0.62, sandbox;dur=0.71, init;dur=0.12, handler;dur=0.81",
        );
        assert_eq!(
            plain(&chart(&phases)),
            "  admit     0.05 ms  █                           request read, function found\n  \
               fork      0.62 ms   ███████                    forked from the template\n  \
               sandbox   0.71 ms          ████████            namespaces, limits, no rights\n  \
               init      0.12 ms                  █           hooks run, handler ready\n  \
               handler   0.81 ms                   █████████  your code\n  \
               total     2.31 ms\n"
        );
    }

    #[test]
    fn no_line_of_a_chart_is_wider_than_a_terminal() {
        let header = "admit;dur=1, lease;dur=10, fork;dur=100, sandbox;dur=1000, init;dur=10000, \
                      start;dur=1, handler;dur=90000, answer;dur=0";
        for line in plain(&chart(&of_header(header))).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn nothing_took_no_time() {
        assert_eq!(plain(&chart(&[])), "  total     0.00 ms\n");
    }

    #[test]
    fn bars_are_as_long_as_the_slowest_is_slow() {
        let text = plain(&bars(&[("numpy", 61.2), ("PIL.Image", 30.6)]));
        assert_eq!(
            text,
            "  numpy       61.2 ms  ██████████████████████████\n  PIL.Image   30.6 ms  █████████████\n"
        );
    }
}
