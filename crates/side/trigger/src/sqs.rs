//! A queue with SQS's API. The queue is durable, so the function is invoked directly, and a message is deleted when it is done. What
//! failed becomes visible again after the queue's visibility timeout, until `max_receives` or the queue's own rule ends that.

mod backlog;
pub(crate) mod client;
pub(crate) mod queues;

use std::sync::Arc;
use std::time::Duration;

use pilot_model::trigger::SqsConfig;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::batch::{self, Item, Reports};
use crate::context::Context;
use crate::status::now_ms;
use backlog::Backlog;
use client::Queue;

/// Receives until the trigger is stopped.
pub(crate) async fn run(mut context: Context, config: SqsConfig) {
    let connections = Arc::clone(&context.shared.connections);
    let opened = connections
        .sqs(context.function.as_str(), &config.queue)
        .and_then(|(_, access)| Queue::open(access, &config.queue));
    let queue = match opened {
        Ok(queue) => queue,
        Err(problem) => {
            context.status.refused(&problem);
            return context.stopped().await;
        }
    };
    let receiver = Arc::new(Receiver {
        queue,
        config,
        context: context.clone(),
        backlog: Backlog::new(&context.status),
    });
    let mut batches = JoinSet::new();
    let mut visibility_s = None;
    loop {
        let polled = receiver.round(&mut context, &mut batches, &mut visibility_s);
        match polled.await {
            Ok(()) if context.is_stopped() => break,
            Ok(()) => {}
            Err(problem) => {
                if !context.back_off(&problem).await {
                    break;
                }
            }
        }
    }
    // What runs is finished, and deleted if it succeeds.
    while batches.join_next().await.is_some() {}
}

#[derive(Debug)]
struct Receiver {
    queue: Queue,
    config: SqsConfig,
    context: Context,
    backlog: Backlog,
}

/// A message, and what deletes it.
#[derive(Debug)]
struct Message {
    item: Item,
    receipt: String,
    sent_ms: Option<i64>,
}

impl Receiver {
    /// Waits for a place, receives one batch and begins to run it.
    async fn round(
        self: &Arc<Self>,
        context: &mut Context,
        batches: &mut JoinSet<Result<(), String>>,
        visibility_s: &mut Option<u64>,
    ) -> Result<(), String> {
        let places = context.places();
        while batches.len() >= places {
            tokio::select! {
                () = context.stopped() => return Ok(()),
                Some(ended) = batches.join_next() => batch::joined(ended)?,
            }
        }
        // Those that have ended in the meantime.
        while let Some(ended) = batches.try_join_next() {
            batch::joined(ended)?;
        }
        let visibility_s = match *visibility_s {
            Some(known) => known,
            None => *visibility_s.insert(self.visibility_s().await?),
        };
        let asked_at = Instant::now();
        let messages = tokio::select! {
            // What arrives in this moment is visible again after its timeout.
            () = context.stopped() => return Ok(()),
            messages = self.receive(visibility_s) => messages?,
        };
        context.works();
        let oldest_ms = messages.iter().filter_map(|message| message.sent_ms).min();
        let running = self.backlog.begin(messages.len() as u64, oldest_ms);
        // Those that were received must run all the same.
        if let Err(problem) = self.ask_what_waits().await {
            context.status.failed(&problem);
        }
        if messages.is_empty() {
            // A server that does not wait for messages would be asked without end.
            let early = EMPTY_MIN.saturating_sub(asked_at.elapsed());
            context.pause(early).await;
            return Ok(());
        }
        context.status.received(messages.len() as u64);
        let receiver = Arc::clone(self);
        batches.spawn(async move {
            let ended = receiver.process(messages).await;
            drop(running);
            ended
        });
        Ok(())
    }

    /// The queue's visibility timeout, unless that is too short for a batch: it would come again while it runs.
    async fn visibility_s(&self) -> Result<u64, String> {
        let attributes = self.attributes(&["VisibilityTimeout"]).await?;
        let own_s = number(&attributes["VisibilityTimeout"]).unwrap_or(30);
        let batch = Duration::from_millis(self.config.batch_window_ms) + self.context.timeout;
        let least_s = batch.as_secs() + 1 + VISIBILITY_SPARE_S;
        Ok(own_s.max(least_s).min(VISIBILITY_MAX_S))
    }

    async fn attributes(&self, names: &[&str]) -> Result<Value, String> {
        let asked = json!({"AttributeNames": names});
        let mut answer = self.queue.call("GetQueueAttributes", asked).await?;
        Ok(take(&mut answer, "Attributes"))
    }

