//! The control groups of daemons, wherever they are: in version 2 a daemon's folder is not always in its own group.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the daemon with this process id, one per hierarchy. Another daemon that was killed long ago may have had the same
/// id, and have left its own: those of the newest are meant.
#[must_use]
pub fn groups_of(daemon: i32) -> Vec<PathBuf> {
    let prefix = format!("pilotlightd-{daemon}-");
    let mut found = Vec::new();
    let mut folders = vec![(PathBuf::from("/sys/fs/cgroup"), DEPTH_MAX)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                found.push(entry.path());
            } else if depth > 0 {
                folders.push((entry.path(), depth - 1));
            }
        }
    }
    let newest = found
        .iter()
        .filter_map(|path| Some((fs::metadata(path).ok()?.modified().ok()?, path.file_name()?)))
        .max()
        .map(|(_, name)| name.to_owned());
    found.retain(|path| path.file_name() == newest.as_deref());
    found
}

/// The folder of the daemon that has this file, which is in one hierarchy only.
///
/// # Panics
/// If there is none.
#[must_use]
#[track_caller]
pub fn group_with(daemon: i32, file: impl AsRef<Path>) -> PathBuf {
    let mut groups = groups_of(daemon).into_iter();
    groups
        .find(|group| group.join(&file).exists())
        .unwrap_or_else(|| {
            panic!(
                "daemon {daemon} has no group with {}",
                file.as_ref().display()
            )
        })
}

/// Levels of groups above a daemon's folder.
const DEPTH_MAX: u32 = 6;
