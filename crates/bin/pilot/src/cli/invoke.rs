//! `pilot invoke`: one invocation through the Invoke API: its response, and on request its log and its timeline.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use clap::builder::UnknownArgumentValueParser;
use pilot_model::api::ApiError;
use pilot_model::deployment::{FunctionDescription, FunctionSummary};
use pilot_model::log_line::{visible, visible_lines};
use pilot_model::version::there_are;
use pilot_model::{Exception, FunctionName};
use serde_json::{Value, json};

use super::client::{Answer, Client};
use super::failure::Failure;
use super::indent;
use super::output::{self, BAD, DIM, GOOD, WARN};
use super::phases::{self, TimelinePhase};

/// The arguments of `pilot invoke`.
#[derive(Debug, Args)]
pub(super) struct InvokeArgs {
    /// A function, or NAME:VERSION for an older version
    #[arg(value_name = "NAME[:VERSION]", value_parser = check_target)]
    target: String,
    // For those who expect the event here, or under the name that the `aws` command line uses: an error says where it goes.
    #[arg(hide = true, value_name = "EVENT", value_parser = not_here())]
    _event: Option<String>,
    #[arg(long, hide = true, value_name = "EVENT", value_parser = not_here())]
    _payload: Option<String>,
    /// The event, JSON; - reads standard input [default: {}]
    #[arg(short, long, value_name = "JSON", conflicts_with = "file")]
    data: Option<String>,
    /// A file with the event; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A file that is the request's body, for a function that has that as an input; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "file"])]
    body: Option<PathBuf>,
    /// Show what the function printed (the last 4 KB)
    #[arg(long)]
    log: bool,
    /// Show the time of each phase
    #[arg(short, long)]
    timeline: bool,
    /// Print the response's bytes as they are, not indented; an exception's, too
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Write the response's bytes to a file, or an exception's
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print response, version, start, phases and log as one JSON object
    #[arg(long)]
    json: bool,
}

fn not_here() -> UnknownArgumentValueParser {
    UnknownArgumentValueParser::suggest("the event goes into --data JSON or --file FILE")
}

/// Invokes the function.
pub(super) fn run(client: &Client, args: &InvokeArgs) -> anyhow::Result<()> {
    let event = event(args)?;
    // Before the function runs: its answer would be lost.
    args.output.as_deref().map_or(Ok(()), may_write)?;
    let headers: &[(&str, &str)] = if args.log || args.json {
        &[("x-amz-log-type", "Tail")]
    } else {
        &[]
    };
    let sent = Instant::now();
    let answer = client.invoke(&args.target, event, headers)?;
    let took = sent.elapsed();
    if !answer.status.is_success() {
        return Err(refused(client, &args.target, &answer));
    }
    let raised = header(&answer, "x-amz-function-error").is_some();
    let mut printed = Ok(());
    if args.json {
        printed = output::print_json(&as_json(&answer, took.as_secs_f64() * 1e3));
        if let Some(path) = &args.output {
            write(path, &answer.body)?;
        }
    } else {
        if args.log {
            output::detail(&String::from_utf8_lossy(&log(&answer)));
        }
        if raised {
            tell_exception(&answer.body);
            if let Some(hint) = header(&answer, "x-pilot-hint") {
                output::prose(&format!("{WARN}hint:{WARN:#} {hint}"));
            }
        }
        // An exception is the response, too, for whoever asks for bytes.
        if !raised || args.raw || args.output.is_some() {
            printed = print(args, &answer.body);
        }
        if args.timeline {
            output::note(timeline(&answer, took).trim_end());
        }
    }
    // Whether or not anybody reads the output.
    match (raised, args.output.is_some()) {
        // The file is not written.
        (true, true) => printed.and(Err(Failure::Reported.into())),
        (true, false) => Err(Failure::Reported.into()),
        (false, _) => printed,
    }
}

