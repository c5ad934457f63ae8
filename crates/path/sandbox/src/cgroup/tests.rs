use super::*;

const LIMITS: Limits = Limits {
    memory_bytes: 256 << 20,
    cpu_milli: 500,
    cpu_period_us: CPU_PERIOD_US,
    cpu_weight: WEIGHT,
    pids: 64,
    freezable: true,
};

/// A cgroup v2 tree, recorded on a Debian 12 host. Plain files stand in for the kernel's.
pub(super) fn recorded_v2_tree(root: &Path) -> (String, String) {
    let own = root.join("system.slice/pilot.service");
    fs::create_dir_all(&own).unwrap();
    fs::write(
        own.join("cgroup.controllers"),
        "cpuset cpu io memory pids\n",
    )
    .unwrap();
    // The daemon is alone in it.
    fs::write(
        own.join("cgroup.procs"),
        format!("{}\n", std::process::id()),
    )
    .unwrap();
    let mounts = format!(
        "proc /proc proc rw,nosuid 0 0\ncgroup2 {} cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n",
        root.display()
    );
    (mounts, "0::/system.slice/pilot.service\n".to_owned())
}

#[test]
fn version_2_hands_controllers_down_and_writes_limits() {
    let root = tempfile::tempdir().unwrap();
    let (mounts, own) = recorded_v2_tree(root.path());
    let folder = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap();
    let base = root.path().join("system.slice/pilot.service");
    let read = |path: &str| fs::read_to_string(base.join(path)).unwrap();
    assert_eq!(read("pilotlight-daemon/cgroup.procs"), "0");
    assert_eq!(read("cgroup.subtree_control"), "+memory +cpu +pids");
    assert_eq!(
        read("pilotlight-1/cgroup.subtree_control"),
        "+memory +cpu +pids"
    );

    // The kernel creates these with the folder.
    let group = base.join("pilotlight-1/w1");
    let created = folder.create(Path::new("w1"), &LIMITS);
    assert!(created.is_err(), "plain folders have no cgroup.procs");
    assert_eq!(read("pilotlight-1/w1/memory.oom.group"), "1");
    fs::remove_dir_all(&group).unwrap();
    assert_eq!(folder.all(), [base.join("pilotlight-1")]);
    assert_eq!(
        folder.containers(),
        Path::new("/system.slice/pilot.service/pilotlight-1/containers")
    );
}

#[test]
fn a_daemons_folder_is_vacant_without_groups_of_sandboxes_builds_and_containers() {
    let root = tempfile::tempdir().unwrap();
    let base = root.path().join("pilotlightd-1");
    assert!(has_no_groups(&base), "it is gone");
    fs::create_dir_all(base.join("builds")).unwrap();
    fs::create_dir_all(base.join("containers")).unwrap();
    fs::write(base.join("tasks"), "").unwrap();
    assert!(has_no_groups(&base));
    for group in ["s2", "builds/s3", "containers/0123"] {
        fs::create_dir(base.join(group)).unwrap();
        assert!(!has_no_groups(&base), "{group}");
        fs::remove_dir(base.join(group)).unwrap();
    }
    assert!(has_no_groups(&base));
}

#[test]
fn version_2_without_a_controller_says_which() {
    let root = tempfile::tempdir().unwrap();
    let (mounts, own) = recorded_v2_tree(root.path());
    let file = root
        .path()
        .join("system.slice/pilot.service/cgroup.controllers");
    fs::write(file, "cpu pids\n").unwrap();
    let problem = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap_err();
    assert!(problem.contains("no memory controller"), "{problem}");
}

/// A cgroup v1 tree with the daemon in different groups. Plain files stand in for the kernel's.
pub(super) fn v1_tree(root: &Path) -> (String, String) {
    for folder in ["memory/user/me", "cpu,cpuacct", "pids"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let at = root.display();
    let mounts = format!(
        "cgroup {at}/memory cgroup rw,memory 0 0\ncgroup {at}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup {at}/pids cgroup rw,pids 0 0\n"
    );
    let own = "4:memory:/user/me\n3:cpu,cpuacct:/\n2:pids:/gone\n";
    (mounts, own.to_owned())
}

#[test]
fn version_1_folders_lie_beside_the_daemons_own_group() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let (mounts, own) = v1_tree(root.path());
    let folders = v1::Folders::make(&mounts, &own, "pilotlight-1").unwrap();
    assert_eq!(
        folders.all(),
        [
            path("memory/user/me/pilotlight-1"),
            path("cpu,cpuacct/pilotlight-1"),
            path("pids/pilotlight-1")
        ]
    );
}

