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

/// The last lines.
fn last(lines: usize) -> LogsWanted {
    LogsWanted {
        lines,
        ..LogsWanted::default()
    }
}

/// Stored lines of the function with these texts, with a time each from 0 on.
fn stored<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut lines = Vec::new();
    for (at, text) in texts.into_iter().enumerate() {
        let line = Stored {
            unix_ms: Some(at as u64),
            source: pilot_model::log_line::LogSource::Function,
            request: Some(if at % 2 == 0 { "even" } else { "odd" }),
            text: text.as_bytes(),
        };
        line.write(&mut lines);
    }
    lines
}

/// What a reader gives, without time and source.
fn texts(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let lines = text.lines().map(|line| format!("{}\n", &line[34..]));
    lines.collect()
}

fn text(mut reader: LogReader) -> String {
    let mut text = String::new();
    loop {
        let read = reader.read().unwrap();
        if read.is_empty() {
            return text;
        }
        text.push_str(&texts(&read));
    }
}

#[test]
fn the_last_lines_come_out_in_order() {
    let (_folder, store) = store(1 << 20);
    store.append(&name(), &stored(["one", "two"])).unwrap();
    store.append(&name(), &stored(["three"])).unwrap();
    let last = |lines| text(store.read(&name(), last(lines)).unwrap());
    assert_eq!(last(0), "");
    assert_eq!(last(1), "three\n");
    assert_eq!(last(2), "two\nthree\n");
    assert_eq!(last(3), "one\ntwo\nthree\n");
    assert_eq!(last(1000), "one\ntwo\nthree\n");
}

#[test]
fn a_function_without_a_log_has_an_empty_one() {
    let (_folder, store) = store(1 << 20);
    assert_eq!(text(store.read(&name(), last(10)).unwrap()), "");
}

#[test]
fn lines_are_found_across_blocks() {
    let (_folder, store) = store(16 << 20);
    let lines: Vec<String> = (0..20_000)
        .map(|at| format!("line number {at}\n"))
        .collect();
    store
        .append(&name(), &stored(lines.iter().map(|line| line.trim_end())))
        .unwrap();
    for wanted in [1, 4_000, 4_001, 19_999, 20_000] {
        let expected = lines[lines.len() - wanted..].concat();
        assert!(
            text(store.read(&name(), last(wanted)).unwrap()) == expected,
            "{wanted}"
        );
    }
}

