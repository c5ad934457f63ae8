//! Fuzz target: what a script calls. Built for tests and with `--cfg fuzzing` only.
//!
//! The script is one module for all inputs, because compiling takes much longer than running: it reads calls and their arguments from
//! the event, and makes them.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pilot_model::initscript::{MESSAGES_MAX, ScriptEnd};
use pilot_model::ports::{InitRunner as _, ScriptLink, ScriptSent};
use pilot_model::{BoxFuture, TransferWay, Version};
use tokio::runtime::{Builder, Runtime};

use crate::fakes::{Asked, Done, NOTHING, World, script};
use crate::script::SAID_LEN_MAX;

/// Calls of a script. The first byte says whether its function can send and receive while it runs. Then there is a byte for each call, and
/// one or more for each argument: small numbers, the last result, edges, or any number; known texts, or any place and length. However it
/// ends, the run says how, keeps its limits, and leaves no memory behind.
///
/// # Panics
/// One of this does not hold.
pub fn calls(data: &[u8]) {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    let ground = GROUND.get_or_init(Ground::new);
    let Some((first, calls)) = data.split_first() else {
        return;
    };
    let link = (first % 2 == 1).then(|| Arc::new(Link) as Arc<dyn ScriptLink>);
    ground.runtime.block_on(ground.holds(calls, link));
}

struct Ground {
    runtime: Runtime,
    world: World,
    version: Arc<Version>,
    nothing: Arc<Version>,
}

impl Ground {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (world, version, nothing) = runtime.block_on(async {
            let world = World::new();
            world.put("s3://photos/cat", b"a cat");
            world.put("s3://photos/task", br#"{"key": {"0": "cat"}}"#);
            world.put("https://example.com/cat", &[7; 3000]);
            let version = world
                .deploy(&interpreter(), |script| {
                    script.timeout_ms = 20;
                    script.memory_mb = 1;
                    script.input = "words".to_owned();
                })
                .await;
            let nothing = world.deploy(NOTHING, |script| script.memory_mb = 2).await;
            (world, version, nothing)
        });
        Self {
            runtime,
            world,
            version,
            nothing,
        }
    }

    async fn run(&self, calls: &[u8], link: Option<Arc<dyn ScriptLink>>) -> Done {
        let event = Bytes::from([EVENT, calls].concat());
        let run = self.world.initscripts().run(&self.version, event, link);
        // Far more than any limit: a script that does not end is a failure.
        let done = tokio::time::timeout(Duration::from_secs(30), run).await;
        Done::of(done.expect("it ended"))
    }

    async fn holds(&self, calls: &[u8], link: Option<Arc<dyn ScriptLink>>) {
        let is_linked = link.is_some();
        let done = self.run(calls, link).await;
        check(&done, &self.world.take_asked(), is_linked);
        drop(done);
        self.world.is_empty().await;
        self.world.runs(&self.nothing).await;
    }
}

/// What holds after a run, whatever the script has called: how it ended, its limits, and its messages. `is_linked`: the function could
/// receive while the script ran. `asked`: the requests of this run.
///
/// # Panics
/// One of this does not hold.
pub(crate) fn check(done: &Done, asked: &[Asked], is_linked: bool) {
    let transfers = &done.fetched.transfers;
    // How it ended is known, and not contradictory.
    let end = done.end.expect("it ran");
    assert_ne!(end, ScriptEnd::LeftOut);
    assert_eq!(end == ScriptEnd::Ok, transfers[0].error.is_none());
    assert_eq!(transfers[0].way, TransferWay::Script);
    // Its limits.
    assert!(done.fetched.inputs.len() <= MESSAGES_MAX && transfers.len() <= MESSAGES_MAX + 1);
    let copied = transfers
        .iter()
        .filter(|one| one.way == TransferWay::Handed);
    assert!(copied.map(|one| one.bytes).sum::<u64>() <= 1 << 20);
    assert!(done.said.as_ref().map_or(0, String::len) <= SAID_LEN_MAX + 1);
    assert!(asked.len() <= 32 && asked.iter().all(|one| one.endpoint != "s3://private"));
    // Each message is there, or says why not; or the function has it already.
    for transfer in &transfers[1..] {
        let mut inputs = done.fetched.inputs.iter();
        let is_here = inputs.any(|one| one.name == transfer.input);
        assert!(
            is_linked || is_here != transfer.error.is_some(),
            "{transfer:?}"
        );
    }
}

