//! Which files were received, and which folder they were in. Another folder can come to the path of a trigger: a disk is mounted
//! there later, or is gone, or the folder is made again. Files of the folder before are not in a listing then, but they are not
//! deleted.
//!
//! Device and inode tell folders apart (stat(2)). They decide only what is forgotten, because after a restart of the machine,
//! NFS, tmpfs, btrfs, overlayfs and disks that were found in another order have other device numbers: a file with the name,
//! inode, size and time of a received one is that file, whatever folder it was in.

use std::collections::{HashMap, VecDeque};
use std::fs::Metadata;
use std::mem;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use tokio::time::Instant;

use super::{FILES_MAX, MARKS_OF_A_COMMIT};

/// Which folder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FolderId {
    device: u64,
    inode: u64,
}

impl FolderId {
    /// Of marks that have no folder, as an earlier Pilotlight wrote them. No folder has this inode.
    const UNKNOWN: Self = Self {
        device: 0,
        inode: 0,
    };

    pub(super) fn of(folder: &Metadata) -> Self {
        Self {
            device: folder.dev(),
            inode: folder.ino(),
        }
    }

    /// The key of the mark of one of its files. A name has no `/`.
    fn key(self, name: &str) -> String {
        if self == Self::UNKNOWN {
            return name.to_owned();
        }
        format!("{:x}-{:x}/{name}", self.device, self.inode)
    }

    fn of_key(key: &str) -> (Self, &str) {
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let read = key.split_once('/').and_then(|(folder, name)| {
            let (device, inode) = folder.split_once('-')?;
            let (device, inode) = (number(device)?, number(inode)?);
            Some((Self { device, inode }, name))
        });
        read.unwrap_or((Self::UNKNOWN, key))
    }
}

/// The key of a mark, and what it becomes. `None`: it is forgotten.
pub(super) type Change = (String, Option<String>);
/// States of files, by their names.
type States = HashMap<String, String>;

/// The received files, as they were: [`FILES_MAX`] at most, those of all folders together.
#[derive(Debug)]
pub(super) struct Known {
    /// The folder that is watched.
    folder: FolderId,
    since: Instant,
    /// Its files.
    here: States,
    /// Those of other folders. The folder that was left first is the first.
    away: VecDeque<(FolderId, States)>,
}

impl Known {
    /// Reads the marks. No folder is watched yet.
    pub(super) fn read(marks: Vec<(String, String)>) -> Self {
        let mut away: VecDeque<(FolderId, States)> = VecDeque::new();
        for (key, state) in marks {
            let (folder, name) = FolderId::of_key(&key);
            let found = away.iter().position(|(other, _)| *other == folder);
            let at = found.unwrap_or(away.len());
            if found.is_none() {
                away.push_back((folder, States::new()));
            }
            if let Some((_, states)) = away.get_mut(at) {
                states.insert(name.to_owned(), state);
            }
        }
        Self {
            folder: FolderId::UNKNOWN,
            since: Instant::now(),
            here: States::new(),
            away,
        }
    }

    pub(super) fn folder(&self) -> FolderId {
        self.folder
    }

    /// This folder is watched from now on.
    pub(super) fn enter(&mut self, folder: FolderId) -> Vec<Change> {
        self.since = Instant::now();
        let found = self.away.iter().position(|(other, _)| *other == folder);
        let here = found.and_then(|at| self.away.remove(at));
        let here = here.map_or_else(States::new, |(_, states)| states);
        let left = (self.folder, mem::replace(&mut self.here, here));
        self.folder = folder;
        self.away.push_back(left);
        self.away.retain(|(_, states)| !states.is_empty());
        let surplus = self.away.len().saturating_sub(AWAY_MAX);
        forgotten(self.away.drain(..surplus))
    }

