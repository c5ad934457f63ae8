//! The queue over a real store, with a runner that the test answers for; and its state against a list, through random steps and starts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::asynchronous::{DeadLetters, Destination};
use pilot_model::ports::{
    AsyncControl as _, AsyncFault, AsyncFilter, AsyncQueue as _, AsyncRequest, AsyncRunner,
    AsyncTarget, AttemptEnd, Deliver, Mark, MayTouch, NoDelivery, NoTarget, NotAccepted,
    TriggerStore,
};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{AsyncConfig, BoxFuture, FunctionName, InvocationId};
use pilot_testkit::TokioClock;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::{Queue, QueueConfig};

mod clock;
mod dead_letters;
mod keys;
mod panics;
mod simulation;
mod turns;
mod unwritten;

type Answer = dyn Fn(&AsyncRequest, usize) -> AttemptEnd + Send + Sync;

/// Answers each attempt as the test says, and records it.
struct Runner {
    config: AsyncConfig,
    answer: Box<Answer>,
    ran: Mutex<Vec<AsyncRequest>>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runner")
    }
}

impl AsyncRunner for Runner {
    fn target(&self, function: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        if function.as_str() == "gone" {
            return Err(NoTarget::Gone);
        }
        let is_main = function.as_str() == "f";
        Ok(AsyncTarget {
            config: if is_main {
                self.config.clone()
            } else {
                AsyncConfig::default()
            },
            owner: "us".to_owned(),
            concurrency: 2,
            arn: format!("arn:{function}"),
        })
    }

    fn run(&self, request: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        let mut ran = self.ran.lock();
        let attempt = ran.iter().filter(|other| other.id == request.id).count();
        let end = (self.answer)(&request, attempt);
        ran.push(request);
        Box::pin(async move { end })
    }
}

fn runner(
    config: AsyncConfig,
    answer: impl Fn(&AsyncRequest, usize) -> AttemptEnd + Send + Sync + 'static,
) -> Arc<Runner> {
    Arc::new(Runner {
        config,
        answer: Box::new(answer),
        ran: Mutex::default(),
    })
}

fn done() -> AttemptEnd {
    AttemptEnd::Done {
        version: 1,
        body: Some(Bytes::from_static(b"{\"ok\":true}")),
    }
}

fn failed() -> AttemptEnd {
    AttemptEnd::Failed {
        version: 1,
        body: Bytes::from_static(b"{\"errorType\":\"ValueError\"}"),
    }
}

fn quick() -> AsyncConfig {
    AsyncConfig {
        retry_wait: Duration::from_millis(1),
        ..AsyncConfig::default()
    }
}

fn config(folder: &Path) -> QueueConfig {
    QueueConfig {
        file: folder.join("async.sqlite"),
        files: folder.join("destinations"),
        delivery: Arc::new(NoDelivery),
        records_max: 100,
        bytes_max: 1 << 20,
        running_max: 8,
        has_room: Arc::new(|| true),
        clock: Arc::new(TokioClock::new()),
    }
}

fn request(function: &str, id: &str, key: Option<&str>) -> AsyncRequest {
    AsyncRequest {
        id: InvocationId::new(id),
        function: function.parse().unwrap(),
        owner: "us".to_owned(),
        qualifier: None,
        payload: Bytes::from(format!("{{\"id\":\"{id}\"}}")),
        client_context: None,
        trace: None,
        key: key.map(str::to_owned),
        trigger: FaasTrigger::Http,
    }
}

fn anything() -> MayTouch {
    Box::new(|_, _| true)
}

fn dead() -> AsyncFilter {
    AsyncFilter {
        dead: true,
        function: None,
        limit: 1000,
    }
}

