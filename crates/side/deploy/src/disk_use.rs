//! What the folders of the data directory take on the disk. Code, environments and layers never change after they have got their place,
//! so each folder is measured once.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::data_dir;

/// Measures folders, and remembers them.
#[derive(Debug, Default)]
pub(crate) struct DiskUse {
    /// Guards only the map: two threads may measure one folder at the same time.
    known: Mutex<HashMap<PathBuf, u64>>,
}

impl DiskUse {
    /// Bytes of one folder on the disk. Blocks.
    pub(crate) fn of(&self, folder: &Path) -> u64 {
        if let Some(bytes) = self.known.lock().get(folder) {
            return *bytes;
        }
        let bytes = measure(folder);
        self.known.lock().insert(folder.to_owned(), bytes);
        bytes
    }

    /// Bytes of all folders directly below `parents` that the daemon has made. Files that folders share by hard links count in each
    /// of them. Blocks.
    ///
    /// # Errors
    /// A parent cannot be read.
    pub(crate) fn below(&self, parents: &[PathBuf]) -> io::Result<u64> {
        let mut there = HashSet::new();
        for parent in parents {
            there.extend(data_dir::ours(parent)?);
        }
        let bytes = there.iter().map(|folder| self.of(folder)).sum();
        self.known.lock().retain(|folder, _| there.contains(folder));
        Ok(bytes)
    }
}

/// Bytes of a folder and everything below it. Follows no link. What disappears meanwhile does not count.
fn measure(folder: &Path) -> u64 {
    let mut bytes = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            bytes += metadata.blocks() * BLOCK;
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    bytes
}

/// Unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_measured_once_and_forgotten_when_they_are_gone() {
        let root = tempfile::tempdir_in("/var/tmp").unwrap();
        let folder = root.path().join("f99b1bbba009551d");
        fs::create_dir_all(folder.join("deep")).unwrap();
        fs::write(folder.join("deep/file"), vec![1; 1 << 20]).unwrap();
        let parents = [root.path().to_owned()];
        let usage = DiskUse::default();
        assert!(usage.below(&parents).unwrap() >= 1 << 20);
        assert_eq!(usage.known.lock().len(), 1);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(usage.below(&parents).unwrap(), 0);
        assert!(usage.known.lock().is_empty());
    }
}
