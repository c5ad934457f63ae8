//! Output to the terminal: text, tables, JSON, and the format of quantities. Colour depends on the terminal, `NO_COLOR` and
//! `CLICOLOR` (anstream strips it).

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use pilot_model::FunctionName;
use pilot_model::log_line::{safe_json, visible, visible_lines, without_controls};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::Failure;

/// Headings and names.
pub(super) const STRONG: Style = Style::new().bold();
/// Less important text.
pub(super) const DIM: Style = Style::new().dimmed();
/// Success.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// Errors.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub(super) const WARN: Style = AnsiColor::Yellow.on_default();
/// Bars of charts.
pub(super) const BAR: Style = AnsiColor::Cyan.on_default();

/// Writes text to standard output.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Writes bytes to standard output as they are.
pub(super) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Writes a value as indented JSON to standard output, without control characters.
pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = safe_json(serde_json::to_string_pretty(value)?);
    text.push('\n');
    print_bytes(text.as_bytes())
}

/// Reads what the daemon says of functions, to show it. Deployers write parts of it, and whoever reads them has a terminal: texts have no
/// control characters then.
pub(super) fn readable<T: DeserializeOwned>(said: Value) -> anyhow::Result<T> {
    Ok(serde_json::from_value(plain(said))?)
}

fn plain(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_controls(&text)),
        Value::Array(values) => values.into_iter().map(plain).collect(),
        Value::Object(values) => {
            let values = values.into_iter();
            values
                .map(|(key, value)| (without_controls(&key), plain(value)))
                .collect()
        }
        other => other,
    }
}

/// Writes a line to standard error. Write errors are ignored.
pub(super) fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Writes an error to standard error. Control characters in it are visible, because a function may have written parts of it.
pub(super) fn error(text: &str) {
    prose(&format!(
        "{BAD}error:{BAD:#} {}",
        indented(&visible_lines(text))
    ));
}

/// Writes why a function is not deployed to standard error. Control characters are visible, because names of files may have some.
pub(super) fn not_deployed(name: &FunctionName, error: &anyhow::Error) {
    let verdict = match error.downcast_ref() {
        // Nobody knows.
        Some(Failure::HungUp { .. }) => "",
        _ => "not deployed: ",
    };
    let error = indented(&visible_lines(&format!("{error:#}")));
    prose(&format!(
        "{BAD}✗{BAD:#} {STRONG}{name}{STRONG:#}  {verdict}{error}"
    ));
}

/// Indents all lines but the first one, so that none of them looks like a line of Pilotlight: a function may have written them.
fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// Writes sentences to standard error. On a terminal, lines break between words.
pub(super) fn prose(text: &str) {
    match terminal_size::terminal_size_of(io::stderr()) {
        Some((columns, _)) => note(&wrapped(text, usize::from(columns.0))),
        None => note(text),
    }
}

/// Breaks long lines between words and indents the rest.
fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::new();
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let mut used = 0;
        for word in line.split_inclusive(' ') {
            let length = width(word.trim_end());
            if used > 0 && length > 0 && used + length > columns {
                out.truncate(out.trim_end().len());
                out.push_str("\n  ");
                used = 2;
            }
            out.push_str(word);
            used += width(word);
        }
    }
    out
}

/// Writes a traceback or a tool's output to standard error, indented, with control characters visible; nothing if it is empty.
pub(super) fn detail(text: &str) {
    for line in text.trim_end().lines() {
        note(&format!("  {DIM}│{DIM:#} {}", visible(line)));
    }
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderGone.into()),
        other => other.context("cannot write to standard output"),
    }
}

/// A table with two spaces between columns.
#[derive(Debug)]
pub(super) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            align: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    /// Adds a row, a cell per column.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.align.len());
        self.rows.push(cells);
    }

    /// The table as text, with a line break at its end.
    pub(super) fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.align.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| width(cell)).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&self.align)
                .zip(&widths)
                .map(|((cell, align), column)| pad(cell, *column, *align))
                .collect();
            let line = cells.join("  ");
            let line = line.trim_end();
            if index == 0 {
                text.push_str(&format!("{DIM}{line}{DIM:#}\n"));
            } else {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}

/// Pads a cell to a width in columns.
pub(super) fn pad(cell: &str, columns: usize, align: Align) -> String {
    let fill = " ".repeat(columns.saturating_sub(width(cell)));
    match align {
        Align::Left => format!("{cell}{fill}"),
        Align::Right => format!("{fill}{cell}"),
    }
}

