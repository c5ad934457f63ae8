//! A batch of messages of a source that is durable itself: the function is invoked, and what it has done is removed from the source. What
//! failed stays there and comes again. The rules are those of AWS Lambda's event source mappings.

use std::collections::BTreeSet;

use pilot_model::ports::AttemptEnd;
use serde_json::{Value, json};
use tokio::task::JoinError;
use uuid::Uuid;

use crate::context::Context;

/// A message as the function gets it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    /// What the function calls it in `batchItemFailures`.
    pub(crate) id: String,
    /// Its record.
    pub(crate) record: Value,
    /// How often it was received, this time included.
    pub(crate) receives: u32,
    /// About how many bytes it has.
    pub(crate) bytes: usize,
}

/// What became of a part of a batch.
#[derive(Debug, PartialEq, Eq)]
struct BatchEnd {
    /// The messages that are done.
    done: Vec<String>,
    /// What failed of the others.
    problem: Option<String>,
    /// The function could not run: the messages are not at fault.
    not_run: bool,
}

impl BatchEnd {
    /// Notes a failure. Returns why others would fail in the same way, if so.
    fn note(self, context: &Context) -> Option<String> {
        if self.not_run {
            return self.problem;
        }
        if let Some(problem) = self.problem {
            context.status.failed(&problem);
        }
        None
    }
}

/// Where a batch comes from.
pub(crate) trait Source {
    /// A part of the batch has ended: removes what is done. What failed comes again.
    fn ended(
        &self,
        done: &[String],
        failed: &[String],
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// How a batch is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) reports: Reports,
    /// What was received more often becomes a dead letter.
    pub(crate) receives_max: Option<u32>,
}

/// Runs a batch: the function is invoked once, or with one part after the other if the messages are too long for an event. What is done
/// is removed from the source after each part, because the next one may take as long again.
///
/// # Errors
/// The function could not run, so others would fail in the same way; or what is done could not be removed. The source is not told of
/// what did not run.
pub(crate) async fn run(
    context: &Context,
    items: Vec<Item>,
    rules: Rules,
    source: &impl Source,
) -> Result<(), String> {
    let (buried, items) = bury(context, items, rules.receives_max).await;
    let mut problem = source.ended(&buried, &[]).await.err();
    for part in parts(&items) {
        let end = run_part(context, part, rules.reports).await;
        context.status.ran();
        if !end.not_run {
            let ids = part.iter().map(|item| item.id.clone());
            let failed: Vec<String> = ids.filter(|id| !end.done.contains(id)).collect();
            let removed = source.ended(&end.done, &failed).await;
            problem = problem.or(removed.err());
        }
        if let Some(waits) = end.note(context) {
            return Err(waits);
        }
    }
    problem.map_or(Ok(()), Err)
}

/// Cuts a batch into parts whose events are not too long. A message that is too long by itself is a part.
fn parts(items: &[Item]) -> Vec<&[Item]> {
    let mut parts = Vec::new();
    if items.is_empty() {
        return parts;
    }
    let (mut begin, mut bytes) = (0, ENVELOPE_BYTES);
    for (at, item) in items.iter().enumerate() {
        let record = item.record.to_string().len() + 1;
        if bytes + record > EVENT_BYTES_MAX && at > begin {
            parts.extend(items.get(begin..at));
            (begin, bytes) = (at, ENVELOPE_BYTES);
        }
        bytes += record;
    }
    parts.extend(items.get(begin..));
    parts
}

async fn run_part(context: &Context, items: &[Item], reports: Reports) -> BatchEnd {
    let payload = event(items);
    if payload.len() > EVENT_BYTES_MAX {
        let problem = format!(
            "a message is an event of {} bytes, at most {EVENT_BYTES_MAX}",
            payload.len()
        );
        return BatchEnd {
            done: Vec::new(),
            problem: Some(problem),
            not_run: false,
        };
    }
    if !context.is_owned() {
        return BatchEnd {
            done: Vec::new(),
            problem: Some("the function has another owner now".to_owned()),
            not_run: true,
        };
    }
    let id = Uuid::new_v4().to_string();
    let request = context.request(&id, payload);
    let end = context.shared.runner.run(request).await;
    ended(items, &end, reports)
}

/// Whether the answer says which messages failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reports {
    Nothing,
    ItemFailures,
}

