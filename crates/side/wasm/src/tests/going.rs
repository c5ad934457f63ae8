//! Scripts that send and receive while the function may run, and connections that become the function's.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::initscript::ScriptEnd;
use pilot_model::ports::{InitRunner, ScriptLink, ScriptSent};
use tokio::sync::{mpsc, watch};

use crate::fakes::{Done, World, script};

/// What was sent, in words, and what the function sends. Everything else it cannot send any more.
#[derive(Debug)]
struct Link {
    words: Mutex<mpsc::UnboundedSender<String>>,
    messages: Mutex<HashMap<u64, watch::Receiver<Option<Bytes>>>>,
}

impl Link {
    fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<String>) {
        let (sender, sent) = mpsc::unbounded_channel();
        let link = Self {
            words: Mutex::new(sender),
            messages: Mutex::default(),
        };
        (Arc::new(link), sent)
    }

    /// The function may send this message.
    fn may_come(&self, id: u64) -> watch::Sender<Option<Bytes>> {
        let (sender, receiver) = watch::channel(None);
        self.messages.lock().insert(id, receiver);
        sender
    }
}

impl ScriptLink for Link {
    fn message(&self, id: u64) -> BoxFuture<'static, Option<Bytes>> {
        let message = self.messages.lock().get(&id).cloned();
        Box::pin(async move {
            let mut message = message?;
            let message = message.wait_for(Option::is_some).await.ok()?;
            message.clone()
        })
    }

    fn sent(&self, sent: ScriptSent) {
        let words = match sent {
            ScriptSent::Message { id, transfer, .. } => {
                format!("{id} from {}: {}", transfer.from, transfer.bytes)
            }
            ScriptSent::NoMessage { id, transfer } => {
                format!("no {id}: {}", transfer.error.unwrap())
            }
            ScriptSent::Connection(handed) => match handed.socket {
                Ok(_) => format!("{} is {}", handed.address, handed.id),
                Err(problem) => format!("no {}: {problem}", handed.address),
            },
        };
        let _ = self.words.lock().send(words);
    }
}

#[tokio::test]
async fn what_is_sent_is_there_before_the_script_ends() {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let text = script(
        r#"(data (i32.const 0) "s3://photosGET catGET dogGET slowtcp://db:5432READ 1\n\nx")
        (func (export "run")
            (drop (call $send_msg (i64.const 7) (i32.const 0) (i32.const 3)))
            (drop (call $connect (i32.const 0) (i32.const 11)))
            (drop (call $send_rpc (i32.const 0) (i64.const 0) (i32.const 11) (i32.const 7)))
            (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 18) (i32.const 7)))
            (drop (call $send_rpc (i32.const 0) (i64.const 2) (i32.const 25) (i32.const 8)))
            (drop (call $send_reply (i64.const 0) (i32.const 0) (i64.const 0)))
            (drop (call $send_reply (i64.const 1) (i32.const 0) (i64.const 1)))
            (drop (call $connect (i32.const 33) (i32.const 13)))
            (drop (call $send_rpc (i32.const 1) (i64.const 0) (i32.const 46) (i32.const 9)))
            (drop (call $send_reply (i64.const 2) (i32.const 1) (i64.const 0)))
            (drop (call $transfer_conn (i64.const 4) (i32.const 33) (i32.const 13) (i32.const 1)))
            (drop (call $recv (i32.const 0) (i64.const 2))))"#,
    );
    let version = world.deploy(&text, |_| {}).await;
    let (link, mut sent) = Link::new();
    let run = world.initscripts().run(&version, Bytes::new(), Some(link));
    // The script waits for a reply that never comes.
    let mut found = Vec::new();
    for _ in 0..5 {
        found.push(sent.recv().await.unwrap());
    }
    found.sort();
    assert_eq!(
        found,
        [
            "0 from s3://photos/cat: 5",
            "2 from tcp://db:5432: 1",
            "7 from initscript: 3",
            "no 1: there is no such object",
            "tcp://db:5432 is 4",
        ]
    );
    drop(run);
    world.is_empty().await;
}

#[tokio::test]
async fn the_end_has_the_transfers_and_the_scripts_own_error() {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let text = script(
        r#"(data (i32.const 0) "s3://photosGET cat")
        (func (export "run")
            (drop (call $connect (i32.const 0) (i32.const 11)))
            (drop (call $send_rpc (i32.const 0) (i64.const 0) (i32.const 11) (i32.const 7)))
            (drop (call $send_reply (i64.const 0) (i32.const 0) (i64.const 0)))
            (drop (call $send_msg (i64.const 1) (i32.const 0) (i32.const 3)))
            unreachable)"#,
    );
    let version = world.deploy(&text, |_| {}).await;
    let (link, mut sent) = Link::new();
    let run = world.initscripts().run(&version, Bytes::new(), Some(link));
    let done = Done::of(run.await);
    assert_eq!(done.end, Some(ScriptEnd::Trap));
    // The function has them.
    assert!(done.fetched.inputs.is_empty() && done.connections.is_empty());
    let transfers: Vec<&str> = done
        .fetched
        .transfers
        .iter()
        .map(|one| &*one.input)
        .collect();
    assert_eq!(transfers, ["init.script", "init.0", "init.1"]);
    assert!(done.fetched.transfers[0].error.is_some());
    let mut count = 0;
    while let Some(words) = sent.recv().await {
        assert!(!words.starts_with("no"), "{words}");
        count += 1;
    }
    assert_eq!(count, 2);
}

