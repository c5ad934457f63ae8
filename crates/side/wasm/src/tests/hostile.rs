//! Scripts that do harm, and their ends: each run ends, says why, and the next script runs.

use bytes::Bytes;
use pilot_model::ports::InitRunner;

use crate::fakes::{Done, World, script};

/// Runs a script that fails, and then one that does not.
async fn fails(text: &str) -> (Done, String) {
    let world = World::new();
    let done = world.run(text).await;
    let said = done.said.clone().unwrap();
    world.has_room().await;
    (done, said)
}

#[tokio::test]
async fn an_endless_loop_is_ended_while_others_run() {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let looping = world
        .deploy(&script(r#"(func (export "run") (loop (br 0)))"#), |_| {})
        .await;
    let endless = tokio::spawn(world.initscripts().run(&looping, Bytes::new(), None));
    let mut others = 0;
    while !endless.is_finished() {
        world.has_room().await;
        others += 1;
    }
    assert!(others > 1, "{others}");
    let said = endless.await.unwrap().said.unwrap();
    assert!(said.contains("it computed for more than 250 ms"), "{said}");
}

/// What takes long without a loop: operations on the whole memory, calls of the host, and functions that return. Nothing looks there
/// whether the script's time is over, unless it is made to.
#[tokio::test]
async fn long_code_without_a_loop_is_ended_while_others_run() {
    let fill = "(memory.fill (i32.const 0) (i32.const 32) (i32.const 2097152))";
    let value = "(drop (call $json_value (i32.const 0) (i32.const 1048576) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)))";
    let returns = format!(
        r#"(func $deep (param $left i32)
            (if (local.get $left) (then (call $deep (i32.sub (local.get $left) (i32.const 1)))))
            {})
        (func (export "run") (drop (memory.grow (i32.const 31))) (call $deep (i32.const 1000)))"#,
        fill.repeat(20)
    );
    let straight =
        |what: &str| format!(r#"(func (export "run") (drop (memory.grow (i32.const 31))) {what})"#);
    for text in [
        straight(&fill.repeat(20_000)),
        straight(&format!("{fill} {}", value.repeat(20_000))),
        returns,
    ] {
        let world = World::new();
        let version = world.deploy(&script(&text), |_| {}).await;
        let long = tokio::spawn(world.initscripts().run(&version, Bytes::new(), None));
        let mut others = 0;
        while !long.is_finished() {
            world.has_room().await;
            others += 1;
        }
        assert!(others > 1, "{others}");
        let said = long.await.unwrap().said.unwrap_or_default();
        assert!(said.contains("it computed for more than 250 ms"), "{said}");
    }
}

#[tokio::test]
async fn an_address_that_is_as_long_as_the_memory_is_not_repeated() {
    let world = World::new();
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "tcp://db:5432")
            (func (export "run")
                (drop (memory.grow (i32.const 31)))
                (memory.fill (i32.const 100) (i32.const 255) (i32.const 2000000))
                (call $expect (call $connect (i32.const 0) (i32.const 13)) (i32.const 0))
                (call $expect (call $transfer_conn (i64.const 1) (i32.const 100) (i32.const 2000000) (i32.const 0)) (i32.const -5))
                (if (i32.gt_u (call $error_read (i32.const 0) (i32.const 0)) (i32.const 10000)) (then unreachable)))"#,
        ))
        .await;
    assert_eq!(done.said, None);
}

#[tokio::test]
async fn a_hung_script_ends_at_its_time_and_what_it_sent_stays() {
    let world = World::new();
    let done = world
        .run_with(
            &script(
                r#"(data (i32.const 0) "s3://photosGET slow")
                (func (export "run")
                    (drop (call $send_msg (i64.const 0) (i32.const 0) (i32.const 4)))
                    (drop (call $connect (i32.const 0) (i32.const 11)))
                    (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 11) (i32.const 8)))
                    (drop (call $send_reply (i64.const 1) (i32.const 0) (i64.const 1)))
                    (drop (call $recv (i32.const 0) (i64.const 1))))"#,
            ),
            b"{}",
            |script| script.timeout_ms = 50,
        )
        .await;
    let said = done.said.clone().unwrap();
    assert!(said.contains("initscript.timeout_ms"), "{said}");
    assert_eq!(done.messages(), [("init.0".to_owned(), b"s3:/".to_vec())]);
    world.has_room().await;
}

