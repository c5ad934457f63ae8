//! The receiver at a queue that hides messages and counts receipts as SQS does, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::AttemptEnd;
use pilot_model::trigger::{FaasTrigger, TriggerConfig, TriggerInfo};
use tokio::sync::watch::{self, Sender};
use tokio::task::JoinHandle;

use super::*;
use crate::context::{Stop, TriggerPorts};
use crate::file_calls::FileCalls;
use crate::testing::{FakeStore, Slow};

#[derive(Debug, Default)]
struct FakeQueue(Mutex<Fake>);

#[derive(Debug, Default)]
struct Fake {
    messages: BTreeMap<String, FakeMessage>,
    receipts: u32,
    /// Calls that fail.
    broken: BTreeSet<&'static str>,
    /// So many calls of ReceiveMessage succeed.
    receives_left: Option<u32>,
    /// From a look for messages to its answer.
    answer_ms: u64,
}

#[derive(Debug)]
struct FakeMessage {
    bytes: usize,
    visible_at: Instant,
    received_at: Instant,
    receives: u32,
    /// Of the last receipt: older ones are not valid.
    receipt: String,
}

impl FakeQueue {
    fn with(count: usize, bytes: usize) -> Arc<Self> {
        let queue = Arc::new(Self::default());
        (0..count).for_each(|at| queue.add(&format!("m{at}"), bytes));
        queue
    }

    fn add(&self, id: &str, bytes: usize) {
        let message = FakeMessage {
            bytes,
            visible_at: Instant::now(),
            received_at: Instant::now(),
            receives: 0,
            receipt: String::new(),
        };
        self.0.lock().messages.insert(id.to_owned(), message);
    }

    fn left(&self) -> usize {
        self.0.lock().messages.len()
    }

    fn receives(&self, id: &str) -> u32 {
        self.0.lock().messages[id].receives
    }

