//! Where a daemon's folder can be. A group may not contain processes and enable controllers for its children ("no internal processes");
//! only the machine's root may. The group that the daemon finds itself in contains the daemon, at least.
//!
//! 1. If the daemon is alone there, as in a service or scope of systemd, it moves into a leaf, and its folder lies beside.
//! 2. Otherwise, as in a shell, its folder goes into a group around that one: the nearest that enables the controllers for its children
//!    anyway, else the nearest that can. The daemon stays where it is.
//! 3. In a container there may be none around. Then all processes of the group move into a leaf. Container engines in containers do the
//!    same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::CONTROLLERS;

/// Makes the folder `name` for the daemon, whose group is `own`, with controllers for the groups in it.
///
/// # Errors
/// Why it can be nowhere.
pub(super) fn make(mount: &Path, own: &Path, name: &str) -> Result<PathBuf, String> {
    let around: Vec<&Path> = own
        .ancestors()
        .skip(1)
        .take_while(|group| group.starts_with(mount))
        .collect();
    let (given, others): (Vec<&Path>, Vec<&Path>) =
        around.into_iter().partition(|group| hands_down_all(group));
    let mut problems = Vec::new();
    let mut attempt = |place: &Path, ready: &dyn Fn(&Path) -> io::Result<()>| {
        let made = lacks_none(place).and_then(|()| ready(place));
        let made = made.and_then(|()| make_in(place, name));
        made.map_err(|error| problems.push(format!("v2 {}: {error}", place.display())))
            .ok()
    };
    let found = attempt(own, &alone_in)
        .or_else(|| {
            given
                .iter()
                .chain(&others)
                .copied()
                .find_map(|place| attempt(place, &hand_down))
        })
        // The machine's root is the only group without this file.
        .or_else(|| {
            let is_container = own == mount && own.join("cgroup.type").exists();
            is_container.then(|| attempt(own, &vacate)).flatten()
        });
    found.ok_or_else(|| {
        // The first says what is wrong where the daemon is, the last what is wrong around it.
        problems.dedup();
        let last = problems.pop().unwrap_or_default();
        problems.truncate(1);
        problems.push(last);
        problems.join("; ")
    })
}

fn make_in(place: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = place.join(name);
    fs::create_dir_all(&folder)?;
    if let Err(error) = hand_down(&folder) {
        let _ = fs::remove_dir(&folder);
        return Err(error);
    }
    Ok(folder)
}

/// Enables the controllers for a group's children.
pub(super) fn hand_down(group: &Path) -> io::Result<()> {
    if hands_down_all(group) {
        return Ok(());
    }
    let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    fs::write(group.join(CONTROL), wanted).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::other("it contains processes"),
        _ => error,
    })
}

fn hands_down_all(group: &Path) -> bool {
    lacking(&group.join(CONTROL)).is_ok_and(|lacking| lacking.is_none())
}

fn lacks_none(group: &Path) -> io::Result<()> {
    match lacking(&group.join("cgroup.controllers"))? {
        None => Ok(()),
        Some(controller) => Err(io::Error::other(format!(
            "there is no {controller} controller"
        ))),
    }
}

/// The first of the controllers that is not in this file.
fn lacking(file: &Path) -> io::Result<Option<&'static str>> {
    let listed = fs::read_to_string(file)?;
    let lacks = |wanted: &&str| !listed.split_whitespace().any(|name| name == *wanted);
    Ok(CONTROLLERS.into_iter().find(lacks))
}

/// Enables the controllers for the children of the daemon's own group, if nobody else is in it.
fn alone_in(own: &Path) -> io::Result<()> {
    if processes(own)? == [std::process::id()] {
        move_to_leaf(own, &[0])?;
    }
    hand_down(own)
}

/// The same, and moves everybody else.
fn vacate(own: &Path) -> io::Result<()> {
    // Processes that are made in the meantime are found the next time.
    for _ in 1..VACATE_ROUNDS {
        move_to_leaf(own, &processes(own)?)?;
        if hand_down(own).is_ok() {
            return Ok(());
        }
    }
    hand_down(own)
}

/// Moves these processes to a leaf of their group. 0 is the caller.
fn move_to_leaf(group: &Path, processes: &[u32]) -> io::Result<()> {
    let leaf = group.join(LEAF);
    fs::create_dir_all(&leaf)?;
    for process in processes {
        match fs::write(leaf.join("cgroup.procs"), process.to_string()) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            moved => moved?,
        }
    }
    Ok(())
}

/// The processes of a group, without those that the caller's PID namespace does not have.
fn processes(group: &Path) -> io::Result<Vec<u32>> {
    let listed = fs::read_to_string(group.join("cgroup.procs"))?;
    let numbers = listed.lines().filter_map(|line| line.parse().ok());
    Ok(numbers.filter(|number| *number != 0).collect())
}

const CONTROL: &str = "cgroup.subtree_control";
/// The group of the daemon, and of what was there with it.
const LEAF: &str = "pilotlight-daemon";
const VACATE_ROUNDS: u32 = 10;

#[cfg(test)]
mod tests;
