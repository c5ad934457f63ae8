//! Several calls over a real socket pair; the test plays the worker.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use pilot_protocols::MemoryBudget;
use pilot_wire::{FrameDecoder, FrameKind, Header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
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

fn call_with(stream: u32, payload: Vec<u8>) -> Call {
    let mut call = pilot_testkit::event_call("1", "");
    call.stream = stream;
    call.payload = payload.into();
    call
}

/// The streams and bodies of the first frames that the daemon sends.
async fn frames_of(mut worker: UnixStream, number: usize) -> Vec<(u32, Bytes)> {
    let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
    while frames.len() < number {
        match decoder.next_frame().unwrap() {
            Some(frame) => frames.push((frame.stream, frame.body)),
            None => assert_ne!(
                worker.read_buf(decoder.space(1 << 16)).await.unwrap(),
                0,
                "the channel ended after {} frames",
                frames.len()
            ),
        }
    }
    frames
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_is_sent_leaves_no_half_frame() {
    let (mux, worker) = pair();
    // More than the socket holds, and the worker does not read yet.
    let (long, behind, short) = (
        call_with(1, vec![b'1'; 4 << 20]),
        call_with(2, vec![b'2'; 4 << 20]),
        call_with(3, b"3".to_vec()),
    );
    for call in [&long, &behind] {
        let answer = timeout(Duration::from_millis(50), mux.call(call)).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    assert!(
        behind.payload.is_unique(),
        "what nobody has begun to send is kept"
    );
    let frames = tokio::select! {
        answer = mux.call(&short) => panic!("{answer:?}"),
        frames = frames_of(worker, 2) => frames,
    };
    // They are sent in their order, so the second one is not.
    assert_eq!((frames[0].0, &frames[0].1), (1, &long.payload));
    assert_eq!((frames[1].0, &frames[1].1), (3, &short.payload));
}

#[tokio::test]
async fn calls_at_the_same_time_are_sent_whole() {
    let (mux, worker) = pair();
    let mux = Arc::new(mux);
    let calls: Vec<Call> = (1..=100_u8)
        .map(|stream| call_with(stream.into(), vec![stream; usize::from(stream) * 500]))
        .collect();
    // Nobody answers them.
    let mut calling = JoinSet::new();
    for call in calls.clone() {
        let mux = Arc::clone(&mux);
        calling.spawn(async move { mux.call(&call).await });
    }
    let mut frames = tokio::select! {
        answer = calling.join_next() => panic!("{answer:?}"),
        frames = frames_of(worker, calls.len()) => frames,
    };
    frames.sort_by_key(|frame| frame.0);
    let sent: Vec<(u32, Bytes)> = calls
        .iter()
        .map(|call| (call.stream, call.payload.clone()))
        .collect();
    assert!(frames == sent);
}

#[tokio::test]
async fn calls_to_a_worker_that_cannot_be_written_to_fail() {
    let (mux, worker) = pair();
    shutdown(worker.as_raw_fd(), Shutdown::Read).unwrap();
    for stream in 1..3 {
        let call = call_with(stream, b"1".to_vec());
        let answer = timeout(Duration::from_secs(5), mux.call(&call)).await;
        assert!(
            matches!(answer, Ok(Err(CallError::Closed { .. }))),
            "{answer:?}"
        );
    }
}

/// Answers that arrive together; the output was written before them.
#[tokio::test]
async fn the_output_of_a_complete_head_comes_with_it() {
    let (here, mut worker) = UnixStream::pair().unwrap();
    let (output, printing) = Output::pipe().unwrap();
    let answers = MemoryBudget::default().of(&"thumbnail".parse().unwrap());
    let here = here.into_std().unwrap().into();
    let mux = Mux::new(Connection::new(here, output, answers).unwrap()).unwrap();
    let head = br#"{"status":200,"headers":[],"started_ns":1,"finished_ns":2}"#;
    for printed in ["first\n", "second\n"] {
        let header = Header::new(FrameKind::Head, 3, head, b"ok").unwrap();
        nix::unistd::write(&printing, printed.as_bytes()).unwrap();
        let call = call_with(3, Vec::new());
        let answering = async {
            worker.readable().await.unwrap();
            let frames = [&header.encode()[..], head, b"ok"].concat();
            worker.write_all(&frames).await.unwrap();
        };
        match tokio::join!(mux.call(&call), answering) {
            (
                Ok(Answer::Http {
                    done: Some(done), ..
                }),
                (),
            ) => assert_eq!(done.output, printed),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stream_that_nobody_takes_holds_up_no_other_one() {
    const CHUNKS: usize = 400;
    let (mux, mut worker) = pair();
    let head = br#"{"status":200,"headers":[],"started_ns":1}"#;
    let header = Header::new(FrameKind::Head, 3, head, b"").unwrap();
    let (slow, quick) = (call_with(3, Vec::new()), call_with(4, Vec::new()));
    let writing = async {
        worker.readable().await.unwrap();
        let mut frames = [&header.encode()[..], head].concat();
        frames.extend(frame(FrameKind::Chunk, 3, &[7; 64 << 10]).repeat(CHUNKS));
        frames.extend(frame(FrameKind::Result, 4, b"1"));
        worker.write_all(&frames).await.unwrap();
    };
    let reading = async {
        let Ok(Answer::Http {
            first, done: None, ..
        }) = mux.call(&slow).await
        else {
            panic!("no head");
        };
        (first.len(), mux.call(&quick).await)
    };
    let both = async { tokio::join!(writing, reading).1 };
    let (mut len, quick) = timeout(Duration::from_secs(10), both).await.unwrap();
    match quick {
        Ok(Answer::Result(body, _)) => assert_eq!(body, "1"),
        other => panic!("{other:?}"),
    }
    while len < CHUNKS * (64 << 10) {
        match mux.next_part(3).await {
            Ok(Part::Chunk(bytes)) => len += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
}
