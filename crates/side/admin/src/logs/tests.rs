use std::os::unix::fs::PermissionsExt;

use super::*;

fn store(file_bytes_max: u64) -> (tempfile::TempDir, Arc<LogStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = LogStore::open(folder.path().join("logs"), file_bytes_max).unwrap();
    (folder, Arc::new(store))
}

fn name() -> FunctionName {
    "f".parse().unwrap()
}

fn text(mut reader: LogReader) -> String {
    let mut text = Vec::new();
    let mut buffer = vec![0; 7];
    loop {
        let count = reader.read(&mut buffer).unwrap();
        if count == 0 {
            return String::from_utf8(text).unwrap();
        }
        text.extend_from_slice(&buffer[..count]);
    }
}

#[test]
fn the_last_lines_come_out_in_order() {
    let (_folder, store) = store(1 << 20);
    store.append(&name(), b"one\ntwo\n").unwrap();
    store.append(&name(), b"three\n").unwrap();
    let last = |lines| text(store.read(&name(), lines).unwrap());
    assert_eq!(last(0), "");
    assert_eq!(last(1), "three\n");
    assert_eq!(last(2), "two\nthree\n");
    assert_eq!(last(3), "one\ntwo\nthree\n");
    assert_eq!(last(1000), "one\ntwo\nthree\n");
}

#[test]
fn a_function_without_a_log_has_an_empty_one() {
    let (_folder, store) = store(1 << 20);
    assert_eq!(text(store.read(&name(), 10).unwrap()), "");
}

#[test]
fn lines_are_found_across_blocks() {
    let (_folder, store) = store(16 << 20);
    let lines: Vec<String> = (0..20_000)
        .map(|at| format!("line number {at}\n"))
        .collect();
    store.append(&name(), lines.concat().as_bytes()).unwrap();
    for wanted in [1, 4_000, 4_001, 19_999, 20_000] {
        let expected = lines[lines.len() - wanted..].concat();
        assert!(
            text(store.read(&name(), wanted).unwrap()) == expected,
            "{wanted}"
        );
    }
}

#[test]
fn files_are_bounded_and_the_one_before_is_read_too() {
    let (folder, store) = store(100);
    for at in 0..50 {
        store
            .append(&name(), format!("line {at:02}\n").as_bytes())
            .unwrap();
    }
    let files: Vec<u64> = fs::read_dir(folder.path().join("logs/f"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert_eq!(files.len(), 2);
    assert!(files.iter().all(|length| *length <= 100), "{files:?}");
    let all = text(store.read(&name(), 1000).unwrap());
    assert!(all.ends_with("line 48\nline 49\n"), "{all}");
    assert!(all.lines().count() > 12, "{all}");
    let last = text(store.read(&name(), 13).unwrap());
    assert_eq!(last.lines().count(), 13);
    assert!(all.ends_with(&last));
}

#[test]
fn an_open_reader_follows_a_rotation() {
    let (_folder, store) = store(20);
    store.append(&name(), b"first\n").unwrap();
    let mut reader = store.read(&name(), 10).unwrap();
    let mut buffer = [0; 64];
    let count = reader.read(&mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"first\n");
    store.append(&name(), b"second\n").unwrap();
    store.append(&name(), b"third, rotated\n").unwrap();
    assert_eq!(text(reader), "second\nthird, rotated\n");
}

#[test]
fn logs_are_for_the_daemon_alone() {
    let (folder, store) = store(20);
    store.append(&name(), b"secret\n").unwrap();
    let mode = fs::metadata(folder.path().join("logs/f/current.log"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_follower_gets_what_comes_and_ends_with_the_log() {
    let (_folder, store) = store(1 << 20);
    // Before the log exists.
    let follower = store.follow(&name(), 10).unwrap();
    let waiting = tokio::spawn(follower.next());
    store.append(&name(), b"one\n").unwrap();
    store.wake_followers();
    let (bytes, follower) = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(bytes, b"one\n");
    let waiting = tokio::spawn(follower.next());
    store.append(&name(), b"two\n").unwrap();
    store.wake_followers();
    let (bytes, follower) = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(bytes, b"two\n");
    store.forget(&name()).unwrap();
    assert!(follower.next().await.unwrap().is_none());
}

#[tokio::test]
async fn closing_the_store_ends_followers_once_they_have_read_all() {
    let (_folder, store) = store(1 << 20);
    let follower = store.follow(&name(), 10).unwrap();
    store.append(&name(), b"last words\n").unwrap();
    store.close();
    let (bytes, follower) = follower.next().await.unwrap().unwrap();
    assert_eq!(bytes, b"last words\n");
    assert!(follower.next().await.unwrap().is_none());
}