fn tokio() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Waits until nothing waits or runs.
async fn settled(queue: &Queue) {
    while queue.shared.schedule.lock().len() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn stop(queue: Arc<Queue>) {
    queue.stop(Duration::from_secs(60)).await;
}

#[test]
fn what_was_accepted_runs_after_the_next_start_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        for number in 0..5 {
            let accepted = queue.accept(request("f", &number.to_string(), None)).await;
            assert!(!accepted.unwrap().repeated);
        }
        assert_eq!(queue.counts().waiting, 5);
        stop(Arc::clone(&queue)).await;
        // The connections that read are still there, and everything is in the file.
        let log = folder.path().join("async.sqlite-wal");
        assert_eq!(std::fs::metadata(log).map_or(0, |log| log.len()), 0);
        drop(queue);

        let queue = Queue::open(config(folder.path())).unwrap();
        assert_eq!(queue.counts().waiting, 5);
        let runner = runner(quick(), |_, _| done());
        queue.dispatch(Arc::clone(&runner) as _);
        settled(&queue).await;
        stop(queue).await;
        let mut ids: Vec<_> = runner
            .ran
            .lock()
            .iter()
            .map(|ran| ran.id.to_string())
            .collect();
        ids.sort();
        assert_eq!(ids, ["0", "1", "2", "3", "4"]);
        let queue = Queue::open(config(folder.path())).unwrap();
        assert_eq!((queue.counts().waiting, queue.counts().bytes), (0, 0));
        stop(queue).await;
    });
}

#[test]
fn a_failing_function_is_repeated_twice_and_then_a_dead_letter_that_can_be_redriven() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let heals = Arc::new(AtomicBool::new(false));
        let healed = Arc::clone(&heals);
        let runner = runner(quick(), move |_, _| {
            if healed.load(Ordering::Relaxed) {
                done()
            } else {
                failed()
            }
        });
        queue.dispatch(Arc::clone(&runner) as _);
        queue.accept(request("f", "one", None)).await.unwrap();
        settled(&queue).await;
        assert_eq!(runner.ran.lock().len(), 3);
        let (queue, letters) = tokio::task::spawn_blocking(move || {
            let letters = queue.list(&dead(), &anything()).unwrap();
            (queue, letters)
        })
        .await
        .unwrap();
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].condition.as_deref(), Some("RetriesExhausted"));
        assert_eq!(letters[0].attempts, 3);
        assert!(letters[0].error.as_deref().unwrap().contains("ValueError"));
        heals.store(true, Ordering::Relaxed);
        let queue = tokio::task::spawn_blocking(move || {
            let nobody: MayTouch = Box::new(|_, _| false);
            assert_eq!(
                queue
                    .redrive(DeadLetters::default(), nobody)
                    .unwrap()
                    .changed,
                0
            );
            assert_eq!(
                queue
                    .redrive(DeadLetters::default(), anything())
                    .unwrap()
                    .changed,
                1
            );
            queue
        })
        .await
        .unwrap();
        settled(&queue).await;
        assert_eq!(queue.counts().dead, 0);
        assert_eq!(runner.ran.lock().len(), 4);
        stop(queue).await;
    });
}

#[test]
fn a_function_that_is_gone_or_has_another_owner_is_a_clear_end() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let runner = runner(quick(), |_, _| done());
        queue.dispatch(Arc::clone(&runner) as _);
        queue.accept(request("gone", "one", None)).await.unwrap();
        let theirs = AsyncRequest {
            owner: "them".to_owned(),
            ..request("f", "two", None)
        };
        queue.accept(theirs).await.unwrap();
        settled(&queue).await;
        assert!(runner.ran.lock().is_empty());
        let letters = tokio::task::spawn_blocking(move || {
            let letters = queue.list(&dead(), &anything()).unwrap();
            (letters, queue)
        });
        let (letters, queue) = letters.await.unwrap();
        for letter in &letters {
            assert_eq!(letter.condition.as_deref(), Some("FunctionNotFound"));
        }
        assert_eq!(letters.len(), 2);
        stop(queue).await;
    });
}

#[test]
fn a_record_goes_to_its_destination_in_lambdas_format() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let config = AsyncConfig {
            on_success: Some("next".parse().unwrap()),
            on_failure: Some("file:failed.jsonl".parse().unwrap()),
            dead_letter: false,
            retries: 0,
            ..quick()
        };
        let runner = runner(config, |request, _| {
            if request.id.as_str() == "bad" {
                failed()
            } else {
                done()
            }
        });
        queue.dispatch(Arc::clone(&runner) as _);
        queue.accept(request("f", "good", None)).await.unwrap();
        queue.accept(request("f", "bad", None)).await.unwrap();
        settled(&queue).await;
        let ran = runner.ran.lock().clone();
        let next: Vec<_> = ran
            .iter()
            .filter(|ran| ran.function.as_str() == "next")
            .collect();
        assert_eq!(next.len(), 1);
        let record: serde_json::Value = serde_json::from_slice(&next[0].payload).unwrap();
        assert_eq!(record["version"], "1.0");
        assert_eq!(record["requestContext"]["condition"], "Success");
        assert_eq!(record["requestContext"]["requestId"], "good");
        assert_eq!(record["requestContext"]["approximateInvokeCount"], 1);
        assert_eq!(record["requestPayload"]["id"], "good");
        assert_eq!(record["responsePayload"]["ok"], true);
        let file = folder.path().join("destinations/f/failed.jsonl");
        let lines = std::fs::read_to_string(file).unwrap();
        let record: serde_json::Value = serde_json::from_str(lines.trim_end()).unwrap();
        assert_eq!(record["requestContext"]["condition"], "RetriesExhausted");
        assert_eq!(record["responseContext"]["functionError"], "Unhandled");
        assert_eq!(queue.counts().dead, 0);
        stop(queue).await;
    });
}

