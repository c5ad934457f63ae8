//! The messages that batches of a trigger have. They are hidden from all consumers for as long as their batch waits and runs, however long
//! that takes: their visibility timeout is renewed. A message that is received again all the same is not run twice at the same time, and
//! the newest receipt handle deletes it, because older ones may not be valid any more.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use pilot_model::Seldom;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Calls, PER_CALL, VISIBILITY_MAX_S};
use crate::batch::Source;
use crate::context::Context;
use crate::status::shown;

/// The messages of all batches.
#[derive(Debug)]
pub(super) struct Held {
    queue: Arc<dyn Calls>,
    /// Guards the messages, for one look or one change.
    messages: Mutex<Messages>,
}

#[derive(Debug, Default)]
struct Messages {
    by_id: HashMap<String, HeldMessage>,
    next_batch: u64,
}

#[derive(Debug)]
struct HeldMessage {
    batch: u64,
    /// Of the last time that it was received.
    receipt: String,
    /// It is being deleted, so it is not renewed.
    is_done: bool,
}

/// The messages of one batch, until this is dropped.
#[derive(Debug)]
pub(super) struct HeldBatch {
    of: Arc<Held>,
    number: u64,
    visibility_s: u64,
    /// When its first messages were received.
    begun_at: Instant,
}

impl Held {
    pub(super) fn new(queue: Arc<dyn Calls>) -> Arc<Self> {
        Arc::new(Self {
            queue,
            messages: Mutex::default(),
        })
    }

    /// A batch without messages. `visibility_s`: for how long each receipt and each renewal hides a message.
    pub(super) fn begin(self: &Arc<Self>, visibility_s: u64) -> HeldBatch {
        let mut messages = self.messages.lock();
        let number = messages.next_batch;
        messages.next_batch += 1;
        HeldBatch {
            of: Arc::clone(self),
            number,
            visibility_s,
            begun_at: Instant::now(),
        }
    }

    /// Deletes up to [`PER_CALL`] messages. Each try uses the receipt handles that are the newest then.
    async fn delete(&self, ids: &[String]) -> Result<(), String> {
        let mut tries = 0;
        let answer = loop {
            let entries: Vec<Value> = {
                let messages = self.messages.lock();
                let found = ids.iter().filter_map(|id| messages.by_id.get(id));
                let found = found.enumerate();
                found
                    .map(|(at, one)| json!({"Id": at.to_string(), "ReceiptHandle": one.receipt}))
                    .collect()
            };
            let asked = json!({"Entries": entries});
            match self.queue.call("DeleteMessageBatch", asked).await {
                Ok(answer) => break answer,
                Err(problem) if tries == DELETE_TRIES => return Err(problem),
                Err(_) => sleep(Duration::from_millis(200 << tries)).await,
            }
            tries += 1;
        };
        let failed = failed(&answer);
        failed.first().map_or(Ok(()), |first| {
            Err(format!(
                "{} messages that are done cannot be deleted and will come again: {first}",
                failed.len()
            ))
        })
    }
}

impl HeldBatch {
    pub(super) fn visibility_s(&self) -> u64 {
        self.visibility_s
    }

    /// Its first messages were received now.
    pub(super) fn begins(&mut self) {
        self.begun_at = Instant::now();
    }

    /// Takes a message that was received. False: a batch has it already, so it is not to be run.
    pub(super) fn takes(&self, id: &str, receipt: &str) -> bool {
        let mut messages = self.of.messages.lock();
        if let Some(held) = messages.by_id.get_mut(id) {
            receipt.clone_into(&mut held.receipt);
            return false;
        }
        let message = HeldMessage {
            batch: self.number,
            receipt: receipt.to_owned(),
            is_done: false,
        };
        messages.by_id.insert(id.to_owned(), message);
        true
    }