/// The function sends its messages with even ids, and no others.
#[derive(Debug)]
struct Link;

impl ScriptLink for Link {
    fn sent(&self, _: ScriptSent) {}

    fn message(&self, id: u64) -> BoxFuture<'static, Option<Bytes>> {
        let message = id
            .is_multiple_of(2)
            .then(|| Bytes::from_static(b"a message"));
        Box::pin(async move { message })
    }
}

/// An argument of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A connection, a reply, an offset: a number of 32 bits.
    Number,
    /// An id, or an offset: a number of 64 bits.
    Id,
    /// A place and a length.
    Text,
}

/// The functions of the host, their arguments, and whether there is a result of 32 bits, of 64, or none.
pub(crate) const CALLS: [(&str, &[Kind], u32); 18] = {
    use Kind::{Id, Number, Text};
    [
        ("connect", &[Text], 32),
        ("send_rpc", &[Number, Id, Text], 32),
        ("recv", &[Number, Id], 32),
        ("reply_len", &[Number], 64),
        ("reply_status", &[Number], 32),
        ("reply_read", &[Number, Id, Text], 32),
        ("send_msg", &[Id, Text], 32),
        ("send_reply", &[Id, Number, Id], 32),
        ("transfer_conn", &[Id, Text, Number], 32),
        ("recv_msg", &[Id, Number, Text], 32),
        ("exit", &[Number], 0),
        ("event_read", &[Number, Text], 32),
        ("event_value", &[Text, Text], 32),
        ("reply_value", &[Number, Text, Text], 32),
        ("json_value", &[Text, Text, Text], 32),
        ("input_read", &[Number, Text], 32),
        ("error_read", &[Text], 32),
        ("log", &[Text], 0),
    ]
};

/// Texts that mean something, each at its place in the script's memory.
pub(crate) const TEXTS: [&str; 13] = [
    "s3://photos",
    "https://example.com",
    "redis://cache",
    "s3://private",
    "tcp://db:5432",
    "READ 3\n\nabc",
    "GET cat",
    "GET task",
    "GET none",
    "GET slow",
    "POST /cat\nA: b\n\nbody",
    "key.0",
    "s3://photos\u{0}\n",
];
pub(crate) const TEXT_ROOM: usize = 64;
/// Numbers at the edges of what fits.
const EDGES: [i32; 6] = [-1, i32::MIN, i32::MAX, 65_535, 65_536, 60_000];
/// Where the edges, the lengths of the texts and the event are in the script's memory.
const EDGES_AT: usize = TEXTS.len() * TEXT_ROOM;
const LENGTHS_AT: usize = EDGES_AT + 4 * EDGES.len();
const EVENT_AT: usize = 16 << 10;
const EVENT_LEN_MAX: usize = 32 << 10;
/// What the event begins with: the calls are a value in it.
const EVENT: &[u8] = br#"{"key": ["cat"], "calls": ""#;

