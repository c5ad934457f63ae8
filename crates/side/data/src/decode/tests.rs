//! The daemon's side: what it makes of decoders that lie, stall, or end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use pilot_model::inputs::decoded::Element;
use pilot_sys::seqpacket;
use pilot_testkit::ManualClock;

use super::permits::SHARES;
use super::*;
use crate::stores::fake::FakeStore;

/// What a process does when it has read the request and the object.
type Does = fn(DecodeRequest, Vec<u8>, &mut StdUnixStream);

#[derive(Debug, Default)]
struct Counts {
    started: AtomicUsize,
    unused: AtomicUsize,
}

/// Its processes are threads.
#[derive(Debug)]
struct FakeHost {
    does: Does,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct FakeProcess {
    socket: Option<OwnedFd>,
    counts: Arc<Counts>,
}

impl DecoderHost for FakeHost {
    fn start(&self) -> BoxFuture<'static, Result<Box<dyn DecoderProcess>, String>> {
        self.counts.started.fetch_add(1, Ordering::SeqCst);
        let (ours, theirs) = seqpacket::stream_pair().unwrap();
        StdUnixStream::from(ours.try_clone().unwrap())
            .set_nonblocking(true)
            .unwrap();
        let does = self.does;
        std::thread::spawn(move || {
            let mut socket = StdUnixStream::from(theirs);
            let mut input = BufReader::new(socket.try_clone().unwrap());
            let (mut line, mut object) = (String::new(), Vec::new());
            // The test may have given up.
            if input.read_line(&mut line).is_err() || input.read_to_end(&mut object).is_err() {
                return;
            }
            if let Ok(request) = serde_json::from_str(&line) {
                does(request, object, &mut socket);
            }
        });
        let process = FakeProcess {
            socket: Some(ours),
            counts: Arc::clone(&self.counts),
        };
        Box::pin(async move { Ok(Box::new(process) as Box<dyn DecoderProcess>) })
    }

    fn memory_bytes(&self) -> u64 {
        1 << 20
    }
}

impl DecoderProcess for FakeProcess {
    fn socket(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

    fn ended(self: Box<Self>) -> BoxFuture<'static, String> {
        Box::pin(async { "it was ended by signal 9".to_owned() })
    }

    fn unused(self: Box<Self>) {
        self.counts.unused.fetch_add(1, Ordering::SeqCst);
    }
}

const BYTES_MAX: u64 = 1000;

struct World {
    store: Arc<FakeStore>,
    counts: Arc<Counts>,
    decoded: DecodedStore,
}

fn world(does: Does) -> World {
    let (store, counts) = (Arc::new(FakeStore::default()), Arc::<Counts>::default());
    store.put("k", vec![7; 10]);
    let host = FakeHost {
        does,
        counts: Arc::clone(&counts),
    };
    let decoders = Decoders::new(Arc::new(host), Arc::new(ManualClock::default()));
    of_function("one", store, Arc::new(decoders), counts)
}

fn of_function(
    name: &str,
    store: Arc<FakeStore>,
    decoders: Arc<Decoders>,
    counts: Arc<Counts>,
) -> World {
    let under = Arc::clone(&store) as Arc<dyn Store>;
    World {
        store,
        counts,
        decoded: decoders.over(
            &under,
            &name.parse().unwrap(),
            (Decoder::Npy, Form::Memory),
            BYTES_MAX,
        ),
    }
}

/// Takes all permits that the function may have.
fn all_permits(world: &World) -> Vec<DecoderPermit> {
    let DecodedStore {
        decoders, function, ..
    } = &world.decoded;
    std::iter::from_fn(|| decoders.permits.take(function)).collect()
}

/// The object, whole.
async fn get(world: &World) -> Result<(Object, Vec<u8>), StoreError> {
    match world.decoded.get("k", None).await? {
        Got::Unchanged(_) => panic!("nothing was known"),
        Got::Object(mut object) => {
            let mut bytes = Vec::new();
            while let Some(part) = object.body.try_next().await? {
                bytes.extend_from_slice(&part);
            }
            Ok((object, bytes))
        }
    }
}

fn answer(socket: &mut StdUnixStream, json: &str) {
    let len = u32::try_from(json.len()).unwrap();
    // Who is answered may have gone.
    let _ = socket.write_all(&len.to_le_bytes());
    let _ = socket.write_all(json.as_bytes());
}

