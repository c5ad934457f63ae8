//! The queue: its limit, its deadline, and its errors.

use pilot_invoke::{InvokeError, Limits, ThrottleReason};
use pilot_model::Outcome;
use pilot_testkit::Reaction;
use tokio::time::Instant;

use crate::fixture::{Answer, Fixture, ms, pass};

fn reason(answer: Answer) -> ThrottleReason {
    match answer {
        Err(InvokeError::TooManyRequests { reason, .. }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn one_more_than_the_queue_holds_is_refused_at_once() {
    let fixture = Fixture::with(Limits {
        queue_max: 2,
        ..Limits::default()
    });
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|config| config.scale.max = 1);
    let running = fixture.begin();
    pass(ms(1)).await;
    let waiting = [fixture.begin(), fixture.begin()];
    pass(ms(1)).await;
    let begun = Instant::now();
    assert_eq!(reason(fixture.call().await), ThrottleReason::QueueFull);
    assert!(begun.elapsed() < ms(1));
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Throttled);
    assert!(running.await.unwrap().is_ok());
    for waiting in waiting {
        assert!(waiting.await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_functions_timeout() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(180)));
    fixture.deploy(|config| {
        config.timeout = ms(200);
        config.scale.max = 1;
    });
    let running = [fixture.begin(), fixture.begin()];
    pass(ms(1)).await;
    let begun = Instant::now();
    let late = fixture.call().await;
    assert_eq!(reason(late), ThrottleReason::QueueTimeout);
    assert!((ms(200)..ms(205)).contains(&begun.elapsed()));
    assert_eq!(fixture.workers().waiting, 0);
    for running in running {
        assert!(running.await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_worker_does_not_shorten_the_functions_own_time() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(150), ms(0));
    fixture.engine.serve(|_| Reaction::after(ms(150)));
    fixture.deploy(|config| config.timeout = ms(200));
    assert_eq!(fixture.call().await.unwrap().outcome, Outcome::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_start_may_take_longer_than_the_functions_timeout_but_not_for_ever() {
    let fixture = Fixture::with(Limits {
        start_wait_max: ms(5_000),
        ..Limits::default()
    });
    fixture.deploy(|config| config.timeout = ms(200));
    fixture.engine.starts_take(ms(3_000), ms(0));
    assert_eq!(fixture.call().await.unwrap().outcome, Outcome::Ok);
    fixture.engine.workers()[0].die();
    fixture.engine.starts_take(ms(60_000), ms(0));
    let begun = Instant::now();
    assert_eq!(reason(fixture.call().await), ThrottleReason::StartTimeout);
    assert!((ms(5_000)..ms(5_010)).contains(&begun.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn a_payload_over_the_limit_is_not_admitted() {
    let fixture = Fixture::with(Limits {
        payload_bytes_max: 1,
        ..Limits::default()
    });
    fixture.deploy(|_| ());
    let refused = fixture.call().await;
    assert!(matches!(
        refused,
        Err(InvokeError::PayloadTooLarge {
            bytes: 2,
            bytes_max: 1
        })
    ));
    assert_eq!(fixture.engine.starts(), 0);
}
