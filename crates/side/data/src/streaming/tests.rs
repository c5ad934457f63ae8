use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use pilot_model::{BoxFuture, FunctionName};
use pilot_testkit::ManualClock;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use super::*;
use crate::buffers::HeldBuffers;
use crate::buffers::cache::Cache;
use crate::buffers::index::{Index, ObjectId};
use crate::flight::{Fetch, fetch};
use crate::memory::Memory;
use crate::stores::{Got, Object, Store, Validator};

const MIB: u64 = 1 << 20;

type Part = Result<Bytes, StoreError>;

/// One answer of the store: length, tag, and what the test sends.
type Answer = (Option<u64>, Option<&'static str>, mpsc::Receiver<Part>);

/// A store whose bytes arrive when the test sends them.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    retries: u32,
}

impl Store for Script {
    fn retries(&self) -> u32 {
        self.retries
    }

    fn get<'a>(
        &'a self,
        _: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        let answer = self.answers.lock().pop_front();
        Box::pin(async move {
            let Some((len, tag, parts)) = answer else {
                return Err(broke_off());
            };
            let validator = tag.and_then(Validator::of_tag);
            if validator.is_some() && validator.as_ref() == known {
                return Ok(Got::Unchanged(None));
            }
            let body = stream::unfold(parts, |mut parts| async move {
                let part = parts.recv().await?;
                Some((part, parts))
            });
            Ok(Got::Object(Object {
                len,
                validator,
                headers: Vec::new(),
                body: body.boxed(),
            }))
        })
    }
}

fn broke_off() -> StoreError {
    StoreError::new(InputFaultKind::Unavailable, "broke off")
}

struct World {
    store: Arc<Script>,
    buffers: Arc<Buffers>,
}

impl World {
    /// `share`: that of one function.
    fn new(share: u64, retries: u32) -> Self {
        Self {
            store: Arc::new(Script {
                retries,
                ..Script::default()
            }),
            buffers: Arc::new(Buffers {
                memory: Memory::new(64 * MIB, share, None),
                cache: Cache::new(32 * MIB),
                index: Index::new(true),
                held: HeldBuffers::default(),
                turns: crate::room::Turns::default(),
                bytes_max: share,
            }),
        }
    }

    /// The store will answer so.
    fn answer(&self, len: Option<u64>, tag: Option<&'static str>) -> mpsc::Sender<Part> {
        let (sender, parts) = mpsc::channel(16);
        self.store.answers.lock().push_back((len, tag, parts));
        sender
    }

    async fn fetch(&self, until: Until) -> Result<Fetch, StoreError> {
        let object = ObjectId {
            owner: "owner".to_owned(),
            store: "store".to_owned(),
            key: "k".to_owned(),
            decoder: None,
        };
        let function: FunctionName = "f".parse().unwrap();
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        let waiting = Waiting::default();
        fetch(
            &self.buffers,
            &store,
            object,
            &function,
            until,
            waiting.place(0),
        )
        .await
    }

    /// What a worker gets.
    async fn begin(&self) -> Worker {
        let fetched = self.fetch(Until::Begun).await.unwrap();
        let file = File::from(fetched.published.unwrap().descriptor);
        let begun = Begun {
            input: "video".to_owned(),
            from: "http://site/video".to_owned(),
            way: fetched.way,
            began: Instant(0),
        };
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
        let (stream, progress) =
            Stream::start(fetched.used, &self.buffers, begun, ToldBy::Socket, &clock).unwrap();
        let socket = StdUnixStream::from(Arc::into_inner(progress.descriptor).unwrap());
        socket.set_nonblocking(true).unwrap();
        Worker {
            stream,
            file,
            progress: UnixStream::from_std(socket).unwrap(),
        }
    }
}

struct Worker {
    stream: Stream,
    file: File,
    progress: UnixStream,
}

impl Worker {
    /// The next message.
    async fn told(&mut self) -> (u8, u64, String) {
        let mut message = [0; MESSAGE_LEN];
        self.progress.read_exact(&mut message).await.unwrap();
        let value = u64::from_le_bytes(message[1..].try_into().unwrap());
        let mut text = Vec::new();
        if message[0] == FAILED {
            text.resize(usize::try_from(value).unwrap(), 0);
            self.progress.read_exact(&mut text).await.unwrap();
        }
        (message[0], value, String::from_utf8(text).unwrap())
    }

