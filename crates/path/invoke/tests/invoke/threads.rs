//! Many clients on several threads, some of which hang up: no request is lost, nothing leaks, nothing deadlocks.

use std::time::Duration;

use pilot_model::Outcome;
use pilot_model::ports::Platform;
use pilot_testkit::{Reaction, version_with};

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_a_storm_with_hang_ups_every_count_is_right() {
    const CLIENTS: usize = 16;
    const CALLS: usize = 100;
    let fixture = Fixture::new();
    fixture
        .engine
        .starts_take(Duration::from_micros(300), Duration::from_micros(50));
    fixture.engine.serve(|call| match call.stream % 3 {
        0 => Reaction::answer("{}"),
        _ => Reaction::after(Duration::from_micros(200)),
    });
    fixture.deploy(|config| config.scale.max = 6);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let calls: Vec<_> = (0..CALLS).map(|_| fixture.call()).collect();
            tokio::spawn(async move {
                for (at, call) in calls.into_iter().enumerate() {
                    let patience = match (client + at) % 5 {
                        0 => Duration::from_micros(500),
                        _ => Duration::from_secs(60),
                    };
                    let _hung_up = tokio::time::timeout(patience, call).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let records = fixture.sink.records();
    assert_eq!(records.len(), CLIENTS * CALLS);
    let outcome = |wanted| {
        records
            .iter()
            .filter(|record| record.outcome == wanted)
            .count()
    };
    assert!(outcome(Outcome::Cancelled) > 0);
    assert_eq!(
        outcome(Outcome::Cancelled) + outcome(Outcome::Ok),
        CLIENTS * CALLS
    );
    let status = fixture.workers();
    assert_eq!((status.busy, status.waiting), (0, 0));
    assert!(status.idle + status.starting <= 6);
    fixture.invoker.activate(version_with("f", 2, |_| ()));
    fixture.invoker.drain(Duration::from_secs(5)).await;
    let idle = fixture.workers().idle;
    assert_eq!(idle, 0);
}