/// An engine names its groups as in the hierarchy of memory, in all of them. runc does so in version 2 too, where it is mounted beside
/// version 1.
#[test]
fn where_only_an_engine_makes_folders_is_known_too() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let (mut mounts, own) = v1_tree(root.path());
    let at = root.path().display();
    mounts +=
        &format!("cgroup {at}/blkio cgroup rw,blkio 0 0\ncgroup2 {at}/unified cgroup2 rw 0 0\n");
    let folders = v1::Folders::make(&mounts, &own, "pilotlight-1").unwrap();
    let own = "user/me/pilotlight-1";
    assert_eq!(
        folders.engines(),
        ["cpu,cpuacct", "pids", "blkio", "unified"].map(|mount| path(mount).join(own))
    );
}

#[test]
fn a_tiny_cpu_share_is_the_smallest_the_kernel_takes() {
    let limits = Limits {
        cpu_milli: 1,
        ..LIMITS
    };
    assert_eq!(limits.cpu_quota_us(), 1_000);
    assert_eq!(LIMITS.cpu_quota_us(), 50_000);
}

/// A group of version 2 in a tree of plain files.
fn v2_group(root: &Path) -> (Cgroup, PathBuf) {
    let (mounts, own) = recorded_v2_tree(root);
    let folder = v2::Folder::make(&mounts, &own, "pilotlight-1").unwrap();
    let group = root.join("system.slice/pilot.service/pilotlight-1/w1");
    fs::create_dir(&group).unwrap();
    for (file, text) in [
        ("cgroup.procs", ""),
        ("cgroup.freeze", "0"),
        ("cpu.max", "50000 100000"),
        ("memory.current", "4096\n"),
        ("memory.swap.max", "0"),
    ] {
        fs::write(group.join(file), text).unwrap();
    }
    let inner = Inner {
        layout: Layout::V2(folder),
        _locks: Vec::new(),
        leftover: Mutex::default(),
        ended: EndedGroups::default(),
        demoter: Demoter::default(),
    };
    let files = Files {
        name: PathBuf::from("w1"),
        folders: vec![group.clone()],
        join: Vec::new(),
        processes: File::open(group.join("cgroup.procs")).unwrap(),
        peak: None,
        oom: group.join("memory.events"),
        own_limit: OwnLimit::Counted,
        share: CpuShare::new(
            group.join("cpu.weight"),
            v2::WEIGHT_SCALE,
            cpu::Counters::v2(&group),
        ),
        freeze: freezer::open(&group).ok(),
    };
    let cgroup = Cgroup {
        hierarchy: Hierarchy {
            inner: Arc::new(inner),
        },
        branch: Branch::Functions,
        files,
        limits: Mutex::new(LIMITS),
        before: Mutex::default(),
        rested: Mutex::new(None),
        owner: Mutex::new(None),
        blamed: Mutex::new(None),
    };
    (cgroup, group)
}

#[test]
fn version_2_freezes_reclaims_throttles_and_wakes() {
    let root = tempfile::tempdir().unwrap();
    let (cgroup, group) = v2_group(root.path());
    let read = |file: &str| fs::read_to_string(group.join(file)).unwrap();
    cgroup.wake().unwrap();
    cgroup.reclaim().unwrap();
    assert_eq!(read("cgroup.freeze"), "0", "it does not rest");
    assert!(!group.join("memory.reclaim").exists(), "it does not rest");
    cgroup.rest(Rest::Freeze).unwrap();
    assert_eq!(read("cgroup.freeze"), "1");
    cgroup.reclaim().unwrap();
    assert_eq!(
        (&*read("memory.reclaim"), &*read("memory.swap.max")),
        ("4096", "max")
    );
    cgroup.wake().unwrap();
    assert_eq!(
        (&*read("cgroup.freeze"), &*read("memory.swap.max")),
        ("0", "0")
    );
    cgroup.rest(Rest::Throttle).unwrap();
    assert_eq!(read("cpu.max"), "1000 100000");
    cgroup.wake().unwrap();
    assert_eq!(read("cpu.max"), "50000 100000");
}

#[test]
fn beside_version_1_the_folder_of_version_2_freezes_if_the_kernel_can() {
    let root = tempfile::tempdir().unwrap();
    let (mounts, own) = v1_tree(root.path());
    let none = v2::own_folder(&mounts, &own);
    assert_eq!(none, None, "version 2 is not mounted");
    let unified = root.path().join("unified");
    let mounts = format!("{mounts}cgroup2 {} cgroup2 rw 0 0\n", unified.display());
    let own = format!("{own}0::/me\n");
    // The kernel makes the files with the folder; one before 5.2 makes no `cgroup.freeze`.
    let folder = unified.join("me/pilotlight-1");
    fs::create_dir_all(&folder).unwrap();
    let base = v2::own_folder(&mounts, &own).unwrap();
    assert_eq!(freezer::make(&base, "pilotlight-1"), None);
    fs::write(folder.join("cgroup.freeze"), "0").unwrap();
    assert_eq!(freezer::make(&base, "pilotlight-1"), Some(folder.clone()));
    assert_eq!(
        fs::read_to_string(folder.join("cgroup.type")).unwrap(),
        "threaded"
    );
}