#[tokio::test]
async fn a_reply_that_is_handed_over_and_late_is_not_waited_for_beyond_the_time() {
    let world = World::new();
    let done = world
        .run_with(
            &script(
                r#"(data (i32.const 0) "s3://photosGET slow")
                (func (export "run")
                    (drop (call $connect (i32.const 0) (i32.const 11)))
                    (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 11) (i32.const 8)))
                    (drop (call $send_reply (i64.const 1) (i32.const 0) (i64.const 1))))"#,
            ),
            b"{}",
            |script| script.timeout_ms = 50,
        )
        .await;
    let said = done.said.clone().unwrap();
    assert!(
        said.contains("message 1, s3://photos/slow: the reply was not here in time"),
        "{said}"
    );
    assert!(done.messages().is_empty());
}

#[tokio::test]
async fn traps_are_the_scripts_own() {
    for (body, said) in [
        ("unreachable", "unreachable"),
        (
            "(drop (i32.div_s (i32.const 1) (i32.const 0)))",
            "divide by zero",
        ),
        ("(drop (i32.load (i32.const -4)))", "out of bounds"),
        ("(call $run)", "call stack exhausted"),
    ] {
        let text = script(&format!(r#"(func $run (export "run") {body})"#));
        let (_, found) = fails(&text).await;
        assert!(found.contains(said), "{body}: {found}");
    }
}

#[tokio::test]
async fn memory_and_tables_end_at_their_limits() {
    // Grows until it may not: 2 MiB are 32 pages.
    let (_, said) = fails(&script(
        r#"(func (export "run") (local $pages i32)
            (loop
                (local.set $pages (memory.size))
                (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
            (call $expect (local.get $pages) (i32.const 32))
            (call $exit (i32.const 9)))"#,
    ))
    .await;
    assert!(said.contains("status 9"), "{said}");
    let (_, said) = fails(&script(
        r#"(table 1000000 funcref)
        (func (export "run"))"#,
    ))
    .await;
    assert!(said.contains("table"), "{said}");
}

#[tokio::test]
async fn a_place_outside_of_its_memory_ends_the_script() {
    for call in [
        "(drop (call $connect (i32.const 65530) (i32.const 100)))",
        "(drop (call $connect (i32.const -1) (i32.const -1)))",
        "(drop (call $send_rpc (i32.const 0) (i64.const 0) (i32.const 65536) (i32.const 1)))",
        "(drop (call $send_msg (i64.const 0) (i32.const 1) (i32.const 65536)))",
        "(drop (call $event_read (i32.const 0) (i32.const 65536) (i32.const 1)))",
        "(drop (call $input_read (i32.const 0) (i32.const 65536) (i32.const 1)))",
        "(drop (call $error_read (i32.const 65536) (i32.const 1)))",
        "(call $log (i32.const 65536) (i32.const 1))",
        "(drop (call $reply_read (i32.const 0) (i64.const 0) (i32.const 65536) (i32.const 1)))",
        "(drop (call $event_value (i32.const 65536) (i32.const 1) (i32.const 0) (i32.const 1)))",
    ] {
        let (_, said) = fails(&script(&format!(r#"(func (export "run") {call})"#))).await;
        assert!(said.contains("outside of its memory"), "{call}: {said}");
    }
}

#[tokio::test]
async fn ids_are_used_once_and_unknown_ones_are_told() {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photosGET cat")
            (func (export "run")
                (drop (call $connect (i32.const 0) (i32.const 11)))
                (drop (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 11) (i32.const 7)))
                (call $expect (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 11) (i32.const 7)) (i32.const -2))
                (call $expect (call $send_rpc (i32.const 1) (i64.const 5) (i32.const 11) (i32.const 7)) (i32.const -3))
                (call $expect (call $send_rpc (i32.const 0) (i64.const 6) (i32.const 0) (i32.const 3)) (i32.const -5))
                (call $expect (call $recv (i32.const 0) (i64.const 6)) (i32.const -3))
                (call $expect (call $reply_status (i32.const 0)) (i32.const -3))
                (call $expect (i32.wrap_i64 (call $reply_len (i32.const 9))) (i32.const -3))
                (call $expect (call $send_reply (i64.const 1) (i32.const 0) (i64.const 6)) (i32.const -3))
                (drop (call $send_reply (i64.const 1) (i32.const 0) (i64.const 5)))
                (call $expect (call $send_reply (i64.const 1) (i32.const 0) (i64.const 5)) (i32.const -2))
                (call $expect (call $send_msg (i64.const 1) (i32.const 0) (i32.const 1)) (i32.const -2)))"#,
        ))
        .await;
    assert_eq!(done.said, None);
    assert_eq!(done.messages().len(), 1);
}

#[tokio::test]
async fn what_is_not_allowed_is_refused_and_nobody_is_asked() {
    let world = World::new();
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://other")
            (data (i32.const 32) "http://169.254.169.254")
            (data (i32.const 64) "redis://cache")
            (data (i32.const 96) "GET private/x")
            (data (i32.const 128) "ftp://photos")
            (data (i32.const 160) "https://example.com:8443")
            (func (export "run")
                (call $expect (call $connect (i32.const 0) (i32.const 10)) (i32.const -1))
                (call $expect (call $connect (i32.const 32) (i32.const 22)) (i32.const -1))
                (call $expect (call $connect (i32.const 160) (i32.const 24)) (i32.const -1))
                (call $expect (call $connect (i32.const 128) (i32.const 12)) (i32.const -5))
                (call $expect (call $connect (i32.const 64) (i32.const 13)) (i32.const 0))
                (call $expect (call $send_rpc (i32.const 0) (i64.const 0) (i32.const 96) (i32.const 13)) (i32.const -1)))"#,
        ))
        .await;
    let said = done.said.unwrap();
    assert!(
        said.contains("s3://other is not in initscript.allow of pilot.toml"),
        "{said}"
    );
    assert!(
        said.contains("redis://cache/private/x: initscript.allow"),
        "{said}"
    );
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn calls_requests_connections_messages_and_words_are_counted() {
    let (_, said) = fails(&script(
        r#"(func (export "run") (loop (drop (call $reply_status (i32.const 0))) (br 0)))"#,
    ))
    .await;
    assert!(
        said.contains("it called the host more than 100000 times") || said.contains("250 ms"),
        "{said}"
    );
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    let done = world
        .run(&script(
            r#"(data (i32.const 0) "s3://photosGET cat")
            (global $n (mut i32) (i32.const 0))
            (func $count (param $code i32) (result i32)
                (if (i32.ge_s (local.get $code) (i32.const 0)) (then (global.set $n (i32.add (global.get $n) (i32.const 1)))))
                (i32.ge_s (local.get $code) (i32.const 0)))
            (func (export "run") (local $i i64)
                (loop (br_if 0 (call $count (call $connect (i32.const 0) (i32.const 11)))))
                (call $expect (global.get $n) (i32.const 16))
                (global.set $n (i32.const 0))
                (loop
                    (local.set $i (i64.add (local.get $i) (i64.const 1)))
                    (br_if 0 (call $count (call $send_rpc (i32.const 0) (local.get $i) (i32.const 11) (i32.const 7)))))
                (call $expect (global.get $n) (i32.const 32))
                (global.set $n (i32.const 0))
                (loop
                    (local.set $i (i64.add (local.get $i) (i64.const 1)))
                    (br_if 0 (call $count (call $send_msg (local.get $i) (i32.const 0) (i32.const 1)))))
                (call $expect (global.get $n) (i32.const 16))
                (global.set $n (i32.const 10000))
                (loop
                    (call $log (i32.const 0) (i32.const 60000))
                    (global.set $n (i32.sub (global.get $n) (i32.const 1)))
                    (br_if 0 (global.get $n))))"#,
        ))
        .await;
    assert_eq!(done.messages().len(), 16, "{:?}", done.said);
    assert!(done.said.unwrap().len() < 5000);
}

#[tokio::test]
async fn copied_messages_have_no_more_bytes_than_the_scripts_memory() {
    let world = World::new();
    let done = world
        .run(&script(
            r#"(func (export "run")
                (drop (memory.grow (i32.const 20)))
                (call $expect (call $send_msg (i64.const 0) (i32.const 0) (i32.const 1200000)) (i32.const 0))
                (call $expect (call $send_msg (i64.const 1) (i32.const 0) (i32.const 1200000)) (i32.const -4)))"#,
        ))
        .await;
    assert_eq!((done.said.as_deref(), done.messages().len()), (None, 1));
}

#[tokio::test]
async fn a_function_without_room_goes_on_without_its_script() {
    let world = World::with_memory(4);
    let waiting = world
        .deploy(
            &script(
                r#"(data (i32.const 0) "s3://photosGET slow")
                (func (export "run")
                    (drop (call $connect (i32.const 0) (i32.const 11)))
                    (drop (call $send_rpc (i32.const 0) (i64.const 1) (i32.const 11) (i32.const 8)))
                    (drop (call $recv (i32.const 0) (i64.const 1))))"#,
            ),
            |script| script.memory_mb = 2,
        )
        .await;
    let first = tokio::spawn(world.initscripts().run(&waiting, Bytes::new(), None));
    while world.asked().is_empty() {
        tokio::task::yield_now().await;
    }
    let second = world.initscripts().run(&waiting, Bytes::new(), None).await;
    let said = second.said.unwrap();
    assert!(
        said.contains("left out") && said.contains("initscripts.memory_mb"),
        "{said}"
    );
    first.abort();
    world.has_room().await;
}
