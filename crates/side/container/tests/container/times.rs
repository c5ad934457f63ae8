//! Measures in one run, A against B: a cleaned container against a new one.

use std::time::{Duration, Instant};

use crate::support::{BUSYBOX, Spec, Stage, answer, prewarmed, shell, specialise};

const ROUNDS: usize = 15;

pub(crate) async fn a_cleaned_container_is_handed_over_in_time(stage: Stage) {
    let host = stage.host();
    let version = stage.version("timed", &shell(&[("handler.sh", "echo 1")]));
    let kept = prewarmed(&host, &version).await.unwrap();
    let (mut starts, mut hand_overs, mut cleanings, mut calls) = (vec![], vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        if round % 3 == 0 {
            let began = Instant::now();
            let new = prewarmed(&host, &version).await.unwrap();
            drop(specialise(&new, &version).await.unwrap());
            starts.push(began.elapsed());
        }
        let began = Instant::now();
        let worker = specialise(&kept, &version).await.unwrap();
        hand_overs.push(began.elapsed());
        let began = Instant::now();
        answer(&worker, "{}").await;
        calls.push(began.elapsed());
        worker.retire();
        drop(worker);
        let began = Instant::now();
        kept.clean().await.unwrap();
        cleanings.push(began.elapsed());
    }
    // The hand-over of a container with a process to start, until it accepts connections; the server itself starts instantly.
    let spec = Spec {
        image: BUSYBOX,
        contract: "http",
        command: &["sh", "-c", "exec httpd -f -p $PORT"],
        ..Spec::default()
    };
    let server = stage.version("timed-server", &spec);
    let kept = prewarmed(&host, &server).await.unwrap();
    let mut servers = vec![];
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let worker = specialise(&kept, &server).await.unwrap();
        servers.push(began.elapsed());
        worker.retire();
        drop(worker);
        kept.clean().await.unwrap();
    }
    let idle = kept.memory_bytes();
    // What else the machine does can only make a time longer.
    let shortest = [&hand_overs, &servers].map(|times| times.iter().min().copied().unwrap());
    let [start, hand_over, cleaning, call, server] =
        [starts, hand_overs, cleanings, calls, servers].map(median);
    println!(
        "        p50: new container {start:?}, cleaned one handed over {hand_over:?} (with a server of busybox {server:?}), cleaning \
         {cleaning:?}, call of a shell {call:?}; kept container {} KiB",
        idle >> 10
    );
    assert!(
        shortest
            .iter()
            .all(|time| *time <= Duration::from_millis(15)),
        "{shortest:?}"
    );
    assert!(hand_over * 3 <= start, "{hand_over:?} of {start:?}");
    assert!(idle <= 1 << 20, "{idle} bytes");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
