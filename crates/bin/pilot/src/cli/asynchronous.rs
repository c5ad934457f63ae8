//! `pilot async` and `pilot dlq`: asynchronous invocations that wait or run, and dead letters.

use std::cmp::Ordering;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use clap::{Args, Subcommand};
use pilot_model::FunctionName;
use pilot_model::asynchronous::{
    AsyncInfo, AsyncShown, DeadLetters, DeadLettersChanged, LISTED_DEFAULT, LISTED_MAX,
};
use pilot_model::calendar::unix_ms;

use super::client::Client;
use super::output::{self, Align, Table};
use super::usage::not_empty;

/// The arguments of `pilot async`.
#[derive(Debug, Args)]
pub(super) struct AsyncArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the invocations that wait or run, oldest first
    List(ListArgs),
    /// Show one invocation or dead letter, with its event
    Show(ShowArgs),
    /// Remove an invocation that waits
    Cancel {
        /// Its request id
        #[arg(value_parser = not_empty)]
        id: String,
    },
}

/// The arguments of `pilot dlq`.
#[derive(Debug, Args)]
pub(super) struct DlqArgs {
    #[command(subcommand)]
    what: WhatDead,
}

#[derive(Debug, Subcommand)]
enum WhatDead {
    /// List the dead letters, oldest first
    List(ListArgs),
    /// Show one dead letter, with its event
    Show(ShowArgs),
    /// Run dead letters again, as if they were accepted now
    Redrive(WhichArgs),
    /// Remove dead letters
    Purge(WhichArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only those of this function
    #[arg(long, value_name = "NAME")]
    function: Option<FunctionName>,
    /// Maximum number of invocations
    #[arg(long, value_name = "N", default_value_t = LISTED_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=i64::from(LISTED_MAX)))]
    limit: u32,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Its request id
    #[arg(value_parser = not_empty)]
    id: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = false)]
struct WhichArgs {
    /// The request id of one dead letter
    #[arg(group = "which", value_parser = not_empty)]
    id: Option<String>,
    /// All dead letters of this function
    #[arg(long, value_name = "NAME", group = "which")]
    function: Option<FunctionName>,
    /// All dead letters
    #[arg(long, group = "which")]
    all: bool,
}

/// Runs `pilot async`.
pub(super) fn run(client: &Client, args: &AsyncArgs) -> anyhow::Result<()> {
    match &args.what {
        What::List(args) => list(client, ASYNC, args),
        What::Show(args) => show(client, args),
        What::Cancel { id } => {
            client.delete(&format!("{ASYNC}/{}", output::path_part(id)))?;
            output::print(&format!("{id}  cancelled\n"))
        }
    }
}

/// Runs `pilot dlq`.
pub(super) fn dlq(client: &Client, args: &DlqArgs) -> anyhow::Result<()> {
    match &args.what {
        WhatDead::List(args) => list(client, DLQ, args),
        WhatDead::Show(args) => show(client, args),
        WhatDead::Redrive(which) => change(client, "redrive", "waiting again", which),
        WhatDead::Purge(which) => change(client, "purge", "removed", which),
    }
}

fn list(client: &Client, path: &str, args: &ListArgs) -> anyhow::Result<()> {
    let function = args.function.as_ref();
    let query = function.map_or_else(String::new, |name| format!("&function={name}"));
    let (asked, limit) = (asked(args.limit), args.limit as usize);
    let mut infos: Vec<AsyncInfo> = client.fetch(&format!("{path}?limit={asked}{query}"))?;
    if let Some(more) = more(infos.len(), args.limit, args.function.is_some()) {
        output::note(&more);
    }
    infos.truncate(limit);
    if infos.is_empty() {
        client.warn_of_unknown(function);
    }
    if args.json {
        return output::print_json(&infos);
    }
    let mut table = Table::new(&[
        ("ID", Align::Left),
        ("FUNCTION", Align::Left),
        ("STATE", Align::Left),
        ("AGE", Align::Right),
        ("ATTEMPTS", Align::Right),
        ("BYTES", Align::Right),
        ("LAST ERROR", Align::Left),
    ]);
    let now_ms = unix_ms(SystemTime::now());
    for info in &infos {
        let age = Duration::from_secs(now_ms.saturating_sub(info.accepted_unix_ms) / 1000);
        table.row(vec![
            info.id.clone(),
            info.function.to_string(),
            info.condition.clone().unwrap_or_else(|| info.state.clone()),
            humantime::format_duration(age).to_string(),
            info.attempts.to_string(),
            info.payload_bytes.to_string(),
            info.error.as_deref().map_or_else(String::new, short),
        ]);
    }
    output::print(&table.render())
}

/// How many are asked for, to know whether there are more: one more than are printed, if the daemon gives so many.
fn asked(limit: u32) -> u32 {
    limit.saturating_add(1).min(LISTED_MAX)
}