#[test]
fn files_are_bounded_and_the_one_before_is_read_too() {
    let (folder, store) = store(16 * 13);
    for at in 0..50 {
        store
            .append(&name(), &stored([format!("line {at:02}").as_str()]))
            .unwrap();
    }
    let files: Vec<u64> = fs::read_dir(folder.path().join("logs/f"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert_eq!(files.len(), 2);
    assert!(files.iter().all(|length| *length <= 16 * 13), "{files:?}");
    let all = text(store.read(&name(), last(1000)).unwrap());
    assert!(all.ends_with("line 48\nline 49\n"), "{all}");
    assert!(all.lines().count() > 12, "{all}");
    let last = text(store.read(&name(), last(13)).unwrap());
    assert_eq!(last.lines().count(), 13);
    assert!(all.ends_with(&last));
}

#[test]
fn an_open_reader_follows_a_rotation() {
    let (_folder, store) = store(32);
    store.append(&name(), &stored(["first"])).unwrap();
    let mut reader = store.read(&name(), last(10)).unwrap();
    assert_eq!(texts(&reader.read().unwrap()), "first\n");
    store.append(&name(), &stored(["second"])).unwrap();
    store.append(&name(), &stored(["third, rotated"])).unwrap();
    assert_eq!(text(reader), "second\nthird, rotated\n");
}

#[test]
fn a_reader_that_is_two_rotations_behind_misses_nothing_that_is_there() {
    // Each append rotates.
    let (_folder, store) = store(1);
    store.append(&name(), &stored(["first"])).unwrap();
    let mut reader = store.read(&name(), last(10)).unwrap();
    assert_eq!(texts(&reader.read().unwrap()), "first\n");
    store.append(&name(), &stored(["second"])).unwrap();
    store.append(&name(), &stored(["third"])).unwrap();
    assert_eq!(text(reader), "second\nthird\n");
}

#[test]
fn logs_are_for_the_daemon_alone() {
    let (folder, store) = store(20);
    store.append(&name(), &stored(["secret"])).unwrap();
    let mode = fs::metadata(folder.path().join("logs/f/current.lines"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

async fn next(follower: LogFollower) -> io::Result<Option<(Vec<u8>, LogFollower)>> {
    follower.next(&LongReads::default()).await
}

#[tokio::test]
async fn a_follower_gets_what_comes_and_ends_with_the_log() {
    let (_folder, store) = store(1 << 20);
    // Before the log exists.
    let follower = store.follow(&name(), last(10)).unwrap();
    let waiting = tokio::spawn(next(follower));
    store.append(&name(), &stored(["one"])).unwrap();
    store.wake_followers();
    let (bytes, follower) = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(texts(&bytes), "one\n");
    let waiting = tokio::spawn(next(follower));
    store.append(&name(), &stored(["two"])).unwrap();
    store.wake_followers();
    let (bytes, follower) = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(texts(&bytes), "two\n");
    store.forget(&name()).unwrap();
    assert!(next(follower).await.unwrap().is_none());
}

#[tokio::test]
async fn closing_the_store_ends_followers_once_they_have_read_all() {
    let (_folder, store) = store(1 << 20);
    let follower = store.follow(&name(), last(10)).unwrap();
    store.append(&name(), &stored(["last words"])).unwrap();
    store.close();
    let (bytes, follower) = next(follower).await.unwrap().unwrap();
    assert_eq!(texts(&bytes), "last words\n");
    assert!(next(follower).await.unwrap().is_none());
}

#[test]
fn lines_are_filtered_by_time_and_request_across_files() {
    let (_folder, store) = store(400);
    let all: Vec<String> = (0..30).map(|at| format!("line {at}")).collect();
    let lines = stored(all.iter().map(String::as_str));
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        store.append(&name(), line).unwrap();
    }
    let of = |lines, since_unix_ms, request: Option<&str>| {
        let wanted = LogsWanted {
            lines,
            since_unix_ms,
            request: request.map(str::to_owned),
            form: LogForm::Text,
        };
        text(store.read(&name(), wanted).unwrap())
    };
    assert_eq!(of(100, Some(28), None), "line 28\nline 29\n");
    assert_eq!(of(1, Some(20), None), "line 29\n");
    assert_eq!(of(2, None, Some("odd")), "line 27\nline 29\n");
    assert_eq!(of(100, Some(26), Some("even")), "line 26\nline 28\n");
    assert_eq!(of(100, None, Some("nobody")), "");
    assert_eq!(of(100, Some(14), None).lines().count(), 16, "in both files");
}

#[test]
fn logs_of_earlier_versions_are_read_before_the_new_ones_and_have_no_source() {
    let (folder, store) = store(64);
    let of = folder.path().join("logs/f");
    fs::create_dir_all(&of).unwrap();
    fs::write(of.join("previous.log"), "START RequestId: a\n").unwrap();
    fs::write(of.join("current.log"), "12 p - forged\n").unwrap();
    store.append(&name(), &stored(["new"])).unwrap();
    let mut reader = store.read(&name(), last(10)).unwrap();
    let mut shown = String::new();
    loop {
        let read = reader.read().unwrap();
        if read.is_empty() {
            break;
        }
        shown.push_str(&String::from_utf8(read).unwrap());
    }
    let none = format!("{:<24} unknown ", "-");
    assert_eq!(
        shown,
        format!(
            "{none} START RequestId: a\n{none} 12 p - forged\n1970-01-01T00:00:00.000Z function new\n"
        )
    );
    let one = LogsWanted {
        lines: 10,
        since_unix_ms: Some(0),
        ..LogsWanted::default()
    };
    assert_eq!(text(store.read(&name(), one).unwrap()), "new\n");
    for _ in 0..4 {
        store.append(&name(), &stored(["further line"])).unwrap();
    }
    assert!(!of.join("current.log").exists() && !of.join("previous.log").exists());
}

#[test]
fn json_has_the_exact_text_and_no_control_character() {
    let (_folder, store) = store(1 << 20);
    store
        .append(&name(), &stored(["\u{1b}[31m\u{9b}x\t"]))
        .unwrap();
    let wanted = LogsWanted {
        lines: 10,
        form: LogForm::Json,
        ..LogsWanted::default()
    };
    let read = store.read(&name(), wanted).unwrap().read().unwrap();
    assert_eq!(
        String::from_utf8(read).unwrap(),
        "{\"time\":\"1970-01-01T00:00:00.000Z\",\"source\":\"function\",\"request_id\":\"even\",\"text\":\"\\u001b[31m\\u009bx\\t\"}\n"
    );
}

#[test]
fn folders_of_others_beside_the_logs_are_not_logs_and_stay() {
    let (folder, store) = store(1 << 20);
    store.append(&name(), &stored(["one"])).unwrap();
    let root = folder.path().join("logs");
    for path in [
        "www/index.html",
        "nginx/previous.log/old",
        "mixed/current.lines",
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    std::fs::write(root.join("mixed/notes"), "").unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", root.join("link")).unwrap();
    assert_eq!(store.names().unwrap(), [name()]);
    store.forget(&"mixed".parse().unwrap()).unwrap();
    assert!(root.join("mixed/notes").exists());
    assert!(!root.join("mixed/current.lines").exists());
    store.forget(&name()).unwrap();
    assert!(!root.join(name().as_str()).exists());
}
