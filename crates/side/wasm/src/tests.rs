//! Scripts that behave and scripts that do not, against remotes that are made up.

mod first;
mod fuzz;
mod going;
mod hostile;
mod keeping;
mod modules;

use std::time::Duration;

use pilot_model::TransferWay;
use pilot_model::ports::InitRunner;

use crate::fakes::{World, script};

#[tokio::test]
async fn a_reply_is_handed_over_without_being_read() {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photosGET cat")
            (func (export "run")
                (drop (call $connect (i32.const 0) (i32.const 11)))
                (call $expect (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 11) (i32.const 7)) (i32.const 0))
                (call $expect (call $send_reply (i64.const 3) (i32.const 0) (i64.const 5)) (i32.const 0)))"#,
        ))
        .await;
    assert_eq!(done.said, None);
    assert_eq!(done.messages(), [("init.3".to_owned(), b"a cat".to_vec())]);
    let object = done.fetched.inputs[0].object.as_ref();
    assert!(object.is_some(), "drop-ins answer from it");
    let [of_script, of_reply] = &done.fetched.transfers[..] else {
        panic!("{:?}", done.fetched.transfers);
    };
    assert_eq!(
        (of_script.input.as_str(), of_script.way),
        ("init.script", TransferWay::Script)
    );
    assert_eq!(
        (of_reply.from.as_str(), of_reply.bytes),
        ("s3://photos/cat", 5)
    );
    assert!(of_script.began <= of_reply.began && of_reply.ended <= of_script.ended);
}

#[tokio::test]
async fn an_answer_that_is_given_once_is_named_by_one_message() {
    let world = World::new();
    world.put("sqs://jobs/tasks", b"a task");
    world.put("s3://photos/cat", b"a cat");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "sqs://jobsReceiveMessage taskss3://photosGET cat")
            (func $twice (param $connection i32) (param $request i64) (param $first i64)
                (drop (call $send_reply (local.get $first) (local.get $connection) (local.get $request)))
                (drop (call $send_reply (i64.add (local.get $first) (i64.const 1)) (local.get $connection) (local.get $request))))
            (func (export "run")
                (drop (call $connect (i32.const 0) (i32.const 10)))
                (drop (call $connect (i32.const 30) (i32.const 11)))
                (drop (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 10) (i32.const 20)))
                (drop (call $send_rpc (i32.const 1) (i64.const 6) (i32.const 41) (i32.const 7)))
                (call $twice (i32.const 0) (i64.const 5) (i64.const 0))
                (call $twice (i32.const 1) (i64.const 6) (i64.const 2)))"#,
        ))
        .await;
    assert_eq!(done.said, None);
    let mut inputs = done.fetched.inputs.iter().collect::<Vec<_>>();
    inputs.sort_by_key(|input| input.name.clone());
    let named = inputs
        .iter()
        .map(|input| (input.name.as_str(), input.object.is_some()));
    // The object of a store is the same each time that a client reads it. A queue's answer is one client's.
    assert_eq!(
        named.collect::<Vec<_>>(),
        [
            ("init.0", true),
            ("init.1", false),
            ("init.2", true),
            ("init.3", true)
        ]
    );
}

#[tokio::test]
async fn a_request_can_depend_on_an_earlier_reply() {
    let world = World::new();
    world.put("s3://photos/task", b"GET cat");
    world.put("s3://photos/cat", b"a cat");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photosGET task")
            (func (export "run") (local $reply i32) (local $len i32)
                (drop (call $connect (i32.const 0) (i32.const 11)))
                (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 11) (i32.const 8)))
                (local.set $reply (call $recv (i32.const 0) (i64.const 1)))
                (call $expect (i32.wrap_i64 (call $reply_len (local.get $reply))) (i32.const 7))
                (call $expect (call $reply_status (local.get $reply)) (i32.const 200))
                (local.set $len (call $reply_read (local.get $reply) (i64.const 0) (i32.const 100) (i32.const 50)))
                (drop (call $send_rpc (i32.const 0) (i64.const 2) (i32.const 100) (local.get $len)))
                (drop (call $send_reply (i64.const 0) (i32.const 0) (i64.const 2))))"#,
        ))
        .await;
    assert_eq!(done.messages(), [("init.0".to_owned(), b"a cat".to_vec())]);
}

