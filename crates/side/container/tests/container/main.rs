//! Containers on a real engine, which this suite starts (`scripts/dockerd`) and ends. It has its own harness because all checks
//! share the engine and some of them end it. Skipped where no engine can run.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

mod checks;
mod cleaning;
mod contracts;
mod daemon;
mod ends;
mod gate;
mod inputs;
mod kills;
mod remains;
mod support;
mod times;

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt as _;
use support::{Stage, TestEngine};

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if let Some(dir) = std::env::var_os(daemon::DIR) {
        runtime.block_on(daemon::run(dir.as_ref()));
        return;
    }
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let all = checks::all();
    let engine = match TestEngine::start() {
        Ok(engine) => Box::leak(Box::new(engine)),
        Err(why) => {
            println!("\n*** NOTHING WAS TRIED: no container engine can run here: {why} ***");
            println!("0 passed, 0 failed, {} skipped", all.len());
            return;
        }
    };
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, check) in all {
        if !only.is_empty() && !only.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let began = Instant::now();
        let stage = Stage::new(engine);
        let outcome = runtime.block_on(AssertUnwindSafe(check(stage)).catch_unwind());
        let took = began.elapsed().as_millis();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("ok      {name} ({took} ms)");
            }
            Err(_) => {
                failed.push(name);
                println!("FAILED  {name} ({took} ms)");
            }
        }
    }
    engine.stop();
    for name in &failed {
        println!("*** failed: {name} ***");
    }
    println!("{passed} passed, {} failed", failed.len());
    if !failed.is_empty() {
        std::process::exit(1);
    }
}