    async fn told_there(&mut self, there: u64) {
        assert_eq!(self.told().await, (THERE, there, String::new()));
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.stream.bytes()).unwrap()];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Reads the messages up to the last, and returns that.
    async fn end(&mut self) -> (u8, u64, String) {
        loop {
            let told = self.told().await;
            if told.0 != THERE {
                return told;
            }
        }
    }
}

async fn send(to: &mpsc::Sender<Part>, bytes: &'static [u8]) {
    to.send(Ok(Bytes::from_static(bytes))).await.unwrap();
}

#[test]
fn messages_are_those_of_the_vectors() {
    let vectors = include_str!("../../../../path/wire/vectors/frames.json");
    let failure = "the store answers 503 – später";
    for messages in [
        [message(THERE, 5), message(THERE, 9), message(WHOLE, 9)]
            .concat()
            .as_slice(),
        &[
            &message(THERE, 3),
            &message(FAILED, failure.len() as u64)[..],
            failure.as_bytes(),
        ]
        .concat(),
    ] {
        let sent = hex::encode(messages);
        assert!(vectors.contains(&sent), "{sent}");
    }
}

#[tokio::test]
async fn a_worker_reads_what_is_there_and_nobody_can_write_in_the_end() {
    let world = World::new(16 * MIB, 0);
    let parts = world.answer(Some(6), Some("\"1\""));
    let mut worker = world.begin().await;
    send(&parts, b"pix").await;
    worker.told_there(3).await;
    assert_eq!(worker.read(), b"pix");
    assert!(worker.file.write_at(b"x", 0).is_err());
    assert!(
        worker.stream.input("video").is_err(),
        "it is not complete yet"
    );
    let transfer = worker.stream.transfer().unwrap();
    assert_eq!(
        (transfer.bytes, transfer.streamed.unwrap().whole),
        (3, false)
    );
    send(&parts, b"els").await;
    drop(parts);
    assert_eq!(worker.end().await, (WHOLE, 6, String::new()));
    assert_eq!(worker.read(), b"pixels");
    let transfer = worker.stream.transfer().unwrap();
    assert_eq!(
        (transfer.bytes, transfer.streamed.unwrap().whole),
        (6, true)
    );
    // Also root can only read it now.
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&worker.file)
    );
    if let Ok(again) = File::options().write(true).open(path) {
        assert!(again.write_at(b"x", 0).is_err());
    }
    // The next one gets the same buffer, as any other.
    let _unchanged = world.answer(Some(6), Some("\"1\""));
    let fetched = world.fetch(Until::Begun).await.unwrap();
    assert_eq!(fetched.way, TransferWay::Cached);
    assert!(fetched.published.is_none());
    let mut text = String::new();
    let input = fetched.used.input("video").unwrap();
    File::from(input.descriptor.try_clone().unwrap())
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "pixels");
}

