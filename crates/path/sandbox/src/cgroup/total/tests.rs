use std::sync::Arc;

use super::super::{
    Inner, Layout, lock, lock_of_ended, remove_orphans, remove_tree, tests, v1, v2,
};
use super::*;

const TOTAL: TotalLimits = TotalLimits {
    memory_bytes: 3 << 30,
    pids: 900,
    builds_memory_bytes: 1 << 30,
};

pub(in super::super) fn hierarchy(layout: Layout) -> Hierarchy {
    Hierarchy {
        inner: Arc::new(Inner {
            layout,
            _locks: Vec::new(),
            leftover: parking_lot::Mutex::default(),
            ended: super::super::EndedGroups::default(),
            demoter: super::super::demotion::Demoter::default(),
        }),
    }
}

#[test]
fn version_2_limits_everything_and_all_builds() {
    let root = tempfile::tempdir().unwrap();
    let (mounts, own) = tests::recorded_v2_tree(root.path());
    let service = root.path().join("system.slice/pilot.service");
    for (folder, limit) in [
        ("", "max"),
        ("system.slice", "8589934592"),
        ("system.slice/pilot.service", "4294967296"),
    ] {
        fs::write(root.path().join(folder).join("memory.max"), limit).unwrap();
        fs::write(root.path().join(folder).join("pids.max"), "max\n").unwrap();
    }
    let folder = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap();
    let ours = hierarchy(Layout::V2(folder));
    // The kernel creates it with the folder.
    fs::write(service.join("pilotlight-1/memory.swap.max"), "max").unwrap();
    ours.limit_total(&TOTAL).unwrap();
    let read = |path: &str| fs::read_to_string(service.join(path)).unwrap();
    assert_eq!(read("pilotlight-1/memory.max"), "3221225472");
    assert_eq!(read("pilotlight-1/memory.swap.max"), "0");
    assert_eq!(read("pilotlight-1/pids.max"), "900");
    assert_eq!(read("pilotlight-1/builds/memory.max"), "1073741824");
    assert_eq!(
        read("pilotlight-1/builds/cgroup.subtree_control"),
        "+memory +cpu +pids"
    );
    assert_eq!(
        ours.around(),
        Around {
            memory_bytes: Some(4 << 30),
            pids: None
        }
    );

    // The group's own events, not those of the groups in it.
    let tell = |group: &str, count: u32| {
        let file = service.join(group).join("memory.events.local");
        fs::write(file, format!("max 7\noom {count}\noom_kill 0\n")).unwrap();
    };
    let short = |branch| ours.shortage_around(branch);
    tell("pilotlight-1", 0);
    tell("pilotlight-1/builds", 0);
    assert_eq!(short(Branch::Functions), MemoryShortage::Outside);
    tell("pilotlight-1/builds", 1);
    assert_eq!(short(Branch::Builds), MemoryShortage::Builds);
    assert_eq!(short(Branch::Functions), MemoryShortage::Outside);
    tell("pilotlight-1", 2);
    assert_eq!(short(Branch::Functions), MemoryShortage::Total);
}

#[test]
fn version_1_limits_everything_and_all_builds() {
    let root = tempfile::tempdir().unwrap();
    let (mounts, own) = tests::v1_tree(root.path());
    let memory = root.path().join("memory");
    fs::write(memory.join("user/memory.limit_in_bytes"), "2147483648\n").unwrap();
    let unlimited = "9223372036854771712\n";
    fs::write(memory.join("user/me/memory.limit_in_bytes"), unlimited).unwrap();
    fs::write(root.path().join("pids/pids.max"), "max\n").unwrap();
    let folders = v1::Folders::make(&mounts, &own, "pilotlight-1").unwrap();
    let ours = hierarchy(Layout::V1(folders));
    let group = memory.join("user/me/pilotlight-1");
    for folder in ["", "builds"] {
        for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
            fs::write(group.join(folder).join(file), unlimited).unwrap();
        }
    }
    ours.limit_total(&TOTAL).unwrap();
    let read = |path: &str| fs::read_to_string(group.join(path)).unwrap();
    for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
        assert_eq!(read(file), "3221225472");
        assert_eq!(read(&format!("builds/{file}")), "1073741824");
    }
    let pids = root.path().join("pids/pilotlight-1/pids.max");
    assert_eq!(fs::read_to_string(pids).unwrap(), "900");
    assert_eq!(
        ours.around(),
        Around {
            memory_bytes: Some(2 << 30),
            pids: None
        }
    );

    let peak = |folder: &str, bytes: u64| {
        let file = group.join(folder).join("memory.max_usage_in_bytes");
        fs::write(file, format!("{bytes}\n")).unwrap();
    };
    peak("", 2 << 30);
    peak("builds", 1 << 30);
    assert_eq!(
        ours.shortage_around(Branch::Functions),
        MemoryShortage::Outside
    );
    assert_eq!(ours.shortage_around(Branch::Builds), MemoryShortage::Builds);
    peak("", 3 << 30);
    assert_eq!(
        ours.shortage_around(Branch::Functions),
        MemoryShortage::Total
    );
}