fn event(args: &InvokeArgs) -> anyhow::Result<Vec<u8>> {
    let stdin = Path::new("-");
    let file = args.body.as_ref().or(args.file.as_ref());
    let (mut event, source) = match (&args.data, file) {
        (Some(data), _) if data != "-" => (data.clone().into_bytes(), "--data".to_owned()),
        (None, Some(path)) if path != stdin => {
            let event = fs::read(path)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
            (event, path.display().to_string())
        }
        (None, None) => (b"{}".to_vec(), String::new()),
        _ => {
            let mut event = Vec::new();
            io::stdin()
                .lock()
                .read_to_end(&mut event)
                .context("standard input")?;
            (event, "standard input".to_owned())
        }
    };
    if args.body.is_some() {
        return Ok(event);
    }
    // Some editors begin files with it. It is no part of a JSON text (RFC 8259, section 8.1).
    if event.starts_with(BYTE_ORDER_MARK) {
        event.drain(..BYTE_ORDER_MARK.len());
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(&event).map_err(|error| {
        Failure::usage(format!(
            "{source} is not JSON: {error}; for other bodies call the function's URL (`pilot describe` shows it)"
        ))
    })?;
    Ok(event)
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Prints the response. On a terminal, control characters in it are visible; pipes and files get its bytes.
fn print(args: &InvokeArgs, body: &[u8]) -> anyhow::Result<()> {
    if let Some(path) = &args.output {
        return write(path, body);
    }
    if !args.raw
        && let Ok(value) = serde_json::from_slice::<Box<serde_json::value::RawValue>>(body)
    {
        let text = indent::indented(value.get()) + "\n";
        return match io::stdout().is_terminal() {
            true => output::print(&visible_lines(&text)),
            false => output::print_bytes(text.as_bytes()),
        };
    }
    if !args.raw && io::stdout().is_terminal() {
        return output::print(&visible_lines(&String::from_utf8_lossy(body)));
    }
    output::print_bytes(body)
}

/// Makes the file, if it is not there, and leaves what is in it.
fn may_write(path: &Path) -> anyhow::Result<()> {
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened
        .map(drop)
        .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())).into())
}

fn write(path: &Path, body: &[u8]) -> anyhow::Result<()> {
    fs::write(path, body).with_context(|| path.display().to_string())
}

fn tell_exception(body: &[u8]) {
    let Some(exception) = Exception::read(body) else {
        output::error(&String::from_utf8_lossy(body));
        return;
    };
    let kind = match exception.error_type.as_str() {
        "" => "Error",
        named => named,
    };
    let (kind, message) = (visible(kind), visible_lines(&exception.error_message));
    output::note(&format!("{BAD}{kind}{BAD:#}: {message}"));
    for line in exception.stack_trace {
        output::note(&format!("{DIM}{}{DIM:#}", visible_lines(line.trim_end())));
    }
}

fn timeline(answer: &Answer, took: std::time::Duration) -> String {
    let start = header(answer, "x-pilot-start").unwrap_or("unknown");
    let style = if start == "cold" { WARN } else { GOOD };
    let phases = phases_of(answer);
    format!(
        "{style}{start}{style:#} start, {} as measured by the client\n{}{}",
        output::duration(took),
        phases::chart(&phases),
        phases::fetches(&fetches_of(answer), &phases)
    )
}

fn as_json(answer: &Answer, took_ms: f64) -> Value {
    let body = serde_json::from_slice(&answer.body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&answer.body).into_owned()));
    json!({
        "answer": body,
        "function_error": header(answer, "x-amz-function-error"),
        "version": header(answer, "x-amz-executed-version"),
        "request_id": header(answer, "x-amzn-requestid"),
        "start": header(answer, "x-pilot-start"),
        "phases": phases_of(answer),
        "inputs": fetches_of(answer),
        "client_ms": took_ms,
        "log": String::from_utf8_lossy(&log(answer)),
    })
}

