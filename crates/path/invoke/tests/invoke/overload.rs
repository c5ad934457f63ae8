//! More requests than can be served: who is refused, who is served first, and what other functions notice.

use std::time::Duration;

use pilot_invoke::{InvokeError, Limits, ThrottleReason, Urgency};
use pilot_model::ports::{Engine, MemoryPressure, Platform, StartError, TemplateMemory};
use pilot_model::{EndReason, Outcome};
use pilot_testkit::Reaction;
use tokio::time::Instant;

use crate::fixture::{Answer, Fixture, ms, pass, to};

/// `f` has one worker, which takes 100 ms per invocation and has shown that. Requests wait for at most 250 ms.
async fn one_worker_of_100_ms() -> Fixture {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|config| {
        config.scale.max = 1;
        config.scale.max_wait = Some(ms(250));
    });
    fixture.call().await.unwrap();
    fixture
}

fn refused(answer: Answer) -> (ThrottleReason, u32) {
    match answer {
        Err(InvokeError::TooManyRequests {
            reason,
            retry_after_s,
            ..
        }) => (reason, retry_after_s),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn who_would_wait_for_too_long_is_refused_at_once_and_all_others_are_served_in_time() {
    let fixture = one_worker_of_100_ms().await;
    let begun = Instant::now();
    let answers = fixture.burst(30).await;
    let (served, late): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    // One at once, and those that begin after 100 and 200 ms.
    assert_eq!(served.len(), 3);
    assert!(begun.elapsed() < ms(310), "{:?}", begun.elapsed());
    for answer in late {
        assert_eq!(refused(answer), (ThrottleReason::Late, 1));
    }
    let outcomes = fixture.sink.records();
    let throttled = outcomes
        .iter()
        .filter(|one| one.outcome == Outcome::Throttled);
    assert_eq!(throttled.count(), 27);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_as_long_as_the_queue() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(1000)));
    fixture.deploy(|config| {
        config.scale.max = 1;
        config.timeout = ms(4_500);
    });
    fixture.call().await.unwrap();
    let waiting: Vec<_> = (0..5).map(|_| fixture.begin()).collect();
    pass(ms(1)).await;
    assert_eq!(refused(fixture.call().await), (ThrottleReason::Late, 5));
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_the_client_bounds_the_wait_and_never_ends_what_runs() {
    let fixture = one_worker_of_100_ms().await;
    let within = |left| Urgency {
        finish_by: Some(fixture.invoker.now().after(ms(left))),
        ..Urgency::CALLER
    };
    // A free worker serves it, although it takes longer.
    let running = fixture.begin_of("f", within(50));
    pass(ms(1)).await;
    let begun = Instant::now();
    let late = fixture.begin_of("f", within(150)).await.unwrap();
    assert_eq!(refused(late).0, ThrottleReason::Late);
    assert!(begun.elapsed() < ms(1));
    let in_time = fixture.begin_of("f", within(210));
    running.await.unwrap().unwrap();
    in_time.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn while_it_waits_for_a_start_its_deadline_ends_the_wait() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(800), ms(0));
    fixture.deploy(|_| ());
    let begun = Instant::now();
    let urgency = Urgency {
        finish_by: Some(fixture.invoker.now().after(ms(300))),
        ..Urgency::CALLER
    };
    let answer = fixture.begin_of("f", urgency).await.unwrap();
    assert_eq!(refused(answer).0, ThrottleReason::StartTimeout);
    assert!((ms(300)..ms(310)).contains(&begun.elapsed()));
    // The start goes on, for the next request.
    pass(ms(600)).await;
    assert_eq!(fixture.workers().idle, 1);
}

#[tokio::test(start_paused = true)]
async fn work_for_which_nobody_waits_is_served_after_that_of_callers() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|config| config.scale.max = 1);
    let running = fixture.begin();
    pass(ms(1)).await;
    let behind: Vec<_> = (0..3)
        .map(|_| fixture.begin_of("f", Urgency::BACKGROUND))
        .collect();
    pass(ms(1)).await;
    let begun = Instant::now();
    fixture.call().await.unwrap();
    assert!(begun.elapsed() < ms(200), "{:?}", begun.elapsed());
    running.await.unwrap().unwrap();
    for answer in behind {
        answer.await.unwrap().unwrap();
    }
}

