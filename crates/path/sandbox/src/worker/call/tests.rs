//! Decoding of a worker's frames over a real socket pair; the test plays the worker.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::{Answer, Call, Part};
use pilot_protocols::MemoryBudget;
use pilot_wire::{FrameKind, Header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::*;

const HEAD: &[u8] = br#"{"status":200,"headers":[],"started_ns":1}"#;
const WHOLE: &[u8] = br#"{"status":201,"headers":[],"started_ns":1,"finished_ns":2}"#;
const DONE: &[u8] = br#"{"started_ns":1,"finished_ns":2}"#;
const RAISED: &[u8] = br#"{"errorType":"ValueError","errorMessage":"late"}"#;

fn frame(kind: FrameKind, meta: &[u8], body: &[u8]) -> Vec<u8> {
    let header = Header::new(kind, 1, meta, body).unwrap();
    [&header.encode()[..], meta, body].concat()
}

fn call() -> Call {
    let mut call = pilot_testkit::event_call("1", "");
    Arc::make_mut(&mut call.head).http = Some(pilot_testkit::http_head());
    call
}

/// The daemon's end and the worker's end.
fn pair() -> (Connection, UnixStream) {
    let (here, worker) = UnixStream::pair().unwrap();
    let (output, _) = Output::pipe().unwrap();
    let here = here.into_std().unwrap().into();
    let answers = MemoryBudget::default().of(&"thumbnail".parse().unwrap());
    (Connection::new(here, output, answers).unwrap(), worker)
}

#[tokio::test]
async fn an_application_that_raises_right_behind_its_head_has_begun_its_answer() {
    let (mut daemon, mut worker) = pair();
    let frames = [
        frame(FrameKind::Head, HEAD, b"half"),
        frame(FrameKind::Error, DONE, RAISED),
    ];
    worker.write_all(&frames.concat()).await.unwrap();
    let call = call();
    match daemon.call(&call).await {
        Ok(Answer::Http {
            first, done: None, ..
        }) => assert_eq!(first, "half"),
        other => panic!("{other:?}"),
    }
    match daemon.next_part(call.stream).await {
        Ok(Part::Error(body, done)) => {
            assert_eq!(body, RAISED);
            assert_eq!(done.returned, Instant(2));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_head_that_says_when_it_was_finished_is_the_whole_answer() {
    let (mut daemon, mut worker) = pair();
    for body in ["first", "second"] {
        worker
            .write_all(&frame(FrameKind::Head, WHOLE, body.as_bytes()))
            .await
            .unwrap();
        match daemon.call(&call()).await {
            Ok(Answer::Http {
                head,
                first,
                done: Some(done),
            }) => {
                assert_eq!((head.status, &first[..]), (201, body.as_bytes()));
                assert_eq!((done.started, done.returned), (Instant(1), Instant(2)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_worker_that_ends_before_it_has_read_its_call_has_not_taken_it() {
    for taken in [true, false] {
        let (mut daemon, mut worker) = pair();
        let call = call();
        let called = async { daemon.call(&call).await.unwrap_err() };
        let ends = async {
            worker.readable().await.unwrap();
            let mut read = vec![0; if taken { 64 << 10 } else { 10 }];
            assert!(worker.read(&mut read).await.unwrap() > 0);
            drop(worker);
        };
        let (error, ()) = tokio::join!(called, ends);
        assert_eq!(error, CallError::Closed { unread: !taken });
        assert!(!daemon.is_unread());
    }
    // So it is if nobody asks the socket until the process has ended.
    let (mut daemon, worker) = pair();
    let call = call();
    let waited = timeout(Duration::from_millis(20), daemon.call(&call)).await;
    assert!(waited.is_err(), "{waited:?}");
    drop(worker);
    assert!(daemon.is_unread());
}

#[tokio::test]
async fn chunks_that_arrived_together_are_one_part() {
    let (mut daemon, mut worker) = pair();
    let chunk = |body: &[u8]| frame(FrameKind::Chunk, b"", body);
    let mut frames = frame(FrameKind::Head, HEAD, b"");
    frames.extend(chunk(b""));
    for _ in 0..200 {
        frames.extend(chunk(b"x"));
        frames.extend(chunk(b""));
    }
    frames.extend(frame(FrameKind::Error, DONE, RAISED));
    worker.write_all(&frames).await.unwrap();
    let Ok(Answer::Http { done: None, .. }) = daemon.call(&call()).await else {
        panic!("no head");
    };
    let (mut bytes, mut parts) = (0, 0);
    loop {
        match daemon.next_part(1).await.unwrap() {
            Part::Chunk(body) => {
                assert!(!body.is_empty());
                (bytes, parts) = (bytes + body.len(), parts + 1);
            }
            Part::Error(body, _) => break assert_eq!(body, RAISED),
            other @ Part::End(..) => panic!("{other:?}"),
        }
    }
    assert_eq!((bytes, parts), (200, 1));

    // A piece has a limit, and the end joins the last one.
    let long = vec![b'x'; 40_000];
    let frames = [
        frame(FrameKind::Head, HEAD, b"h"),
        chunk(&long),
        chunk(&long),
        frame(FrameKind::End, DONE, b"e"),
    ];
    let writing = tokio::spawn(async move { worker.write_all(&frames.concat()).await });
    let Ok(Answer::Http { first, .. }) = daemon.call(&call()).await else {
        panic!("no head");
    };
    let (mut bytes, mut longest) = (first.len(), 0);
    loop {
        let (body, ends) = match daemon.next_part(1).await.unwrap() {
            Part::Chunk(body) => (body, false),
            Part::End(body, _) => (body, true),
            other @ Part::Error(..) => panic!("{other:?}"),
        };
        (bytes, longest) = (bytes + body.len(), longest.max(body.len()));
        if ends {
            break;
        }
    }
    assert_eq!(bytes, 80_002);
    assert!(longest <= PIECE_LEN_MAX as usize, "{longest}");
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn chunks_without_a_byte_are_read_slowly_and_delay_no_other() {
    const MANY: usize = 20_000;
    let (mut daemon, mut worker) = pair();
    let empty = frame(FrameKind::Chunk, b"", b"");
    let mut frames = frame(FrameKind::Head, HEAD, b"");
    frames.extend(empty.repeat(100));
    frames.extend(frame(FrameKind::Chunk, b"", b"x"));
    frames.extend(empty.repeat(400));
    worker.write_all(&frames).await.unwrap();
    let Ok(Answer::Http { done: None, .. }) = daemon.call(&call()).await else {
        panic!("no head");
    };
    let part = timeout(Duration::from_secs(2), daemon.next_part(1)).await;
    assert!(
        matches!(&part, Ok(Ok(Part::Chunk(body))) if body == "x"),
        "{part:?}"
    );

    // The socket is full, because they are not taken as fast as they come.
    let flood = empty.repeat(MANY);
    let reading = tokio::spawn(async move { daemon.next_part(1).await });
    let flooding = timeout(Duration::from_millis(500), worker.write_all(&flood));
    assert!(flooding.await.is_err(), "{MANY} frames were taken at once");
    assert!(!reading.is_finished());
    reading.abort();
}

#[tokio::test]
async fn an_application_that_raises_in_mid_stream_ends_its_stream_and_nothing_else() {
    let (mut daemon, mut worker) = pair();
    worker
        .write_all(&frame(FrameKind::Head, HEAD, b"half"))
        .await
        .unwrap();
    let begun = daemon.call(&call()).await;
    assert!(
        matches!(&begun, Ok(Answer::Http { first, done: None, .. }) if first == "half"),
        "{begun:?}"
    );
    worker
        .write_all(&frame(FrameKind::Error, DONE, RAISED))
        .await
        .unwrap();
    let part = daemon.next_part(1).await;
    assert!(
        matches!(&part, Ok(Part::Error(body, _)) if body == RAISED),
        "{part:?}"
    );
    let next = frame(FrameKind::Result, DONE, b"1");
    worker.write_all(&next).await.unwrap();
    let answer = daemon.call(&call()).await;
    assert!(matches!(answer, Ok(Answer::Result(..))), "{answer:?}");
}

#[tokio::test]
async fn a_result_in_mid_stream_is_out_of_turn() {
    let (mut daemon, mut worker) = pair();
    let frames = [
        frame(FrameKind::Head, HEAD, b""),
        frame(FrameKind::Result, DONE, b"1"),
    ];
    worker.write_all(&frames.concat()).await.unwrap();
    let broken = daemon.call(&call()).await;
    assert!(matches!(broken, Err(CallError::Broken(_))), "{broken:?}");
}

#[tokio::test]
async fn a_call_that_fits_into_no_frame_is_not_sent_and_the_next_one_is() {
    let (mut daemon, mut worker) = pair();
    let mut long = call();
    let head = Arc::make_mut(&mut long.head).http.as_mut().unwrap();
    head.headers.push(("x".to_owned(), "\"".repeat(200_000)));
    match daemon.call(&long).await {
        Err(CallError::TooLong(problem)) => assert!(problem.contains("limit"), "{problem}"),
        other => panic!("{other:?}"),
    }
    let answer = frame(FrameKind::Head, WHOLE, b"after it");
    worker.write_all(&answer).await.unwrap();
    match daemon.call(&call()).await {
        Ok(Answer::Http { first, .. }) => assert_eq!(first, "after it"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_head_is_the_last_frame_if_it_says_when_it_was_finished() {
    let head = |meta: &str| Frame {
        kind: FrameKind::Head,
        stream: 1,
        meta: Bytes::copy_from_slice(meta.as_bytes()),
        body: Bytes::new(),
    };
    let of_text =
        serde_json::to_string(&serde_json::json!({"headers": [["\"finished_ns\":1", "b"]]}));
    assert!(!is_last(&head(&of_text.unwrap())));
    assert!(!is_last(&head(std::str::from_utf8(HEAD).unwrap())));
    assert!(is_last(&head(std::str::from_utf8(WHOLE).unwrap())));
    assert!(is_last(&head(r#"{"finished_ns" : 2}"#)));
}