impl Reports {
    pub(crate) fn of(report_batch_item_failures: bool) -> Self {
        if report_batch_item_failures {
            Self::ItemFailures
        } else {
            Self::Nothing
        }
    }
}

/// Buries what was received more often than it may. Returns the ids of what is safe as dead letters now, and what is left.
async fn bury(
    context: &Context,
    items: Vec<Item>,
    receives_max: Option<u32>,
) -> (Vec<String>, Vec<Item>) {
    let Some(receives_max) = receives_max else {
        return (Vec::new(), items);
    };
    let (mut buried, mut left) = (Vec::new(), Vec::new());
    for item in items {
        if item.receives <= receives_max {
            left.push(item);
            continue;
        }
        let id = Uuid::new_v4().to_string();
        let attempts = item.receives - 1;
        let problem = format!(
            "it was received {attempts} times and did not succeed (max_receives is {receives_max})"
        );
        let request = context.request(&id, event(std::slice::from_ref(&item)));
        match context.shared.store.bury(request, attempts, problem).await {
            Ok(()) => buried.push(item.id),
            // It stays at the source.
            Err(refusal) => context
                .status
                .failed(&format!("no dead letter can be stored: {refusal}")),
        }
    }
    (buried, left)
}

/// How the task of a batch ended.
pub(crate) fn joined(ended: Result<Result<(), String>, JoinError>) -> Result<(), String> {
    ended.unwrap_or_else(|error| Err(format!("the task of a batch failed: {error}")))
}

fn event(items: &[Item]) -> String {
    let records: Vec<&Value> = items.iter().map(|item| &item.record).collect();
    json!({"Records": records}).to_string()
}

fn ended(items: &[Item], end: &AttemptEnd, reports: Reports) -> BatchEnd {
    let nothing = |problem: String, not_run| BatchEnd {
        done: Vec::new(),
        problem: Some(problem),
        not_run,
    };
    let body = match end {
        AttemptEnd::Done { body, .. } => body,
        AttemptEnd::Failed { body, .. } => {
            return nothing(String::from_utf8_lossy(body).into_owned(), false);
        }
        AttemptEnd::NotRun { problem } | AttemptEnd::Gone { problem } => {
            return nothing(problem.clone(), true);
        }
        AttemptEnd::Stopping => return nothing("the daemon is stopping".to_owned(), true),
    };
    let ids = items.iter().map(|item| item.id.clone());
    if reports == Reports::Nothing {
        return BatchEnd {
            done: ids.collect(),
            problem: None,
            not_run: false,
        };
    }
    let answer = body.as_deref().unwrap_or(b"too large");
    match failures(items, answer) {
        Err(problem) => nothing(problem, false),
        Ok(failed) => {
            let count = failed.len();
            let problem = format!("the function reports that {count} failed (batchItemFailures)");
            BatchEnd {
                done: ids.filter(|id| !failed.contains(id)).collect(),
                problem: (count > 0).then_some(problem),
                not_run: false,
            }
        }
    }
}

/// The messages that failed, as the answer says it. An answer that cannot be understood is the failure of all (Lambda, "Reporting batch
/// item failures").
fn failures(items: &[Item], answer: &[u8]) -> Result<BTreeSet<String>, String> {
    let wrong = |problem: &str| {
        Err(format!(
            "the answer is not {{\"batchItemFailures\": [{{\"itemIdentifier\": ID}}]}}: {problem}; all of the batch counts as failed"
        ))
    };
    let answer: Value = match serde_json::from_slice(answer) {
        Ok(answer) => answer,
        Err(error) => return wrong(&error.to_string()),
    };
    let list = match &answer {
        Value::Null => return Ok(BTreeSet::new()),
        Value::Object(answer) => match answer.get("batchItemFailures") {
            None | Some(Value::Null) => return Ok(BTreeSet::new()),
            Some(Value::Array(list)) => list,
            Some(_) => return wrong("batchItemFailures is not a list"),
        },
        _ => return wrong("it is not an object"),
    };
    let mut failed = BTreeSet::new();
    for entry in list {
        let id = entry.get("itemIdentifier").and_then(Value::as_str);
        match id.filter(|id| items.iter().any(|item| item.id == *id)) {
            Some(id) => _ = failed.insert(id.to_owned()),
            None => return wrong("an itemIdentifier is not one of the batch"),
        }
    }
    Ok(failed)
}