/// What is said if a list may have more than is printed.
fn more(found: usize, limit: u32, is_of_function: bool) -> Option<String> {
    let there = match found.cmp(&(limit as usize)) {
        Ordering::Less => return None,
        // Nobody knows whether there are more.
        Ordering::Equal if asked(limit) == limit => "there may be more",
        Ordering::Equal => return None,
        Ordering::Greater => "there are more",
    };
    let raise = format!("--limit N (at most {LISTED_MAX})");
    let how = match (limit < LISTED_MAX, is_of_function) {
        (true, true) => format!("{raise} prints them"),
        (true, false) => format!("{raise} prints them, --function NAME those of one function"),
        (false, false) => "--function NAME prints those of one function".to_owned(),
        (false, true) => "they follow when older ones have ended".to_owned(),
    };
    Some(format!("the oldest {limit} are listed, {there}: {how}"))
}

fn show(client: &Client, args: &ShowArgs) -> anyhow::Result<()> {
    let shown: AsyncShown = client.fetch(&format!("{ASYNC}/{}", output::path_part(&args.id)))?;
    // What is not a table is readable as it is.
    output::print_json(&shown)
}

fn change(client: &Client, how: &str, done: &str, which: &WhichArgs) -> anyhow::Result<()> {
    let request = DeadLetters {
        id: which.id.clone(),
        function: which.function.clone(),
    };
    let changed: DeadLettersChanged = client.post(&format!("{DLQ}/{how}"), &request)?;
    if changed.changed == 0 && changed.left == 0 {
        client.warn_of_unknown(&which.function);
    }
    let said = said(&changed, which.id.as_deref(), done)?;
    output::print(&said)?;
    all_had_room(&changed)
}

/// # Errors
/// Some dead letters had no room in the queue.
fn all_had_room(changed: &DeadLettersChanged) -> anyhow::Result<()> {
    ensure!(
        changed.left == 0,
        "the queue has no room for {}: redrive again when events have run, or raise limits.async_records or limits.async_mb in \
         pilotd.toml",
        output::count(changed.left, "dead letter")
    );
    Ok(())
}

/// What was changed. `id`: of the one dead letter that was named.
///
/// # Errors
/// There is no such dead letter.
fn said(changed: &DeadLettersChanged, id: Option<&str>, done: &str) -> anyhow::Result<String> {
    ensure!(
        changed.changed > 0 || changed.left > 0 || id.is_none(),
        "there is no dead letter {}: `pilot dlq list` lists them",
        id.unwrap_or_default()
    );
    let letters = output::count(changed.changed, "dead letter");
    Ok(format!("{letters} {done}\n"))
}

/// The beginning of an error, as one line without control characters. Of an error of the function, its type and message.
fn short(error: &str) -> String {
    let raised = serde_json::from_str::<serde_json::Value>(error).ok();
    let told = raised.and_then(|raised| {
        let part = |key: &str| raised.get(key)?.as_str().map(str::to_owned);
        Some(format!("{}: {}", part("errorType")?, part("errorMessage")?))
    });
    let text = told.as_deref().unwrap_or(error);
    let line: String = text.chars().take(ERROR_CHARS_MAX).collect();
    pilot_model::log_line::visible(&line).replace('\n', " ")
}

const ASYNC: &str = "/_pilot/v1/async";
const DLQ: &str = "/_pilot/v1/dlq";
const ERROR_CHARS_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_says_so_and_how_to_see_the_rest() {
        assert_eq!((asked(100), asked(LISTED_MAX)), (101, LISTED_MAX));
        assert_eq!(more(100, 100, false), None);
        assert_eq!(
            more(101, 100, false).unwrap(),
            "the oldest 100 are listed, there are more: --limit N (at most 1000) prints them, --function NAME those of one function"
        );
        let most = LISTED_MAX as usize;
        assert_eq!(more(most - 1, LISTED_MAX, false), None);
        let said = more(most, LISTED_MAX, false).unwrap();
        assert!(said.contains("there may be more: --function"), "{said}");
        assert!(more(most, LISTED_MAX, true).is_some());
    }

    #[test]
    fn a_dead_letter_without_room_is_not_one_that_does_not_exist() {
        let changed = |changed, left| DeadLettersChanged { changed, left };
        let told = said(&changed(0, 1), Some("a"), "waiting again").unwrap();
        assert_eq!(told, "0 dead letters waiting again\n");
        let error = all_had_room(&changed(3, 2)).unwrap_err().to_string();
        assert!(error.contains("no room for 2 dead letters"), "{error}");
        all_had_room(&changed(3, 0)).unwrap();
        let error = said(&changed(0, 0), Some("a"), "removed").unwrap_err();
        assert!(error.to_string().contains("no dead letter a"), "{error}");
        assert_eq!(
            said(&changed(0, 0), None, "removed").unwrap(),
            "0 dead letters removed\n"
        );
    }

    #[test]
    fn an_error_of_a_function_is_its_type_and_message() {
        let raised = r#"{"errorMessage": "no", "errorType": "ValueError", "stackTrace": []}"#;
        assert_eq!(short(raised), "ValueError: no");
        for other in ["no worker", "7", "{\"a\": 1}"] {
            assert_eq!(short(other), other);
        }
        assert_eq!(short(&"x".repeat(100)).len(), ERROR_CHARS_MAX);
    }
}
