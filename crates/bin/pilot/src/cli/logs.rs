//! `pilot logs`: a function's output, with a REPORT line per invocation; with `-f` it follows the log.
//!
//! Control characters of a line are printed as `\u{1b}`, on a terminal and into pipes: a function must not be able to operate the
//! terminal of whoever reads its log, now or later. `--json` has the exact text.

use std::io::{BufRead, ErrorKind};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use pilot_model::FunctionName;
use pilot_model::calendar::unix_ms;
use pilot_model::log_line::{LogLine, LogSource};

use super::client::Client;
use super::output::{self, DIM};
use super::reader;
use super::usage::not_empty;

/// The arguments of `pilot logs`.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Which function
    name: FunctionName,
    /// Follow the log
    #[arg(short, long)]
    follow: bool,
    /// Number of last lines to print [default: 100; with --since or --request all of them]
    #[arg(short = 'n', long, value_name = "N", value_parser = |text: &str| text.parse::<u32>().map_err(|_| "must be a whole number, not below 0"))]
    lines: Option<u32>,
    /// Only lines from this time on: a duration like 5m or 2h30m, or a time like 2026-11-22T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Only lines of the request with this id
    #[arg(long, value_name = "ID", value_parser = not_empty)]
    request: Option<String>,
    /// Print a JSON object per line: time, source, request_id, text
    #[arg(long)]
    json: bool,
}

/// Prints the log.
pub(super) fn run(client: &Client, args: &LogsArgs) -> anyhow::Result<()> {
    let filters = args.since.is_some() || args.request.is_some();
    let lines = args
        .lines
        .unwrap_or(if filters { LINES_MAX } else { LINES_DEFAULT });
    let mut query = vec![
        ("lines", lines.to_string()),
        ("follow", args.follow.to_string()),
        ("format", "json".to_owned()),
    ];
    query.extend(args.since.map(|at| ("since_unix_ms", at.to_string())));
    query.extend(args.request.clone().map(|id| ("request", id)));
    let log = read(client, &args.name, &query)?;
    if args.follow {
        reader::end_when_gone()?;
    }
    let mut found = false;
    copy(log, |line| {
        found = true;
        if args.json {
            return output::print_bytes(line);
        }
        output::print(&(styled(&parse(line)?) + "\n"))
    })?;
    if args.follow {
        anyhow::bail!("the daemon at {} has ended the log", client.endpoint());
    }
    if let Some(id) = args.request.as_ref().filter(|_| !found && lines > 0) {
        let when = match args.since {
            Some(_) => " from this time on",
            None => "",
        };
        anyhow::bail!(
            "the log of '{}' has no lines of request {id}{when}",
            args.name
        );
    }
    Ok(())
}

/// Follows the log from its end on.
pub(super) fn follow(client: &Client, name: &FunctionName) -> anyhow::Result<impl BufRead + use<>> {
    let query = [("lines", "0"), ("follow", "true"), ("format", "json")];
    read(
        client,
        name,
        &query.map(|(key, value)| (key, value.to_owned())),
    )
}

fn read(
    client: &Client,
    name: &FunctionName,
    query: &[(&str, String)],
) -> anyhow::Result<impl BufRead + use<>> {
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(query)
        .finish();
    client.stream_function(name, &format!("/logs?{query}"))
}

/// Reads a line of the daemon's answer.
pub(super) fn parse(line: &[u8]) -> anyhow::Result<LogLine> {
    serde_json::from_slice(line).context("the daemon sent a log line that is not JSON")
}

/// Time, source and text. What is not the function's own is dim.
fn styled(line: &LogLine) -> String {
    let (prefix, text) = line.render_parts();
    match line.source {
        LogSource::Platform => format!("{DIM}{prefix}{text}{DIM:#}"),
        LogSource::Function | LogSource::Unknown => format!("{DIM}{prefix}{DIM:#}{text}"),
    }
}

/// The beginning of `--since`, Unix milliseconds.
pub(super) fn since(text: &str) -> Result<u64, String> {
    since_at(text, SystemTime::now())
}

fn since_at(text: &str, now: SystemTime) -> Result<u64, String> {
    let ago: Result<Duration, _> = humantime::parse_duration(text);
    let at = match ago {
        Ok(ago) => now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH),
        Err(_) => humantime::parse_rfc3339_weak(text).map_err(|_| {
            "neither a duration like 30s, 5m, 2h30m or 1d, nor a UTC time like 2026-11-22T18:00:00Z"
                .to_owned()
        })?,
    };
    Ok(unix_ms(at))
}

/// Copies line after line, each with its line break, until the stream ends.
pub(super) fn copy(
    mut log: impl BufRead,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        match log.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => each(&line)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("the log was interrupted"),
        }
    }
}

const LINES_DEFAULT: u32 = 100;
/// The most that the daemon gives.
const LINES_MAX: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_handed_on_one_by_one_whatever_bytes_they_hold() {
        let mut seen = Vec::new();
        copy(&b"a\n\xff\xfe\nlast"[..], |line| {
            seen.push(line.to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(
            seen,
            [b"a\n".to_vec(), b"\xff\xfe\n".to_vec(), b"last".to_vec()]
        );
    }

    #[test]
    fn since_takes_durations_and_times() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let at = |text| since_at(text, now);
        assert_eq!(at("5m"), Ok(1_699_999_700_000));
        assert_eq!(at("1h 30m"), Ok(1_699_994_600_000));
        assert_eq!(at("2023-11-14T22:13:20Z"), Ok(1_700_000_000_000));
        assert_eq!(at("2023-11-14 22:13:20"), Ok(1_700_000_000_000));
        assert_eq!(at("900000d"), Ok(0));
        assert!(at("yesterday").unwrap_err().contains("5m"));
    }

    #[test]
    fn a_forged_report_line_shows_that_the_function_wrote_it() {
        let line = |source, text: &str| LogLine {
            time: Some("2026-11-22T18:00:00.000Z".to_owned()),
            source,
            request_id: None,
            text: text.to_owned(),
        };
        let shown = |line| anstream::adapter::strip_str(&styled(&line)).to_string();
        assert_eq!(
            shown(line(LogSource::Function, "\u{1b}[2KREPORT RequestId: x")),
            r"2026-11-22T18:00:00.000Z function \u{1b}[2KREPORT RequestId: x"
        );
        assert_eq!(
            shown(line(LogSource::Platform, "REPORT RequestId: x")),
            "2026-11-22T18:00:00.000Z platform REPORT RequestId: x"
        );
    }
}