/// A destination that does not answer.
#[derive(Debug)]
struct Silent {
    asked: Arc<tokio::sync::Notify>,
}

impl Deliver for Silent {
    fn deliver(
        &self,
        _: &FunctionName,
        _: &Destination,
        _: &str,
        _: Bytes,
    ) -> BoxFuture<'static, Result<(), String>> {
        self.asked.notify_one();
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_destination_that_does_not_answer_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let asked = Arc::new(tokio::sync::Notify::new());
        let open = || {
            let asked = Arc::clone(&asked);
            let silent = QueueConfig {
                delivery: Arc::new(Silent { asked }),
                ..config(folder.path())
            };
            Queue::open(silent).unwrap()
        };
        let queue = open();
        let runs = runner(
            AsyncConfig {
                on_success: Some("https://example.com/x".parse().unwrap()),
                ..quick()
            },
            |_, _| done(),
        );
        queue.dispatch(Arc::clone(&runs) as _);
        queue.accept(request("f", "1", None)).await.unwrap();
        asked.notified().await;
        let ended = tokio::time::timeout(Duration::from_secs(30), stop(queue)).await;
        assert!(ended.is_ok(), "the end waits for the destination");
        // It is delivered after the next start.
        let queue = open();
        queue.dispatch(runs);
        asked.notified().await;
        stop(queue).await;
    });
}

#[test]
fn a_function_that_leads_to_itself_ends_as_a_loop() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let config = AsyncConfig {
            on_success: Some("f".parse().unwrap()),
            ..quick()
        };
        let runner = runner(config, |_, _| done());
        queue.dispatch(Arc::clone(&runner) as _);
        queue.accept(request("f", "one", None)).await.unwrap();
        settled(&queue).await;
        assert_eq!(
            runner.ran.lock().len(),
            17,
            "the first, and 16 destinations"
        );
        assert_eq!(queue.counts().dead, 1);
        stop(queue).await;
    });
}

#[test]
fn a_full_store_and_a_full_disk_refuse_and_one_function_leaves_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let has_room = Arc::new(AtomicBool::new(true));
        let room = Arc::clone(&has_room);
        let queue = Queue::open(QueueConfig {
            records_max: 4,
            has_room: Arc::new(move || room.load(Ordering::Relaxed)),
            ..config(folder.path())
        })
        .unwrap();
        let mut accepted = 0;
        for number in 0..4 {
            let result = queue.accept(request("f", &number.to_string(), None)).await;
            match result {
                Ok(_) => accepted += 1,
                Err(error) => assert!(matches!(error, NotAccepted::Full { .. }), "{error}"),
            }
        }
        assert_eq!(accepted, 2, "one function has half of the places");
        queue.accept(request("g", "g", None)).await.unwrap();
        has_room.store(false, Ordering::Relaxed);
        let error = queue.accept(request("g", "h", None)).await.unwrap_err();
        assert!(error.to_string().contains("disk is full"), "{error}");
        assert_eq!((queue.counts().waiting, queue.counts().refused), (3, 3));
        stop(queue).await;
    });
}