/// Two functions of slow invocations on so few places.
fn on_places(workers_max: usize) -> Fixture {
    let fixture = Fixture::with(Limits {
        workers_max,
        ..Limits::default()
    });
    fixture.engine.serve(|_| Reaction::after(ms(2_000)));
    for name in ["f", "g"] {
        fixture.deploy_as(name, |config| config.timeout = Duration::from_secs(60));
    }
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_function_gets_its_share_of_the_places_from_one_that_has_them_all() {
    let fixture = on_places(4);
    let flood: Vec<_> = (0..40)
        .map(|_| fixture.begin_of("f", Urgency::CALLER))
        .collect();
    pass(ms(100)).await;
    assert_eq!(fixture.workers().busy, 4);
    let begun = Instant::now();
    let answer = fixture.begin_of("g", Urgency::CALLER).await.unwrap();
    answer.unwrap();
    // A worker of `f` ends with its invocation, and `g` runs for two seconds.
    assert!(begun.elapsed() < ms(4_000), "{:?}", begun.elapsed());
    assert_eq!(fixture.sink.ended()[0], EndReason::Scaled);
    for answer in flood {
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn reserved_places_are_there_while_another_function_takes_all_others() {
    let fixture = on_places(4);
    fixture.deploy_as("g", |config| config.scale.reserved = 2);
    let flood: Vec<_> = (0..10)
        .map(|_| fixture.begin_of("f", Urgency::CALLER))
        .collect();
    pass(ms(100)).await;
    assert_eq!(fixture.workers().busy, 2);
    let begun = Instant::now();
    let both = [
        fixture.begin_of("g", Urgency::CALLER),
        fixture.begin_of("g", Urgency::CALLER),
    ];
    for answer in both {
        answer.await.unwrap().unwrap();
    }
    assert!(begun.elapsed() < ms(2_100), "{:?}", begun.elapsed());
    for answer in flood {
        answer.await.unwrap().unwrap();
    }
    // Without the function, they are for everyone.
    fixture.invoker.remove(&"g".parse().unwrap());
    let all: Vec<_> = (0..4)
        .map(|_| fixture.begin_of("f", Urgency::CALLER))
        .collect();
    pass(ms(100)).await;
    assert_eq!(fixture.workers().busy, 4);
    for answer in all {
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_no_time_for_a_start_is_told_that_it_is_the_start() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(800), ms(0));
    fixture.deploy(|_| ());
    fixture.call().await.unwrap();
    fixture.engine.workers()[0].die();
    for left_ms in [0, 5] {
        let urgency = Urgency {
            finish_by: Some(fixture.invoker.now().after(ms(left_ms))),
            ..Urgency::CALLER
        };
        let answer = fixture.begin_of("f", urgency).await.unwrap();
        let problem = answer.unwrap_err().to_string();
        assert!(
            problem.contains("has no worker, and the one that starts was not ready in time"),
            "{problem}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_gets_no_place_in_time_is_told_that_all_are_taken() {
    let fixture = on_places(1);
    fixture
        .engine
        .serve(|_| Reaction::after(Duration::from_secs(59)));
    let first = fixture.begin_of("f", Urgency::CALLER);
    pass(ms(100)).await;
    let problem = fixture.begin_of("g", Urgency::CALLER).await.unwrap();
    let problem = problem.unwrap_err();
    assert!(
        matches!(
            problem,
            InvokeError::StartFailed {
                error: StartError::Full { .. },
                ..
            }
        ) && problem.to_string().contains("limits.workers"),
        "{problem}"
    );
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_does_not_fit_is_refused_at_deployment() {
    let fixture = Fixture::with(Limits {
        workers_max: 8,
        ..Limits::default()
    });
    fixture.deploy_as("g", |config| config.scale.reserved = 4);
    let version =
        |reserved| pilot_testkit::version_with("f", 1, |config| config.scale.reserved = reserved);
    fixture.invoker.try_version(&version(2)).await.unwrap();
    let refused = fixture.invoker.try_version(&version(3)).await.unwrap_err();
    assert!(
        refused.to_string().contains("scale.reserved = 3"),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_may_have_more_memory_than_everything_together_is_refused_at_deployment() {
    let fixture = Fixture::with(Limits {
        total_memory_bytes: Some(2048 << 20),
        ..Limits::default()
    });
    let version =
        |mb: u64| pilot_testkit::version_with("f", 1, |config| config.memory_bytes = mb << 20);
    fixture.invoker.try_version(&version(2048)).await.unwrap();
    let refused = fixture.invoker.try_version(&version(3000)).await;
    let problem = refused.unwrap_err().to_string();
    for key in ["memory_mb is 3000", "limits.total_memory_mb", "is 2048"] {
        assert!(problem.contains(key), "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn when_memory_is_short_templates_go_then_idle_workers_and_then_nothing_is_started() {
    let fixture = Fixture::new();
    let cold = fixture.deploy_as("cold", |_| ());
    fixture.engine.templates_are(vec![TemplateMemory {
        level: "function".to_owned(),
        name: cold.id.to_string(),
        memory_bytes: 30 << 20,
    }]);
    fixture.engine.serve(|_| Reaction::after(ms(9_000)));
    fixture.deploy(|config| config.timeout = Duration::from_secs(60));
    fixture.invoker.scale(&"f".parse().unwrap(), to(2)).unwrap();
    pass(ms(10)).await;
    let running = fixture.begin();
    fixture.engine.memory_is(MemoryPressure::High);
    pass(ms(1_100)).await;
    assert!(fixture.engine.templates().is_empty());
    assert_eq!(fixture.workers().idle, 1, "one thing at a time");
    pass(ms(1_100)).await;
    assert_eq!(fixture.workers().idle, 0);
    assert_eq!(fixture.sink.ended(), [EndReason::Pressure]);

    fixture.engine.memory_is(MemoryPressure::Critical);
    pass(ms(2_100)).await;
    let refused = fixture.begin_of("cold", Urgency::CALLER).await.unwrap();
    let Err(InvokeError::StartFailed {
        error: StartError::Full { problem },
        ..
    }) = refused
    else {
        panic!("not refused: {refused:?}");
    };
    assert!(problem.contains("limits.total_memory_mb"), "{problem}");
    assert!(running.await.unwrap().is_ok(), "what runs is not ended");

    fixture.engine.memory_is(MemoryPressure::None);
    pass(ms(1_100)).await;
    let served = fixture.begin_of("cold", Urgency::CALLER).await.unwrap();
    served.unwrap();
}
