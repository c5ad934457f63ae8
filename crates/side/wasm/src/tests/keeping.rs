//! Shared scripts: one run serves all invocations until it is too old.

use std::time::Duration;

use pilot_model::TransferWay;
use pilot_model::initscript::ScriptEnd;
use pilot_model::ports::InitRunner;

use crate::fakes::{Done, World, script};

/// Hands over the object `weights`.
const WEIGHTS: &str = r#"(data (i32.const 0) "s3://photosGET weights")
    (func (export "run")
        (drop (call $connect (i32.const 0) (i32.const 11)))
        (drop (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 11) (i32.const 11)))
        (drop (call $send_reply (i64.const 7) (i32.const 0) (i64.const 5))))"#;

fn weights(text: &[u8]) -> Vec<(String, Vec<u8>)> {
    vec![("init.7".to_owned(), text.to_vec())]
}

#[tokio::test]
async fn one_run_serves_all_invocations() {
    let world = World::new();
    world.put("s3://photos/weights", b"weights");
    let version = world
        .deploy(&script(WEIGHTS), |script| script.max_age_s = Some(60))
        .await;
    let shared = || world.initscripts().shared(&version);
    // Two that wait for the same run, and one that finds its messages.
    let (one, two) = tokio::join!(shared(), shared());
    let (one, two) = (Done::of(one), Done::of(two));
    for waited in [&one, &two] {
        assert_eq!(waited.messages(), weights(b"weights"));
        assert_eq!(waited.fetched.transfers[0].input, "init.shared");
        assert_eq!(waited.fetched.transfers[0].way, TransferWay::Script);
    }
    // The run is counted once.
    let ends: Vec<_> = [one.end, two.end].into_iter().flatten().collect();
    assert_eq!(ends, [ScriptEnd::Ok]);
    let found = Done::of(shared().await);
    assert_eq!((found.messages(), found.end), (weights(b"weights"), None));
    let [of_message] = &found.fetched.transfers[..] else {
        panic!("{:?}", found.fetched.transfers);
    };
    assert_eq!(of_message.way, TransferWay::Kept);
    assert_eq!(world.asked().len(), 1);
    let object = found.fetched.inputs[0].object.as_ref();
    assert!(object.is_some(), "drop-ins answer from it");
}

#[tokio::test]
async fn a_queues_answer_is_no_clients_answer_in_a_shared_run() {
    let world = World::new();
    world.put("sqs://jobs/tasks", b"a task");
    let text = r#"(data (i32.const 0) "sqs://jobsReceiveMessage tasks")
        (func (export "run")
            (drop (call $connect (i32.const 0) (i32.const 10)))
            (drop (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 10) (i32.const 20)))
            (drop (call $send_reply (i64.const 7) (i32.const 0) (i64.const 5))))"#;
    let version = world
        .deploy(&script(text), |script| script.max_age_s = Some(60))
        .await;
    // Each of them has the message, and all of them would take it.
    for _ in 0..2 {
        let done = Done::of(world.initscripts().shared(&version).await);
        assert_eq!(done.messages(), weights(b"a task"));
        assert_eq!(done.fetched.inputs[0].object, None);
    }
}

#[tokio::test]
async fn what_is_too_old_is_given_up_and_fetched_again() {
    let world = World::new();
    world.put("s3://photos/weights", b"old");
    let version = world
        .deploy(&script(WEIGHTS), |script| script.max_age_s = Some(1))
        .await;
    let first = Done::of(world.initscripts().shared(&version).await);
    assert_eq!(first.messages(), weights(b"old"));
    world.put("s3://photos/weights", b"new");
    drop(first);
    // Nobody asks, and still its memory is given back.
    world.is_empty().await;
    let second = Done::of(world.initscripts().shared(&version).await);
    assert_eq!(second.messages(), weights(b"new"));
    assert_eq!(second.fetched.transfers[0].way, TransferWay::Script);
}

#[tokio::test]
async fn it_is_fetched_again_while_it_is_used_and_a_failure_leaves_it() {
    let world = World::new();
    world.put("s3://photos/weights", b"old");
    let version = world
        .deploy(&script(WEIGHTS), |script| script.max_age_s = Some(2))
        .await;
    let began = std::time::Instant::now();
    Done::of(world.initscripts().shared(&version).await);
    world.remove("s3://photos/weights");
    let mut failed = None;
    while failed.is_none() && began.elapsed() < Duration::from_secs(60) {
        // From three quarters of its age on, another run begins. Its failure is told once; the messages stay until they are too old.
        let found = Done::of(world.initscripts().shared(&version).await);
        if found.said.is_some() {
            failed = Some(found);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let failed = failed.unwrap();
    // On a busy machine, they may be too old by then.
    if failed.fetched.transfers[0].way == TransferWay::Kept {
        assert_eq!(failed.messages(), weights(b"old"));
    }
    assert_eq!(failed.end, Some(ScriptEnd::Message));
    assert!(failed.said.unwrap().contains("there is no such object"));
}

#[tokio::test]
async fn a_failure_is_not_repeated_for_a_moment_and_says_why() {
    let world = World::new();
    let version = world
        .deploy(&script(WEIGHTS), |script| script.max_age_s = Some(60))
        .await;
    let began = std::time::Instant::now();
    let first = Done::of(world.initscripts().shared(&version).await);
    assert!(first.messages().is_empty());
    assert!(first.said.unwrap().contains("there is no such object"));
    let second = Done::of(world.initscripts().shared(&version).await);
    // Not on a machine that is so busy that the moment has passed.
    if began.elapsed() < Duration::from_millis(900) {
        let transfers = second.fetched.transfers.iter();
        let problems: Vec<_> = transfers.filter_map(|one| one.error.as_deref()).collect();
        assert_eq!((problems.len(), second.said), (2, None), "{problems:?}");
        assert_eq!(world.asked().len(), 1);
    }
    // It is there from the next run on.
    world.put("s3://photos/weights", b"weights");
    loop {
        let found = Done::of(world.initscripts().shared(&version).await);
        if found.messages() == weights(b"weights") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_a_starting_worker_has_begun_is_there_for_its_first_invocation() {
    let world = World::new();
    world.put("s3://photos/weights", b"weights");
    let version = world
        .deploy(&script(WEIGHTS), |script| script.max_age_s = Some(60))
        .await;
    // Two workers, one run.
    world.initscripts().worker_starts(&version);
    world.initscripts().worker_starts(&version);
    let began = std::time::Instant::now();
    while world.asked().is_empty() && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = Done::of(world.initscripts().shared(&version).await);
    assert_eq!(first.messages(), weights(b"weights"));
    // The first invocation that uses it has its record.
    assert_eq!(first.end, Some(ScriptEnd::Ok));
    // A later worker finds it.
    world.initscripts().worker_starts(&version);
    let second = Done::of(world.initscripts().shared(&version).await);
    assert_eq!((second.messages(), second.end), (weights(b"weights"), None));
    assert_eq!(world.asked().len(), 1);
}

#[tokio::test]
async fn a_starting_worker_begins_no_script_of_an_invocation() {
    let world = World::new();
    world.put("s3://photos/weights", b"weights");
    let version = world.deploy(&script(WEIGHTS), |_| {}).await;
    world.initscripts().worker_starts(&version);
    assert!(world.asked().is_empty());
    world.is_empty().await;
}
