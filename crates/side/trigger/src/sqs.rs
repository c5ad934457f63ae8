//! A queue with SQS's API. The queue is durable, so the function is invoked directly, and a message is deleted when it is done. What
//! failed becomes visible again after the queue's visibility timeout, until `max_receives` or the queue's own rule ends that.

mod backlog;
pub(crate) mod client;
mod held;
pub(crate) mod queues;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::trigger::SqsConfig;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::batch::{self, Item, Reports, Rules};
use crate::context::Context;
use crate::status::now_ms;
use backlog::Backlog;
use client::{Calls, PER_CALL, Queue, VISIBILITY_MAX_S};
use held::{Held, HeldBatch};

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
    let receiver = Receiver::new(Arc::new(queue), config, context.clone());
    receiver.run(&mut context).await;
}

#[derive(Debug)]
struct Receiver {
    queue: Arc<dyn Calls>,
    config: SqsConfig,
    context: Context,
    backlog: Backlog,
    held: Arc<Held>,
}

/// A message, and what deletes it.
#[derive(Debug)]
struct Message {
    item: Item,
    receipt: String,
    sent_ms: Option<i64>,
}

/// A batch that was received.
#[derive(Debug)]
struct Received {
    messages: Vec<Message>,
    held: HeldBatch,
    /// What ended the receiving early.
    problem: Option<String>,
}

impl Receiver {
    fn new(queue: Arc<dyn Calls>, config: SqsConfig, context: Context) -> Arc<Self> {
        Arc::new(Self {
            config,
            backlog: Backlog::new(&context.status),
            held: Held::new(Arc::clone(&queue)),
            queue,
            context,
        })
    }

    async fn run(self: Arc<Self>, context: &mut Context) {
        let mut batches = JoinSet::new();
        let mut visibility_s = None;
        loop {
            let polled = self.round(context, &mut batches, &mut visibility_s);
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
        let received = self.receive(context, visibility_s).await?;
        let Received {
            messages,
            held,
            problem,
        } = received;
        if problem.is_none() {
            context.works();
        }
        let is_empty = messages.is_empty();
        // Also at a stop: what was received must run, because the queue hides it and counts that it was received.
        self.begin(messages, held, batches);
        tokio::select! {
            () = context.stopped() => return Ok(()),
            asked = self.ask_what_waits() => if let Err(problem) = asked {
                context.status.failed(&problem);
            },
        }
        if is_empty {
            // A server that does not wait for messages would be asked without end.
            let early = EMPTY_MIN.saturating_sub(asked_at.elapsed());
            context.pause(early).await;
        }
        problem.map_or(Ok(()), Err)
    }

    /// Begins to run a batch.
    fn begin(
        self: &Arc<Self>,
        messages: Vec<Message>,
        held: HeldBatch,
        batches: &mut JoinSet<Result<(), String>>,
    ) {
        let oldest_ms = messages.iter().filter_map(|message| message.sent_ms).min();
        let running = self.backlog.begin(messages.len() as u64, oldest_ms);
        if messages.is_empty() {
            return;
        }
        self.context.status.received(messages.len() as u64);
        let items = messages.into_iter().map(|message| message.item).collect();
        let receiver = Arc::clone(self);
        batches.spawn(async move {
            let ended = receiver.process(items, held).await;
            drop(running);
            ended
        });
    }

    /// The queue's visibility timeout, unless that is too short for a batch that need not wait. For others it is renewed.
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

    /// Receives a batch: with a long poll for the first messages, and until the window or the batch is full for the others. A stop or an
    /// error then ends it early, and what was received is returned all the same.
    async fn receive(&self, context: &mut Context, visibility_s: u64) -> Result<Received, String> {
        let mut held = self.held.begin(visibility_s);
        let first = until_stopped(context, self.poll(&held, POLL_S, 0)).await;
        let first = first.transpose()?.unwrap_or_default();
        held.begins();
        let mut received = Received {
            messages: first,
            held,
            problem: None,
        };
        if received.messages.is_empty() {
            return Ok(received);
        }
        let fill = self.fill(&mut received.messages, &received.held);
        let filled = until_stopped(context, fill).await;
        received.problem = filled.and_then(Result::err);
        Ok(received)
    }

    /// Receives more messages for a batch.
    async fn fill(&self, messages: &mut Vec<Message>, held: &HeldBatch) -> Result<(), String> {
        let until = Instant::now() + Duration::from_millis(self.config.batch_window_ms);
        let most = self.config.batch_size as usize;
        let mut is_more = messages.len() == PER_CALL;
        while messages.len() < most
            && messages.iter().map(|one| one.item.bytes).sum::<usize>() < BATCH_BYTES_MAX
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && !is_more || self.context.is_stopped() {
                break;
            }
            let wait_s = left.as_secs().min(POLL_S);
            let found = self.poll(held, wait_s, messages.len()).await?;
            is_more = found.len() == PER_CALL;
            if found.is_empty() {
                if left.is_zero() {
                    break;
                }
                // Also after a long poll: a server need not wait, and what it hands over may run already.
                tokio::time::sleep(left.min(SHORT_POLL)).await;
            }
            messages.extend(found);
        }
        Ok(())
    }

    /// Receives messages that no batch has yet.
    async fn poll(
        &self,
        held: &HeldBatch,
        wait_s: u64,
        already: usize,
    ) -> Result<Vec<Message>, String> {
        let most = (self.config.batch_size as usize).saturating_sub(already);
        let asked = json!({
            "MaxNumberOfMessages": most.clamp(1, PER_CALL),
            "WaitTimeSeconds": wait_s,
            "VisibilityTimeout": held.visibility_s(),
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
            .filter_map(|message| read(message, &arn, region))
            .take(PER_CALL)
            .filter(|message| held.takes(&message.item.id, &message.receipt));
        Ok(messages.collect())
    }

    /// Runs a batch, and deletes what is done.
    async fn process(&self, items: Vec<Item>, held: HeldBatch) -> Result<(), String> {
        let rules = Rules {
            reports: Reports::of(self.config.report_batch_item_failures),
            receives_max: self.config.max_receives,
        };
        let context = &self.context;
        let ended = tokio::select! {
            ended = batch::run(context, items, rules, &held) => ended,
            never = held.renew(context) => match never {},
        };
        // Others run what could not run here.
        if context.is_stopped() || !context.is_owned() {
            held.give_back().await;
        }
        ended
    }
}

/// What a call returns. After a stop it has a moment left: the queue hides what it has handed over already. `None`: that is over.
async fn until_stopped<T>(context: &mut Context, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    tokio::select! {
        biased;
        done = &mut call => Some(done),
        () = context.stopped() => timeout(LAST_ANSWER_MAX, call).await.ok(),
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

/// SQS's longest poll.
const POLL_S: u64 = 20;
/// From one call that finds nothing to the next one.
const EMPTY_MIN: Duration = Duration::from_secs(1);
/// Between polls that do not wait.
const SHORT_POLL: Duration = Duration::from_millis(200);
/// How long a stop waits for the answer of a call that receives messages.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// Beside the function's timeout, for the wait for a worker.
const VISIBILITY_SPARE_S: u64 = 5;
/// Lambda's limit of an event is 6 MB.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// About what a record takes besides its body and attributes.
const ITEM_BYTES: usize = 512;

#[cfg(test)]
mod tests;