#[tokio::test(start_paused = true)]
async fn what_breaks_off_goes_on_with_the_same_object_only() {
    let tagged = |len, tag| Some((len, Some(tag)));
    for (announced, tag, next, said) in [
        (Some(6), Some("\"1\""), tagged(Some(6), "\"1\""), None),
        // Its length is known at last.
        (None, Some("\"1\""), tagged(Some(6), "\"1\""), None),
        (
            Some(6),
            Some("\"1\""),
            tagged(Some(6), "\"2\""),
            Some("it changed while it was read"),
        ),
        (
            Some(6),
            Some("\"1\""),
            tagged(Some(7), "\"1\""),
            Some("it changed while it was read"),
        ),
        (Some(6), Some("\"1\""), None, Some("broke off")),
        // Nothing tells whether it is still the same.
        (Some(6), None, Some((Some(6), None)), Some("broke off")),
    ] {
        let world = World::new(16 * MIB, 2);
        let first = world.answer(announced, tag);
        let mut worker = world.begin().await;
        send(&first, b"pix").await;
        worker.told_there(3).await;
        if let Some((len, tag)) = next {
            let second = world.answer(len, tag);
            send(&second, b"pi").await;
            send(&second, b"xels").await;
        }
        first.send(Err(broke_off())).await.unwrap();
        let (kind, value, text) = worker.end().await;
        match said {
            None => {
                assert_eq!((kind, value), (WHOLE, 6));
                assert_eq!(worker.read(), b"pixels");
            }
            Some(said) => {
                assert_eq!(kind, FAILED);
                assert!(text.contains(said), "{text}");
                assert_eq!(worker.read(), b"pix", "what was shown stays as it was");
                let transfer = worker.stream.transfer().unwrap();
                assert_eq!(transfer.error.as_deref(), Some(text.as_str()));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_nobody_read_is_forgotten() {
    let world = World::new(16 * MIB, 2);
    let first = world.answer(Some(6), Some("\"1\""));
    let second = world.answer(Some(6), Some("\"1\""));
    let _unchanged = world.answer(Some(6), Some("\"1\""));
    let mut whole = Box::pin(world.fetch(Until::Whole));
    send(&first, b"wrong").await;
    first.send(Err(broke_off())).await.unwrap();
    // The second attempt has begun when its first byte is taken.
    send(&second, b"p").await;
    let begun = async {
        while second.capacity() < second.max_capacity() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        world.begin().await
    };
    let mut worker = tokio::select! {
        worker = begun => worker,
        _ = &mut whole => panic!("it is not complete"),
    };
    worker.told_there(1).await;
    assert_eq!(worker.read(), b"p");
    send(&second, b"ixels").await;
    drop(second);
    assert_eq!(worker.end().await, (WHOLE, 6, String::new()));
    assert_eq!(worker.read(), b"pixels");
    assert_eq!(whole.await.unwrap().used.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_a_failure_gets_the_object() {
    let world = World::new(16 * MIB, 0);
    let first = world.answer(Some(6), Some("\"1\""));
    let mut worker = world.begin().await;
    send(&first, b"pix").await;
    first.send(Err(broke_off())).await.unwrap();
    assert_eq!(worker.end().await.0, FAILED);
    // The worker still has what was there, and the store still has the same object.
    let second = world.answer(Some(6), Some("\"1\""));
    send(&second, b"pixels").await;
    drop(second);
    let fetched = world.fetch(Until::Whole).await.unwrap();
    assert_eq!((fetched.used.len(), fetched.way), (6, TransferWay::Fetched));
    assert_eq!(worker.read(), b"pix");
}

#[tokio::test]
async fn an_object_of_unknown_length_grows_within_the_limit() {
    let world = World::new(4 * MIB, 0);
    let parts = world.answer(None, None);
    let mut worker = world.begin().await;
    let part = Bytes::from(vec![7; 3 << 20]);
    parts.send(Ok(part.clone())).await.unwrap();
    worker.told_there(3 * MIB).await;
    assert_eq!(world.buffers.memory.charged() as u64, 3 * MIB);
    parts.send(Ok(part)).await.unwrap();
    let (kind, _, text) = worker.end().await;
    assert_eq!(kind, FAILED);
    assert!(text.contains("see data.input_mb"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_part_counts_until_the_worker_lets_go_of_it() {
    let world = World::new(16 * MIB, 0);
    let parts = world.answer(Some(8 * MIB), Some("\"1\""));
    let Worker { stream, file, .. } = world.begin().await;
    parts.send(Ok(Bytes::from(vec![7; 1 << 20]))).await.unwrap();
    let mut filled = stream.used.filled();
    filled.wait_for(|filled| *filled == MIB).await.unwrap();
    drop(stream);
    // Nobody needs the rest, so the store sends no more.
    parts.closed().await;
    for _ in 0..10 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert_eq!(world.buffers.memory.held() as u64, 8 * MIB);
        assert_eq!(world.buffers.memory.charged() as u64, 8 * MIB);
    }
    // Who comes now gets another buffer.
    let again = world.answer(Some(2), Some("\"1\""));
    send(&again, b"ab").await;
    drop(again);
    let fetched = world.fetch(Until::Whole).await.unwrap();
    assert_eq!((fetched.used.len(), fetched.way), (2, TransferWay::Fetched));
    drop(fetched);
    drop(file);
    while world.buffers.memory.charged() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_worker_that_does_not_read_holds_nobody_up() {
    let world = World::new(16 * MIB, 0);
    let parts = world.answer(Some(4 * MIB), Some("\"1\""));
    let worker = world.begin().await;
    // More messages than a socket holds.
    let part = Bytes::from(vec![7; 1 << 10]);
    for _ in 0..4 << 10 {
        parts.send(Ok(part.clone())).await.unwrap();
    }
    drop(parts);
    let unchanged = world.answer(Some(4 * MIB), Some("\"1\""));
    let fetched = world.fetch(Until::Whole).await.unwrap();
    drop(unchanged);
    assert_eq!(fetched.used.len(), 4 * MIB);
    assert!(worker.progress.as_fd().try_clone_to_owned().is_ok());
}