#[tokio::test]
async fn the_event_and_the_input_are_read_and_bytes_are_sent() {
    let world = World::new();
    let done = world
        .run_with(
            &script(
                r#"(data (i32.const 0) "key.0")
                (func (export "run") (local $len i32)
                    (local.set $len (call $event_value (i32.const 0) (i32.const 5) (i32.const 64) (i32.const 64)))
                    (call $expect (call $send_msg (i64.const 0) (i32.const 64) (local.get $len)) (i32.const 0))
                    (local.set $len (call $input_read (i32.const 6) (i32.const 64) (i32.const 64)))
                    (drop (call $send_msg (i64.const 1) (i32.const 64) (local.get $len)))
                    (local.set $len (call $event_read (i32.const 0) (i32.const 64) (i32.const 6)))
                    (drop (call $send_msg (i64.const 2) (i32.const 64) (local.get $len)))
                    (call $expect (call $event_value (i32.const 0) (i32.const 1) (i32.const 64) (i32.const 64)) (i32.const -3))
                    (call $log (i32.const 0) (i32.const 5))
                    (call $exit (i32.const 0)) unreachable)"#,
            ),
            br#"{"key": ["cat"]}"#,
            |script| script.input = "words of the input".to_owned(),
        )
        .await;
    assert_eq!(done.said.as_deref(), Some("key.0\n"));
    let texts: Vec<Vec<u8>> = done.messages().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts[0], b"cat");
    assert_eq!(texts[1], b"of the input");
    // The length is that of the event; six bytes of it were copied over the other text.
    assert!(texts[2].starts_with(b"{\"key\"") && texts[2].len() == 16);
}

#[tokio::test]
async fn a_status_other_than_0_is_said_and_the_messages_stay() {
    let world = World::new();
    let done = world
        .run(&script(
            r#"(func (export "run")
                (drop (call $send_msg (i64.const 0) (i32.const 0) (i32.const 2)))
                (call $exit (i32.const 7)))"#,
        ))
        .await;
    assert_eq!(
        done.said.as_deref(),
        Some("failed: it exited with status 7\n")
    );
    assert_eq!(done.messages().len(), 1);
}

#[tokio::test]
async fn a_request_that_fails_is_an_error_of_its_message_alone() {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photosGET catGET dog")
            (func (export "run")
                (drop (call $connect (i32.const 0) (i32.const 11)))
                (drop (call $send_rpc (i32.const 0) (i64.const 0) (i32.const 18) (i32.const 7)))
                (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 11) (i32.const 7)))
                (call $expect (call $recv (i32.const 0) (i64.const 0)) (i32.const -6))
                (drop (call $send_reply (i64.const 0) (i32.const 0) (i64.const 0)))
                (drop (call $send_reply (i64.const 1) (i32.const 0) (i64.const 1))))"#,
        ))
        .await;
    assert_eq!(done.messages(), [("init.1".to_owned(), b"a cat".to_vec())]);
    let said = done.said.unwrap();
    assert!(
        said.contains("message 0, s3://photos/dog: there is no such object"),
        "{said}"
    );
    let failed = done
        .fetched
        .transfers
        .iter()
        .find(|one| one.input == "init.0");
    assert_eq!(
        failed.unwrap().error.as_deref(),
        Some("there is no such object")
    );
}

