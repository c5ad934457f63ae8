//! Pools with a forecaster: in real time, because forecasts run on another thread.

use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::ports::Platform;
use pilot_testkit::version_with;

use crate::fixture::Fixture;

/// Requires one worker for every invocation so far.
#[derive(Debug, Default)]
struct Tally(u64);

impl Forecaster for Tally {
    fn interval(&self) -> Duration {
        Duration::from_millis(5)
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        self.0 += tick.arrivals;
        Target {
            workers: u32::try_from(self.0).unwrap(),
            idle: Some(Duration::ZERO),
        }
    }

    fn reason(&self) -> String {
        format!("{} came", self.0)
    }
}

/// Waits until `done`, at most ten seconds.
async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), wait).await;
    assert!(waited.is_ok(), "waited in vain for {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_follows_its_forecaster_and_the_next_version_takes_over_what_it_has_learned() {
    let fixture = Fixture::predicted(|_| Some(Box::<Tally>::default()));
    fixture.deploy(|_| {});
    for _ in 0..3 {
        fixture.call().await.unwrap();
    }
    until("three idle workers", || fixture.workers().idle == 3).await;

    let next = version_with("f", 2, |_| {});
    fixture.invoker.activate(next);
    until("three workers of version 2", || {
        fixture.workers().idle == 3 && fixture.engine.starts() >= 6
    })
    .await;

    // Other settings need a new forecaster, which has observed nothing.
    let next = version_with("f", 3, |config| config.scale.max = 5);
    fixture.invoker.activate(next);
    until("no worker", || fixture.workers().idle == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forecaster_that_panics_takes_nothing_with_it() {
    #[derive(Debug)]
    struct Broken;
    impl Forecaster for Broken {
        fn interval(&self) -> Duration {
            Duration::from_millis(1)
        }
        fn tick(&mut self, _: &Tick) -> Target {
            panic!("a forecaster of a test panics")
        }
        fn reason(&self) -> String {
            String::new()
        }
    }
    let fixture = Fixture::predicted(|scale| match scale.max {
        7 => Some(Box::new(Broken)),
        _ => Some(Box::<Tally>::default()),
    });
    fixture.deploy(|config| config.scale.max = 7);
    fixture.call().await.unwrap();
    fixture.invoker.activate(version_with("f", 2, |_| {}));
    fixture.call().await.unwrap();
    until("the other forecaster's worker", || {
        fixture.workers().idle == 1
    })
    .await;
}
