//! Every failure of a function is reported in Lambda's words, and the next invocation works.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pilot_invoke::{InvokeError, ResponseBody};
use pilot_model::ports::{MemoryShortage, StartError, WorkerFault};
use pilot_model::{EndReason, Outcome, StartKind};
use pilot_testkit::Reaction;
use tokio::time::Instant;

use crate::fixture::{Fixture, function_error, ms, pass};

fn import_error() -> StartError {
    StartError::Import {
        body: r#"{"errorType":"Runtime.ImportModuleError"}"#.to_owned(),
        output: "Traceback".to_owned(),
    }
}

fn sandbox_error() -> StartError {
    StartError::Sandbox {
        problem: "no namespaces left".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_kills_that_worker_and_nothing_else() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.timeout = ms(1000));
    fixture.engine.serve(|_| Reaction::after(ms(900)));
    let other = fixture.begin();
    pass(ms(10)).await;
    fixture.engine.serve(|_| Reaction::Hang);
    let begun = Instant::now();
    let answer = fixture.call().await.unwrap();
    assert!((ms(1000)..ms(1010)).contains(&begun.elapsed()));
    assert_eq!(answer.outcome, Outcome::Timeout);
    let tail = String::from_utf8(answer.log_tail().to_vec()).unwrap();
    assert!(tail.contains("printed before the end\n"), "{tail}");
    assert!(
        tail.contains("a621d72 Task timed out after 1.00 seconds\n"),
        "{tail}"
    );
    let timeline = answer.timeline;
    assert_eq!(timeline.handler(), Some(ms(1000)), "{timeline:?}");
    let error = function_error(Ok(answer));
    assert_eq!(error["errorType"], "Sandbox.Timedout");
    assert!(other.await.unwrap().is_ok());
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 1);
    assert_eq!(fixture.sink.ended().len(), 1);
    assert!(fixture.call().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_worker_did_not_take_goes_to_another_one_once() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    let calls = Arc::new(AtomicUsize::new(0));
    let ended = || {
        let output = Bytes::from_static(b"an error that nobody caught\n");
        WorkerFault::NotTaken(Box::new(WorkerFault::Exited { code: 1, output }))
    };
    for lost in [1, 2] {
        let seen = Arc::clone(&calls);
        seen.store(0, Ordering::Relaxed);
        fixture
            .engine
            .serve(move |_| match seen.fetch_add(1, Ordering::Relaxed) < lost {
                true => Reaction::Die(ms(1), ended()),
                false => Reaction::answer("7"),
            });
        let answer = fixture.call().await.unwrap();
        let tail = String::from_utf8(answer.log_tail().to_vec()).unwrap();
        assert!(tail.contains("an error that nobody caught\n"), "{tail}");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        if lost == 1 {
            assert_eq!(
                (answer.outcome, answer.start),
                (Outcome::Ok, StartKind::Cold)
            );
            assert!(matches!(answer.body, ResponseBody::Result(body) if body == "7"));
        } else {
            let error = function_error(Ok(answer));
            assert_eq!(error["errorType"], "Runtime.ExitError", "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn beside_others_on_its_worker_a_timeout_ends_the_worker_only_after_them() {
    let fixture = Fixture::new();
    fixture.deploy(|config| {
        config.timeout = ms(100);
        config.concurrency = 2;
        config.scale.max = 1;
    });
    fixture.engine.serve(|call| match call.stream {
        1 => Reaction::Hang,
        _ => Reaction::after(ms(90)),
    });
    let hanging = fixture.begin();
    pass(ms(50)).await;
    let other = fixture.begin();
    assert_eq!(hanging.await.unwrap().unwrap().outcome, Outcome::Timeout);
    assert_eq!(fixture.engine.alive(), 1);
    assert_eq!(other.await.unwrap().unwrap().outcome, Outcome::Ok);
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
    assert_eq!(fixture.sink.ended()[0], EndReason::Timeout);
}

#[tokio::test(start_paused = true)]
async fn an_exit_a_signal_and_memory_are_told_apart() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    let output = Bytes::from_static(b"last words");
    let cases = [
        (
            WorkerFault::Exited {
                code: 3,
                output: output.clone(),
            },
            Outcome::Crash,
            "Runtime exited with error: exit status 3",
        ),
        (
            WorkerFault::Signalled {
                signal: 11,
                output: output.clone(),
            },
            Outcome::Crash,
            "Runtime exited with error: signal: segmentation fault",
        ),
        (
            WorkerFault::OutOfMemory {
                shortage: MemoryShortage::Own,
                limit_bytes: 256 << 20,
                output,
            },
            Outcome::OutOfMemory,
            "256 MB",
        ),
    ];
    for (fault, outcome, words) in cases {
        fixture
            .engine
            .serve(move |_| Reaction::Die(ms(1), fault.clone()));
        // The existing worker was made before this change of behaviour.
        fixture
            .engine
            .workers()
            .iter()
            .for_each(|worker| worker.die());
        let answer = fixture.call().await.unwrap();
        assert_eq!(answer.outcome, outcome);
        let phases: Vec<&str> = answer.timeline.phases().map(|(name, _)| name).collect();
        assert!(
            phases.ends_with(&["start", "handler", "answer"]),
            "{phases:?}"
        );
        assert_eq!(answer.timeline.handler(), Some(ms(1)));
        assert!(
            answer
                .log_tail()
                .windows(10)
                .any(|bytes| bytes == b"last words")
        );
        let message = function_error(Ok(answer))["errorMessage"].to_string();
        assert!(message.contains(words), "{message}");
        fixture.engine.serve(|_| Reaction::answer("{}"));
        assert_eq!(fixture.call().await.unwrap().outcome, Outcome::Ok);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_died_while_it_was_idle_costs_no_invocation() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    fixture.call().await.unwrap();
    fixture.engine.workers()[0].die();
    let answer = fixture.call().await.unwrap();
    assert_eq!(
        (answer.outcome, answer.start),
        (Outcome::Ok, StartKind::Cold)
    );
    assert_eq!(fixture.sink.ended()[0], EndReason::Crash);
}

#[tokio::test(start_paused = true)]
async fn what_the_handler_raises_is_passed_on_and_the_worker_serves_on() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    let raised = Bytes::from_static(br#"{"errorType":"ValueError"}"#);
    fixture
        .engine
        .serve(move |_| Reaction::Raise(ms(0), raised.clone()));
    let answer = fixture.call().await.unwrap();
    assert_eq!(answer.outcome, Outcome::FunctionError);
    assert_eq!(function_error(Ok(answer))["errorType"], "ValueError");
    assert_eq!(fixture.call().await.unwrap().start, StartKind::Warm);
}

#[tokio::test(start_paused = true)]
async fn an_import_error_is_the_answer_of_everyone_who_waits() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(10), ms(0));
    fixture.engine.fail_starts([import_error()]);
    fixture.deploy(|_| ());
    for answer in fixture.burst(5).await {
        let answer = answer.unwrap();
        assert_eq!(answer.outcome, Outcome::InitError);
        assert!(matches!(answer.body, ResponseBody::FunctionError(_)));
    }
    assert!(fixture.call().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_otherwise_is_tried_again() {
    let fixture = Fixture::new();
    fixture
        .engine
        .fail_starts([sandbox_error(), sandbox_error()]);
    fixture.deploy(|_| ());
    assert!(fixture.call().await.is_ok());
    assert_eq!(fixture.engine.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_keeps_failing_is_given_up() {
    let fixture = Fixture::new();
    fixture
        .engine
        .fail_starts(std::iter::repeat_n(sandbox_error(), 3));
    fixture.deploy(|_| ());
    let refused = fixture.call().await;
    assert!(
        matches!(&refused, Err(InvokeError::StartFailed { error, .. }) if *error == sandbox_error()),
        "{refused:?}"
    );
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::InitError);
    assert!(fixture.call().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_leaves_the_time_that_the_handler_ran() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    fixture.engine.serve(|_| Reaction::Hang);
    let call = fixture.begin();
    pass(ms(40)).await;
    call.abort();
    pass(ms(1)).await;
    let records = fixture.sink.records();
    assert_eq!(records[0].outcome, Outcome::Cancelled);
    assert_eq!(records[0].timeline.handler(), Some(ms(40)));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_has_the_phase_init() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    fixture.engine.fail_starts([import_error()]);
    let answer = fixture.call().await.unwrap();
    assert_eq!(answer.outcome, Outcome::InitError);
    let phases: Vec<&str> = answer.timeline.phases().map(|(name, _)| name).collect();
    assert_eq!(phases, ["admit", "lease", "init", "answer"]);
}