#[test]
fn what_cannot_be_written_is_named() {
    let root = tempfile::tempdir().unwrap();
    let (mounts, own) = tests::recorded_v2_tree(root.path());
    let folder = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap();
    let group = folder.path().to_owned();
    let ours = hierarchy(Layout::V2(folder));
    fs::create_dir(group.join("memory.max")).unwrap();
    let problem = ours.limit_total(&TOTAL).unwrap_err().to_string();
    assert!(problem.contains("pilotlight-1"), "{problem}");
}

#[test]
fn groups_of_a_daemon_that_runs_stay_whatever_its_process_id() {
    let root = tempfile::tempdir().unwrap();
    let folder = |name: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(path.join("builds")).unwrap();
        path
    };
    let own = folder("pilotlightd-7-aaaaa");
    // No process of this PID namespace has the id 0.
    let (running, ended) = (folder("pilotlightd-0-bbbbb"), folder("pilotlightd-0-ccccc"));
    let older = folder(&format!("pilotlight-{}", std::process::id()));
    let older_ended = folder("pilotlight-0");
    let locks = lock(std::slice::from_ref(&running)).unwrap();
    remove_orphans(&own, lock_of_ended);
    assert!(own.exists() && running.exists() && older.exists());
    assert!(!ended.exists() && !older_ended.exists());
    drop(locks);
    remove_orphans(&own, lock_of_ended);
    assert!(!running.exists());
    assert!(lock(&[running]).is_err());
}

#[test]
fn groups_whose_last_process_has_not_ended_are_returned_to_be_removed_later() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("pilotlightd-7-aaaaa");
    let ended = root.path().join("pilotlightd-0-ccccc");
    let inner = ended.join("s3");
    fs::create_dir_all(&own).unwrap();
    fs::create_dir_all(&inner).unwrap();
    // An ordinary folder cannot be removed as long as it has a file.
    fs::write(inner.join("a process"), "").unwrap();
    let busy = remove_orphans(&own, lock_of_ended);
    assert_eq!(busy, [inner.clone(), ended.clone()]);
    fs::remove_file(inner.join("a process")).unwrap();
    assert!(busy.iter().all(|folder| super::super::remove(folder)));
    assert!(!ended.exists());
}

#[test]
fn groups_of_an_ended_daemon_are_removed_with_what_is_in_them() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("pilotlight-1/builds/s3")).unwrap();
    remove_tree(&root.path().join("pilotlight-1"), 3, &mut Vec::new());
    assert!(!root.path().join("pilotlight-1").exists());
}

#[test]
fn daemons_that_start_at_the_same_time_keep_their_groups() {
    let root = tempfile::tempdir().unwrap();
    let starts = |daemon: usize| {
        for start in 0..50 {
            let own = root.path().join(format!("pilotlightd-{daemon}-{start:05}"));
            let _locks = loop {
                let made = fs::create_dir_all(own.join("builds"));
                if let (Ok(()), Ok(locks)) = (made, lock(std::slice::from_ref(&own))) {
                    break locks;
                }
            };
            remove_orphans(&own, lock_of_ended);
            assert!(own.join("builds").exists(), "{}", own.display());
        }
    };
    std::thread::scope(|scope| {
        for daemon in 0..4 {
            scope.spawn(move || starts(daemon));
        }
    });
}