    /// The files of the folder.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.here.keys()
    }

    /// Whether this state of a file was received. A file that was in another folder is in this one from now on.
    pub(super) fn has(&mut self, name: &str, state: &str, changes: &mut Vec<Change>) -> bool {
        let is_it = |states: &States| states.get(name).is_some_and(|known| known == state);
        if is_it(&self.here) {
            return true;
        }
        let found = self.away.iter_mut().find(|(_, states)| is_it(states));
        let Some((folder, states)) = found else {
            return false;
        };
        states.remove(name);
        // In this order: a crash between two commits leaves both.
        changes.push((self.folder.key(name), Some(state.to_owned())));
        changes.push((folder.key(name), None));
        self.add(name.to_owned(), state.to_owned());
        true
    }

    pub(super) fn key(&self, name: &str) -> String {
        self.folder.key(name)
    }

    pub(super) fn add(&mut self, name: String, state: String) {
        self.here.insert(name, state);
    }

    /// A file of the folder is deleted.
    pub(super) fn forget(&mut self, name: &str) -> Option<Change> {
        self.here.remove(name)?;
        Some((self.folder.key(name), None))
    }

    pub(super) fn is_full(&self) -> bool {
        let away = self.away.iter().map(|(_, states)| states.len());
        self.here.len() + away.sum::<usize>() >= FILES_MAX
    }

    /// Forgets files of the folder that was left first. Nothing: there is no other folder.
    pub(super) fn make_room(&mut self) -> Vec<Change> {
        self.away.retain(|(_, states)| !states.is_empty());
        let Some((folder, states)) = self.away.front_mut() else {
            return Vec::new();
        };
        let names = states.keys().take(MARKS_OF_A_COMMIT).cloned();
        let names: Vec<String> = names.collect();
        for name in &names {
            states.remove(name);
        }
        names.iter().map(|name| (folder.key(name), None)).collect()
    }

    /// Forgets the other folders if this one has been watched for long. No calendar says how long, because a machine without a
    /// clock of its own starts in the past.
    pub(super) fn forget_others(&mut self) -> Vec<Change> {
        if self.since.elapsed() < AWAY_KEPT {
            return Vec::new();
        }
        forgotten(self.away.drain(..))
    }
}

fn forgotten(folders: impl Iterator<Item = (FolderId, States)>) -> Vec<Change> {
    let names = folders.flat_map(|(folder, states)| {
        let names = states.into_keys();
        names.map(move |name| (folder.key(&name), None))
    });
    names.collect()
}

/// Other folders whose files are remembered.
const AWAY_MAX: usize = 8;
/// For so long.
const AWAY_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(inode: u64) -> FolderId {
        FolderId { device: 5, inode }
    }

    fn mark(key: &str, state: &str) -> (String, String) {
        (key.to_owned(), state.to_owned())
    }

    fn keys(changes: &[Change]) -> Vec<(&str, Option<&str>)> {
        let changes = changes.iter();
        changes
            .map(|(key, value)| (key.as_str(), value.as_deref()))
            .collect()
    }

    #[test]
    fn files_of_another_folder_are_remembered_until_that_one_is_there_again() {
        let mut known = Known::read(vec![mark("5-1/a", "1"), mark("5-1/b", "2")]);
        assert!(known.enter(folder(2)).is_empty());
        assert_eq!(known.names().count(), 0);
        known.add("a".to_owned(), "3".to_owned());
        known.enter(folder(1));
        let mut changes = Vec::new();
        assert!(known.has("a", "1", &mut changes) && known.has("b", "2", &mut changes));
        assert!(changes.is_empty(), "{changes:?}");
        let forgotten = known.forget("b").unwrap();
        assert_eq!(keys(&[forgotten]), [("5-1/b", None)]);
        assert!(!known.has("b", "2", &mut changes));
    }

    #[test]
    fn a_file_is_known_after_the_device_number_has_changed() {
        // The second one is from an earlier Pilotlight.
        let mut known = Known::read(vec![mark("4-1/a", "1"), mark("b", "2")]);
        known.enter(folder(1));
        let mut changes = Vec::new();
        assert!(!known.has("a", "2", &mut changes));
        for (name, state) in [("a", "1"), ("b", "2"), ("a", "1")] {
            assert!(known.has(name, state, &mut changes), "{name}");
        }
        let moved = [
            ("5-1/a", Some("1")),
            ("4-1/a", None),
            ("5-1/b", Some("2")),
            ("b", None),
        ];
        assert_eq!(keys(&changes), moved);
    }

    #[tokio::test(start_paused = true)]
    async fn other_folders_have_bounds() {
        let mut known = Known::read(Vec::new());
        for inode in 1..=AWAY_MAX as u64 + 1 {
            assert!(known.enter(folder(inode)).is_empty());
            known.add("a".to_owned(), "1".to_owned());
        }
        assert_eq!(keys(&known.enter(folder(0xff))), [("5-1/a", None)]);
        (known.away.len()..FILES_MAX).for_each(|at| known.add(at.to_string(), String::new()));
        assert!(known.is_full());
        assert_eq!(keys(&known.make_room()), [("5-2/a", None)]);
        assert!(!known.is_full());
        tokio::time::advance(AWAY_KEPT / 2).await;
        assert!(known.forget_others().is_empty());
        tokio::time::advance(AWAY_KEPT / 2).await;
        assert_eq!(known.forget_others().len(), AWAY_MAX - 1);
        assert!(known.make_room().is_empty());
    }
}
