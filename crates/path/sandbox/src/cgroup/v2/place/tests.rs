//! Trees of plain files stand in for the kernel's; `tests/vm` has the kernel's own.

use super::*;

const ALL: &str = "cpuset cpu io memory pids\n";

/// A group with the controllers that it has and those that it hands down.
fn group(root: &Path, path: &str, controllers: &str, handed_down: &str) -> PathBuf {
    let folder = root.join(path);
    fs::create_dir_all(&folder).unwrap();
    for (file, text) in [
        ("cgroup.controllers", controllers),
        (CONTROL, handed_down),
        ("cgroup.procs", "1\n4711\n"),
    ] {
        fs::write(folder.join(file), text).unwrap();
    }
    folder
}

/// The groups of a login shell, as Debian 12 has them.
fn of_a_shell(root: &Path, handed_down_by_root: &str) -> PathBuf {
    group(root, "", ALL, handed_down_by_root);
    group(root, "user.slice", ALL, "memory pids\n");
    group(
        root,
        "user.slice/user-0.slice",
        "memory pids\n",
        "memory pids\n",
    );
    let own = "user.slice/user-0.slice/session-1.scope";
    group(root, own, "memory pids\n", "")
}

fn read(group: &Path, file: &str) -> String {
    fs::read_to_string(group.join(file)).unwrap()
}

#[test]
fn beside_other_processes_the_folder_lies_where_controllers_are_handed_down() {
    let root = tempfile::tempdir().unwrap();
    let own = of_a_shell(root.path(), ALL);
    let folder = make(root.path(), &own, "pilotlightd-1").unwrap();
    assert_eq!(folder, root.path().join("pilotlightd-1"));
    assert_eq!(read(&folder, CONTROL), "+memory +cpu +pids");
    assert_eq!(read(root.path(), CONTROL), ALL, "it is as it was");
    assert!(!own.join(LEAF).exists(), "the daemon stays in its group");
}

#[test]
fn where_none_hands_them_down_the_nearest_group_that_has_them_does() {
    let root = tempfile::tempdir().unwrap();
    let own = of_a_shell(root.path(), "memory pids\n");
    let folder = make(root.path(), &own, "pilotlightd-1").unwrap();
    assert_eq!(folder, root.path().join("user.slice/pilotlightd-1"));
    let slice = root.path().join("user.slice");
    assert_eq!(read(&slice, CONTROL), "+memory +cpu +pids");
    assert_eq!(read(root.path(), CONTROL), "memory pids\n");
}

#[test]
fn in_a_container_everybody_moves_into_a_leaf() {
    let root = tempfile::tempdir().unwrap();
    let own = group(root.path(), "", ALL, "");
    fs::write(own.join("cgroup.type"), "domain\n").unwrap();
    // It cannot be written, as in the kernel while processes are there.
    fs::remove_file(own.join(CONTROL)).unwrap();
    fs::create_dir(own.join(CONTROL)).unwrap();
    make(root.path(), &own, "pilotlightd-1").unwrap_err();
    assert_eq!(read(&own.join(LEAF), "cgroup.procs"), "4711", "the last");
}

#[test]
fn what_is_wrong_is_said_of_the_daemons_group_and_of_the_last_one_around_it() {
    let root = tempfile::tempdir().unwrap();
    group(root.path(), "", "memory pids\n", "");
    let own = group(root.path(), "one", "pids\n", "");
    let problem = make(root.path(), &own, "pilotlightd-1").unwrap_err();
    let expected = format!(
        "v2 {}: there is no memory controller; v2 {}: there is no cpu controller",
        own.display(),
        root.path().display()
    );
    assert_eq!(problem, expected);
}
