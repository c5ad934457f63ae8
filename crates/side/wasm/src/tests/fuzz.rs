//! Random sequences of calls with random arguments: whatever a script calls, the run ends, says how, keeps its limits, and leaves nothing.

use std::fmt::Write as _;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;

use crate::fakes::{World, script};
use crate::fuzzed::{CALLS, Kind, TEXT_ROOM, TEXTS, check};

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..4_i32).prop_map(|small| format!("(i32.const {small})")),
        2 => Just("(local.get $last)".to_owned()),
        1 => select(vec![-1, i32::MIN, i32::MAX, 65_535, 65_536])
            .prop_map(|edge| format!("(i32.const {edge})")),
        1 => any::<i32>().prop_map(|any| format!("(i32.const {any})")),
    ]
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..20_i64).prop_map(|small| format!("(i64.const {small})")),
        1 => select(vec![-1, i64::MIN, i64::MAX]).prop_map(|edge| format!("(i64.const {edge})")),
        1 => any::<i64>().prop_map(|any| format!("(i64.const {any})")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let known = (0..TEXTS.len()).prop_map(|at| {
        format!(
            "(i32.const {}) (i32.const {})",
            at * TEXT_ROOM,
            TEXTS[at].len()
        )
    });
    let inside = (0..60_000_u32, 0..5_000_u32)
        .prop_map(|(at, len)| format!("(i32.const {at}) (i32.const {len})"));
    let any = (number(), number()).prop_map(|(at, len)| format!("{at} {len}"));
    prop_oneof![20 => known, 4 => inside, 1 => any]
}

fn argument(kind: Kind) -> BoxedStrategy<String> {
    match kind {
        Kind::Number => number().boxed(),
        Kind::Id => id().boxed(),
        Kind::Text => text().boxed(),
    }
}

fn call() -> impl Strategy<Value = String> {
    // Most scripts begin with connections and requests, or the other calls have nothing to work on.
    let name = prop_oneof![
        1 => Just(0_usize),
        2 => Just(1),
        4 => 2..CALLS.len(),
    ];
    name.prop_flat_map(|at| {
        let (name, kinds, result) = CALLS[at];
        let arguments: Vec<_> = kinds.iter().map(|kind| argument(*kind)).collect();
        arguments.prop_map(move |arguments| {
            let call = format!("(call ${name} {})", arguments.join(" "));
            match result {
                32 => format!("(local.set $last {call})"),
                64 => format!("(local.set $last (i32.wrap_i64 {call}))"),
                _ => call,
            }
        })
    })
}

fn calls() -> impl Strategy<Value = Vec<String>> {
    let connect = format!(
        "(drop (call $connect (i32.const 0) (i32.const {})))",
        TEXTS[0].len()
    );
    prop::collection::vec(call(), 0..60).prop_map(move |mut calls| {
        calls.insert(0, connect.clone());
        calls
    })
}

/// A module that makes these calls.
fn module(calls: &[String]) -> String {
    let mut body = String::new();
    for (at, text) in TEXTS.iter().enumerate() {
        let escaped: String = text.bytes().map(|byte| format!("\\{byte:02x}")).collect();
        let _ = writeln!(body, "(data (i32.const {}) \"{escaped}\")", at * TEXT_ROOM);
    }
    let _ = writeln!(
        body,
        "(func (export \"run\") (local $last i32) {})",
        calls.join("\n")
    );
    script(&body)
}

async fn holds(calls: Vec<String>) {
    let world = World::new();
    world.put("s3://photos/cat", b"a cat");
    world.put("https://example.com/cat", &[7; 3000]);
    let text = module(&calls);
    let run = world.run_with(&text, br#"{"key": ["cat"]}"#, |script| {
        script.timeout_ms = 100;
        script.memory_mb = 1;
        script.input = "words".to_owned();
    });
    // Far more than any limit: a script that does not end is a failure.
    let done = tokio::time::timeout(Duration::from_secs(30), run).await;
    let done = done.expect("it ended");
    check(&done, &world.asked(), false);
    drop(done);
    world.is_empty().await;
    world.has_room().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_sequence_of_calls_harms_the_host(calls in calls()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(holds(calls));
    }
}
