//! Scripts that send while the function may run, and connections that become the function's.

use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::initscript::ScriptEnd;
use pilot_model::ports::{InitRunner, ScriptSent, ScriptSink};
use tokio::sync::mpsc;

use super::world::{Done, World, script};

/// What was sent, in words.
#[derive(Debug)]
struct Sink(Mutex<mpsc::UnboundedSender<String>>);

impl ScriptSink for Sink {
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
        let _ = self.0.lock().send(words);
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
    let (sender, mut sent) = mpsc::unbounded_channel();
    let sink = Arc::new(Sink(Mutex::new(sender)));
    let run = world
        .initscripts()
        .run(&version, bytes::Bytes::new(), Some(sink));
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
    let (sender, mut sent) = mpsc::unbounded_channel();
    let sink = Arc::new(Sink(Mutex::new(sender)));
    let run = world
        .initscripts()
        .run(&version, bytes::Bytes::new(), Some(sink));
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
