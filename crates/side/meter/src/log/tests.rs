//! The log survives what a machine does to it.

use std::fs;
use std::path::Path;

use pilot_model::timeline::WorkerOrigin;
use pilot_model::{Outcome, StartKind};
use proptest::prelude::*;

use super::*;
use crate::record::{Call, WorkerEnd};

pub(crate) fn call(unix_ms: u64) -> Entry {
    Entry::Call(Call {
        function: 0,
        unix_ms,
        start: StartKind::Warm,
        outcome: Outcome::Ok,
        origin: WorkerOrigin::Fork,
        stamps: [
            Some(10),
            None,
            None,
            None,
            None,
            None,
            Some(20),
            Some(25),
            Some(30),
            Some(40),
        ],
        cpu_ns: Some((5, 5)),
        memory_used: Some(1 << 20),
        bytes_in: 2,
        bytes_out: 3,
        throttled_ns: None,
        pss_bytes: None,
        worker: None,
        thawed_ns: None,
    })
}

fn times(folder: &Path) -> Vec<u64> {
    let calls = read(folder)
        .unwrap()
        .filter_map(|entry| match entry.unwrap() {
            Entry::Call(call) => Some(call.unix_ms),
            _ => None,
        });
    calls.collect()
}

const ROOMY: u64 = 64 << 20;

#[test]
fn what_is_appended_is_read_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(times(&folder.path().join("none")), Vec::<u64>::new());
    let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
    writer.append(&[call(1), call(2)]).unwrap();
    assert_eq!(times(folder.path()), [1, 2], "without being closed");
    drop(writer);
    let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
    writer.append(&[call(3)]).unwrap();
    writer.append(&[]).unwrap();
    assert_eq!(times(folder.path()), [1, 2, 3]);
}

/// Whatever length of the file a crash leaves: the whole frames before it are read, and new ones come after them.
#[test]
fn a_torn_end_costs_its_frame_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
    let file = path(folder.path(), 1);
    let mut ends = vec![MAGIC.len() as u64];
    for number in 1..=3 {
        writer.append(&[call(number)]).unwrap();
        ends.push(fs::metadata(&file).unwrap().len());
    }
    drop(writer);
    let whole = fs::read(&file).unwrap();
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let left = ends
            .iter()
            .skip(1)
            .filter(|end| **end <= length as u64)
            .count() as u64;
        assert_eq!(
            times(folder.path()),
            (1..=left).collect::<Vec<_>>(),
            "cut at {length}"
        );
        let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
        writer.append(&[call(9)]).unwrap();
        let expected: Vec<u64> = (1..=left).chain([9]).collect();
        assert_eq!(times(folder.path()), expected, "cut at {length}");
    }
}

#[test]
fn a_file_of_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(path(folder.path(), 7), "something else entirely").unwrap();
    let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
    writer.append(&[call(1)]).unwrap();
    assert_eq!(times(folder.path()), [1]);
    assert_eq!(
        fs::read(path(folder.path(), 7)).unwrap(),
        b"something else entirely"
    );
}

#[test]
fn the_log_stays_within_its_size_and_keeps_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 1 << 20;
    let mut writer = Writer::open(folder.path(), limit).unwrap();
    let mut full = 0;
    for number in 0..400 {
        let entries: Vec<Entry> = (0..100).map(|index| call(number * 100 + index)).collect();
        full += u32::from(writer.append(&entries).unwrap() == Appended::SegmentFull);
    }
    let files = segments(folder.path()).unwrap();
    let bytes: u64 = files
        .iter()
        .map(|number| fs::metadata(path(folder.path(), *number)).unwrap().len())
        .sum();
    assert!(bytes <= limit && bytes > limit / 2, "{bytes}");
    assert!(full > 16, "{full} segments");
    let times = times(folder.path());
    assert_eq!(times.last(), Some(&39_999));
    assert!(
        times.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "nothing is missing in between"
    );
}

proptest! {
    /// Damage is never read as records that were not written, and never panics.
    #[test]
    fn damaged_bytes_are_not_records(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
        for number in 1..=5 {
            writer.append(&[call(number)]).unwrap();
        }
        drop(writer);
        let file = path(folder.path(), 1);
        let mut bytes = fs::read(&file).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fs::write(&file, &bytes).unwrap();
        let left = times(folder.path());
        prop_assert!(left.len() < 5);
        prop_assert_eq!(&left[..], &[1, 2, 3, 4, 5][..left.len()]);
    }
}

#[test]
fn what_is_stored_before_a_call_is_read_with_it_and_older_calls_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
    let end = |reason: &str| {
        Entry::WorkerEnded(WorkerEnd {
            function: 0,
            unix_ms: 9,
            lived_ns: 1,
            cpu_ns: None,
            memory_max: None,
            reason: reason.to_owned(),
            worker: None,
        })
    };
    let entries = [
        call(1),
        Entry::Throttled(7),
        Entry::Pss(9),
        Entry::Worker(4),
        Entry::Thawed(5),
        call(2),
        call(3),
        Entry::Worker(4),
        end("idle"),
        end("crash"),
    ];
    writer.append(&entries).unwrap();
    let read = read(folder.path()).unwrap().map(|entry| match entry {
        Ok(Entry::Call(call)) => {
            let more = (call.throttled_ns, call.pss_bytes, call.thawed_ns);
            (call.unix_ms, call.worker, more)
        }
        Ok(Entry::WorkerEnded(end)) => (end.unix_ms, end.worker, (None, None, None)),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        read.collect::<Vec<_>>(),
        [
            (1, None, (None, None, None)),
            (2, Some(4), (Some(7), Some(9), Some(5))),
            (3, None, (None, None, None)),
            (9, Some(4), (None, None, None)),
            (9, None, (None, None, None)),
        ]
    );
}

