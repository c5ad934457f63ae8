//! A client that hangs up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pilot_model::{EndReason, Outcome};
use pilot_testkit::Reaction;

use crate::fixture::{Fixture, ms, pass};
use crate::passing::server;

#[tokio::test(start_paused = true)]
async fn in_the_queue_it_frees_its_place() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(50)));
    fixture.deploy(|config| config.scale.max = 1);
    let running = fixture.begin();
    pass(ms(1)).await;
    let waiting = fixture.begin();
    pass(ms(1)).await;
    assert_eq!(fixture.workers().waiting, 1);
    waiting.abort();
    pass(ms(1)).await;
    assert_eq!(fixture.workers().waiting, 0);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Cancelled);
    assert!(running.await.unwrap().is_ok());
    assert_eq!(fixture.workers().idle, 1);
}

#[tokio::test(start_paused = true)]
async fn while_a_worker_starts_for_it_the_worker_serves_the_next() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(20), ms(0));
    fixture.deploy(|_| ());
    let waiting = fixture.begin();
    pass(ms(5)).await;
    waiting.abort();
    pass(ms(30)).await;
    assert_eq!(fixture.workers().idle, 1);
    assert!(fixture.call().await.is_ok());
    assert_eq!(fixture.engine.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_its_call_the_worker_is_ended_and_counts_are_right() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::Hang);
    fixture.deploy(|_| ());
    let running = fixture.begin();
    pass(ms(1)).await;
    assert_eq!(fixture.workers().busy, 1);
    running.abort();
    pass(ms(1)).await;
    let workers = fixture.workers();
    assert_eq!((workers.busy, workers.idle, workers.starting), (0, 0, 0));
    assert_eq!(fixture.engine.alive(), 0);
    assert_eq!(fixture.sink.ended()[0], EndReason::Cancelled);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_its_call_an_http_server_serves_on() {
    let fixture = Fixture::new();
    let hangs = Arc::new(AtomicBool::new(true));
    let first_hangs = Arc::clone(&hangs);
    fixture
        .engine
        .serve(move |_| match first_hangs.swap(false, Ordering::SeqCst) {
            true => Reaction::Hang,
            false => Reaction::after(ms(50)),
        });
    fixture.deploy(|config| {
        server(config);
        config.concurrency = 2;
        config.scale.max = 1;
    });
    let leaver = fixture.begin();
    pass(ms(1)).await;
    let other = fixture.begin();
    pass(ms(1)).await;
    assert_eq!(fixture.workers().busy, 1);
    leaver.abort();
    pass(ms(1)).await;
    assert_eq!(fixture.workers().busy, 1);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Cancelled);
    assert_eq!(other.await.unwrap().unwrap().outcome, Outcome::Ok);
    // The same when it is the only invocation.
    hangs.store(true, Ordering::SeqCst);
    let leaver = fixture.begin();
    pass(ms(1)).await;
    leaver.abort();
    pass(ms(1)).await;
    assert_eq!(fixture.workers().idle, 1);
    assert!(fixture.call().await.is_ok());
    assert_eq!((fixture.engine.starts(), fixture.engine.alive()), (1, 1));
    assert!(fixture.sink.ended().is_empty());
}
