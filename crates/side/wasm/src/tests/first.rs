//! How soon a script calls the host.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pilot_model::Version;
use pilot_model::ports::InitRunner;
use tokio::task::JoinSet;
use wasmtime::Engine;

use crate::fakes::{World, script};
use crate::threads::{Beginning, Begun, TICK, Threads};

const ASKING: &str = r#"(data (i32.const 0) "s3://photosGET cat")
    (func (export "run")
        (drop (call $connect (i32.const 0) (i32.const 11)))
        (drop (call $send_rpc (i32.const 0) (i64.const 5) (i32.const 11) (i32.const 7)))
        (drop (call $send_reply (i64.const 3) (i32.const 0) (i64.const 5))))"#;

/// Whatever else the machine does: no other thread takes part in it.
#[tokio::test]
async fn the_first_request_is_under_way_when_the_run_has_begun() {
    let mut left = 20;
    while left > 0 {
        let world = World::new();
        world.put("s3://photos/cat", b"a cat");
        let version = world.deploy(&script(ASKING), |_| {}).await;
        let began = std::time::Instant::now();
        let run = world.initscripts().run(&version, Bytes::new(), None);
        let (asked, took) = (world.asked().len(), began.elapsed());
        assert_eq!(run.await.said, None);
        // A machine that is so busy says nothing.
        if took < TICK {
            assert_eq!(asked, 1);
            left -= 1;
        }
    }
}

#[tokio::test]
async fn a_script_that_computes_long_begins_elsewhere_for_a_while() {
    let beginning = Beginning::default();
    assert!(beginning.is_here());
    beginning.took(TICK / 2);
    assert!(beginning.is_here());
    beginning.took(TICK);
    let elsewhere = std::iter::repeat_with(|| beginning.is_here()).take_while(|here| !here);
    assert_eq!(elsewhere.count(), 64);
    // An endless loop takes the thread of its invocation once.
    let world = World::new();
    let text = script(r#"(func (export "run") (loop (br 0)))"#);
    let version = world.deploy(&text, |_| {}).await;
    let begin = || world.initscripts().run(&version, Bytes::new(), None);
    for _ in 0..100 {
        let running = begin();
        let is_here = world.initscripts().computing(&version).is_here();
        drop(running);
        world.has_room().await;
        if !is_here {
            return;
        }
        // Its CPU time counts: on a busy machine, it may have got less than a tick.
    }
    panic!("it has always begun where its invocation was");
}

/// As when many workers start at once, and the thread has to wait for a processor.
#[test]
fn a_script_whose_thread_waited_begins_there_again() {
    let threads = Threads::start(&Engine::default()).unwrap();
    let beginning = Beginning::default();
    let waits = async { thread::sleep(TICK * 3) };
    let begun = threads.begin(waits, Some(&beginning));
    assert!(matches!(begun, Some(Begun::Ended(Some(())))));
    assert!(beginning.is_here());
}

/// From admission to the first request, with the module compiled, and the last of 100 at once on two threads, without any worker:
/// each where the invocation is, and, taking turns, on the thread of scripts. What decision 0050 reports. Printed; the bars are for
/// a machine that does nothing else. `cargo test -p pilot-wasm first_call -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn first_call() {
    let world = Arc::new(World::new());
    world.put("s3://photos/cat", b"a cat");
    let version = world.deploy(&script(ASKING), |_| {}).await;
    let beginning = world.initscripts().computing(&version);
    let mut told = Vec::new();
    for elsewhere in [false, true] {
        // Far more starts than there are.
        beginning.begin_elsewhere(if elsewhere { u32::MAX } else { 0 });
        let (mut alone, mut bursts) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            alone.push(first_of(&world, &version, 1).await);
        }
        for _ in 0..20 {
            bursts.push(first_of(&world, &version, 100).await);
        }
        alone.sort();
        bursts.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        told.push(format!(
            "\"{}\": {{\"one_ms\": {{\"p50\": {:.3}, \"p99\": {:.3}}}, \"last_of_100_ms\": {{\"p50\": {:.1}, \"most\": {:.1}}}}}",
            if elsewhere { "elsewhere" } else { "here" },
            ms(alone[500]),
            ms(alone[990]),
            ms(bursts[10]),
            ms(bursts[19])
        ));
    }
    eprintln!("{{{}}}", told.join(", "));
}

/// From the beginning to the last first request of so many scripts.
async fn first_of(world: &Arc<World>, version: &Arc<Version>, count: usize) -> Duration {
    let before = world.asked().len();
    let began = Instant::now();
    let mut runs: JoinSet<_> = (0..count)
        .map(|_| {
            let (world, version) = (Arc::clone(world), Arc::clone(version));
            async move { world.initscripts().run(&version, Bytes::new(), None).await }
        })
        .collect();
    while let Some(run) = runs.join_next().await {
        assert_eq!(run.unwrap().said, None);
    }
    let asked = world.asked();
    let last = asked[before..].iter().map(|one| one.at).max().unwrap();
    last.duration_since(began)
}