fn phases_of(answer: &Answer) -> Vec<TimelinePhase> {
    phases::of_header(header(answer, "server-timing").unwrap_or_default())
}

fn fetches_of(answer: &Answer) -> Vec<phases::Fetch> {
    phases::fetches_of_header(header(answer, "server-timing").unwrap_or_default())
}

fn log(answer: &Answer) -> Vec<u8> {
    let encoded = header(answer, "x-amz-log-result").unwrap_or_default();
    STANDARD.decode(encoded).unwrap_or_default()
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name)?.to_str().ok()
}

/// An error in AWS's format: `{"Type": "User", "Message": "…"}`, with the error type in a header.
fn refused(client: &Client, target: &str, answer: &Answer) -> anyhow::Error {
    let kind = header(answer, "x-amzn-errortype").unwrap_or_default();
    let kind = kind.split(':').next().unwrap_or_default();
    if answer.status.as_u16() == 404
        && let Some(missing) = missing(client, target)
    {
        return missing;
    }
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let message = ["Message", "message", "errorMessage"]
        .iter()
        .find_map(|key| body.get(key)?.as_str());
    match message {
        Some(message) if kind.is_empty() => anyhow::anyhow!("{message}"),
        Some(message) => anyhow::anyhow!("{message} ({kind})"),
        None => anyhow::anyhow!(
            "{} answers {}: is it a Pilotlight daemon?",
            client.endpoint(),
            answer.status
        ),
    }
}

/// The error if the function, or the version, does not exist. `None`: the daemon's own message is better.
fn missing(client: &Client, target: &str) -> Option<anyhow::Error> {
    let (name, qualifier) = parts(target);
    let Some(qualifier) = qualifier else {
        return Some(client.missing(name));
    };
    let function: FunctionName = name.parse().ok()?;
    match client.fetch_function(&function, "") {
        Ok(description) => Some(no_version(&description, qualifier)),
        Err(error) => match error.downcast_ref() {
            Some(Failure::Refused { status: 404, .. }) => Some(error),
            _ => None,
        },
    }
}

fn no_version(description: &FunctionDescription, qualifier: &str) -> anyhow::Error {
    let FunctionSummary { name, number, .. } = &description.summary;
    let there = there_are(*number, &description.versions);
    let message = format!("function '{name}' has no version '{qualifier}': {there}");
    Failure::Refused {
        status: 404,
        error: ApiError {
            code: "not_found".to_owned(),
            message,
            detail: String::new(),
        },
    }
    .into()
}

/// Name and qualifier of NAME, NAME:QUALIFIER, an ARN or a partial ARN.
fn parts(target: &str) -> (&str, Option<&str>) {
    let plain = match target.rsplit_once("function:") {
        Some((_, plain)) => plain,
        None => target,
    };
    match plain.split_once(':') {
        Some((name, qualifier)) => (name, Some(qualifier)),
        None => (plain, None),
    }
}

fn check_target(text: &str) -> Result<String, String> {
    let fits = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':' | b'$'));
    if fits {
        Ok(text.to_owned())
    } else {
        Err("use NAME, NAME:VERSION or an ARN".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_cannot_leave_its_place_in_the_path() {
        assert!(check_target("invert:2").is_ok());
        assert!(check_target("arn:aws:lambda:us-east-1:000000000000:function:invert").is_ok());
        for wrong in ["", "a/b", "a?b", "a b", "ä"] {
            assert!(check_target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn name_and_version_are_found_in_every_form_of_a_target() {
        for (target, wanted) in [
            ("invert", ("invert", None)),
            ("invert:2", ("invert", Some("2"))),
            ("function:invert", ("invert", None)),
            ("000000000000:function:invert:2", ("invert", Some("2"))),
            (
                "arn:aws:lambda:us-east-1:000000000000:function:invert:$LATEST",
                ("invert", Some("$LATEST")),
            ),
        ] {
            assert_eq!(parts(target), wanted, "{target}");
        }
    }
}
