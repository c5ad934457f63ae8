//! Versions are deployed and removed while requests run; the daemon stops.

use std::sync::Arc;
use std::time::Duration;

use pilot_invoke::{InvokeError, Limits};
use pilot_model::ports::{MemoryPressure, Platform};
use pilot_model::{EndReason, Outcome};
use pilot_testkit::{Reaction, version, version_with};
use tokio::time::Instant;

use crate::fixture::{Fixture, ms, pass};

#[tokio::test(start_paused = true)]
async fn those_running_finish_on_the_old_version_which_is_then_given_up() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(50)));
    let old = fixture.deploy(|config| config.scale.max = 1);
    let running = fixture.begin();
    pass(ms(1)).await;
    let waiting = fixture.begin();
    pass(ms(1)).await;
    fixture.invoker.activate(version("f", 2));
    let new = fixture.call().await.unwrap();
    assert_eq!(new.version.number, 2);
    for call in [running, waiting] {
        let answer = call.await.unwrap().unwrap();
        assert_eq!((answer.version.number, answer.outcome), (1, Outcome::Ok));
    }
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 1);
    assert_eq!(fixture.engine.forgotten(), std::slice::from_ref(&old.id));
    assert_eq!(fixture.sink.ended()[0], EndReason::Retired);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_does_not_become_live_is_forgotten_and_the_live_one_is_not() {
    let fixture = Fixture::new();
    let live = fixture.deploy(|_| ());
    let next = version("f", 2);
    fixture.invoker.discard(&next);
    assert_eq!(fixture.engine.forgotten(), std::slice::from_ref(&next.id));
    // The same code and configuration again.
    fixture.invoker.discard(&live);
    assert_eq!(fixture.engine.forgotten().len(), 1);
    // A function that is not there yet.
    fixture.invoker.discard(&version("g", 1));
    assert_eq!(fixture.engine.forgotten().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_version_is_found_by_number_by_id_and_as_latest() {
    let fixture = Fixture::new();
    let old = fixture.deploy(|_| ());
    fixture.invoker.activate(version("f", 2));
    let number = |qualifier| {
        fixture
            .invoker
            .find("f", qualifier)
            .map(|version| version.number)
    };
    assert_eq!(number(None), Ok(2));
    assert_eq!(number(Some("$LATEST")), Ok(2));
    assert_eq!(number(Some("1")), Ok(1));
    assert_eq!(number(Some(old.id.as_str())), Ok(1));
    assert!(matches!(
        number(Some("3")),
        Err(InvokeError::VersionNotFound { .. })
    ));
    assert!(matches!(
        fixture.invoker.find("g", None),
        Err(InvokeError::FunctionNotFound { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn an_older_version_is_served_on_request_and_keeps_nothing() {
    let fixture = Fixture::new();
    let old = fixture.deploy(|config| config.scale.min = 1);
    pass(ms(1)).await;
    fixture.invoker.activate(version("f", 2));
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
    let answer = fixture.call_version(old).await.unwrap();
    assert_eq!(answer.version.number, 1);
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn going_back_makes_the_old_version_live_again() {
    let fixture = Fixture::new();
    let old = fixture.deploy(|config| config.scale.min = 1);
    fixture.invoker.activate(version("f", 2));
    fixture.invoker.activate(Arc::clone(&old));
    assert_eq!(fixture.call().await.unwrap().version.number, 1);
    pass(ms(5)).await;
    assert_eq!(fixture.workers().idle, 1);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_live_again_and_not_invoked_is_given_up_when_it_is_removed() {
    let fixture = Fixture::new();
    let old = fixture.deploy(|_| ());
    let new = version("f", 2);
    fixture.invoker.activate(Arc::clone(&new));
    pass(ms(1)).await;
    assert_eq!(fixture.engine.forgotten(), std::slice::from_ref(&old.id));
    // The trial of a rollback makes its template again.
    fixture.invoker.try_version(&old).await.unwrap();
    fixture.invoker.activate(Arc::clone(&old));
    fixture.invoker.remove(&"f".parse().unwrap());
    pass(ms(1)).await;
    assert_eq!(
        fixture.engine.forgotten(),
        [old.id.clone(), new.id.clone(), old.id.clone()]
    );
}

#[tokio::test(start_paused = true)]
async fn the_template_of_a_live_version_that_is_tried_again_and_not_invoked_goes_when_memory_is_short()
 {
    for becomes_live in [true, false] {
        let fixture = Fixture::new();
        let live = fixture.deploy(|_| ());
        fixture.engine.memory_is(MemoryPressure::High);
        pass(ms(3_000)).await;
        assert_eq!(fixture.engine.evicted().len(), 1);
        fixture.invoker.try_version(&live).await.unwrap();
        match becomes_live {
            true => fixture.invoker.activate(Arc::clone(&live)),
            false => fixture.invoker.discard(&live),
        }
        pass(ms(3_000)).await;
        assert_eq!(fixture.engine.evicted().len(), 2, "{becomes_live}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_version_whose_template_was_evicted_is_given_up_once() {
    let fixture = Fixture::new();
    let version = fixture.deploy(|_| ());
    fixture.engine.memory_is(MemoryPressure::High);
    pass(ms(1_100)).await;
    assert_eq!(fixture.engine.evicted(), std::slice::from_ref(&version.id));
    assert!(fixture.engine.forgotten().is_empty());
    for _ in 0..2 {
        fixture.invoker.remove(&"f".parse().unwrap());
        pass(ms(3_000)).await;
        assert_eq!(
            fixture.engine.forgotten(),
            std::slice::from_ref(&version.id)
        );
    }
    assert_eq!(fixture.engine.evicted().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_older_versions_are_kept() {
    let fixture = Fixture::with(Limits {
        older_versions_max: 2,
        ..Limits::default()
    });
    for number in 1..=4 {
        fixture.invoker.activate(version("f", number));
    }
    assert!(fixture.invoker.find("f", Some("1")).is_err());
    assert!(fixture.invoker.find("f", Some("2")).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_template_shared_with_the_live_version_is_not_given_up() {
    let fixture = Fixture::new();
    let old = fixture.deploy(|_| ());
    fixture.call().await.unwrap();
    let mut again = pilot_model::Version::clone(&old);
    again.number = 2;
    fixture.invoker.activate(Arc::new(again));
    pass(ms(10)).await;
    assert!(fixture.engine.forgotten().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_removed_function_is_not_found_but_what_runs_finishes() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(50)));
    let version = fixture.deploy(|_| ());
    let running = fixture.begin();
    pass(ms(1)).await;
    fixture.invoker.remove(&"f".parse().unwrap());
    assert!(fixture.invoker.status(&"f".parse().unwrap()).is_none());
    assert!(matches!(
        fixture.call_version(Arc::clone(&version)).await,
        Err(InvokeError::FunctionNotFound { .. })
    ));
    assert!(running.await.unwrap().is_ok());
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
    assert_eq!(
        fixture.engine.forgotten(),
        std::slice::from_ref(&version.id)
    );
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_what_runs_and_then_ends_every_worker() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(50)));
    fixture.deploy(|config| config.scale.spare = 1);
    let running = fixture.begin();
    pass(ms(10)).await;
    let begun = Instant::now();
    fixture.invoker.drain(Duration::from_secs(10)).await;
    assert!(begun.elapsed() < ms(60));
    assert_eq!(running.await.unwrap().unwrap().outcome, Outcome::Ok);
    assert_eq!(fixture.engine.alive(), 0);
    assert!(matches!(
        fixture.call().await,
        Err(InvokeError::ShuttingDown)
    ));
}

#[tokio::test(start_paused = true)]
async fn drain_waits_no_longer_than_its_grace() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::Hang);
    let version = version_with("f", 1, |config| config.timeout = Duration::from_secs(100));
    fixture.invoker.activate(version);
    let running = fixture.begin();
    pass(ms(10)).await;
    let begun = Instant::now();
    fixture.invoker.drain(ms(500)).await;
    assert!(begun.elapsed() < ms(510));
    assert_eq!(running.await.unwrap().unwrap().outcome, Outcome::Crash);
    assert_eq!(fixture.engine.alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_invoker_ends_its_tasks_and_workers() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(100), ms(0));
    fixture.deploy(|config| config.scale.min = 2);
    pass(ms(10)).await;
    let Fixture {
        invoker, engine, ..
    } = fixture;
    assert_eq!(engine.starts(), 2);
    drop(invoker);
    pass(ms(200)).await;
    let up = engine
        .workers()
        .into_iter()
        .filter(|worker| Arc::strong_count(worker) > 2);
    assert_eq!(up.count(), 0, "somebody still holds a worker");
}
