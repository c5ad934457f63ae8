//! A machine's clock that was wrong.

use std::fs::File;
use std::time::{Duration, SystemTime};

use pilot_model::calendar::unix_ms;
use pilot_model::ports::{AsyncQueue as _, TriggerStore as _};
use rusqlite::Connection;

use super::{Queue, config, done, quick, request, runner, settled, stop, tokio};

#[test]
fn a_dead_letter_from_the_future_does_not_move_the_queues_time() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio();
    let ahead_ms = |queue: &Queue| {
        let shown_ms = i64::try_from(unix_ms(SystemTime::now())).unwrap();
        queue.shared.times.now_ms() - shown_ms
    };
    let queue = Queue::open(config(folder.path())).unwrap();
    runtime
        .block_on(queue.bury(request("f", "one", None), 1, "poison".to_owned()))
        .unwrap();
    runtime.block_on(stop(queue));
    set(
        folder.path(),
        "records",
        "accepted_ms = accepted_ms + 10 * 365 * 86400000",
    );
    let queue = Queue::open(config(folder.path())).unwrap();
    assert!(ahead_ms(&queue) < 60_000);
    runtime.block_on(stop(queue));
}

#[test]
fn a_clock_that_starts_in_the_past_begins_at_the_last_write() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio();
    let queue = Queue::open(config(folder.path())).unwrap();
    runtime
        .block_on(queue.accept(request("f", "one", None)))
        .unwrap();
    runtime.block_on(stop(queue));
    let written = SystemTime::now() + Duration::from_secs(1_000_000);
    let file = File::options()
        .write(true)
        .open(folder.path().join("async.sqlite"))
        .unwrap();
    file.set_modified(written).unwrap();
    let queue = Queue::open(config(folder.path())).unwrap();
    let written_ms = i64::try_from(unix_ms(written)).unwrap();
    assert!(queue.shared.times.now_ms() >= written_ms);
    runtime.block_on(stop(queue));
}

#[test]
fn a_key_from_the_future_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio();
    let accepts = |queue: &Queue| {
        let accepted = runtime.block_on(queue.accept(request("f", "one", Some("k"))));
        accepted.unwrap().repeated
    };
    let queue = Queue::open(config(folder.path())).unwrap();
    assert!(!accepts(&queue));
    runtime.block_on(async {
        queue.dispatch(runner(quick(), |_, _| done()));
        settled(&queue).await;
        stop(queue).await;
    });
    let queue = Queue::open(config(folder.path())).unwrap();
    assert!(accepts(&queue), "the key is known for a day");
    runtime.block_on(stop(queue));
    set(
        folder.path(),
        "keys",
        "expires_ms = expires_ms + 10 * 365 * 86400000",
    );
    let queue = Queue::open(config(folder.path())).unwrap();
    assert!(!accepts(&queue));
    runtime.block_on(stop(queue));
}

/// Changes the rows of a table in the store.
fn set(folder: &std::path::Path, table: &str, change: &str) {
    let connection = Connection::open(folder.join("async.sqlite")).unwrap();
    let changed = connection.execute(&format!("UPDATE {table} SET {change}"), []);
    assert_eq!(changed.unwrap(), 1);
}