#[tokio::test]
async fn http_has_methods_headers_and_a_body() {
    let world = World::new();
    world.put("https://example.com/tasks", b"{}");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "https://example.comPOST /tasks?token=x\nA: b\n\nbody")
            (func (export "run")
                (drop (call $connect (i32.const 0) (i32.const 19)))
                (drop (call $send_rpc (i32.const 0) (i64.const 0) (i32.const 19) (i32.const 30)))
                (drop (call $send_reply (i64.const 0) (i32.const 0) (i64.const 0))))"#,
        ))
        .await;
    assert_eq!(done.messages().len(), 1, "{:?}", done.said);
    // A query may have a secret.
    assert_eq!(done.fetched.transfers[1].from, "https://example.com/tasks");
    let asked = world.asked();
    assert_eq!(
        (
            asked[0].request.method.as_str(),
            asked[0].request.key.as_str()
        ),
        ("POST", "/tasks?token=x")
    );
    assert_eq!(
        (asked[0].request.headers.len(), &asked[0].request.body[..]),
        (1, &b"body"[..])
    );
}

#[tokio::test]
async fn values_of_replies_and_of_json_in_a_script_are_read_by_their_paths() {
    let world = World::new();
    let task = br#"{"Messages": [{"Body": "{\"key\": \"cat\"}"}]}"#;
    world.put("s3://photos/task", task);
    world.put("s3://photos/large", &vec![b' '; (1 << 20) + 1]);
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photosGET taskGET largeMessages.0.BodykeyGET slow")
            (func (export "run") (local $len i32)
                (drop (call $connect (i32.const 0) (i32.const 11)))
                (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 11) (i32.const 8)))
                (drop (call $send_rpc (i32.const 0) (i64.const 2) (i32.const 19) (i32.const 9)))
                (drop (call $send_rpc (i32.const 0) (i64.const 3) (i32.const 46) (i32.const 8)))
                (call $expect (call $reply_value (i32.const 2) (i32.const 43) (i32.const 3) (i32.const 64) (i32.const 9)) (i32.const -3))
                (call $expect (call $recv (i32.const 0) (i64.const 1)) (i32.const 0))
                (call $expect (call $recv (i32.const 0) (i64.const 2)) (i32.const 1))
                (local.set $len (call $reply_value (i32.const 0) (i32.const 28) (i32.const 15) (i32.const 64) (i32.const 99)))
                (drop (call $send_msg (i64.const 0) (i32.const 64) (local.get $len)))
                (local.set $len (call $json_value (i32.const 64) (local.get $len) (i32.const 43) (i32.const 3) (i32.const 200) (i32.const 99)))
                (drop (call $send_msg (i64.const 1) (i32.const 200) (local.get $len)))
                (call $expect (call $reply_value (i32.const 0) (i32.const 43) (i32.const 3) (i32.const 64) (i32.const 9)) (i32.const -3))
                (call $expect (call $reply_value (i32.const 1) (i32.const 43) (i32.const 3) (i32.const 64) (i32.const 9)) (i32.const -4))
                (call $expect (call $json_value (i32.const 0) (i32.const 9) (i32.const 43) (i32.const 3) (i32.const 64) (i32.const 9)) (i32.const -3)))"#,
        ))
        .await;
    assert_eq!(done.said, None);
    let texts: Vec<Vec<u8>> = done.messages().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, [br#"{"key": "cat"}"#.to_vec(), b"cat".to_vec()]);
}

#[tokio::test]
async fn dropping_the_run_ends_the_script_and_gives_its_room_back() {
    let world = World::with_memory(4);
    let looping = script(r#"(func (export "run") (loop (br 0)))"#);
    let version = world.deploy(&looping, |script| script.memory_mb = 2).await;
    for _ in 0..3 {
        let run = world.initscripts().run(&version, bytes::Bytes::new(), None);
        let ended = tokio::time::timeout(Duration::from_millis(5), run).await;
        assert!(ended.is_err());
        // Its room comes back when its thread has dropped it.
        world.has_room().await;
    }
}