/// The module that makes the calls.
fn interpreter() -> String {
    let mut body = String::new();
    let mut data = |at: usize, bytes: &[u8]| {
        let escaped: String = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let _ = writeln!(body, "(data (i32.const {at}) \"{escaped}\")");
    };
    for (number, text) in TEXTS.iter().enumerate() {
        data(number * TEXT_ROOM, text.as_bytes());
    }
    data(EDGES_AT, &EDGES.map(i32::to_le_bytes).concat());
    let lengths = TEXTS.map(|text| u8::try_from(text.len()).expect("they are short"));
    data(LENGTHS_AT, &lengths);
    let mut calls = String::new();
    for (number, (name, kinds, result)) in CALLS.iter().enumerate() {
        let arguments: Vec<_> = kinds
            .iter()
            .map(|kind| match kind {
                Kind::Number => "(call $number)",
                Kind::Id => "(call $id)",
                Kind::Text => "(call $place) (global.get $length)",
            })
            .collect();
        let call = format!("(call ${name} {})", arguments.join(" "));
        let call = match result {
            32 => format!("(global.set $last {call})"),
            64 => format!("(global.set $last (i32.wrap_i64 {call}))"),
            _ => call,
        };
        let _ = writeln!(
            calls,
            "(if (i32.eq (local.get $call) (i32.const {number})) (then {call} (br $next)))"
        );
    }
    let (texts, known) = (TEXTS.len(), CALLS.len());
    let begins = EVENT_AT + EVENT.len();
    let _ = write!(
        body,
        r#"
        (global $last (mut i32) (i32.const 0))
        (global $length (mut i32) (i32.const 0))
        (global $at (mut i32) (i32.const {begins}))
        (global $end (mut i32) (i32.const 0))
        (func $byte (result i32)
            (if (i32.ge_u (global.get $at) (global.get $end)) (then (call $exit (i32.const 0))))
            (i32.load8_u (global.get $at))
            (global.set $at (i32.add (global.get $at) (i32.const 1))))
        (func $two (result i32)
            (i32.or (call $byte) (i32.shl (call $byte) (i32.const 8))))
        (func $number (result i32) (local $byte i32)
            (local.set $byte (call $byte))
            (if (i32.lt_u (local.get $byte) (i32.const 0xf0))
                (then (return (i32.and (local.get $byte) (i32.const 15)))))
            (if (i32.lt_u (local.get $byte) (i32.const 0xf4)) (then (return (global.get $last))))
            (if (i32.lt_u (local.get $byte) (i32.const 0xfa))
                (then (return (i32.load (i32.add (i32.const {EDGES_AT})
                    (i32.shl (i32.sub (local.get $byte) (i32.const 0xf4)) (i32.const 2)))))))
            (i32.or (call $two) (i32.shl (call $two) (i32.const 16))))
        (func $id (result i64) (local $byte i32)
            (local.set $byte (call $byte))
            (if (i32.lt_u (local.get $byte) (i32.const 0xf0))
                (then (return (i64.extend_i32_u (i32.and (local.get $byte) (i32.const 31))))))
            (if (i32.lt_u (local.get $byte) (i32.const 0xf8))
                (then (return (i64.extend_i32_s (call $number)))))
            (i64.or (i64.extend_i32_u (call $number))
                (i64.shl (i64.extend_i32_u (call $number)) (i64.const 32))))
        (func $place (result i32) (local $byte i32)
            (local.set $byte (call $byte))
            (if (i32.lt_u (local.get $byte) (i32.const 0xd0))
                (then
                    (local.set $byte (i32.rem_u (local.get $byte) (i32.const {texts})))
                    (global.set $length (i32.load8_u (i32.add (i32.const {LENGTHS_AT}) (local.get $byte))))
                    (return (i32.mul (local.get $byte) (i32.const {TEXT_ROOM})))))
            (if (i32.lt_u (local.get $byte) (i32.const 0xf0))
                (then
                    (global.set $length (i32.and (call $two) (i32.const 0x1fff)))
                    (return (call $two))))
            (global.set $length (call $number))
            (call $number))
        (func (export "run") (local $call i32)
            (local.set $call (call $event_read (i32.const 0) (i32.const {EVENT_AT}) (i32.const {EVENT_LEN_MAX})))
            (if (i32.gt_u (local.get $call) (i32.const {EVENT_LEN_MAX}))
                (then (local.set $call (i32.const {EVENT_LEN_MAX}))))
            (global.set $end (i32.add (i32.const {EVENT_AT}) (local.get $call)))
            (loop $next
                (local.set $call (i32.rem_u (call $byte) (i32.const {known})))
                {calls}
                (br $next)))"#
    );
    script(&body)
}

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    use super::*;

    #[test]
    fn the_bytes_of_an_input_are_calls_and_their_arguments() {
        let ground = Ground::new();
        // connect "s3://photos"; send_rpc 0 5 "GET cat"; send_reply 3 0 5; input_read 2 into a place of 3 bytes; exit with that result.
        let calls = b"\0\0\x01\0\x05\x06\x07\x03\0\x05\x0f\x02\xd0\x03\0\xff\xc0\x0a\xf0";
        let done = ground.runtime.block_on(ground.run(calls, None));
        assert_eq!(done.messages(), [("init.3".to_owned(), b"a cat".to_vec())]);
        let said = done.said.unwrap();
        assert!(said.contains("exited with status 3"), "{said}");
    }

    #[test]
    fn no_calls_of_a_script_harm_the_host() {
        corpus("script-calls", calls);
    }
}
