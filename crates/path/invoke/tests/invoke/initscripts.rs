//! Initscripts in the join: when they run, and that a worker starts meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pilot_model::initscript::{During, InitscriptConfig, SCRIPT_NAME};
use pilot_model::ports::{BoxFuture, Fetched, InitRunner, Initialised, InputKind, ScriptLink};
use pilot_model::{FunctionConfig, StartKind, Transfer, TransferWay, Version};
use pilot_testkit::{FakeEngine, Reaction};
use tokio::time::{Instant, sleep};

use crate::fixture::Fixture;

const SCRIPT: Duration = Duration::from_millis(80);
const START: Duration = Duration::from_millis(100);

/// Scripts that take their time and fail.
#[derive(Debug, Default)]
struct Slow {
    runs: AtomicUsize,
    engine: OnceLock<Arc<FakeEngine>>,
    /// Workers that were asked for when a script began.
    workers: Mutex<Vec<usize>>,
    ends: Arc<AtomicUsize>,
    /// Starts of workers that it was told.
    told: AtomicUsize,
}

impl InitRunner for Slow {
    fn prepare(&self, _: &Arc<Version>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn activate(&self, _: &Arc<Version>) {}

    fn run(
        &self,
        version: &Arc<Version>,
        _: Bytes,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> BoxFuture<'static, Initialised> {
        let script = version.config.initscript.as_ref().unwrap();
        assert_eq!(link.is_some(), script.during == During::Invocation);
        if let Some(engine) = self.engine.get() {
            self.workers.lock().unwrap().push(engine.starts());
        }
        self.runs.fetch_add(1, Ordering::SeqCst);
        let ends = Arc::clone(&self.ends);
        Box::pin(async move {
            sleep(SCRIPT).await;
            ends.fetch_add(1, Ordering::SeqCst);
            let now = pilot_model::Instant(0);
            let transfer = Transfer {
                input: SCRIPT_NAME.to_owned(),
                from: "init.wasm".to_owned(),
                bytes: 0,
                way: TransferWay::Script,
                began: now,
                ended: now,
                error: Some("it is made up".to_owned()),
                decoding: None,
                streamed: None,
            };
            Initialised {
                fetched: Fetched {
                    transfers: vec![transfer],
                    ..Fetched::default()
                },
                connections: Vec::new(),
                said: Some("failed: it is made up\n".to_owned()),
                run: None,
            }
        })
    }

    fn worker_starts(&self, _: &Arc<Version>) {
        self.told.fetch_add(1, Ordering::SeqCst);
    }

    fn shared(&self, _: &Arc<Version>) -> BoxFuture<'static, Initialised> {
        let transfer = Transfer {
            input: "init.7".to_owned(),
            from: "s3://models/weights".to_owned(),
            bytes: 0,
            decoding: None,
            streamed: None,
            way: TransferWay::Kept,
            began: pilot_model::Instant(0),
            ended: pilot_model::Instant(0),
            error: None,
        };
        let initialised = Initialised {
            fetched: Fetched {
                transfers: vec![transfer],
                ..Fetched::default()
            },
            connections: Vec::new(),
            said: None,
            run: None,
        };
        Box::pin(std::future::ready(initialised))
    }
}

