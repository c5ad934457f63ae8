//! Which invocations are cold or warm, and what their timelines contain.

use pilot_model::{StartKind, Timeline};
use pilot_testkit::Reaction;

use crate::fixture::{Fixture, ms, pass};

fn phases(timeline: &Timeline) -> Vec<(&'static str, u128)> {
    let phases = timeline
        .phases()
        .map(|(name, took)| (name, took.as_millis()));
    phases.filter(|(_, took)| *took > 0).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_is_cold_and_the_next_warm() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(20), ms(0));
    fixture.engine.serve(|_| Reaction::after(ms(5)));
    fixture.deploy(|_| ());
    let cold = fixture.call().await.unwrap();
    assert_eq!(cold.start, StartKind::Cold);
    assert_eq!(phases(&cold.timeline), [("fork", 20), ("handler", 5)]);
    assert!(cold.timeline.initialised.is_some());
    let warm = fixture.call().await.unwrap();
    assert_eq!(warm.start, StartKind::Warm);
    assert_eq!(phases(&warm.timeline), [("handler", 5)]);
    assert_eq!(warm.timeline.forked, None);
    let tail = String::from_utf8(warm.log_tail().to_vec()).unwrap();
    let lines: Vec<&str> = tail.lines().collect();
    assert!(lines[0].starts_with("START RequestId: 52fdfc07"), "{tail}");
    assert!(lines[1].starts_with("END RequestId: 52fdfc07"), "{tail}");
    assert!(lines[2].contains("Duration: 5.00 ms"), "{tail}");
    assert_eq!(fixture.sink.records().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_on_anothers_start_is_cold_but_shares_it() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(20), ms(0));
    fixture.deploy(|config| config.scale.max = 1);
    let first = fixture.begin();
    pass(ms(15)).await;
    let second = fixture.call().await.unwrap();
    assert_eq!(second.start, StartKind::ColdShared);
    assert_eq!(first.await.unwrap().unwrap().start, StartKind::Cold);
}

#[tokio::test(start_paused = true)]
async fn of_a_start_that_was_under_way_only_the_rest_is_in_the_timeline() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(20), ms(0));
    fixture.deploy(|config| config.scale.min = 1);
    pass(ms(15)).await;
    let shared = fixture.call().await.unwrap();
    assert_eq!(shared.start, StartKind::ColdShared);
    assert_eq!(phases(&shared.timeline), [("fork", 5)]);
    assert_eq!(fixture.engine.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_busy_worker_is_warm() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(30)));
    fixture.deploy(|config| config.scale.max = 1);
    fixture.call().await.unwrap();
    let first = fixture.begin();
    pass(ms(10)).await;
    let second = fixture.call().await.unwrap();
    assert_eq!(second.start, StartKind::Warm);
    assert_eq!(phases(&second.timeline), [("lease", 20), ("handler", 30)]);
    assert_eq!(first.await.unwrap().unwrap().start, StartKind::Warm);
}
