//! How many workers a burst gets.

use std::time::Duration;

use pilot_model::ports::Platform;
use pilot_testkit::Deed;
use tokio::time::Instant;

use crate::house::{House, ms, to};

/// About the cost of a fork on two cores.
fn forks(house: &House) {
    house
        .engine
        .starts_take(Duration::from_micros(1500), Duration::from_micros(700));
}

#[tokio::test(start_paused = true)]
async fn fifty_short_calls_are_served_by_few_workers() {
    let house = House::new();
    forks(&house);
    house
        .engine
        .serve(|_| Deed::after(Duration::from_micros(500)));
    house.deploy(|_| ());
    let begun = Instant::now();
    let answers = house.burst(50).await;
    assert!(answers.iter().all(Result::is_ok));
    // Tokio's timer rounds each call up to a millisecond or two.
    assert!(begun.elapsed() < ms(60), "{:?}", begun.elapsed());
    let starts = house.engine.starts();
    assert!((2..=15).contains(&starts), "{starts} starts");
}

#[tokio::test(start_paused = true)]
async fn fifty_long_calls_get_fifty_workers() {
    let house = House::new();
    forks(&house);
    house.engine.serve(|_| Deed::after(ms(100)));
    house.deploy(|_| ());
    let begun = Instant::now();
    let answers = house.burst(50).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(house.engine.starts(), 50);
    assert!(begun.elapsed() < ms(200), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_had_to_build_the_template_does_not_slow_the_next_burst() {
    let house = House::new();
    house.engine.starts_take(ms(600), ms(0));
    house.engine.serve(|_| Deed::after(ms(100)));
    house.deploy(|_| ());
    house.call().await.unwrap();
    house.invoker.scale(&"f".parse().unwrap(), to(0)).unwrap();
    forks(&house);
    let begun = Instant::now();
    assert!(house.burst(50).await.iter().all(Result::is_ok));
    assert!(begun.elapsed() < ms(220), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_burst_gets_more_than_max_workers() {
    let house = House::new();
    forks(&house);
    house.engine.serve(|_| Deed::after(ms(100)));
    house.deploy(|config| config.scale.max = 5);
    let answers = house.burst(20).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(house.engine.starts(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_worker_serves_as_many_at_once_as_its_concurrency_says() {
    let house = House::new();
    house.engine.serve(|_| Deed::after(ms(100)));
    house.deploy(|config| {
        config.concurrency = 10;
        config.scale.max = 1;
    });
    let begun = Instant::now();
    house.burst(20).await;
    assert_eq!(house.engine.starts(), 1);
    assert!(
        (ms(200)..ms(220)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_free_worker_serves_whoever_waits_longest() {
    let house = House::new();
    house.engine.starts_take(ms(50), ms(0));
    house.engine.serve(|_| Deed::after(ms(2)));
    house.deploy(|_| ());
    house.call().await.unwrap();
    // The only worker is busy, but it will be free before a start would be ready.
    let first = house.begin();
    let second = house.begin();
    let third = house.begin();
    let begun = Instant::now();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
    assert!(begun.elapsed() < ms(20));
    assert_eq!(house.engine.starts(), 1);
}