fn array(socket: &mut StdUnixStream, len: u64, shape: &str) {
    let layout = format!(r#"{{"array":{{"element":"|u1","shape":{shape}}}}}"#);
    answer(
        socket,
        &format!(r#"{{"done":{{"len":{len},"layout":{layout}}}}}"#),
    );
}

#[tokio::test]
async fn the_result_is_an_object_with_the_tag_of_the_store() {
    let world = world(|request, object, socket| {
        assert_eq!((request.by, request.len), (Decoder::Npy, Some(10)));
        array(socket, 20, "[2,10]");
        let _ = socket.write_all(&[object.as_slice(), &object].concat());
        // What follows is not read.
        let _ = socket.write_all(&[1; 5]);
    });
    let (object, bytes) = get(&world).await.unwrap();
    assert_eq!(
        (object.len, bytes.as_slice()),
        (Some(20), [7; 20].as_slice())
    );
    let known = object.validator.unwrap();
    let layout = described(&object.headers).unwrap().decoded.layout;
    let shape = vec![2, 10];
    let element = Element::U8;
    let at = 0;
    assert_eq!(layout, Layout::Array { element, shape, at });
    // The store is asked, and nothing is started.
    let got = world.decoded.get("k", Some(&known)).await.unwrap();
    assert!(matches!(got, Got::Unchanged(_)));
    assert_eq!(world.counts.started.load(Ordering::SeqCst), 1);
    assert_eq!(world.store.sent.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_decoder_is_not_believed() {
    let lies: [(Does, InputFaultKind, &str); 9] = [
        (
            |_, _, _| {},
            InputFaultKind::Decode,
            "the decoder failed: it was ended by signal 9",
        ),
        (
            |_, _, socket| answer(socket, r#"{"failed":{"problem":"no\u0007array"}}"#),
            InputFaultKind::Decode,
            "it cannot be decoded as npy: no array",
        ),
        (
            |_, _, socket| answer(socket, "plain"),
            InputFaultKind::Decode,
            "cannot be read",
        ),
        (
            |_, _, socket| {
                let _ = socket.write_all(&[0xff; 64]);
            },
            InputFaultKind::Decode,
            "cannot be read",
        ),
        (
            |_, _, socket| array(socket, 10, "[11]"),
            InputFaultKind::Decode,
            "does not fit 10 bytes",
        ),
        (
            |_, _, socket| answer(socket, r#"{"done":{"len":10,"layout":{"json":{}}}}"#),
            InputFaultKind::Decode,
            "another form",
        ),
        (
            |_, _, socket| array(socket, 1001, "[1001]"),
            InputFaultKind::TooLarge,
            "data.input_mb",
        ),
        (
            |_, _, socket| array(socket, 10, "[10]"),
            InputFaultKind::Decode,
            "signal 9",
        ),
        (
            |_, _, socket| {
                array(socket, 10, "[10]");
                let _ = socket.write_all(&[1; 9]);
            },
            InputFaultKind::Decode,
            "signal 9",
        ),
    ];
    for (does, kind, said) in lies {
        let error = get(&world(does)).await.err().unwrap();
        assert_eq!(error.kind, kind, "{}", error.problem);
        assert!(error.problem.contains(said), "{}", error.problem);
    }
}

#[tokio::test]
async fn the_failure_of_the_store_is_its_own() {
    let world = world(|_, _, socket| array(socket, 0, "[0]"));
    world.store.break_off.store(1, Ordering::SeqCst);
    let error = get(&world).await.err().unwrap();
    assert_eq!(error.kind, InputFaultKind::Unavailable);
    world.store.put("k", vec![7; 1001]);
    let error = get(&world).await.err().unwrap();
    assert_eq!(error.kind, InputFaultKind::TooLarge);
    world.store.remove("k");
    let error = get(&world).await.err().unwrap();
    assert_eq!(error.kind, InputFaultKind::NotFound);
    // The process that nobody needs is not lost.
    assert_eq!(world.counts.unused.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_decoder_that_stalls_is_given_up() {
    // It is there longer than the test, whose time does not pass.
    let world = world(|_, _, _| std::thread::sleep(Duration::from_secs(1)));
    let error = get(&world).await.err().unwrap();
    assert!(
        error.problem.contains("needs more than 30 s"),
        "{}",
        error.problem
    );
}

#[tokio::test]
async fn no_more_decoders_run_than_there_are_places() {
    let world = world(|_, _, socket| array(socket, 0, "[0]"));
    let held = all_permits(&world);
    let mut waits = Box::pin(get(&world));
    let waited = timeout(Duration::from_millis(20), &mut waits).await;
    assert!(
        waited.is_err() && world.store.transfers() == 0,
        "it holds no connection"
    );
    assert_eq!(world.counts.started.load(Ordering::SeqCst), 0);
    drop(held);
    waits.await.unwrap();
}

#[tokio::test]
async fn stores_that_are_slow_hold_up_no_other_function() {
    let first = world(|_, _, socket| array(socket, 0, "[0]"));
    let decoders = Arc::clone(&first.decoded.decoders);
    let share = all_permits(&first).len();
    let (slow, counts) = (first.store, first.counts);
    slow.hold_bytes(true);
    let of = |name: &str, store: &Arc<FakeStore>| {
        let (store, counts) = (Arc::clone(store), Arc::clone(&counts));
        of_function(name, store, Arc::clone(&decoders), counts)
    };
    let mut all = Vec::new();
    for function in 1..SHARES {
        let world = Arc::new(of(&format!("slow-{function}"), &slow));
        // One of them waits for a permit.
        for _ in 0..=share {
            let world = Arc::clone(&world);
            all.push(tokio::spawn(async move { get(&world).await.map(drop) }));
        }
    }
    while slow.transfers() < share * (SHARES - 1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let store = Arc::<FakeStore>::default();
    store.put("k", vec![7; 10]);
    let other = of("other", &store);
    let served = timeout(Duration::from_secs(20), get(&other)).await;
    served.expect("it has a permit and a turn").unwrap();
    slow.hold_bytes(false);
    for one in all {
        one.await.unwrap().unwrap();
    }
}