#[tokio::test]
async fn only_a_raw_connection_is_handed_over_and_once() {
    let world = World::new();
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photostcp://db:5432READ 1\n\nxtcp://db:5431")
            (func $hand (param $id i64) (param $connection i32) (result i32)
                (call $transfer_conn (local.get $id) (i32.const 11) (i32.const 13) (local.get $connection)))
            (func (export "run") (local $i i32)
                (drop (call $connect (i32.const 0) (i32.const 11)))
                (call $expect (call $transfer_conn (i64.const 0) (i32.const 0) (i32.const 11) (i32.const 0)) (i32.const -1))
                (loop
                    (drop (call $connect (i32.const 11) (i32.const 13)))
                    (local.set $i (i32.add (local.get $i) (i32.const 1)))
                    (br_if 0 (i32.lt_u (local.get $i) (i32.const 6))))
                (call $expect (call $transfer_conn (i64.const 0) (i32.const 33) (i32.const 13) (i32.const 1)) (i32.const -5))
                (call $expect (call $hand (i64.const 0) (i32.const 1)) (i32.const 0))
                (call $expect (call $hand (i64.const 9) (i32.const 1)) (i32.const -3))
                (call $expect (call $send_rpc (i32.const 1) (i64.const 0) (i32.const 24) (i32.const 9)) (i32.const -3))
                (call $expect (call $hand (i64.const 0) (i32.const 2)) (i32.const -2))
                (call $expect (call $hand (i64.const 1) (i32.const 2)) (i32.const 0))
                (call $expect (call $hand (i64.const 2) (i32.const 3)) (i32.const 0))
                (call $expect (call $hand (i64.const 3) (i32.const 4)) (i32.const 0))
                (call $expect (call $hand (i64.const 4) (i32.const 5)) (i32.const -4))
                (call $expect (call $hand (i64.const 4) (i32.const 77)) (i32.const -3)))"#,
        ))
        .await;
    assert_eq!(done.said, None);
    let handed: Vec<_> = done.connections.iter().map(|one| one.id).collect();
    assert_eq!(handed, [0, 1, 2, 3]);
    assert!(done.connections.iter().all(|one| one.socket.is_ok()));
}

#[tokio::test]
async fn a_connection_that_cannot_be_made_is_told() {
    let world = World::new();
    let text = script(
        r#"(data (i32.const 0) "tcp://none:1")
        (func (export "run")
            (drop (call $connect (i32.const 0) (i32.const 12)))
            (drop (call $transfer_conn (i64.const 0) (i32.const 0) (i32.const 12) (i32.const 0))))"#,
    );
    let done = world
        .run_with(&text, b"{}", |script| {
            script.allow = vec!["tcp://none:1".parse().unwrap()];
        })
        .await;
    assert_eq!(done.end, Some(ScriptEnd::Message));
    let said = done.said.unwrap();
    assert!(
        said.contains("connection 0, tcp://none:1: nobody is there"),
        "{said}"
    );
    let problem = done.connections[0].socket.as_ref().unwrap_err();
    assert_eq!(problem, "nobody is there");
}

/// Receives message 5 into a place of 5 bytes, as one that is too small and in parts, and sends it back as message 6.
const ECHO: &str = r#"
    (func (export "run")
        (drop (call $send_msg (i64.const 0) (i32.const 0) (i32.const 1)))
        (call $expect (call $recv_msg (i64.const 5) (i32.const 0) (i32.const 100) (i32.const 5)) (i32.const 5))
        (call $expect (call $recv_msg (i64.const 5) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 5))
        (call $expect (call $recv_msg (i64.const 5) (i32.const 3) (i32.const 200) (i32.const 9)) (i32.const 2))
        (call $expect (call $recv_msg (i64.const 5) (i32.const -1) (i32.const 300) (i32.const 9)) (i32.const 0))
        (drop (call $send_msg (i64.const 6) (i32.const 100) (i32.const 5)))
        (drop (call $send_msg (i64.const 7) (i32.const 200) (i32.const 3))))"#;

