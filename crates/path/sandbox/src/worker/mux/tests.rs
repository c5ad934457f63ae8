//! Several calls over a real socket pair; the test plays the worker.

use std::sync::Arc;
use std::time::Duration;

use pilot_protocols::MemoryBudget;
use pilot_wire::Header;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::super::Output;
use super::*;

const DONE: &[u8] = br#"{"started_ns":1,"finished_ns":2}"#;

fn frame(kind: FrameKind, stream: u32, body: &[u8]) -> Vec<u8> {
    let meta = if kind == FrameKind::Result { DONE } else { b"" };
    let header = Header::new(kind, stream, meta, body).unwrap();
    [&header.encode()[..], meta, body].concat()
}

fn pair() -> (Mux, UnixStream) {
    let (here, worker) = UnixStream::pair().unwrap();
    let (output, _) = Output::pipe().unwrap();
    let answers = MemoryBudget::default().of(&"thumbnail".parse().unwrap());
    let here = here.into_std().unwrap().into();
    let connection = Connection::new(here, output, answers).unwrap();
    (Mux::new(connection).unwrap(), worker)
}

#[tokio::test]
async fn frames_that_nobody_waits_for_are_read_slowly_and_the_others_are_not() {
    const MANY: usize = 20_000;
    let (mux, mut worker) = pair();
    let chunk = frame(FrameKind::Chunk, 7_000_000, b"");
    // The socket is full, because nobody takes them as fast as they come.
    let flood = chunk.repeat(MANY);
    let flooding = timeout(Duration::from_millis(500), worker.write_all(&flood));
    assert!(flooding.await.is_err(), "{MANY} frames were taken at once");
    drop(mux);

    // A few, as after a client has hung up, delay nobody.
    let (mux, mut worker) = pair();
    let mut call = pilot_testkit::event_call("1", "");
    call.stream = 3;
    let mut frames = frame(FrameKind::Chunk, 2, b"late").repeat(100);
    frames.extend(frame(FrameKind::Result, 3, b"1"));
    let mux = Arc::new(mux);
    let called = {
        let mux = Arc::clone(&mux);
        tokio::spawn(async move { mux.call(&call).await })
    };
    worker.readable().await.unwrap();
    worker.write_all(&frames).await.unwrap();
    match called.await.unwrap() {
        Ok(Answer::Result(body, _)) => assert_eq!(body, "1"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn chunks_without_a_byte_in_a_stream_are_read_slowly() {
    const MANY: usize = 20_000;
    let (mux, mut worker) = pair();
    let mut call = pilot_testkit::event_call("1", "");
    call.stream = 3;
    let head = br#"{"status":200,"headers":[],"started_ns":1}"#;
    let header = Header::new(FrameKind::Head, 3, head, b"").unwrap();
    let calling = async {
        let answer = mux.call(&call).await;
        assert!(matches!(answer, Ok(Answer::Http { done: None, .. })));
        mux.next_part(3).await
    };
    let flooding = async {
        worker.readable().await.unwrap();
        let frames = [&header.encode()[..], head].concat();
        worker.write_all(&frames).await.unwrap();
        let flood = frame(FrameKind::Chunk, 3, b"").repeat(MANY);
        timeout(Duration::from_millis(500), worker.write_all(&flood)).await
    };
    tokio::select! {
        part = calling => panic!("{part:?}"),
        flooded = flooding => assert!(flooded.is_err(), "{MANY} frames were taken at once"),
    }
}