#[test]
fn dead_letters_beyond_their_limit_are_removed_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(QueueConfig {
            records_max: 8,
            ..config(folder.path())
        })
        .unwrap();
        let config = AsyncConfig {
            retries: 0,
            ..quick()
        };
        let runner = runner(config, |_, _| failed());
        queue.dispatch(runner);
        for number in 0..5 {
            queue
                .accept(request("f", &number.to_string(), None))
                .await
                .unwrap();
            settled(&queue).await;
        }
        assert_eq!((queue.counts().dead, queue.counts().dropped), (2, 3));
        let (letters, queue) =
            tokio::task::spawn_blocking(move || (queue.list(&dead(), &anything()).unwrap(), queue))
                .await
                .unwrap();
        let ids: Vec<_> = letters.iter().map(|letter| letter.id.as_str()).collect();
        assert_eq!(ids, ["3", "4"]);
        stop(queue).await;
    });
}

/// A step of the state's test.
#[derive(Debug, Clone)]
enum Step {
    Accept {
        function: u8,
        key: Option<u8>,
    },
    /// Runs everything that waits, with this answer.
    Run {
        fails: bool,
    },
    Cancel(usize),
    Redrive,
    Purge(u8),
    /// The daemon ends and starts again.
    Start,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_u8, proptest::option::of(0..3_u8))
            .prop_map(|(function, key)| Step::Accept { function, key }),
        1 => any::<bool>().prop_map(|fails| Step::Run { fails }),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => Just(Step::Redrive),
        1 => (0..2_u8).prop_map(Step::Purge),
        2 => Just(Step::Start),
    ]
}

/// What the queue should have.
#[derive(Debug, Default)]
struct Model {
    waiting: BTreeMap<String, String>,
    dead: BTreeMap<String, String>,
    keys: BTreeMap<(String, u8), String>,
    ran: BTreeMap<String, usize>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_store_is_the_list_through_every_start(steps in proptest::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio();
        let open = || Queue::open(config(folder.path())).unwrap();
        let mut queue = open();
        let mut model = Model::default();
        for (number, step) in steps.into_iter().enumerate() {
            let id = format!("id{number}");
            match step {
                Step::Accept { function, key } => {
                    let function = format!("f{function}");
                    let mut asked = request(&function, &id, key.map(|key| key.to_string()).as_deref());
                    asked.payload = Bytes::from_static(b"{}");
                    let accepted = runtime.block_on(queue.accept(asked)).unwrap();
                    let known = key.and_then(|key| model.keys.get(&(function.clone(), key)).cloned());
                    prop_assert_eq!(accepted.repeated, known.is_some());
                    prop_assert_eq!(accepted.id.as_str(), known.as_deref().unwrap_or(&id));
                    if known.is_none() {
                        model.waiting.insert(id.clone(), function.clone());
                        if let Some(key) = key {
                            model.keys.insert((function, key), id);
                        }
                    }
                }
                Step::Run { fails } => {
                    let answer = AsyncConfig { retries: 0, ..AsyncConfig::default() };
                    let runner = Arc::new(Every { config: answer, fails, ran: Mutex::default() });
                    runtime.block_on(async {
                        queue.dispatch(Arc::clone(&runner) as _);
                        settled(&queue).await;
                        stop(Arc::clone(&queue)).await;
                    });
                    queue = open();
                    for id in runner.ran.lock().iter() {
                        *model.ran.entry(id.clone()).or_default() += 1;
                        let function = model.waiting.remove(id).expect("it waited");
                        if fails {
                            model.dead.insert(id.clone(), function);
                        }
                    }
                    prop_assert!(model.waiting.is_empty(), "everything ran: {:?}", model.waiting);
                }
                Step::Cancel(which) => {
                    let ids: Vec<_> = model.waiting.keys().chain(model.dead.keys()).cloned().collect();
                    let id = if ids.is_empty() { id } else { ids[which % ids.len()].clone() };
                    let result = queue.cancel(&id, anything());
                    model.keys.retain(|_, of| *of != id || !model.waiting.contains_key(&id));
                    match (model.waiting.remove(&id).is_some(), model.dead.contains_key(&id)) {
                        (true, _) => prop_assert_eq!(result, Ok(())),
                        (_, true) => prop_assert_eq!(result, Err(AsyncFault::Dead { id })),
                        (_, false) => prop_assert_eq!(result, Err(AsyncFault::Unknown { id })),
                    }
                }
                Step::Redrive => {
                    let changed = queue.redrive(DeadLetters::default(), anything()).unwrap().changed;
                    prop_assert_eq!(changed, model.dead.len() as u64);
                    model.waiting.append(&mut model.dead);
                }
                Step::Purge(function) => {
                    let function = format!("f{function}");
                    let which = DeadLetters { id: None, function: Some(function.parse().unwrap()) };
                    let changed = queue.purge(which, anything()).unwrap().changed;
                    let before = model.dead.len();
                    model.dead.retain(|_, of| *of != function);
                    prop_assert_eq!(changed, (before - model.dead.len()) as u64);
                }
                Step::Start => {
                    runtime.block_on(stop(Arc::clone(&queue)));
                    queue = open();
                }
            }
            let ids = |dead: bool| {
                let filter = AsyncFilter { dead, function: None, limit: 1000 };
                let listed = queue.list(&filter, &anything()).unwrap();
                let mut ids: Vec<_> = listed.into_iter().map(|info| info.id).collect();
                ids.sort();
                ids
            };
            prop_assert_eq!(ids(false), model.waiting.keys().cloned().collect::<Vec<_>>());
            prop_assert_eq!(ids(true), model.dead.keys().cloned().collect::<Vec<_>>());
            prop_assert_eq!(queue.counts().waiting, model.waiting.len() as u64);
            prop_assert_eq!(queue.counts().dead, model.dead.len() as u64);
        }
        runtime.block_on(stop(queue));
    }
}

