//! An attempt that panics.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::{AsyncControl as _, AsyncQueue as _, AsyncRunner};

use super::{Queue, config, quick, request, runner, stop, tokio};

#[test]
fn an_attempt_that_panics_gives_its_place_back_and_the_invocation_waits() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        for (id, key) in [("plain", None), ("keyed", Some("k"))] {
            queue.accept(request("f", id, key)).await.unwrap();
        }
        let runner = runner(quick(), |_, _| panic!("a mistake"));
        queue.dispatch(Arc::clone(&runner) as Arc<dyn AsyncRunner>);
        let both_wait = async {
            let is_over = || {
                let now_ms = queue.shared.times.now_ms();
                let schedule = queue.shared.schedule.lock();
                schedule.running() == 0 && !schedule.has_due(now_ms)
            };
            while !is_over() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), both_wait)
            .await
            .expect("the places are free again");
        let counts = queue.counts();
        assert_eq!((counts.waiting, counts.running), (2, 0));
        let interrupted = [1, 2].map(|seq| {
            let schedule = queue.shared.schedule.lock();
            schedule.entry(seq).unwrap().interrupted
        });
        assert_eq!(interrupted, [false, true], "one with a key may have run");
        stop(queue).await;
    });
}
