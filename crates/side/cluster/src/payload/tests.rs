use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream::{self, Stream, StreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use pilot_model::FunctionConfig;
use pilot_model::inputs::{InputConfig, Values};
use pilot_model::ports::{
    BlankMemory, BoxFuture, Fetched, Input, InputKind, MemoryFault, StreamedBody,
};
use pilot_protocols::MemoryBudget;

use super::*;

/// Memory in files, which counts what it has made.
#[derive(Debug, Default)]
struct Files {
    made: AtomicUsize,
    is_full: bool,
}

#[derive(Debug)]
struct Filled(Arc<OwnedFd>, u64);

impl BlankMemory for Filled {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.0))
    }

    fn seal(self: Arc<Self>) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>> {
        // Whoever writes is gone: this is one reference, and the argument of `take` was the other.
        assert_eq!(Arc::strong_count(&self.0), 1);
        Box::pin(async move { Ok(self as Arc<dyn InputMemory>) })
    }
}

impl InputMemory for Filled {
    fn bytes(&self) -> u64 {
        self.1
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        Ok(Input {
            name: name.to_owned(),
            kind: InputKind::Memory { len: self.1 },
            descriptor: Arc::clone(&self.0),
            object: None,
            decoded: None,
        })
    }
}

impl InputSource for Files {
    fn check(&self, _: &FunctionConfig) -> Result<(), String> {
        Ok(())
    }

    fn fetch(
        &self,
        _: &FunctionConfig,
        _: &BTreeMap<String, InputConfig>,
        _: Values<'_>,
        _: Option<StreamedBody>,
    ) -> BoxFuture<'static, Fetched> {
        Box::pin(std::future::ready(Fetched::default()))
    }

    fn blank(
        &self,
        _: &FunctionName,
        len: u64,
    ) -> BoxFuture<'static, Result<Arc<dyn BlankMemory>, MemoryFault>> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let problem = "full".to_owned();
        let made = match self.is_full {
            true => Err(MemoryFault::NoRoom { problem }),
            false => Ok(
                Arc::new(Filled(Arc::new(tempfile::tempfile().unwrap().into()), len))
                    as Arc<dyn BlankMemory>,
            ),
        };
        Box::pin(std::future::ready(made))
    }
}

type Part = Result<&'static str, &'static str>;

/// What comes of these parts, where `event` and `data` bytes were announced.
async fn taken_of(
    parts: impl Stream<Item = Part> + Unpin,
    (event, data): (u64, Option<u64>),
    memory: &Arc<Files>,
) -> Result<Arrived, Refusal> {
    let frames = parts.map(|part| match part {
        Ok(text) => Ok(Frame::data(Bytes::from(text))),
        Err(problem) => Err(io::Error::other(problem)),
    });
    let function: FunctionName = "next".parse().unwrap();
    let to = Destination {
        events: MemoryBudget::new(1 << 10, 1 << 10).of(&function),
        function,
        memory: Arc::clone(memory) as _,
        silence_max: Duration::from_secs(10),
    };
    take(StreamBody::new(frames), Lengths { event, data }, to).await
}

async fn taken(parts: Vec<Part>, lengths: (u64, Option<u64>)) -> Result<Arrived, Refusal> {
    taken_of(stream::iter(parts), lengths, &Arc::default()).await
}

#[tokio::test]
async fn event_and_data_are_taken_whatever_the_parts_are() {
    for parts in [
        vec![Ok("[1]abcdef")],
        vec![Ok("[1"), Ok(""), Ok("]ab"), Ok("cde"), Ok("f"), Ok("")],
    ] {
        let arrived = taken(parts, (3, Some(6))).await.unwrap();
        assert_eq!(&arrived.event[..], b"[1]");
        let data = arrived.data.unwrap();
        let input = data.input("data").unwrap();
        let mut read = [0; 6];
        let file = File::from(input.descriptor.try_clone().unwrap());
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((&read, data.bytes()), (b"abcdef", 6));
    }
    let arrived = taken(vec![Ok("[1]")], (3, Some(0))).await.unwrap();
    assert_eq!(arrived.data.unwrap().bytes(), 0);
    assert!(
        taken(vec![Ok("[1]")], (3, None))
            .await
            .unwrap()
            .data
            .is_none()
    );
}

#[tokio::test]
async fn a_length_that_lies_and_a_link_that_breaks_are_refusals() {
    for (parts, lengths, reason, problem) in [
        (vec![Ok("[1")], (3, None), Reason::Invalid, "less was sent"),
        (
            vec![Ok("[1]abc")],
            (3, Some(4)),
            Reason::Invalid,
            "less was sent",
        ),
        (
            vec![Ok("[1]")],
            (3, Some(1)),
            Reason::Invalid,
            "less was sent",
        ),
        (
            vec![Ok("[1]a")],
            (3, None),
            Reason::Invalid,
            "more was sent",
        ),
        (
            vec![Ok("[1]ab"), Ok("c")],
            (3, Some(2)),
            Reason::Invalid,
            "more was sent",
        ),
        (
            vec![Ok("[1]a"), Err("cut")],
            (3, Some(2)),
            Reason::Unavailable,
            "broke off: cut",
        ),
    ] {
        let refusal = taken(parts.clone(), lengths).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{parts:?}");
        assert!(refusal.problem.contains(problem), "{refusal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_does_not_go_on_is_given_up_and_an_announcement_takes_no_memory() {
    for (parts, made) in [
        (vec![], 0),
        (vec![Ok("[1")], 0),
        (vec![Ok("[1]")], 0),
        (vec![Ok("[1]a")], 1),
    ] {
        let memory = Arc::default();
        let silent = stream::iter(parts).chain(stream::pending());
        let refusal = taken_of(silent, (3, Some(2)), &memory).await.unwrap_err();
        assert_eq!(refusal.reason, Reason::Unavailable, "{refusal:?}");
        assert!(refusal.problem.contains("came within 10 s"), "{refusal:?}");
        assert_eq!(memory.made.load(Ordering::Relaxed), made);
    }
    // A byte now and then is not enough.
    let drops = stream::repeat(Ok("[")).then(async |part| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        part
    });
    let refusal = taken_of(Box::pin(drops), (3, Some(1 << 40)), &Arc::default()).await;
    assert!(refusal.unwrap_err().problem.contains("less than 64 KiB"));
}

#[tokio::test(start_paused = true)]
async fn what_there_is_no_room_for_is_refused() {
    let full = Arc::new(Files {
        is_full: true,
        ..Files::default()
    });
    let parts = stream::iter(vec![Ok("[1]ab")]);
    let refusal = taken_of(parts, (3, Some(2)), &full).await.unwrap_err();
    assert_eq!(refusal, Refusal::new(Reason::NoRoom, "full"));
    // Other calls have all of the memory for events.
    let memory = MemoryBudget::new(8, 8);
    let function: FunctionName = "next".parse().unwrap();
    let others = memory.of(&function).reserve(8).await;
    let to = Destination {
        events: memory.of(&function),
        function,
        memory: Arc::<Files>::default() as _,
        silence_max: Duration::from_secs(10),
    };
    let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, io::Error>>());
    let lengths = Lengths {
        event: 3,
        data: None,
    };
    let refusal = take(body, lengths, to).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::NoRoom);
    drop(others);
}