/// A daemon with functions of these indices, and a frame for each call.
fn written_by_a_daemon(folder: &Path, indices: &[u32], calls: std::ops::Range<u64>) -> Vec<u64> {
    let file = path(folder, 1);
    let mut writer = Writer::open(folder, ROOMY).unwrap();
    let clock = Entry::Clock(crate::record::Clock {
        at_ms: 1,
        unix_ms: 1,
    });
    let daemon = Entry::Daemon(crate::record::Daemon {
        began_unix_ms: 1,
        boot: 1,
        began_ms: calls.start,
    });
    let mut begins = vec![fs::metadata(&file).unwrap().len().max(MAGIC.len() as u64)];
    writer.append(&[daemon, clock.clone()]).unwrap();
    begins.push(fs::metadata(&file).unwrap().len());
    let define = |index: &u32| {
        Entry::Function(crate::record::Function {
            index: *index,
            name: "f".to_owned(),
            owner: "us".to_owned(),
            version: 1,
            memory_bytes: 1,
            cpu_milli: 1,
        })
    };
    let definitions: Vec<Entry> = [clock.clone()]
        .into_iter()
        .chain(indices.iter().map(define))
        .collect();
    writer.append(&definitions).unwrap();
    for number in calls {
        begins.push(fs::metadata(&file).unwrap().len());
        writer.append(&[clock.clone(), call(number)]).unwrap();
    }
    begins
}

/// A byte is damaged in each place of the log of two daemons: what can still be understood is read, nothing else, and the next
/// daemon removes nothing.
#[test]
fn a_damaged_byte_costs_its_frame_and_no_later_one_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let first = written_by_a_daemon(folder.path(), &[0], 1..5);
    let second = written_by_a_daemon(folder.path(), &[0], 5..9);
    let file = path(folder.path(), 1);
    let whole = fs::read(&file).unwrap();
    for at in MAGIC.len()..whole.len() {
        for flip in [1, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&file, &bytes).unwrap();
            let left = times(folder.path());
            let frame_of = |begins: &[u64]| begins.iter().rposition(|begin| *begin <= at as u64);
            let (daemon, frame) = match frame_of(&second) {
                Some(frame) => (1, frame),
                None => (0, frame_of(&first).unwrap()),
            };
            // Behind the daemon and the definitions.
            let damaged = frame
                .checked_sub(2)
                .map(|call| 1 + 4 * daemon + call as u64);
            let begin = if daemon == 0 {
                first[frame]
            } else {
                second[frame]
            };
            // The length, and the first byte of the content, which says that no other daemon begins.
            let says_what_it_is = [0, 1, 2, 3, 8].contains(&(at as u64 - begin));
            for number in 1..9 {
                let is_of_other = (number > 4) != (daemon == 1);
                let is_before = number <= 4 && daemon == 1;
                let must_be_there = is_before
                    || (is_of_other && frame != 0)
                    || (!says_what_it_is
                        && damaged.is_some_and(|damaged| damaged != number && !is_of_other));
                let is_there = left.contains(&number);
                assert!(is_there || !must_be_there, "{number} of {left:?} at {at}");
                assert!(!is_there || damaged != Some(number), "{left:?} at {at}");
            }
            // Of a daemon that is not known, nothing is given to the functions of the one before.
            if daemon == 1 && frame == 0 {
                let later = left.iter().filter(|number| **number > 4).count();
                assert!(later == 0 || later == 4, "{left:?} at {at}");
            }
            let is_last = daemon == 1 && frame + 1 == second.len();
            drop(Writer::open(folder.path(), ROOMY).unwrap());
            if !is_last {
                assert_eq!(fs::read(&file).unwrap(), bytes, "at {at}");
                assert_eq!(times(folder.path()), left, "at {at}");
                fs::remove_file(path(folder.path(), 2)).unwrap();
            }
        }
    }
}

#[test]
fn a_long_damaged_end_is_left_and_a_new_segment_begins() {
    let folder = tempfile::tempdir().unwrap();
    drop(written_by_a_daemon(folder.path(), &[0], 1..3));
    let file = path(folder.path(), 1);
    let mut bytes = fs::read(&file).unwrap();
    bytes.resize(bytes.len() + 2 * FRAME_BYTES_MAX, 0);
    fs::write(&file, &bytes).unwrap();
    let mut writer = Writer::open(folder.path(), ROOMY).unwrap();
    writer.append(&[call(3)]).unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes);
    assert_eq!(times(folder.path()), [1, 2, 3]);
}
