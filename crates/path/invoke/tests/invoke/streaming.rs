//! Streamed answers of applications.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pilot_invoke::{HttpBody, InvokeError, Response, ResponseBody, TunnelTraffic};
use pilot_model::ports::{HttpHead, WorkerFault};
use pilot_model::{Interface, Outcome, StartKind};
use pilot_testkit::{Deal, Reaction};

use crate::fixture::{Fixture, ms, pass};

fn head(headers: &[(&str, &str)]) -> HttpHead {
    HttpHead {
        status: 200,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        is_prelude: false,
    }
}

fn deploy(fixture: &Fixture, head: HttpHead, first: &'static str, rest: Vec<(u64, Deal)>) {
    answer(fixture, head, first, rest);
    fixture.deploy(|config| config.interface = Interface::Asgi);
}

/// What workers answer.
fn answer(fixture: &Fixture, head: HttpHead, first: &'static str, rest: Vec<(u64, Deal)>) {
    let rest: Vec<_> = rest.into_iter().map(|(at, deal)| (ms(at), deal)).collect();
    fixture.engine.serve(move |_| {
        Reaction::Http(
            head.clone(),
            Bytes::from_static(first.as_bytes()),
            rest.clone(),
        )
    });
}

fn chunk(text: &'static str) -> Deal {
    Deal::Chunk(Bytes::from_static(text.as_bytes()))
}

fn end(text: &'static str) -> Deal {
    Deal::End(Bytes::from_static(text.as_bytes()))
}

