//! A timeline as text: each phase with its time, a bar that begins where the previous phase ended, and an explanation. Used for
//! the `Server-Timing` header of a response and for the invocations that the daemon remembers.

use pilot_model::invocation::InvocationSummary;
use pilot_model::{Timeline, TransferWay};
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

/// The fetch of one input, which overlaps the phases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Fetch {
    /// The input's name.
    pub(super) input: String,
    /// From the request's head to its beginning, ms.
    pub(super) begin_ms: f64,
    /// Its duration, ms.
    pub(super) ms: f64,
    /// The input's length; `None` if the fetch failed.
    pub(super) bytes: Option<u64>,
    /// How much of it passed while the worker started, ms.
    pub(super) hidden_ms: f64,
    /// How much of it passed while the handler ran, ms, if the handler could read it meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) streamed_ms: Option<f64>,
    /// How long the decoder took after the last of the store's bytes, ms, if the input was decoded for this invocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decode_ms: Option<f64>,
    /// `fetched`, `shared` or `cached`.
    pub(super) way: TransferWay,
}

/// The phases of a remembered invocation.
pub(super) fn of_timeline(timeline: &Timeline) -> Vec<TimelinePhase> {
    let phases = timeline.phases().map(|(name, took)| TimelinePhase {
        name: name.to_owned(),
        ms: took.as_secs_f64() * 1e3,
    });
    phases.collect()
}

/// The fetches of a remembered invocation.
pub(super) fn fetches_of(invocation: &InvocationSummary) -> Vec<Fetch> {
    let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    let timeline = &invocation.timeline;
    let fetches = invocation.transfers.iter().map(|transfer| Fetch {
        input: transfer.input.clone(),
        begin_ms: ms(transfer.began.since(timeline.received)),
        ms: ms(transfer.took()),
        bytes: transfer.error.is_none().then_some(transfer.bytes),
        hidden_ms: ms(transfer.hidden(timeline)),
        streamed_ms: transfer.beside_handler(timeline).map(ms),
        decode_ms: transfer.decode_took().map(ms),
        way: transfer.way,
    });
    fetches.collect()
}

/// The fetches in a `Server-Timing` header: `fetch.image;dur=2.000;begin=0.100;bytes=1024;hidden=1.900`.
pub(super) fn fetches_of_header(header: &str) -> Vec<Fetch> {
    let fetches = header.split(',').filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let input = parts.next()?.strip_prefix(FETCH)?;
        let parts: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let number = |key| {
            let (_, value) = parts.iter().find(|(name, _)| *name == key)?;
            value.parse::<f64>().ok()
        };
        let bytes = parts.iter().find(|(name, _)| *name == "bytes");
        let way = match parts.iter().find(|(name, _)| *name == "desc") {
            Some((_, "cached")) => TransferWay::Cached,
            Some((_, "shared")) => TransferWay::Shared,
            Some((_, "handed")) => TransferWay::Handed,
            Some((_, "kept")) => TransferWay::Kept,
            Some((_, "script")) => TransferWay::Script,
            _ => TransferWay::Fetched,
        };
        Some(Fetch {
            way,
            input: input.to_owned(),
            begin_ms: number("begin").unwrap_or(0.0),
            ms: number("dur")?,
            bytes: bytes.and_then(|(_, value)| value.parse().ok()),
            hidden_ms: number("hidden").unwrap_or(0.0),
            streamed_ms: number("streamed"),
            decode_ms: number("decode"),
        })
    });
    fetches.collect()
}

/// The phases in a `Server-Timing` header: `admit;dur=0.05, fork;dur=0.6;desc="…"`. Leaves out entries without a duration, and
/// the sum and the fetches of inputs.
pub(super) fn of_header(header: &str) -> Vec<TimelinePhase> {
    let phases = header.split(',').filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let name = parts
            .next()
            .filter(|name| !name.is_empty() && *name != TOTAL && !name.starts_with(FETCH))?;
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

/// The fetches below a chart of the phases, on its scale. Empty if there are none.
pub(super) fn fetches(fetches: &[Fetch], phases: &[TimelinePhase]) -> String {
    if fetches.is_empty() {
        return String::new();
    }
    let total: f64 = phases.iter().map(|phase| phase.ms).sum();
    let columns = fetches.iter().map(|fetch| fetch.input.chars().count());
    let columns = columns
        .max()
        .unwrap_or(0)
        .clamp(NAME_COLUMNS, BARS_NAME_COLUMNS_MAX)
        + 1;
    let mut text = format!("  {DIM}inputs, fetched at the same time{DIM:#}\n");
    for fetch in fetches {
        let bar = bar(fetch.begin_ms, fetch.ms, total);
        let bar = output::pad(&bar, BAR_COLUMNS, Align::Left);
        let said = match fetch.bytes {
            None => "failed".to_owned(),
            Some(bytes) => {
                let mut said = output::megabytes(bytes);
                if fetch.way != TransferWay::Fetched {
                    said = format!("{said}, {}", fetch.way.as_str());
                }
                if fetch.hidden_ms > 0.0 {
                    let hidden = output::duration(output::from_ms(fetch.hidden_ms));
                    said = format!("{said}, {hidden} hidden");
                }
                if let Some(ms) = fetch.streamed_ms.filter(|ms| *ms > 0.0) {
                    let beside = output::duration(output::from_ms(ms));
                    said = format!("{said}, {beside} streamed");
                }
                if let Some(ms) = fetch.decode_ms {
                    let took = output::duration(output::from_ms(ms));
                    said = format!("{said}, {took} decoding");
                }
                said
            }
        };
        let line = format!(
            "  {}{}  {BAR}{bar}{BAR:#}  {DIM}{said}{DIM:#}",
            output::pad(&fetch.input, columns, Align::Left),
            time(fetch.ms),
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
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
        "thaw" => "waking the worker",
        "inputs" => "request body and inputs here",
        "fork" => "forked from the template",
        "exec" => "interpreter started",
        "runtime" => "a runtime kept, adapted or new",
        "sandbox" => "namespaces, privileges dropped",
        "init" if of_runtime => "program up, ready",
        "init" => "hooks run, handler ready",
        "start" => "request handed over",
        "handler" => "your code",
        "answer" => "answer handed back",
        _ => "",
    }
}

const TOTAL: &str = "total";
const FETCH: &str = "fetch.";
const NAME_COLUMNS: usize = 9;
const TIME_COLUMNS: usize = 8;
const BAR_COLUMNS: usize = 26;
const BARS_NAME_COLUMNS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_streamed_is_read_from_the_header_and_shown() {
        let header = "handler;dur=5.0, total;dur=5.0, \
                      fetch.video;dur=4.000;begin=0.100;bytes=2097152;hidden=1.000;streamed=2.500";
        let found = fetches_of_header(header);
        assert_eq!(found[0].streamed_ms, Some(2.5));
        let shown = plain(&fetches(&found, &of_header(header)));
        assert!(
            shown.contains("1.00 ms hidden, 2.50 ms streamed"),
            "{shown}"
        );
    }

    #[test]
    fn what_decoding_took_is_read_from_the_header_and_shown() {
        let header = "handler;dur=5.0, total;dur=5.0, \
                      fetch.photo;dur=4.000;begin=0.100;bytes=2097152;hidden=1.000;decode=2.500;desc=shared";
        let shown = plain(&fetches(&fetches_of_header(header), &of_header(header)));
        assert!(
            shown.contains("shared, 1.00 ms hidden, 2.50 ms decoding"),
            "{shown}"
        );
    }

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
               sandbox   0.71 ms          ████████            namespaces, privileges dropped\n  \
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