    async fn ask_what_waits(&self) -> Result<(), String> {
        if self.backlog.is_due() {
            let attributes = self.attributes(&["ApproximateNumberOfMessages"]).await?;
            let visible = number(&attributes["ApproximateNumberOfMessages"]).unwrap_or(0);
            self.backlog.at_the_queue(visible);
        }
        Ok(())
    }

    /// Receives a batch: with a long poll for the first messages, and until the window or the batch is full for the others.
    async fn receive(&self, visibility_s: u64) -> Result<Vec<Message>, String> {
        let mut messages = self.poll(visibility_s, POLL_S, 0).await?;
        let until = Instant::now() + Duration::from_millis(self.config.batch_window_ms);
        let most = self.config.batch_size as usize;
        let mut is_more = messages.len() == PER_CALL;
        while !messages.is_empty()
            && messages.len() < most
            && messages.iter().map(|one| one.item.bytes).sum::<usize>() < BATCH_BYTES_MAX
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && !is_more {
                break;
            }
            let wait_s = left.as_secs().min(POLL_S);
            let found = self.poll(visibility_s, wait_s, messages.len()).await?;
            is_more = found.len() == PER_CALL;
            if found.is_empty() && wait_s == 0 {
                if left.is_zero() {
                    break;
                }
                tokio::time::sleep(left.min(SHORT_POLL)).await;
            }
            messages.extend(found);
        }
        Ok(messages)
    }

    async fn poll(
        &self,
        visibility_s: u64,
        wait_s: u64,
        already: usize,
    ) -> Result<Vec<Message>, String> {
        let most = (self.config.batch_size as usize).saturating_sub(already);
        let asked = json!({
            "MaxNumberOfMessages": most.clamp(1, PER_CALL),
            "WaitTimeSeconds": wait_s,
            "VisibilityTimeout": visibility_s,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        let mut answer = self.queue.call("ReceiveMessage", asked).await?;
        let Value::Array(messages) = take(&mut answer, "Messages") else {
            return Ok(Vec::new());
        };
        let (arn, region) = (self.queue.arn(), self.queue.region());
        let messages = messages
            .into_iter()
            .filter_map(|message| read(message, &arn, region));
        Ok(messages.take(PER_CALL).collect())
    }

    /// Runs a batch, and deletes what is done.
    async fn process(&self, messages: Vec<Message>) -> Result<(), String> {
        let receipts: Vec<(String, String)> = messages
            .iter()
            .map(|message| (message.item.id.clone(), message.receipt.clone()))
            .collect();
        let items = messages.into_iter().map(|message| message.item).collect();
        let context = &self.context;
        let (mut done, items) = batch::bury(context, items, self.config.max_receives).await;
        let mut waits = None;
        if !items.is_empty() {
            let reports = Reports::of(self.config.report_batch_item_failures);
            let mut end = batch::run(context, &items, reports).await;
            context.status.ran();
            done.append(&mut end.done);
            waits = end.note(context);
        }
        let receipts = receipts.into_iter();
        let receipts = receipts.filter(|(id, _)| done.contains(id));
        self.delete(receipts.map(|(_, receipt)| receipt).collect())
            .await?;
        waits.map_or(Ok(()), Err)
    }

    /// Deletes messages. What cannot be deleted comes again.
    async fn delete(&self, receipts: Vec<String>) -> Result<(), String> {
        for part in receipts.chunks(PER_CALL) {
            let entries = part.iter().enumerate();
            let entries: Vec<Value> = entries
                .map(|(at, receipt)| json!({"Id": at.to_string(), "ReceiptHandle": receipt}))
                .collect();
            let asked = json!({"Entries": entries});
            let mut tries = 0;
            let answer = loop {
                match self.queue.call("DeleteMessageBatch", asked.clone()).await {
                    Ok(answer) => break answer,
                    Err(problem) if tries == DELETE_TRIES => return Err(problem),
                    Err(_) => tokio::time::sleep(Duration::from_millis(200 << tries)).await,
                }
                tries += 1;
            };
            if let Some(failed) = answer["Failed"]
                .as_array()
                .filter(|failed| !failed.is_empty())
            {
                let first = &failed[0];
                return Err(format!(
                    "{} messages that are done cannot be deleted and will come again: {first}",
                    failed.len()
                ));
            }
        }
        Ok(())
    }
}

/// Sends the record of a destination.
pub(crate) async fn send(
    queue: &Queue,
    url: &str,
    group: &str,
    id: &str,
    record: &str,
) -> Result<(), String> {
    let mut asked = json!({"MessageBody": record});
    if url.ends_with(".fifo") {
        asked["MessageGroupId"] = json!(group);
        asked["MessageDeduplicationId"] = json!(id);
    }
    queue.call("SendMessage", asked).await.map(drop)
}

/// A message of SQS as Lambda's event has it. `None`: it has no id or receipt.
fn read(mut message: Value, arn: &str, region: &str) -> Option<Message> {
    let text = |key: &str| message[key].as_str().map(str::to_owned);
    let (id, receipt) = (text("MessageId")?, text("ReceiptHandle")?);
    let body = text("Body").unwrap_or_default();
    let digest = text("MD5OfBody").unwrap_or_default();
    let attributes = take(&mut message, "Attributes");
    let mut own = Map::new();
    if let Value::Object(given) = take(&mut message, "MessageAttributes") {
        for (name, value) in given {
            let mut one = json!({
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": value["DataType"],
            });
            for (theirs, ours) in [
                ("StringValue", "stringValue"),
                ("BinaryValue", "binaryValue"),
            ] {
                if value[theirs].is_string() {
                    one[ours] = value[theirs].clone();
                }
            }
            own.insert(name, one);
        }
    }
    let receives = number(&attributes["ApproximateReceiveCount"]).unwrap_or(1);
    let sent_ms = number(&attributes["SentTimestamp"]);
    let bytes = body.len() + attributes.to_string().len() + ITEM_BYTES;
    let record = json!({
        "messageId": id,
        "receiptHandle": receipt,
        "body": body,
        "attributes": if attributes.is_object() { attributes } else { json!({}) },
        "messageAttributes": own,
        "md5OfBody": digest,
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": region,
    });
    Some(Message {
        item: Item {
            id,
            record,
            receives: u32::try_from(receives).unwrap_or(u32::MAX),
            bytes,
        },
        receipt,
        sent_ms: sent_ms
            .and_then(|ms| i64::try_from(ms).ok())
            .filter(|ms| *ms <= now_ms()),
    })
}

/// A part of an answer, which may be anything.
fn take(answer: &mut Value, key: &str) -> Value {
    answer.get_mut(key).map_or(Value::Null, Value::take)
}

/// SQS writes numbers as texts.
fn number(value: &Value) -> Option<u64> {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string()).parse().ok()
}