/// Lambda's limit.
const EVENT_BYTES_MAX: usize = 6 << 20;
/// What an event has besides its records, and more.
const ENVELOPE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn items() -> Vec<Item> {
        let item = |id: &str| Item {
            id: id.to_owned(),
            record: json!({"id": id}),
            receives: 1,
            bytes: 1,
        };
        vec![item("a"), item("b")]
    }

    fn done(answer: &'static str, reports: Reports) -> BatchEnd {
        let end = AttemptEnd::Done {
            version: 1,
            body: Some(Bytes::from_static(answer.as_bytes())),
        };
        ended(&items(), &end, reports)
    }

    #[test]
    fn only_what_is_not_reported_is_done() {
        for (answer, left) in [
            ("null", &["a", "b"][..]),
            ("{}", &["a", "b"]),
            ("{\"batchItemFailures\": null}", &["a", "b"]),
            ("{\"batchItemFailures\": []}", &["a", "b"]),
            (
                "{\"batchItemFailures\": [{\"itemIdentifier\": \"b\"}]}",
                &["a"],
            ),
            // What cannot be understood fails all.
            ("{\"batchItemFailures\": [{\"itemIdentifier\": \"\"}]}", &[]),
            (
                "{\"batchItemFailures\": [{\"itemIdentifier\": \"c\"}]}",
                &[],
            ),
            ("{\"batchItemFailures\": [{\"id\": \"a\"}]}", &[]),
            ("{\"batchItemFailures\": \"a\"}", &[]),
            ("\"done\"", &[]),
        ] {
            assert_eq!(done(answer, Reports::ItemFailures).done, left, "{answer}");
            assert_eq!(done(answer, Reports::Nothing).done, ["a", "b"], "{answer}");
        }
    }

    #[test]
    fn a_batch_that_is_too_long_for_an_event_is_cut() {
        let item = |len: usize| Item {
            id: len.to_string(),
            record: json!({"body": "x".repeat(len)}),
            receives: 1,
            bytes: len,
        };
        let (small, large) = (700 << 10, EVENT_BYTES_MAX);
        let items: Vec<Item> = [small; 10]
            .into_iter()
            .chain([large, 1, 1])
            .map(item)
            .collect();
        let cut = parts(&items);
        let lens: Vec<usize> = cut.iter().map(|part| part.len()).collect();
        assert_eq!(lens, [8, 2, 1, 2]);
        for part in cut.iter().filter(|part| part.len() > 1) {
            assert!(event(part).len() <= EVENT_BYTES_MAX);
        }
        assert_eq!(parts(&items[..3]).len(), 1);
    }

    #[test]
    fn an_error_fails_all_and_a_missing_worker_is_nobodys_fault() {
        let failed = AttemptEnd::Failed {
            version: 1,
            body: Bytes::from_static(b"{\"errorType\":\"E\"}"),
        };
        let end = ended(&items(), &failed, Reports::ItemFailures);
        assert!(end.done.is_empty() && !end.not_run, "{end:?}");
        let end = ended(&items(), &AttemptEnd::Stopping, Reports::Nothing);
        assert!(end.done.is_empty() && end.not_run, "{end:?}");
        let large = AttemptEnd::Done {
            version: 1,
            body: None,
        };
        assert!(
            ended(&items(), &large, Reports::ItemFailures)
                .done
                .is_empty()
        );
    }
}
