//! A payload that is still arriving when its request is admitted.

use std::time::Duration;

use bytes::Bytes;
use pilot_invoke::{InvokeError, Payload};
use pilot_model::StartKind;
use tokio::time::{Instant, sleep};

use crate::fixture::{Answer, Fixture, request};

const MS: Duration = Duration::from_millis(1);

/// Invokes the live version of `f`; the payload takes `upload` to arrive.
fn slow_call(fixture: &Fixture, upload: Duration) -> impl Future<Output = Answer> + Send + use<> {
    let invoker = fixture.invoker.clone();
    let version = invoker.find("f", None).unwrap();
    let request = request(&invoker, version);
    async move {
        let payload = async {
            sleep(upload).await;
            Ok(Payload::event(Bytes::from_static(b"{}")))
        };
        invoker.invoke(request, payload).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_starts_while_the_payload_arrives() {
    for (upload, start) in [(80, 100), (100, 80)] {
        let fixture = Fixture::new();
        fixture.engine.starts_take(start * MS, Duration::ZERO);
        fixture.deploy(|_| {});
        let begun = Instant::now();
        let answer = slow_call(&fixture, upload * MS).await.unwrap();
        assert_eq!(begun.elapsed(), 100 * MS, "upload {upload}, start {start}");
        assert_eq!(answer.start, StartKind::Cold);
        assert!(answer.timeline.initialised.is_some());
        let phases: Duration = answer.timeline.phases().map(|(_, took)| took).sum();
        assert_eq!(Some(phases), answer.timeline.total());
        assert_eq!(fixture.engine.starts(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeline_shows_what_the_payload_took_beyond_the_start() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(30 * MS, Duration::ZERO);
    fixture.deploy(|_| {});
    let answer = slow_call(&fixture, 100 * MS).await.unwrap();
    let inputs: Vec<_> = answer
        .timeline
        .phases()
        .filter(|(name, _)| *name == "inputs")
        .collect();
    assert_eq!(inputs, [("inputs", 70 * MS)]);
    let warm = slow_call(&fixture, 20 * MS).await.unwrap();
    assert_eq!(warm.start, StartKind::Warm);
    let inputs: Vec<_> = warm
        .timeline
        .phases()
        .filter(|(name, _)| *name == "inputs")
        .collect();
    assert_eq!(inputs, [("inputs", 20 * MS)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_sender_holds_no_worker() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.scale.max = 1);
    let slow = tokio::spawn(slow_call(&fixture, 1000 * MS));
    sleep(10 * MS).await;
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(fixture.call().await.is_ok());
        assert!(begun.elapsed() < 10 * MS);
    }
    assert!(slow.await.unwrap().is_ok());
    assert_eq!(fixture.engine.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_breaks_off_is_an_error_and_leaves_nothing() {
    let fixture = Fixture::new();
    fixture.deploy(|_| {});
    let version = fixture.invoker.find("f", None).unwrap();
    let request = request(&fixture.invoker, version);
    let payload = async {
        sleep(50 * MS).await;
        Err(InvokeError::ShuttingDown)
    };
    let answer = fixture.invoker.invoke(request, payload).await;
    assert!(matches!(answer, Err(InvokeError::ShuttingDown)));
    assert!(fixture.sink.records().is_empty());
    // The worker that was started for it serves the next request.
    assert_eq!(fixture.call().await.unwrap().start, StartKind::Warm);
    assert_eq!(fixture.engine.starts(), 1);
}