/// Messages of one call, at most.
const PER_CALL: usize = 10;
/// SQS's longest poll.
const POLL_S: u64 = 20;
/// From one call that finds nothing to the next one.
const EMPTY_MIN: Duration = Duration::from_secs(1);
/// Between polls that do not wait.
const SHORT_POLL: Duration = Duration::from_millis(200);
/// Beside the function's timeout, for the wait for a worker.
const VISIBILITY_SPARE_S: u64 = 5;
/// SQS's longest.
const VISIBILITY_MAX_S: u64 = 43_200;
/// Lambda's limit of an event is 6 MB.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// About what a record takes besides its body and attributes.
const ITEM_BYTES: usize = 512;
const DELETE_TRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_lambdas_record() {
        let message = json!({
            "MessageId": "m1", "ReceiptHandle": "r1", "Body": "hello", "MD5OfBody": "5d41",
            "Attributes": {"ApproximateReceiveCount": "3", "SentTimestamp": "1700000000000"},
            "MessageAttributes": {"kind": {"DataType": "String", "StringValue": "a"}},
        });
        let message = read(message, "arn:aws:sqs:us-east-1:1:jobs", "us-east-1").unwrap();
        assert_eq!((message.item.receives, &*message.receipt), (3, "r1"));
        assert_eq!(message.sent_ms, Some(1_700_000_000_000));
        let record = &message.item.record;
        assert_eq!(record["messageId"], "m1");
        assert_eq!(record["attributes"]["ApproximateReceiveCount"], "3");
        assert_eq!(record["messageAttributes"]["kind"]["stringValue"], "a");
        assert_eq!(record["eventSource"], "aws:sqs");
        assert!(read(json!({"MessageId": "m1"}), "", "").is_none());
        assert!(read(json!(["MessageId"]), "", "").is_none());
        assert_eq!(take(&mut json!([1]), "Messages"), Value::Null);
    }
}