fn width(cell: &str) -> usize {
    anstream::adapter::strip_str(cell)
        .map(|part| part.chars().count())
        .sum()
}

/// A duration in a suitable unit: `0.05 ms`, `61.2 ms`, `312 ms`, `1.40 s`.
pub(super) fn duration(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 9.995 {
        format!("{ms:.2} ms")
    } else if ms < 99.95 {
        format!("{ms:.1} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else if ms < 60_000.0 {
        format!("{:.2} s", ms / 1e3)
    } else {
        format!("{:.0} s", ms / 1e3)
    }
}

/// Microseconds in a suitable unit: `43.1 µs`, `512 µs`, `2.31 ms`. The differences of warm calls are below a millisecond.
pub(super) fn micros(us: f64) -> String {
    if us < 99.95 {
        format!("{us:.1} µs")
    } else if us < 999.5 {
        format!("{us:.0} µs")
    } else {
        duration(from_ms(us / 1e3))
    }
}

/// Milliseconds as a [`Duration`]; zero if they are not a valid one.
pub(super) fn from_ms(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}

/// Bytes in MB of 2^20, as in Lambda: `48.2 MB`.
pub(super) fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).saturating_add(1 << 19) >> 20;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

/// The time since then: `just now`, `5 min ago`, `3 h ago`, `12 days ago`.
pub(super) fn ago(then_unix_s: u64, now_unix_s: u64) -> String {
    let seconds = now_unix_s.saturating_sub(then_unix_s);
    match seconds {
        0..5 => "just now".to_owned(),
        5..120 => format!("{seconds} s ago"),
        120..7_200 => format!("{} min ago", seconds / 60),
        7_200..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// `1 worker`, `3 workers`.
pub(super) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// The time now, Unix seconds.
pub(super) fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A name or an id as a part of a path. A valid one needs no escaping, and another one is not found.
pub(super) fn path_part(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_in_the_unit_that_fits() {
        let written = |us| duration(Duration::from_micros(us));
        assert_eq!(written(53), "0.05 ms");
        assert_eq!(written(9_999), "10.0 ms");
        assert_eq!(written(61_230), "61.2 ms");
        assert_eq!(written(312_000), "312 ms");
        assert_eq!(written(1_400_000), "1.40 s");
        assert_eq!(written(90_000_000), "90 s");
        let written = [0.0, 43.14, 512.4, 999.6, 2_310.0].map(micros);
        assert_eq!(
            written,
            ["0.0 µs", "43.1 µs", "512 µs", "1.00 ms", "2.31 ms"]
        );
        assert_eq!(megabytes(50_541_363), "48.2 MB");
        assert_eq!(megabytes(0), "0.0 MB");
        assert_eq!(ago(100, 100), "just now");
        assert_eq!(ago(100, 90), "just now", "a clock that went back");
        assert_eq!(ago(0, 125), "2 min ago");
        assert_eq!(ago(0, 200_000), "2 days ago");
        assert_eq!(count(1, "worker"), "1 worker");
        assert_eq!(count(0, "worker"), "0 workers");
    }

    #[test]
    fn lines_that_a_function_may_have_written_do_not_look_like_ours() {
        assert_eq!(indented("no"), "no");
        let forged = indented("no\n\u{2713} victim  version 9");
        assert_eq!(forged, "no\n    \u{2713} victim  version 9");
        assert_eq!(wrapped(&forged, 80), forged);
    }

    #[test]
    fn a_table_aligns_numbers_to_the_right_and_leaves_no_trailing_blanks() {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("CALLS", Align::Right),
            ("WHEN", Align::Left),
        ]);
        table.row(vec!["invert".into(), "7".into(), "just now".into()]);
        table.row(vec!["a".into(), "12345678".into(), String::new()]);
        let text = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(
            text,
            "NAME       CALLS  WHEN\n\
             invert         7  just now\n\
             a       12345678\n"
        );
    }

    #[test]
    fn sentences_break_between_words_and_colour_is_kept_whole() {
        let text = wrapped(&format!("{BAD}error:{BAD:#} one two  three\nfour"), 14);
        assert_eq!(text, format!("{BAD}error:{BAD:#} one two\n  three\nfour"));
        assert_eq!(
            wrapped("averyveryverylongword x", 10),
            "averyveryverylongword\n  x"
        );
        assert_eq!(wrapped("", 10), "");
    }

    #[test]
    fn colour_does_not_count_as_width() {
        assert_eq!(width(&format!("{BAD}ab{BAD:#}")), 2);
    }
}