/// Gives every attempt the same answer.
#[derive(Debug)]
struct Every {
    config: AsyncConfig,
    fails: bool,
    ran: Mutex<Vec<String>>,
}

impl AsyncRunner for Every {
    fn target(&self, function: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        Ok(AsyncTarget {
            config: self.config.clone(),
            owner: "us".to_owned(),
            concurrency: 4,
            arn: format!("arn:{function}"),
        })
    }

    fn run(&self, request: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        self.ran.lock().push(request.id.to_string());
        let end = if self.fails { failed() } else { done() };
        Box::pin(async move { end })
    }
}

#[test]
fn an_invocation_and_what_its_trigger_remembers_are_one_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let mark = |key: &str, value: &str| Mark {
        scope: "f/us/schedule/x".to_owned(),
        key: key.to_owned(),
        value: Some(value.to_owned()),
    };
    let runtime = tokio();
    runtime.block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let accept = |id: &str, mark| queue.accept_marked(request("f", id, None), Some(mark));
        accept("a", mark("last", "1")).await.unwrap();
        accept("b", mark("last", "2")).await.unwrap();
        queue.stop(Duration::ZERO).await;
        // Refused: nothing of it is remembered.
        accept("c", mark("last", "3")).await.unwrap_err();
    });
    runtime.block_on(async {
        let full = QueueConfig {
            has_room: Arc::new(|| false),
            ..config(folder.path())
        };
        let queue = Queue::open(full).unwrap();
        let refused = queue.accept_marked(request("f", "d", None), Some(mark("last", "4")));
        refused.await.unwrap_err();
        let marks = queue.marks("f/us/schedule/x").await.unwrap();
        assert_eq!(marks, [("last".to_owned(), "2".to_owned())]);
        assert_eq!(queue.counts().waiting, 2);

        // Those of triggers that are gone are forgotten, and no others.
        let other = Mark {
            scope: "f2/us/schedule/x".to_owned(),
            ..mark("last", "5")
        };
        let kept = Mark {
            scope: "f/us/folder/y".to_owned(),
            ..mark("a.csv", "6")
        };
        queue.change(vec![other, kept]).await.unwrap();
        queue.forget("f/", vec!["f/us/folder/y".to_owned()]);
        queue.change(Vec::new()).await.unwrap();
        for (scope, left) in [
            ("f/us/schedule/x", 0),
            ("f2/us/schedule/x", 1),
            ("f/us/folder/y", 1),
        ] {
            assert_eq!(queue.marks(scope).await.unwrap().len(), left, "{scope}");
        }
        queue.stop(Duration::ZERO).await;
    });
}

#[test]
fn what_failed_too_often_at_its_source_is_a_dead_letter_that_can_be_redriven() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let buried = queue.bury(request("f", "a", None), 3, "poison".to_owned());
        buried.await.unwrap();
        let counts = queue.counts();
        assert_eq!((counts.dead, counts.dead_total, counts.waiting), (1, 1, 0));
        let listed = queue.list(&dead(), &anything()).unwrap();
        assert_eq!(listed[0].attempts, 3);
        assert_eq!(listed[0].error.as_deref(), Some("poison"));
        queue.stop(Duration::ZERO).await;
    });
}