#[tokio::test]
async fn either_the_script_or_its_function_may_be_first() {
    for is_first in [true, false] {
        let world = World::new();
        let version = world.deploy(&script(ECHO), |_| {}).await;
        let (link, mut sent) = Link::new();
        let function = link.may_come(5);
        let message = Some(Bytes::from_static(b"hello"));
        if is_first {
            function.send_replace(message.clone());
        }
        let run = world
            .initscripts()
            .run(&version, Bytes::new(), Some(link as _));
        if !is_first {
            // It runs, and waits for the message after this one.
            assert_eq!(sent.recv().await.unwrap(), "0 from initscript: 1");
            function.send_replace(message);
        }
        let done = Done::of(run.await);
        assert_eq!((done.said, done.end), (None, Some(ScriptEnd::Ok)));
        let mut words = Vec::new();
        while let Ok(one) = sent.try_recv() {
            words.push(one);
        }
        let words = &words[words.len() - 2..];
        assert_eq!(words, ["6 from initscript: 5", "7 from initscript: 3"]);
    }
}

#[tokio::test]
async fn a_script_waits_for_a_message_that_is_never_sent_until_its_time_is_over() {
    let world = World::new();
    let text = script(
        r#"(func (export "run")
            (drop (call $recv_msg (i64.const 5) (i32.const 0) (i32.const 0) (i32.const 9)))
            unreachable)"#,
    );
    let version = world.deploy(&text, |script| script.timeout_ms = 50).await;
    let (link, _sent) = Link::new();
    let _function = link.may_come(5);
    let run = world
        .initscripts()
        .run(&version, Bytes::new(), Some(Arc::clone(&link) as _));
    let done = Done::of(run.await);
    assert_eq!(done.end, Some(ScriptEnd::Timeout));
    let said = done.said.unwrap();
    assert!(said.contains("it was not ready after"), "{said}");
    world.has_room().await;
}

#[tokio::test]
async fn a_script_whose_function_sends_no_more_is_told_and_goes_on() {
    let world = World::new();
    let text = script(
        r#"(func (export "run") (local $len i32)
            (call $expect (call $recv_msg (i64.const 5) (i32.const 0) (i32.const 0) (i32.const 9)) (i32.const -6))
            (local.set $len (call $error_read (i32.const 0) (i32.const 99)))
            (call $log (i32.const 0) (local.get $len)))"#,
    );
    let version = world.deploy(&text, |_| {}).await;
    let (link, _sent) = Link::new();
    let function = link.may_come(5);
    let run = world
        .initscripts()
        .run(&version, Bytes::new(), Some(link as _));
    drop(function);
    let done = Done::of(run.await);
    assert_eq!(done.end, Some(ScriptEnd::Ok));
    let problem = "message 5: the function cannot send any more\n";
    assert_eq!(done.said.as_deref(), Some(problem));
}

#[tokio::test]
async fn a_script_that_ends_before_the_handler_is_called_does_not_wait_for_the_function() {
    let world = World::new();
    let text = script(
        r#"(func (export "run") (local $len i32)
            (call $expect (call $recv_msg (i64.const 5) (i32.const 0) (i32.const 0) (i32.const 9)) (i32.const -1))
            (local.set $len (call $error_read (i32.const 0) (i32.const 99)))
            (call $log (i32.const 0) (local.get $len)))"#,
    );
    let done = world.run(&text).await;
    assert_eq!(done.end, Some(ScriptEnd::Ok));
    let said = done.said.unwrap();
    assert!(said.contains("during = \"invocation\""), "{said}");
}

#[tokio::test]
async fn a_place_outside_of_the_memory_ends_the_script_before_it_waits() {
    let world = World::new();
    let text = script(
        r#"(func (export "run")
            (drop (call $recv_msg (i64.const 5) (i32.const 0) (i32.const 65530) (i32.const 7))))"#,
    );
    let version = world.deploy(&text, |_| {}).await;
    let (link, _sent) = Link::new();
    let _function = link.may_come(5);
    let run = world
        .initscripts()
        .run(&version, Bytes::new(), Some(Arc::clone(&link) as _));
    let done = Done::of(run.await);
    assert_eq!(done.end, Some(ScriptEnd::Trap));
    let said = done.said.unwrap();
    assert!(
        said.contains("it passed recv_msg an address outside of its memory"),
        "{said}"
    );
}

#[tokio::test]
async fn dropping_the_run_ends_a_script_that_waits_for_its_function() {
    let world = World::with_memory(4);
    let version = world.deploy(&script(ECHO), |_| {}).await;
    for _ in 0..3 {
        let (link, mut sent) = Link::new();
        let _function = link.may_come(5);
        let run = world
            .initscripts()
            .run(&version, Bytes::new(), Some(Arc::clone(&link) as _));
        sent.recv().await.unwrap();
        drop(run);
        world.has_room().await;
    }
}