    /// Keeps its messages hidden. Does not end.
    pub(super) async fn renew(&self, context: &Context) -> Infallible {
        let every = Duration::from_secs(self.visibility_s) / 3;
        let mut at = self.begun_at + every;
        let mut fails = false;
        loop {
            sleep_until(at).await;
            // SQS refuses more, and rounds as it likes.
            let left_s = VISIBILITY_MAX_S.saturating_sub(self.begun_at.elapsed().as_secs() + 1);
            if left_s == 0 {
                return pending().await;
            }
            let hidden = self.hide(self.visibility_s.min(left_s));
            let hidden = timeout(every, hidden).await.unwrap_or_else(|_| {
                Err("the queue does not answer ChangeMessageVisibilityBatch".to_owned())
            });
            let wait = match hidden {
                Ok(()) => every,
                Err(_) => every.min(RENEW_AGAIN),
            };
            at = Instant::now() + wait;
            if let Err(problem) = &hidden
                && !fails
            {
                say_not_renewed(context, problem);
            }
            fails = hidden.is_err();
        }
    }

    /// Makes what it still has visible at once: others may run it.
    pub(super) async fn give_back(&self) {
        // What fails becomes visible after its timeout.
        let _ = self.hide(0).await;
    }

    /// Hides its messages for so long from now on.
    async fn hide(&self, visibility_s: u64) -> Result<(), String> {
        let held = self.held();
        let calls = held.chunks(PER_CALL).map(|part| async move {
            let entries = part.iter().enumerate();
            let entries: Vec<Value> = entries
                .map(|(at, (_, receipt))| {
                    json!({
                        "Id": at.to_string(),
                        "ReceiptHandle": receipt,
                        "VisibilityTimeout": visibility_s,
                    })
                })
                .collect();
            let asked = json!({"Entries": entries});
            let queue = &self.of.queue;
            let answer = queue.call("ChangeMessageVisibilityBatch", asked).await?;
            let failed = failed(&answer).iter().find(|one| {
                let at = one["Id"].as_str().and_then(|at| at.parse::<usize>().ok());
                let held = at.and_then(|at| part.get(at));
                // What has ended in the meantime is no failure.
                held.is_none_or(|held| self.held().contains(held))
            });
            failed.map_or(Ok(()), |failed| {
                Err(format!(
                    "a running message cannot be hidden for longer: {failed}"
                ))
            })
        });
        join_all(calls).await.into_iter().collect()
    }

    /// The ids and receipt handles of what has not ended.
    fn held(&self) -> Vec<(String, String)> {
        let messages = self.of.messages.lock();
        let held = messages.by_id.iter();
        let held = held.filter(|(_, one)| one.batch == self.number && !one.is_done);
        held.map(|(id, one)| (id.clone(), one.receipt.clone()))
            .collect()
    }

    fn let_go(&self, ids: &[String]) {
        let mut messages = self.of.messages.lock();
        for id in ids {
            messages.by_id.remove(id);
        }
    }
}

impl Source for HeldBatch {
    /// Deletes what is done. What cannot be deleted comes again, and so does what failed, after its visibility timeout.
    async fn ended(&self, done: &[String], failed: &[String]) -> Result<(), String> {
        self.let_go(failed);
        {
            let mut messages = self.of.messages.lock();
            for id in done {
                if let Some(message) = messages.by_id.get_mut(id) {
                    message.is_done = true;
                }
            }
        }
        let mut problem = None;
        for part in done.chunks(PER_CALL) {
            let deleted = self.of.delete(part).await;
            problem = problem.or(deleted.err());
        }
        self.let_go(done);
        problem.map_or(Ok(()), Err)
    }
}

impl Drop for HeldBatch {
    fn drop(&mut self) {
        let mut messages = self.of.messages.lock();
        messages.by_id.retain(|_, one| one.batch != self.number);
    }
}

/// The entries of a call that failed.
fn failed(answer: &Value) -> &[Value] {
    answer["Failed"].as_array().map_or(&[], Vec::as_slice)
}

fn say_not_renewed(context: &Context, problem: &str) {
    let problem = format!("messages that run may be received again: {problem}");
    context.status.failed(&problem);
    if let Some(left_out) = NOT_RENEWED.admit(std::time::Instant::now()) {
        let (function, problem) = (&context.function, shown(&problem));
        tracing::warn!(%function, problem, left_out, "a visibility timeout is not renewed");
    }
}

const DELETE_TRIES: u32 = 3;
/// From a renewal that failed to the next one, at most.
const RENEW_AGAIN: Duration = Duration::from_secs(5);
/// Failures of renewals that are logged per interval, of all functions.
static NOT_RENEWED: Seldom = Seldom::new(2);