fn scripted(config: &mut FunctionConfig) {
    config.initscript = Some(InitscriptConfig {
        module: "init.wasm".to_owned(),
        input: String::new(),
        allow: Vec::new(),
        memory_mb: 2,
        timeout_ms: 1000,
        during: During::Start,
        max_age_s: None,
    });
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_starts_before_the_event_is_there_has_its_script() {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.engine.starts_take(START, Duration::ZERO);
    fixture.deploy(scripted);
    for (starts, late) in [(1, START / 2), (2, START * 2)] {
        let answer = fixture.call_late(late).await.unwrap();
        assert_eq!(answer.start, StartKind::Cold);
        assert_eq!(answer.transfers.len(), 1);
        assert_eq!(slow.runs.load(Ordering::SeqCst), starts);
        let answer = fixture.call_late(late).await.unwrap();
        assert_eq!((answer.start, answer.transfers.len()), (StartKind::Warm, 0));
        fixture.scale(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_its_free_worker_taken_has_the_script_of_the_one_that_starts() {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.engine.starts_take(START, Duration::ZERO);
    // With a shared script, something is waited for between the look at the pool and the lease.
    fixture.deploy(|config| {
        scripted(config);
        config.shared_initscript.clone_from(&config.initscript);
    });
    fixture.engine.serve(|_| Reaction::after(START * 10));
    fixture.call().await.unwrap();
    let answers = fixture.burst(3).await;
    for answer in answers.into_iter().map(Result::unwrap) {
        let ran = answer.transfers.iter().any(|one| one.input == SCRIPT_NAME);
        assert_eq!(
            ran,
            answer.start == StartKind::Cold,
            "{:?}",
            answer.transfers
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_runs_beside_the_start_and_its_failure_is_in_the_log_alone() {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.engine.starts_take(START, Duration::ZERO);
    fixture.deploy(scripted);
    slow.engine.set(Arc::clone(&fixture.engine)).unwrap();
    let began = Instant::now();
    let response = fixture.call().await.unwrap();
    // The longer of the two, and not their sum.
    assert!(began.elapsed() < START + SCRIPT, "{:?}", began.elapsed());
    assert_eq!(response.start, StartKind::Cold);
    assert_eq!(response.transfers[0].input, SCRIPT_NAME);
    let output = String::from_utf8_lossy(&response.log_tail()).into_owned();
    assert!(
        output.contains("initscript: failed: it is made up\n"),
        "{output}"
    );
    // A free worker needs no script.
    let response = fixture.call().await.unwrap();
    assert_eq!(
        (response.start, response.transfers.len()),
        (StartKind::Warm, 0)
    );
    assert_eq!(slow.runs.load(Ordering::SeqCst), 1);
    // It began before a worker was asked for.
    assert_eq!(*slow.workers.lock().unwrap(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_does_not_wait_for_a_script_that_goes_on() {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.engine.starts_take(SCRIPT / 4, Duration::ZERO);
    fixture.engine.serve(|call| {
        let kinds: Vec<InputKind> = call.inputs.iter().map(|one| one.kind).collect();
        assert_eq!(kinds, [InputKind::Script]);
        Reaction::Return(SCRIPT / 4, Bytes::new(), Bytes::from_static(b"{}"))
    });
    fixture.deploy(|config| {
        scripted(config);
        let script = config.initscript.as_mut().unwrap();
        script.during = During::Invocation;
    });
    let began = Instant::now();
    let response = fixture.call().await.unwrap();
    assert!(began.elapsed() < SCRIPT, "{:?}", began.elapsed());
    let output = String::from_utf8_lossy(&response.log_tail()).into_owned();
    assert!(output.contains("initscript: left behind"), "{output}");
    let transfer = &response.transfers[0];
    assert_eq!(transfer.input, SCRIPT_NAME);
    assert!(transfer.error.is_some());
    // The script has ended with its invocation.
    sleep(SCRIPT * 2).await;
    assert_eq!(slow.ends.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_ends_the_script() {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.deploy(scripted);
    let call = tokio::time::timeout(SCRIPT / 2, fixture.call()).await;
    assert!(call.is_err());
    sleep(SCRIPT * 2).await;
    let ended = slow.ends.load(Ordering::SeqCst);
    assert_eq!((slow.runs.load(Ordering::SeqCst), ended), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_the_shared_script_has_sent_goes_with_every_call() {
    let fixture = Fixture::running(Arc::new(Slow::default()));
    fixture.deploy(|config| {
        scripted(config);
        config.shared_initscript = config.initscript.clone();
    });
    for (start, names) in [
        (StartKind::Cold, vec![SCRIPT_NAME, "init.7"]),
        (StartKind::Warm, vec!["init.7"]),
    ] {
        let response = fixture.call().await.unwrap();
        let transfers = response.transfers.iter();
        let found: Vec<&str> = transfers.map(|one| one.input.as_str()).collect();
        assert_eq!((response.start, found), (start, names));
    }
}

#[tokio::test(start_paused = true)]
async fn the_shared_script_is_told_of_workers_that_start_before_an_invocation_and_the_own_one_is_not_run()
 {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.deploy(|config| {
        scripted(config);
        config.shared_initscript = config.initscript.clone();
        config.scale.min = 2;
    });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.engine.starts(), 2);
    assert_eq!(slow.told.load(Ordering::SeqCst), 2);
    // That one is an invocation's: none has come.
    assert_eq!(slow.runs.load(Ordering::SeqCst), 0);
    let response = fixture.call().await.unwrap();
    assert_eq!(response.start, StartKind::Warm);
    assert_eq!(slow.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_start_of_a_function_without_a_shared_script_tells_nobody() {
    let slow = Arc::new(Slow::default());
    let fixture = Fixture::running(Arc::clone(&slow) as _);
    fixture.deploy(|config| config.scale.min = 1);
    sleep(Duration::from_secs(1)).await;
    let told = slow.told.load(Ordering::SeqCst);
    assert_eq!((fixture.engine.starts(), told), (1, 0));
}
