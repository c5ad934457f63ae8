//! Calls of other functions, over the socket that a worker gets. The test is the worker's side.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_invoke::{Invoker, Limits, Payload};
use pilot_model::calls::{Reason, Refusal};
use pilot_model::inputs::{InputConfig, Values};
use pilot_model::ports::{
    BlankMemory, BoxFuture, CallAnswer, CallEnd, Clock, Fetched, Input, InputKind, InputMemory,
    InputSource, Local, MemoryFault, NoInitscripts, NodeCall, NodeFault, Peer, Placement, Platform,
    Ran, StreamedBody,
};
use pilot_model::runtime::node::NodeRuntime;
use pilot_model::{FunctionConfig, FunctionName, Invokes, Runtime};
use pilot_testkit::{FakeEngine, Reaction, RecordingSink, TokioClock};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::request;

const LONG: Duration = Duration::from_secs(20);

/// Memory without bytes.
#[derive(Debug)]
struct Memory(u64);

impl Memory {
    fn file() -> io::Result<Arc<OwnedFd>> {
        Ok(Arc::new(std::fs::File::open("/dev/null")?.into()))
    }
}

impl BlankMemory for Memory {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Self::file().ok()
    }

    fn seal(self: Arc<Self>) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>> {
        Box::pin(async move { Ok(self as Arc<dyn InputMemory>) })
    }
}

impl InputMemory for Memory {
    fn bytes(&self) -> u64 {
        self.0
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        Ok(Input {
            name: name.to_owned(),
            kind: InputKind::Memory { len: self.0 },
            descriptor: Self::file()?,
            object: None,
            decoded: None,
        })
    }
}

#[derive(Debug)]
struct Memories;

impl InputSource for Memories {
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
        Box::pin(async move { Ok(Arc::new(Memory(len)) as Arc<dyn BlankMemory>) })
    }
}

/// The memory of one call: name and length.
type Inputs = Vec<(String, u64)>;

/// The worker of `first`, which never returns; `next` does what the test says.
struct World {
    engine: Arc<FakeEngine>,
    socket: UnixStream,
    /// What `next` was given with each call.
    given: Arc<Mutex<Vec<Inputs>>>,
    invoker: Arc<Invoker>,
    sockets: UnboundedReceiver<OwnedFd>,
}

/// Invokes a function. Returns what it gets for its calls.
async fn ask_for(
    invoker: &Arc<Invoker>,
    sockets: &mut UnboundedReceiver<OwnedFd>,
    function: &str,
) -> OwnedFd {
    let version = invoker.find(function, None).unwrap();
    let calling = Arc::clone(invoker);
    let request = request(invoker, version);
    tokio::spawn(async move {
        let payload = async { Ok::<_, pilot_invoke::InvokeError>(Payload::event("{}".into())) };
        calling.invoke(request, payload).await
    });
    sockets.recv().await.unwrap()
}

/// Invokes `first`. Returns its socket for calls.
async fn begin(invoker: &Arc<Invoker>, sockets: &mut UnboundedReceiver<OwnedFd>) -> UnixStream {
    let socket = ask_for(invoker, sockets, "first").await;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true).unwrap();
    UnixStream::from_std(socket).unwrap()
}

impl World {
    async fn new(next: Reaction) -> Self {
        Self::placed(next, Arc::new(Local)).await
    }

    /// `first` may also invoke functions whose names begin with `far-`.
    async fn placed(next: Reaction, placement: Arc<dyn Placement>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let engine = FakeEngine::new(Arc::clone(&clock));
        let sink = Arc::new(RecordingSink::default());
        let limits = Limits::default();
        let source = Arc::new(Memories);
        let invoker = Invoker::new(
            engine.clone(),
            sink,
            clock,
            (source, Arc::new(NoInitscripts)),
            placement,
            |_| None,
            limits,
        );
        let (sender, mut sockets) = tokio::sync::mpsc::unbounded_channel();
        let given = Arc::<Mutex<Vec<Inputs>>>::default();
        let seen = Arc::clone(&given);
        engine.serve(move |call| {
            let socket = call
                .inputs
                .iter()
                .find(|input| input.kind == InputKind::Calls);
            if let Some(socket) = socket {
                sender.send(socket.descriptor.try_clone().unwrap()).unwrap();
                return Reaction::Hang;
            }
            let inputs = call.inputs.iter().filter_map(|input| match input.kind {
                InputKind::Memory { len } => Some((input.name.clone(), len)),
                _ => None,
            });
            seen.lock().push(inputs.collect());
            next.clone()
        });
        for (name, invokes) in [
            ("first", vec!["next".to_owned(), "far-*".to_owned()]),
            ("next", Vec::new()),
        ] {
            let version = pilot_testkit::version_with(name, 1, |config| {
                config.timeout = LONG;
                config.invokes = Invokes {
                    names: invokes,
                    own_only: false,
                };
            });
            invoker.activate(version);
        }
        let socket = begin(&invoker, &mut sockets).await;
        Self {
            engine,
            socket,
            given,
            invoker,
            sockets,
        }
    }

