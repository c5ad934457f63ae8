use super::super::total::tests::hierarchy;
use super::super::{tests, v1, v2};
use super::*;

const LIMIT: u64 = 128 << 20;

/// The daemon's groups in version 1 and in version 2. Plain files stand in for the kernel's.
fn both(root: &Path) -> [Hierarchy; 2] {
    let (one, two) = (root.join("one"), root.join("two"));
    let (mounts, own) = tests::v1_tree(&one);
    let folders = v1::Folders::make(&mounts, &own, "pilotlight-1").unwrap();
    let (mounts, own) = tests::recorded_v2_tree(&two);
    let folder = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap();
    [Layout::V1(folders), Layout::V2(folder)].map(hierarchy)
}

/// A group with this memory of programs, and as much of shared memory, in files and in the kernel.
fn end(ours: &Hierarchy, name: &str, owner: &str, sizes: [u64; 4]) -> PathBuf {
    let folder = ours.inner.layout.memory().join(name);
    fs::create_dir(&folder).unwrap();
    let [program, shared, files, _] = sizes;
    let all: u64 = sizes.iter().sum();
    let (usage, anon) = match ours.version() {
        1 => ("memory.usage_in_bytes", "rss"),
        _ => ("memory.current", "anon"),
    };
    let stat = format!(
        "{anon} {program}\nshmem {shared}\nunevictable 7\nactive_file {}\ninactive_file {}\n",
        files / 2,
        files / 2
    );
    fs::write(folder.join(usage), format!("{all}\n")).unwrap();
    fs::write(folder.join("memory.stat"), stat).unwrap();
    let ended = EndedGroup {
        owner: Owner {
            version: VersionId::from_hex(owner),
            function: owner.parse().unwrap(),
            handed_over_bytes_max: 0,
        },
        folders: vec![folder.clone()],
        memory: folder.clone(),
        bytes_max: LIMIT,
        vacant_since: Instant::now().checked_sub(FREED_AFTER),
        left_bytes: 0,
        reclaims_left: RECLAIMS,
    };
    ours.inner.ended.groups.lock().push(ended);
    folder
}

/// A look without the pause before it. Who was told before is told again.
fn look(ours: &Hierarchy) -> Vec<LeftBehind> {
    *ours.inner.ended.looks.lock() = Looks::default();
    ours.look_at_ended()
}

fn clear(folder: &Path) {
    for file in fs::read_dir(folder).unwrap().flatten() {
        fs::remove_file(file.path()).unwrap();
    }
}

#[test]
fn what_ended_workers_have_left_is_counted_for_their_function_until_it_is_free() {
    let root = tempfile::tempdir().unwrap();
    for ours in both(root.path()) {
        let first = end(&ours, "s1", "f", [0, 70 << 20, 0, 0]);
        let second = end(&ours, "s2", "f", [1 << 20, 56 << 20, 0, 0]);
        let other = end(&ours, "s3", "g", [0, 127 << 20, 0, 0]);
        assert_eq!(look(&ours), [], "version {}", ours.version());
        let third = end(&ours, "s4", "f", [2 << 20, 0, 0, 0]);
        let left = look(&ours);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].owner.function.as_str(), "f");
        assert_eq!((left[0].bytes, left[0].groups), (129 << 20, 3));
        assert_eq!(left[0].bytes_max, LIMIT);
        ours.inner.ended.looks.lock().due = None;
        assert_eq!(ours.look_at_ended(), [], "it was just told");

        for group in [&first, &second, &third] {
            clear(group);
        }
        assert_eq!(look(&ours), []);
        assert!(!first.exists() && !second.exists() && !third.exists() && other.exists());
        assert!(!ours.is_vacant());
        clear(&other);
        assert!(ours.is_vacant() && !ours.has_ended_groups());
    }
}

#[test]
fn files_and_what_the_kernel_can_free_are_not_left_and_its_buffers_are() {
    let root = tempfile::tempdir().unwrap();
    for ours in both(root.path()) {
        end(&ours, "s1", "f", [64 << 10, 64 << 10, 900 << 20, 1 << 20]);
        end(&ours, "s2", "f", [0, 0, 0, 200 << 20]);
        for _ in 1..RECLAIMS {
            assert_eq!(look(&ours), [], "the kernel was asked to free some");
        }
        let left = look(&ours);
        assert_eq!((left[0].bytes, left[0].groups), (200 << 20, 1));
    }
}

#[test]
fn a_group_with_processes_has_left_nothing() {
    let root = tempfile::tempdir().unwrap();
    for ours in both(root.path()) {
        let group = end(&ours, "s1", "f", [200 << 20, 0, 0, 0]);
        let threads = ["tasks", "cgroup.threads"][usize::from(ours.version()) - 1];
        fs::write(group.join(threads), "1234\n").unwrap();
        assert_eq!(look(&ours), []);
        fs::write(group.join(threads), "").unwrap();
        assert_eq!(look(&ours), [], "its /tmp may not be freed yet");
        ours.inner.ended.groups.lock()[0].vacant_since = Instant::now().checked_sub(FREED_AFTER);
        assert_eq!(look(&ours).len(), 1);
    }
}

#[test]
fn many_groups_with_little_are_too_much() {
    let root = tempfile::tempdir().unwrap();
    let [ours, _] = both(root.path());
    for number in 0..GROUPS_MAX {
        end(&ours, &format!("s{number}"), "f", [0, 129 << 10, 0, 0]);
    }
    assert_eq!(look(&ours), []);
    end(&ours, "last", "f", [0, 129 << 10, 0, 0]);
    assert_eq!(look(&ours).len(), 1);
}

#[test]
fn buffers_that_a_function_may_hand_over_are_added_to_what_it_may_leave() {
    const SHARE: u64 = 64 << 20;
    let alone = pilot_testkit::version_with("f", 1, |_| ());
    let invokes = pilot_testkit::version_with("f", 1, |config| {
        config.invokes.names = vec!["g".to_owned()];
    });
    assert_eq!(Owner::of(&alone, SHARE).handed_over_bytes_max, 0);
    let owner = Owner::of(&invokes, SHARE);
    assert_eq!(owner.handed_over_bytes_max, SHARE);
    let left = |groups: u64, bytes: u64| LeftBehind {
        owner: owner.clone(),
        bytes,
        bytes_max: LIMIT + SHARE,
        groups: usize::try_from(groups).unwrap(),
    };
    let small = SHARE / USED_BYTES_MAX;
    assert!(!left(small, SHARE).is_too_much());
    assert!(left(small + 257, SHARE).is_too_much());
    assert!(left(1, LIMIT + SHARE + 1).is_too_much());
}