    fn may_receive(&self) -> Result<(), String> {
        let mut fake = self.0.lock();
        match &mut fake.receives_left {
            Some(0) => return Err("the server answers 500".to_owned()),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    /// The answer with messages. `None`: nothing is visible.
    fn look(&self, most: u64, hidden_s: u64) -> Option<Value> {
        let mut fake = self.0.lock();
        let Fake {
            messages, receipts, ..
        } = &mut *fake;
        let now = Instant::now();
        let visible = messages.iter_mut().filter(|(_, one)| one.visible_at <= now);
        let mut found = Vec::new();
        for (id, one) in visible.take(usize::try_from(most).unwrap()) {
            one.visible_at = now + Duration::from_secs(hidden_s);
            one.received_at = now;
            one.receives += 1;
            *receipts += 1;
            one.receipt = receipts.to_string();
            found.push(json!({
                "MessageId": id, "ReceiptHandle": one.receipt, "Body": "x".repeat(one.bytes),
                "Attributes": {"ApproximateReceiveCount": one.receives.to_string()},
            }));
        }
        (!found.is_empty()).then(|| json!({"Messages": found}))
    }

    async fn receive(&self, body: Value) -> Value {
        let number = |key: &str| body[key].as_u64().unwrap();
        let until = Instant::now() + Duration::from_secs(number("WaitTimeSeconds"));
        loop {
            let (most, hidden_s) = (number("MaxNumberOfMessages"), number("VisibilityTimeout"));
            if let Some(found) = self.look(most, hidden_s) {
                return found;
            }
            if Instant::now() >= until {
                return json!({});
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Deletes or hides messages.
    fn change(&self, action: &str, body: &Value) -> Value {
        let mut fake = self.0.lock();
        let mut failed = Vec::new();
        for entry in body["Entries"].as_array().unwrap() {
            let receipt = entry["ReceiptHandle"].as_str().unwrap();
            let found = fake.messages.iter_mut();
            let found = found.into_iter().find(|(_, one)| one.receipt == receipt);
            let now = Instant::now();
            let seconds = entry["VisibilityTimeout"].as_u64().unwrap_or(0);
            let until = now + Duration::from_secs(seconds);
            match found {
                Some((id, _)) if action == "DeleteMessageBatch" => {
                    let id = id.clone();
                    fake.messages.remove(&id);
                }
                // As SQS does it.
                Some((_, one))
                    if one.visible_at > now
                        && until <= one.received_at + Duration::from_secs(VISIBILITY_MAX_S) =>
                {
                    one.visible_at = until;
                }
                _ => failed.push(json!({"Id": entry["Id"], "Message": "refused"})),
            }
        }
        json!({"Failed": failed})
    }
}

impl Calls for FakeQueue {
    fn call(&self, action: &'static str, body: Value) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if self.0.lock().broken.contains(action) {
                return Err(format!("{action}: it is broken"));
            }
            Ok(match action {
                "GetQueueAttributes" => json!({"Attributes": {
                    "VisibilityTimeout": "5", "ApproximateNumberOfMessages": "0",
                }}),
                "ReceiveMessage" => {
                    self.may_receive()?;
                    let answer = self.receive(body).await;
                    let answer_ms = self.0.lock().answer_ms;
                    tokio::time::sleep(Duration::from_millis(answer_ms)).await;
                    answer
                }
                _ => self.change(action, &body),
            })
        })
    }

    fn arn(&self) -> String {
        "arn:aws:sqs:us-east-1:1:jobs".to_owned()
    }

    fn region(&self) -> &'static str {
        "us-east-1"
    }
}

/// A trigger that runs.
struct Listening {
    store: Arc<FakeStore>,
    runner: Arc<Slow>,
    context: Context,
    config: SqsConfig,
    stop: Sender<Stop>,
    task: JoinHandle<()>,
}

impl Listening {
    fn begin(queue: &Arc<FakeQueue>, runner: Arc<Slow>, window_s: u64) -> Self {
        let store = Arc::new(FakeStore::default());
        let shared = Arc::new(TriggerPorts {
            store: Arc::clone(&store) as _,
            runner: Arc::clone(&runner) as _,
            connections: Arc::default(),
            file_calls: FileCalls::default(),
        });
        let config = SqsConfig {
            queue: "http://queues/1/jobs".to_owned(),
            batch_size: 20,
            batch_window_ms: window_s * 1000,
            report_batch_item_failures: false,
            max_receives: Some(1),
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let context = Context {
            shared,
            function: "lab".parse().unwrap(),
            owner: "me".to_owned(),
            trigger: FaasTrigger::Pubsub,
            timeout: Duration::from_secs(3),
            scope: "lab".to_owned(),
            status: Arc::default(),
            stop: stopped,
            failures: 0,
        };
        let receiver = Receiver::new(Arc::clone(queue) as _, config.clone(), context.clone());
        let mut own = context.clone();
        let task = tokio::spawn(async move { receiver.run(&mut own).await });
        Self {
            store,
            runner,
            context,
            config,
            stop,
            task,
        }
    }

    fn info(&self) -> TriggerInfo {
        let config = TriggerConfig::Sqs(self.config.clone());
        self.context.status.info(&self.context.function, &config)
    }

    fn buried(&self) -> u32 {
        self.store.buried.load(Ordering::SeqCst)
    }

    /// How many messages each run had that was begun.
    fn runs(&self) -> Vec<usize> {
        let begun = self.runner.begun.lock();
        let events = begun
            .iter()
            .map(|event| serde_json::from_slice::<Value>(event).unwrap());
        events
            .map(|event| event["Records"].as_array().unwrap().len())
            .collect()
    }

    async fn ends(self) {
        self.stop.send(Stop::ForNow).unwrap();
        self.task.await.unwrap();
    }
}

fn slow(seconds: u64) -> Arc<Slow> {
    let end = AttemptEnd::Done {
        version: 1,
        body: Some(Bytes::from_static(b"null")),
    };
    Slow::new(Duration::from_secs(seconds), end)
}

async fn pass(seconds: u64) {
    pass_ms(seconds * 1000).await;
}

async fn pass_ms(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_stays_hidden_however_long_it_waits_and_runs() {
    let queue = FakeQueue::with(13, 1);
    let listening = Listening::begin(&queue, slow(2 * 3600), 0);
    pass(2 * 3600 - 60).await;
    assert!((0..13).all(|at| queue.receives(&format!("m{at}")) == 1));
    assert_eq!(queue.left(), 13);
    pass(120).await;
    assert_eq!((queue.left(), listening.buried()), (0, 0));
    assert_eq!(listening.runs(), [13]);
    assert_eq!(listening.info().errors, 0);
    listening.ends().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_beyond_the_twelve_hours_of_sqs() {
    let queue = FakeQueue::with(1, 1);
    let listening = Listening::begin(&queue, slow(12 * 3600 + 5), 0);
    pass(12 * 3600 - 60).await;
    assert_eq!((queue.receives("m0"), listening.info().errors), (1, 0));
    pass(180).await;
    // It came again, and was not run again.
    assert_eq!((queue.left(), listening.buried()), (0, 0));
    assert_eq!((listening.runs().len(), listening.info().errors), (1, 0));
    listening.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_received_again_while_it_runs_is_neither_run_nor_buried() {
    let queue = FakeQueue::with(2, 1);
    queue.0.lock().broken.insert("ChangeMessageVisibilityBatch");
    let listening = Listening::begin(&queue, slow(60), 0);
    pass(50).await;
    assert!(queue.receives("m0") > 2, "it came again");
    pass(20).await;
    // Only the newest receipt handle deletes it.
    assert_eq!((queue.left(), listening.buried()), (0, 0));
    assert_eq!(listening.runs(), [2]);
    let shown = listening.info();
    let problem = shown.last_error.clone().unwrap();
    assert!(problem.contains("it is broken"), "{problem}");
    // A failure that lasts is said once.
    assert_eq!(shown.errors, 1);
    listening.ends().await;
}

#[tokio::test(start_paused = true)]
async fn each_part_of_a_batch_is_deleted_when_it_has_run() {
    let queue = FakeQueue::with(10, 900 << 10);
    let listening = Listening::begin(&queue, slow(14), 0);
    pass(21).await;
    assert_eq!((listening.runs(), queue.left()), (vec![6, 4], 4));
    pass(14).await;
    assert_eq!((queue.left(), listening.buried()), (0, 0));
    assert_eq!(listening.runs(), [6, 4]);
    listening.ends().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_received_runs_although_the_trigger_is_stopped() {
    let queue = FakeQueue::with(3, 1);
    let listening = Listening::begin(&queue, slow(2), 60);
    pass(5).await;
    assert_eq!((queue.receives("m0"), listening.runs().len()), (1, 0));
    let runner = Arc::clone(&listening.runner);
    listening.ends().await;
    assert_eq!((queue.left(), runner.begun.lock().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_at_a_stop_runs() {
    let queue = FakeQueue::with(13, 1);
    queue.0.lock().answer_ms = 500;
    let listening = Listening::begin(&queue, slow(2), 0);
    while queue.receives("m0") == 0 {
        pass_ms(10).await;
    }
    // Its answer comes after the stop, and nothing more is asked for.
    let (store, runner) = (Arc::clone(&listening.store), Arc::clone(&listening.runner));
    listening.ends().await;
    assert_eq!((queue.left(), runner.begun.lock().len()), (3, 1));
    assert_eq!(store.buried.load(Ordering::SeqCst), 0);
    let fake = queue.0.lock();
    assert!(fake.messages.values().all(|one| one.receives == 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_queue_that_is_silent() {
    let queue = FakeQueue::with(0, 1);
    let listening = Listening::begin(&queue, slow(2), 0);
    pass(5).await;
    let stopped_at = Instant::now();
    listening.ends().await;
    assert!(stopped_at.elapsed() <= LAST_ANSWER_MAX + Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn what_was_received_runs_although_the_next_call_fails() {
    let queue = FakeQueue::with(3, 1);
    queue.0.lock().receives_left = Some(1);
    let listening = Listening::begin(&queue, slow(2), 60);
    pass(5).await;
    assert_eq!((queue.left(), listening.runs()), (0, vec![3]));
    let problem = listening.info().last_error.unwrap();
    assert!(problem.contains("500"), "{problem}");
    listening.ends().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_run_at_a_stop_is_visible_at_once() {
    let queue = FakeQueue::with(3, 1);
    let runner = Slow::new(Duration::ZERO, AttemptEnd::Stopping);
    let listening = Listening::begin(&queue, runner, 60);
    pass(5).await;
    listening.ends().await;
    let fake = queue.0.lock();
    let mut messages = fake.messages.values();
    assert!(messages.all(|one| one.receives == 1 && one.visible_at <= Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_failed_message_is_not_kept_hidden_by_the_other_parts_of_its_batch() {
    let queue = FakeQueue::with(10, 900 << 10);
    let failed = AttemptEnd::Failed {
        version: 1,
        body: Bytes::from_static(b"{}"),
    };
    let listening = Listening::begin(&queue, Slow::new(Duration::from_secs(40), failed), 0);
    // The second part runs, and those of the first one have come again.
    pass(75).await;
    assert_eq!(listening.buried(), 6);
    assert_eq!((queue.receives("m9"), queue.left()), (1, 4));
    listening.ends().await;
}

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
