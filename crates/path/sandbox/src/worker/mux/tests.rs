//! Several calls over a real socket pair; the test plays the worker.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
    pair_with(0)
}

fn pair_with(window: u32) -> (Mux, UnixStream) {
    let (mux, worker, _) = printing_pair(window);
    (mux, worker)
}

/// The same, with what the worker prints to.
fn printing_pair(window: u32) -> (Mux, UnixStream, File) {
    let (here, worker) = UnixStream::pair().unwrap();
    let (output, there) = Output::pipe().unwrap();
    let answers = MemoryBudget::default().of(&"thumbnail".parse().unwrap());
    let here = here.into_std().unwrap().into();
    let connection = Connection::new(here, output, answers).unwrap();
    let mux = Mux::new(connection, window).unwrap();
    (mux, worker, there.into())
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
    let frames = read_frames(&mut worker, number).await;
    let parts = frames.into_iter().map(|frame| (frame.stream, frame.body));
    parts.collect()
}

async fn read_frames(worker: &mut UnixStream, number: usize) -> Vec<Frame> {
    let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
    while frames.len() < number {
        match decoder.next_frame().unwrap() {
            Some(frame) => frames.push(frame),
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
    let mux = Mux::new(Connection::new(here, output, answers).unwrap(), 0).unwrap();
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

const WINDOW: u32 = 256 << 10;

/// The worker answers this stream with a head.
async fn begin(mux: &Mux, worker: &mut UnixStream, stream: u32) {
    let head = br#"{"status":200,"headers":[],"started_ns":1}"#;
    let header = Header::new(FrameKind::Head, stream, head, b"").unwrap();
    let call = call_with(stream, Vec::new());
    let answering = async {
        assert_eq!(read_frames(worker, 1).await[0].stream, stream);
        let frames = [&header.encode()[..], head].concat();
        worker.write_all(&frames).await.unwrap();
    };
    let (answer, ()) = tokio::join!(mux.call(&call), answering);
    assert!(
        matches!(answer, Ok(Answer::Http { done: None, .. })),
        "{answer:?}"
    );
}

/// An END, as of a response that is over.
fn end(stream: u32) -> Vec<u8> {
    let header = Header::new(FrameKind::End, stream, DONE, b"").unwrap();
    [&header.encode()[..], DONE].concat()
}

/// Its caller has gone before there is an answer.
async fn leave(mux: &Mux, call: &Call) {
    let answer = timeout(Duration::from_millis(50), mux.call(call)).await;
    assert!(answer.is_err(), "{answer:?}");
}

async fn resolves(told: BoxFuture<'static, bool>) -> bool {
    timeout(Duration::from_secs(5), told).await.unwrap()
}

#[tokio::test]
async fn room_is_given_back_when_the_caller_has_taken_it() {
    let (mux, mut worker) = pair_with(WINDOW);
    begin(&mux, &mut worker, 3).await;
    let piece = frame(FrameKind::Chunk, 3, &[7; 64 << 10]);
    let mut given = 0;
    for turn in 0..8_u32 {
        worker.write_all(&piece).await.unwrap();
        assert!(matches!(mux.next_part(3).await, Ok(Part::Chunk(_))));
        // The head takes 256 bytes.
        let taken = 256 + (turn + 1) * (64 << 10);
        if taken - given >= WINDOW / 2 {
            let frame = &read_frames(&mut worker, 1).await[0];
            assert_eq!((frame.kind, frame.stream), (FrameKind::Window, 3));
            given += u32::from_le_bytes(frame.body.as_ref().try_into().unwrap());
            assert_eq!(given, taken);
        }
    }
    // Short pieces take room for what they cost.
    worker
        .write_all(&frame(FrameKind::Chunk, 3, b"x").repeat(600))
        .await
        .unwrap();
    let mut pieces = 0;
    while pieces < 600 {
        match mux.next_part(3).await {
            Ok(Part::Chunk(bytes)) => pieces += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    let frame = &read_frames(&mut worker, 1).await[0];
    assert_eq!(frame.kind, FrameKind::Window);
}

#[tokio::test]
async fn a_worker_that_does_not_read_has_one_frame_of_room_waiting() {
    let (mux, mut worker) = pair_with(1);
    begin(&mux, &mut worker, 3).await;
    // More than the socket holds.
    leave(&mux, &call_with(4, vec![1; 4 << 20])).await;
    for _ in 0..20 {
        worker
            .write_all(&frame(FrameKind::Chunk, 3, &[7; 64 << 10]))
            .await
            .unwrap();
        assert!(matches!(mux.next_part(3).await, Ok(Part::Chunk(_))));
    }
    let frames = read_frames(&mut worker, 2).await;
    let kinds: Vec<_> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [FrameKind::Invoke, FrameKind::Window]);
    let room = u32::from_le_bytes(frames[1].body.as_ref().try_into().unwrap());
    assert!(room >= 19 * (64 << 10), "{room}");
}

#[tokio::test]
async fn a_worker_is_told_that_a_caller_has_gone_and_serves_on() {
    let (mux, mut worker) = pair_with(WINDOW);
    // The caller leaves before the answer.
    leave(&mux, &call_with(1, Vec::new())).await;
    let told = mux.cancel(1).unwrap();
    let frames = read_frames(&mut worker, 2).await;
    let seen: Vec<_> = frames.iter().map(|one| (one.kind, one.stream)).collect();
    assert_eq!(seen, [(FrameKind::Invoke, 1), (FrameKind::Cancel, 1)]);
    worker
        .write_all(&frame(FrameKind::Result, 1, b"1"))
        .await
        .unwrap();
    assert!(resolves(told).await);
    // And in the middle of a response.
    begin(&mux, &mut worker, 2).await;
    let waiting = timeout(Duration::from_millis(50), mux.next_part(2));
    assert!(waiting.await.is_err());
    let told = mux.cancel(2).unwrap();
    let late = [frame(FrameKind::Chunk, 2, b"late").repeat(100), end(2)].concat();
    worker.write_all(&late).await.unwrap();
    assert!(resolves(told).await);
    assert_eq!(read_frames(&mut worker, 1).await[0].kind, FrameKind::Cancel);
    // What is over before the caller leaves need not be told.
    begin(&mux, &mut worker, 3).await;
    worker.write_all(&end(3)).await.unwrap();
    assert!(matches!(mux.next_part(3).await, Ok(Part::End(..))));
    assert!(resolves(mux.cancel(3).unwrap()).await);
    // The worker still serves, and says so in time.
    begin(&mux, &mut worker, 4).await;
    let waiting = timeout(Duration::from_millis(50), mux.next_part(4));
    assert!(waiting.await.is_err());
    let told = mux.cancel(4).unwrap();
    drop(worker);
    assert!(!resolves(told).await, "its channel has ended");
}

#[tokio::test]
async fn a_caller_may_leave_between_two_parts_of_its_response() {
    let (mux, mut worker) = pair_with(WINDOW);
    for (stream, parts) in [(1, 0), (2, 1)] {
        begin(&mux, &mut worker, stream).await;
        for _ in 0..parts {
            let part = frame(FrameKind::Chunk, stream, b"part");
            worker.write_all(&part).await.unwrap();
            assert!(matches!(mux.next_part(stream).await, Ok(Part::Chunk(_))));
        }
        // It does not read on, and these wait for it.
        let unread = frame(FrameKind::Chunk, stream, b"unread").repeat(10);
        worker.write_all(&unread).await.unwrap();
        let mut told = mux.cancel(stream).unwrap();
        let told_frame = &read_frames(&mut worker, 1).await[0];
        assert_eq!(
            (told_frame.kind, told_frame.stream),
            (FrameKind::Cancel, stream)
        );
        let early = timeout(Duration::from_millis(20), &mut told).await;
        assert!(early.is_err(), "the worker still has it");
        worker.write_all(&end(stream)).await.unwrap();
        assert!(resolves(told).await);
        assert_eq!(mux.streams.waiting.load(Ordering::Relaxed), 0);
        assert!(mux.streams.open.lock().receivers.is_empty());
    }
}

#[tokio::test]
async fn a_header_that_is_called_as_the_key_of_the_end_does_not_end_a_response() {
    let (mux, mut worker) = pair_with(WINDOW);
    for (stream, header) in [
        (1, r#"["x-echo","finished_ns"]"#),
        (2, r#"["finished_ns","1"]"#),
        (3, r#"["x-echo","\"finished_ns\":"]"#),
    ] {
        let head = format!(r#"{{"status":200,"headers":[{header}],"started_ns":1}}"#);
        let header = Header::new(FrameKind::Head, stream, head.as_bytes(), b"").unwrap();
        let frames = [&header.encode()[..], head.as_bytes()].concat();
        worker.write_all(&frames).await.unwrap();
        let call = call_with(stream, Vec::new());
        let answer = mux.call(&call).await;
        assert!(
            matches!(answer, Ok(Answer::Http { done: None, .. })),
            "{answer:?}"
        );
        worker.write_all(&end(stream)).await.unwrap();
        assert!(matches!(mux.next_part(stream).await, Ok(Part::End(..))));
    }
}

#[tokio::test]
async fn what_a_worker_still_sends_of_a_cancelled_response_is_read_slowly() {
    const MANY: usize = 20_000;
    for flood in [FrameKind::Head, FrameKind::Chunk] {
        let (mux, mut worker) = pair_with(WINDOW);
        leave(&mux, &call_with(1, Vec::new())).await;
        let _told = mux.cancel(1).unwrap();
        let flood = frame(flood, 1, b"").repeat(MANY);
        let flooding = timeout(Duration::from_millis(500), worker.write_all(&flood));
        assert!(flooding.await.is_err(), "{MANY} frames were taken at once");
    }
}

#[tokio::test]
async fn a_call_that_was_not_sent_needs_no_cancel() {
    let (mux, worker) = pair_with(WINDOW);
    for stream in [1, 2] {
        leave(&mux, &call_with(stream, vec![1; 4 << 20])).await;
    }
    assert!(resolves(mux.cancel(2).unwrap()).await, "it was taken back");
    drop(worker);
    let (old, _worker) = pair();
    assert!(old.cancel(1).is_none(), "it cannot be told");
}

#[tokio::test]
async fn what_a_worker_printed_since_its_last_answer_is_there_once_when_it_is_ended() {
    let (mux, mut worker, mut prints) = printing_pair(1 << 20);
    begin(&mux, &mut worker, 3).await;
    prints.write_all(b"begun\n").unwrap();
    // Its process still has the channel open.
    assert_eq!(mux.close().await, "begun\n");
    assert_eq!(mux.close().await, "");
    assert_eq!(mux.take_last_output().await, "");
}

#[tokio::test]
async fn what_was_printed_until_the_end_of_an_exchange_whose_caller_has_gone_is_nobody_elses() {
    let (mux, mut worker, mut prints) = printing_pair(1 << 20);
    begin(&mux, &mut worker, 3).await;
    prints.write_all(b"secret\n").unwrap();
    let told = mux.cancel(3).unwrap();
    worker.write_all(&end(3)).await.unwrap();
    assert!(resolves(told).await);
    assert_eq!(mux.take_unclaimed(), "secret\n");
    prints.write_all(b"after it\n").unwrap();
    assert_eq!(mux.close().await, "after it\n");
}
