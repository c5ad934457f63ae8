//! How many workers a burst gets.

use std::time::Duration;

use pilot_model::ports::Platform;
use pilot_testkit::Reaction;
use tokio::time::Instant;

use crate::fixture::{Fixture, ms, to};

/// About the cost of a fork on two cores.
fn forks(fixture: &Fixture) {
    fixture
        .engine
        .starts_take(Duration::from_micros(1500), Duration::from_micros(700));
}

#[tokio::test(start_paused = true)]
async fn fifty_short_calls_are_served_by_few_workers() {
    let fixture = Fixture::new();
    forks(&fixture);
    fixture
        .engine
        .serve(|_| Reaction::after(Duration::from_micros(500)));
    fixture.deploy(|_| ());
    let begun = Instant::now();
    let answers = fixture.burst(50).await;
    assert!(answers.iter().all(Result::is_ok));
    // Tokio's timer rounds each call up to a millisecond or two.
    assert!(begun.elapsed() < ms(60), "{:?}", begun.elapsed());
    let starts = fixture.engine.starts();
    assert!((2..=15).contains(&starts), "{starts} starts");
}

#[tokio::test(start_paused = true)]
async fn fifty_long_calls_get_fifty_workers() {
    let fixture = Fixture::new();
    forks(&fixture);
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|_| ());
    let begun = Instant::now();
    let answers = fixture.burst(50).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(fixture.engine.starts(), 50);
    assert!(begun.elapsed() < ms(200), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_had_to_build_the_template_does_not_slow_the_next_burst() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(600), ms(0));
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|_| ());
    fixture.call().await.unwrap();
    fixture.invoker.scale(&"f".parse().unwrap(), to(0)).unwrap();
    forks(&fixture);
    let begun = Instant::now();
    assert!(fixture.burst(50).await.iter().all(Result::is_ok));
    assert!(begun.elapsed() < ms(220), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_burst_gets_more_than_max_workers() {
    let fixture = Fixture::new();
    forks(&fixture);
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|config| config.scale.max = 5);
    let answers = fixture.burst(20).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(fixture.engine.starts(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_worker_serves_as_many_at_once_as_its_concurrency_says() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|config| {
        config.concurrency = 10;
        config.scale.max = 1;
    });
    let begun = Instant::now();
    fixture.burst(20).await;
    assert_eq!(fixture.engine.starts(), 1);
    assert!(
        (ms(200)..ms(220)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_free_worker_serves_whoever_waits_longest() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(50), ms(0));
    fixture.engine.serve(|_| Reaction::after(ms(2)));
    fixture.deploy(|_| ());
    fixture.call().await.unwrap();
    // The only worker is busy, but it will be free before a start would be ready.
    let first = fixture.begin();
    let second = fixture.begin();
    let third = fixture.begin();
    let begun = Instant::now();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
    assert!(begun.elapsed() < ms(20));
    assert_eq!(fixture.engine.starts(), 1);
}