fn body(response: Response) -> HttpBody {
    match response.body {
        ResponseBody::Http { body, .. } => body,
        other => panic!("not HTTP: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_one_piece_is_there_at_once() {
    let fixture = Fixture::new();
    deploy(&fixture, head(&[]), "hello", vec![]);
    let response = fixture.http("GET").await.unwrap();
    assert!(!response.log_tail().is_empty());
    let mut body = body(response);
    assert_eq!(body.complete().unwrap(), "hello");
    assert_eq!(body.next().await.unwrap().unwrap(), "hello");
    assert!(body.next().await.is_none());
    assert_eq!(fixture.workers().idle, 1);
}

#[tokio::test(start_paused = true)]
async fn the_application_gets_the_request_as_it_came() {
    let fixture = Fixture::new();
    deploy(&fixture, head(&[]), "", vec![]);
    fixture.http("GET").await.unwrap();
    let call = &fixture.engine.workers()[0].calls()[0];
    assert_eq!(call.head.http, Some(pilot_testkit::http_head()));
    assert_eq!(call.payload, "body");
    assert!(call.head.deadline_unix_ms > 0);
    assert_eq!(call.head.trace, None);
}

#[tokio::test(start_paused = true)]
async fn the_messages_of_a_web_socket_are_counted_until_the_end() {
    let fixture = Fixture::new();
    deploy(&fixture, head(&[]), "", vec![(10, end(""))]);
    let mut body = body(fixture.http("GET").await.unwrap());
    let traffic = Arc::<TunnelTraffic>::default();
    body.counts(Arc::clone(&traffic));
    traffic.bytes_in.fetch_add(5, Ordering::Relaxed);
    traffic.bytes_out.fetch_add(7, Ordering::Relaxed);
    assert!(body.next().await.is_none());
    let record = &fixture.sink.records()[0];
    assert_eq!((record.bytes_in, record.bytes_out), (4 + 5, 7));
}

#[tokio::test(start_paused = true)]
async fn a_streamed_body_holds_the_worker_until_its_end() {
    let fixture = Fixture::new();
    deploy(
        &fixture,
        head(&[]),
        "a",
        vec![(5, chunk("b")), (0, chunk("")), (5, end("c"))],
    );
    let mut body = body(fixture.http("GET").await.unwrap());
    assert!(body.complete().is_none());
    let mut text = Vec::new();
    while let Some(part) = body.next().await {
        assert_eq!(fixture.workers().busy, u32::from(text.len() < 2));
        text.extend_from_slice(&part.unwrap());
    }
    assert_eq!(text, b"abc");
    let records = fixture.sink.records();
    assert_eq!((records[0].outcome, records[0].bytes_out), (Outcome::Ok, 3));
    assert_eq!(fixture.workers().idle, 1);
    assert!(fixture.http("GET").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn dropped_in_the_middle_the_worker_is_ended_and_the_record_says_so() {
    let fixture = Fixture::new();
    deploy(
        &fixture,
        head(&[]),
        "a",
        vec![(5, chunk("b")), (5, end("c"))],
    );
    let mut body = body(fixture.http("GET").await.unwrap());
    body.next().await.unwrap().unwrap();
    drop(body);
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Cancelled);
    assert_eq!(fixture.workers().busy, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_once_the_declared_length_is_there_the_worker_serves_on() {
    let fixture = Fixture::new();
    let head = head(&[("Content-Length", "2")]);
    deploy(&fixture, head, "a", vec![(5, chunk("b")), (50, end(""))]);
    let mut body = body(fixture.http("GET").await.unwrap());
    body.next().await.unwrap().unwrap();
    body.next().await.unwrap().unwrap();
    drop(body);
    assert_eq!(fixture.workers().busy, 1);
    pass(ms(60)).await;
    assert_eq!(fixture.workers().idle, 1);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Ok);
}

/// An application whose answer of two bytes takes `after` milliseconds, and whose exchange goes on for so many after it.
fn answers_and_goes_on(after: u64, on: u64) -> Fixture {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(3), ms(0));
    let rest = vec![(after, chunk("b")), (on, end(""))];
    deploy(&fixture, head(&[("content-length", "2")]), "a", rest);
    fixture
}

/// Reads two bytes and drops the body, as an HTTP server does that has sent the announced length.
async fn read_as_announced(response: Response) {
    let mut body = body(response);
    assert_eq!(body.next().await.unwrap().unwrap(), "a");
    assert_eq!(body.next().await.unwrap().unwrap(), "b");
}

#[tokio::test(start_paused = true)]
async fn the_next_request_waits_for_the_worker_whose_answer_is_complete() {
    let fixture = answers_and_goes_on(30, 1);
    for wanted in [StartKind::Cold, StartKind::Warm, StartKind::Warm] {
        let response = fixture.http("GET").await.unwrap();
        assert_eq!(response.start, wanted);
        read_as_announced(response).await;
    }
    assert_eq!(fixture.engine.workers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_exchange_that_goes_on_long_after_its_answer_is_not_waited_for() {
    let fixture = answers_and_goes_on(30, 1000);
    read_as_announced(fixture.http("GET").await.unwrap()).await;
    let began = tokio::time::Instant::now();
    let response = fixture.http("GET").await.unwrap();
    assert_eq!(response.start, StartKind::Cold);
    assert!(began.elapsed() < ms(50), "{:?}", began.elapsed());
    assert_eq!(fixture.engine.workers().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_unread_body_of_a_head_request_does_not_cost_the_worker() {
    let fixture = Fixture::new();
    deploy(
        &fixture,
        head(&[("content-length", "9")]),
        "",
        vec![(1, chunk("b")), (1, end(""))],
    );
    drop(fixture.http("HEAD").await.unwrap());
    pass(ms(10)).await;
    assert_eq!(fixture.workers().idle, 1);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_that_nobody_reads_is_ended_and_work_after_a_body_is_not() {
    let events = (0..600).map(|_| (1000, chunk("tick"))).collect();
    for (rest, alive) in [(events, 0), (vec![(1, chunk("b")), (100_000, end(""))], 1)] {
        let fixture = Fixture::new();
        answer(&fixture, head(&[]), "", rest);
        fixture.deploy(|config| {
            config.interface = Interface::Asgi;
            config.timeout = ms(600_000);
        });
        drop(fixture.http("HEAD").await.unwrap());
        pass(ms(7000)).await;
        assert_eq!(fixture.engine.alive(), alive);
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_covers_the_whole_stream() {
    let fixture = Fixture::new();
    deploy(
        &fixture,
        head(&[]),
        "a",
        vec![(900, chunk("b")), (900, end("c"))],
    );
    let mut body = body(fixture.http("GET").await.unwrap());
    body.next().await.unwrap().unwrap();
    body.next().await.unwrap().unwrap();
    let error = body.next().await.unwrap().unwrap_err();
    assert_eq!(error, InvokeError::BodyTimedOut { after: ms(1000) });
    assert!(body.next().await.is_none());
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Timeout);
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_in_the_middle_breaks_the_body_off() {
    let fixture = Fixture::new();
    let fault = WorkerFault::Exited {
        code: 3,
        output: Bytes::new(),
    };
    deploy(
        &fixture,
        head(&[]),
        "a",
        vec![(1, Deal::Die(fault.clone()))],
    );
    let mut body = body(fixture.http("GET").await.unwrap());
    body.next().await.unwrap().unwrap();
    let error = body.next().await.unwrap().unwrap_err();
    assert_eq!(error, InvokeError::BodyBroken { fault });
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Crash);
}

#[tokio::test(start_paused = true)]
async fn an_application_that_raises_in_the_middle_breaks_the_body_off_and_serves_on() {
    let fixture = Fixture::new();
    let raised = Bytes::from_static(br#"{"errorType":"ValueError","errorMessage":"late"}"#);
    deploy(
        &fixture,
        head(&[]),
        "a",
        vec![(1, Deal::Raise(raised.clone()))],
    );
    let mut body = body(fixture.http("GET").await.unwrap());
    body.next().await.unwrap().unwrap();
    let error = body.next().await.unwrap().unwrap_err();
    assert_eq!(error, InvokeError::BodyRaised { body: raised });
    assert!(body.next().await.is_none());
    let records = fixture.sink.records();
    assert_eq!(records[0].outcome, Outcome::FunctionError);
    assert_eq!(records[0].output, "[ERROR]\n");
    assert_eq!((fixture.workers().idle, fixture.engine.alive()), (1, 1));
}
