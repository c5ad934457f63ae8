//! Making files survive a lost power supply before the registry refers to them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Writes a tree to disk: each file and folder, or, when there are many, everything of their file system with one syncfs(2),
/// which is then far cheaper.
pub(crate) fn sync_tree(root: &Path) -> io::Result<()> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if path.is_dir() {
            let entries = std::fs::read_dir(&path)?;
            found.extend(
                entries
                    .map(|entry| Ok(entry?.path()))
                    .collect::<io::Result<Vec<PathBuf>>>()?,
            );
        }
        if found.len() > FSYNCS_MAX {
            return nix::unistd::syncfs(File::open(root)?).map_err(io::Error::from);
        }
    }
    found
        .iter()
        .try_for_each(|path| File::open(path)?.sync_all())
}

/// Renames a finished folder to its place and makes that last. What lies there already is as good (content-addressed) and
/// stays; the staged one is left to its owner to remove.
pub(crate) fn settle(staged: &Path, place: &Path) -> io::Result<()> {
    match std::fs::rename(staged, place) {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
            ) => {}
        Err(error) => return Err(error),
    }
    place
        .parent()
        .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

const FSYNCS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_its_place_already_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second, place) = (
            folder.path().join("a"),
            folder.path().join("b"),
            folder.path().join("place"),
        );
        for (path, text) in [(&first, "first"), (&second, "second")] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), text).unwrap();
            sync_tree(path).unwrap();
        }
        settle(&first, &place).unwrap();
        settle(&second, &place).unwrap();
        assert_eq!(
            std::fs::read_to_string(place.join("file")).unwrap(),
            "first"
        );
        assert!(second.exists());
    }

    #[test]
    fn a_tree_of_many_files_is_synced_too() {
        let folder = tempfile::tempdir().unwrap();
        for at in 0..=FSYNCS_MAX {
            std::fs::write(folder.path().join(at.to_string()), "").unwrap();
        }
        sync_tree(folder.path()).unwrap();
    }
}