    /// The socket of another invocation of `first`.
    async fn another(&mut self) -> UnixStream {
        begin(&self.invoker, &mut self.sockets).await
    }

    async fn ask(&mut self, ask: Value, body: &[u8]) {
        self.socket.write_all(&message(&ask, body)).await.unwrap();
    }

    async fn answer(&mut self) -> (Value, Vec<u8>) {
        let meta_len = self.socket.read_u32_le().await.unwrap();
        let body_len = self.socket.read_u32_le().await.unwrap();
        let mut meta = vec![0; meta_len as usize];
        self.socket.read_exact(&mut meta).await.unwrap();
        let mut body = vec![0; body_len as usize];
        self.socket.read_exact(&mut body).await.unwrap();
        (serde_json::from_slice(&meta).unwrap(), body)
    }

    async fn starts(&self, count: usize) {
        while self.engine.starts() < count {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

fn message(ask: &Value, body: &[u8]) -> Vec<u8> {
    let meta = ask.to_string();
    let lengths = [meta.len(), body.len()].map(|len| u32::try_from(len).unwrap().to_le_bytes());
    [lengths.as_flattened(), meta.as_bytes(), body].concat()
}

#[tokio::test(start_paused = true)]
async fn a_target_starts_while_its_data_is_filled() {
    let mut world = World::new(Reaction::answer("[1]")).await;
    world
        .ask(json!({"op": "buffer", "id": 1, "len": 77}), b"")
        .await;
    let made = world.answer().await.0;
    assert_eq!(made, json!({"id": 1, "descriptor": true, "end": "done"}));
    let call = json!({"op": "call", "id": 2, "function": "next", "buffer": 1});
    world.ask(call, b"{}").await;
    world.starts(2).await;
    assert_eq!(world.given.lock().len(), 0, "its data is not there yet");
    world
        .ask(json!({"op": "seal", "id": 3, "buffer": 1}), b"")
        .await;
    let answers = [world.answer().await, world.answer().await];
    for (id, body) in [(3, &b""[..]), (2, b"[1]")] {
        let end = json!({"id": id, "end": "done"});
        assert!(answers.contains(&(end, body.to_vec())), "{answers:?}");
    }
    assert_eq!(*world.given.lock(), [[("data".to_owned(), 77)]]);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_is_checked() {
    let mut world = World::new(Reaction::answer("{}")).await;
    for (ask, body, reason) in [
        (
            json!({"op": "call", "function": "first"}),
            "{}",
            "Forbidden",
        ),
        (json!({"op": "call", "function": "next"}), "{", "Invalid"),
        (
            json!({"op": "call", "function": "next", "buffer": 9}),
            "{}",
            "NotFound",
        ),
        (
            json!({"op": "call", "function": "next", "input": ":calls"}),
            "{}",
            "NotFound",
        ),
        (json!({"op": "seal", "buffer": 9}), "", "NotFound"),
    ] {
        let mut ask = ask;
        ask["id"] = json!(1);
        world.ask(ask.clone(), body.as_bytes()).await;
        let (answer, _) = world.answer().await;
        assert_eq!(
            (&answer["end"], &answer["reason"]),
            (&json!("refused"), &json!(reason)),
            "{ask}"
        );
    }
    let buffer = json!({"op": "buffer", "id": 1, "len": 1});
    for end in ["done", "refused"] {
        world.ask(buffer.clone(), b"").await;
        assert_eq!(world.answer().await.0["end"], end);
    }
    let call = json!({"op": "call", "id": 2, "function": "next", "buffer": 1});
    world.ask(call, b"{}").await;
    world.ask(json!({"op": "release", "buffer": 1}), b"").await;
    let (answer, _) = world.answer().await;
    assert_eq!(
        answer["problem"],
        "the buffer was released before it was filled"
    );
}

#[tokio::test(start_paused = true)]
async fn an_invocation_runs_sixteen_calls_at_a_time() {
    let mut world = World::new(Reaction::after(Duration::from_secs(1))).await;
    for id in 1..=17 {
        world
            .ask(json!({"op": "call", "id": id, "function": "next"}), b"{}")
            .await;
    }
    sleep(Duration::from_millis(500)).await;
    assert_eq!(world.given.lock().len(), 16);
    for _ in 1..=17 {
        assert_eq!(world.answer().await.0["end"], "done");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_without_end_wait_and_those_of_calls_do_not() {
    let mut world = World::new(Reaction::answer("[1]")).await;
    let release = json!({"op": "release", "buffer": 1});
    let began = Instant::now();
    for id in 0..100 {
        for _ in 0..8 {
            world.ask(release.clone(), b"").await;
        }
        let call = json!({"op": "call", "id": id, "function": "next"});
        world.ask(call, b"{}").await;
        assert_eq!(world.answer().await.0["end"], "done");
    }
    let of_calls = began.elapsed();
    assert!(of_calls < Duration::from_millis(100), "{of_calls:?}");

    let mut last = Duration::ZERO;
    for (id, messages) in [(1, 1000), (2, 1000)] {
        let began = Instant::now();
        for _ in 0..messages {
            world.ask(release.clone(), b"").await;
        }
        let buffer = json!({"op": "seal", "id": id, "buffer": 9});
        world.ask(buffer, b"").await;
        assert_eq!(world.answer().await.0["end"], "refused");
        last = began.elapsed();
    }
    assert!((900..=1100).contains(&last.as_millis()), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_valid_ends_the_socket_alone() {
    for wrong in [
        vec![255; 8],
        message(&json!({}), b""),
        message(&json!({"op": "release", "buffer": 1}), b"x"),
    ] {
        let mut world = World::new(Reaction::Hang).await;
        world.socket.write_all(&wrong).await.unwrap();
        let ended = timeout(LONG / 2, world.socket.read(&mut [0; 8])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        assert_eq!(world.engine.alive(), 1, "the invocation goes on");
    }
}

#[tokio::test]
async fn a_worker_that_takes_paths_connects_once_and_gets_memory_by_a_path() {
    let mut world = World::new(Reaction::answer("[1]")).await;
    let node = pilot_testkit::version_with("node", 1, |config| {
        config.runtime = Runtime::Node(NodeRuntime { major: None });
        config.timeout = LONG;
        config.invokes.names = vec!["next".to_owned()];
    });
    world.invoker.activate(node);
    let listens = ask_for(&world.invoker, &mut world.sockets, "node").await;
    let path = format!("/proc/self/fd/{}", listens.as_raw_fd());
    world.socket = UnixStream::connect(&path).await.unwrap();
    world
        .ask(json!({"op": "buffer", "id": 1, "len": 77}), b"")
        .await;
    let made = world.answer().await.0;
    let shown = made["path"].as_str().unwrap();
    assert!(shown.starts_with("/proc/self/fd/"), "{made}");
    assert_eq!(
        (&made["end"], made.get("descriptor")),
        (&json!("done"), None)
    );
    // Only one may connect.
    if let Ok(mut second) = UnixStream::connect(&path).await {
        assert!(!matches!(second.read(&mut [0]).await, Ok(1)));
    }
    let call = json!({"op": "call", "id": 2, "function": "next", "buffer": 1});
    world.ask(call, b"{}").await;
    world
        .ask(json!({"op": "seal", "id": 3, "buffer": 1}), b"")
        .await;
    let ends = [world.answer().await.0, world.answer().await.0];
    assert!(ends.iter().all(|end| end["end"] == "done"), "{ends:?}");
    assert_eq!(*world.given.lock(), [[("data".to_owned(), 77)]]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_does_not_come_ends_the_socket_alone() {
    let mut world = World::new(Reaction::Hang).await;
    let ask = json!({"op": "call", "id": 1, "function": "next"});
    let mut begun = message(&ask, b"{}");
    begun.pop();
    world.socket.write_all(&begun).await.unwrap();
    let ended = timeout(LONG / 2, world.socket.read(&mut [0; 8])).await;
    assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    assert_eq!(world.engine.alive(), 1, "the invocation goes on");
}

#[tokio::test(start_paused = true)]
async fn events_that_are_announced_and_not_sent_take_no_memory_from_others() {
    const MIB: usize = 1 << 20;
    let mut world = World::new(Reaction::answer("[1]")).await;
    let ask = json!({"op": "call", "id": 1, "function": "next"});
    let event = vec![b' '; 6 * MIB - 2];
    let announced = message(&ask, &event);
    let header_len = announced.len() - event.len();
    let mut silent = Vec::new();
    // More than a function may have.
    for _ in 0..8 {
        let mut socket = world.another().await;
        socket.write_all(&announced[..header_len]).await.unwrap();
        silent.push(socket);
    }
    let began = Instant::now();
    let event = [&vec![b' '; MIB][..], b"{}"].concat();
    world.ask(ask, &event).await;
    let (answer, _) = world.answer().await;
    assert_eq!(answer["end"], "done", "{answer}");
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "it waited for those"
    );
}

/// A node that does the next of these with each call, or never answers.
#[derive(Debug)]
struct FarNode {
    name: &'static str,
    does: Mutex<Vec<Result<CallAnswer, NodeFault>>>,
    /// The function and its data.
    seen: Mutex<Vec<(String, Option<u64>)>>,
    /// How much of the data was there, each time there was more.
    there: Mutex<Vec<u64>>,
}

impl FarNode {
    fn new(name: &'static str, does: Vec<Result<CallAnswer, NodeFault>>) -> Arc<Self> {
        Arc::new(Self {
            name,
            does: Mutex::new(does),
            seen: Mutex::default(),
            there: Mutex::default(),
        })
    }
}

impl Peer for FarNode {
    fn name(&self) -> &str {
        self.name
    }

    fn call<'a>(&'a self, call: &'a NodeCall) -> BoxFuture<'a, Result<CallAnswer, NodeFault>> {
        Box::pin(async move {
            let data = match &call.data {
                None => None,
                Some(data) => {
                    let mut there = 0;
                    while there < data.bytes() {
                        let more = data.there(there).await.map_err(NodeFault::not_run)?;
                        assert!(more.len > there && more.len <= data.bytes());
                        there = more.len;
                        self.there.lock().push(there);
                    }
                    Some(there)
                }
            };
            let name = call.head.function.to_string();
            self.seen.lock().push((name, data));
            let next = self.does.lock().pop();
            match next {
                Some(end) => end,
                None => std::future::pending().await,
            }
        })
    }
}

/// All functions that are not here are on these nodes.
#[derive(Debug)]
struct Far(Vec<Arc<FarNode>>);

impl Placement for Far {
    fn place(&self, _: &str) -> Vec<Arc<dyn Peer>> {
        self.0.iter().map(|node| Arc::clone(node) as _).collect()
    }
}

fn answer(body: &'static str) -> Result<CallAnswer, NodeFault> {
    Ok(CallAnswer {
        end: CallEnd::Done,
        body: body.into(),
    })
}

fn fault(reason: Reason, ran: Ran) -> Result<CallAnswer, NodeFault> {
    let refusal = Refusal::new(reason, "the test says so");
    Err(NodeFault { refusal, ran })
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_to_another_node_as_long_as_nothing_has_run() {
    let a = FarNode::new(
        "a",
        vec![
            fault(Reason::Invalid, Ran::No),
            fault(Reason::Unavailable, Ran::Perhaps),
            fault(Reason::Unavailable, Ran::No),
            fault(Reason::NoRoom, Ran::No),
        ],
    );
    let b = FarNode::new("b", vec![fault(Reason::NotFound, Ran::No), answer("[1]")]);
    let placement = Arc::new(Far(vec![Arc::clone(&a), Arc::clone(&b)]));
    let mut world = World::placed(Reaction::Hang, placement).await;
    let buffer = json!({"op": "buffer", "id": 1, "len": 77});
    world.ask(buffer, b"").await;
    world.answer().await;
    world
        .ask(json!({"op": "seal", "id": 1, "buffer": 1}), b"")
        .await;
    world.answer().await;
    let call = json!({"op": "call", "id": 2, "function": "far-1", "buffer": 1});
    for (end, reason, problem, tried) in [
        // No room on the first, and the second runs it.
        ("done", Value::Null, "", 1),
        (
            "refused",
            json!("NotFound"),
            "node 'a': the test says so; node 'b': the test says so",
            2,
        ),
        // It may have run, or no other node would take it: the second is not asked.
        (
            "refused",
            json!("Unavailable"),
            "node 'a': the test says so",
            2,
        ),
        ("refused", json!("Invalid"), "node 'a': the test says so", 2),
    ] {
        world.ask(call.clone(), b"{}").await;
        let (answer, _) = world.answer().await;
        assert_eq!((&answer["end"], &answer["reason"]), (&json!(end), &reason));
        assert_eq!(answer["problem"].as_str().unwrap_or_default(), problem);
        assert_eq!(b.seen.lock().len(), tried);
    }
    assert_eq!(a.seen.lock()[0], ("far-1".to_owned(), Some(77)));
    assert_eq!(world.given.lock().len(), 0, "nothing ran here");
    // What is here is invoked here, and nobody asks where another function is that may not be invoked.
    for (function, reason) in [
        ("first", "Forbidden"),
        ("far 1", "Forbidden"),
        ("far-%", "NotFound"),
    ] {
        let call = json!({"op": "call", "id": 3, "function": function});
        world.ask(call, b"{}").await;
        assert_eq!(world.answer().await.0["reason"], reason, "{function}");
    }
    assert_eq!((a.seen.lock().len(), b.seen.lock().len()), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn data_goes_to_another_node_while_it_is_filled() {
    const KIB: u64 = 1024;
    let node = FarNode::new("a", vec![answer("[2]"), answer("[1]")]);
    let mut world = World::placed(Reaction::Hang, Arc::new(Far(vec![Arc::clone(&node)]))).await;
    let ended = async |world: &mut World, id: u32| loop {
        let (answer, _) = world.answer().await;
        if answer["id"] == id {
            return answer;
        }
    };
    let buffer = json!({"op": "buffer", "id": 1, "len": 1024 * KIB});
    world.ask(buffer, b"").await;
    world.answer().await;
    let call = json!({"op": "call", "id": 2, "function": "far-1", "buffer": 1});
    world.ask(call, b"{}").await;
    // Less than a step, steps, less than before, and more than all: the last byte is there when the buffer is sealed.
    for filled in [3, 256 * KIB, 600 * KIB, 300 * KIB, u64::MAX] {
        let filled = json!({"op": "filled", "buffer": 1, "len": filled});
        world.ask(filled, b"").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(*node.there.lock(), [256 * KIB, 512 * KIB, 768 * KIB]);
    assert_eq!(node.seen.lock().len(), 0, "it is not complete");
    let seal = json!({"op": "seal", "id": 3, "buffer": 1});
    world.ask(seal, b"").await;
    assert_eq!(ended(&mut world, 2).await["end"], "done");
    assert_eq!(node.there.lock().last(), Some(&(1024 * KIB)));
    // Of a buffer that is given up in the middle, no call comes.
    let buffer = json!({"op": "buffer", "id": 4, "len": 1024 * KIB});
    world.ask(buffer, b"").await;
    ended(&mut world, 4).await;
    let call = json!({"op": "call", "id": 5, "function": "far-1", "buffer": 4});
    world.ask(call, b"{}").await;
    let filled = json!({"op": "filled", "buffer": 4, "len": 512 * KIB});
    world.ask(filled, b"").await;
    world.ask(json!({"op": "release", "buffer": 4}), b"").await;
    assert_eq!(ended(&mut world, 5).await["reason"], "Invalid");
    assert_eq!(node.seen.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_answer_costs_no_more_than_the_callers_time() {
    let placement = Arc::new(Far(vec![FarNode::new("a", Vec::new())]));
    let mut world = World::placed(Reaction::Hang, placement).await;
    let call = json!({"op": "call", "id": 1, "function": "far-1"});
    world.ask(call, b"{}").await;
    // The caller's own timeout and this one are at the same time, so that either may be seen.
    let mut head = [0; 8];
    let ended = timeout(LONG + LONG, world.socket.read_exact(&mut head)).await;
    assert!(ended.is_ok(), "it still waits");
}
