//! Makes files durable before the registry refers to them, so that they survive a power failure.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Makes a finished tree of files readable for everyone and durable. Workers run as another user, and the daemon's umask may be
/// strict.
pub(crate) fn finish_tree(root: &Path) -> io::Result<()> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        let metadata = path.symlink_metadata()?;
        let mode = metadata.permissions().mode();
        let wanted = if metadata.is_dir() || mode & 0o100 != 0 {
            mode | 0o555
        } else {
            mode | 0o444
        };
        if wanted != mode {
            std::fs::set_permissions(&path, Permissions::from_mode(wanted))?;
        }
        if metadata.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                // An installed package may have symbolic links, also broken ones. They have no content and no mode.
                if !entry.file_type()?.is_symlink() {
                    found.push(entry.path());
                }
            }
        }
    }
    if found.len() > FSYNCS_MAX {
        // For many files, one syncfs(2) for the whole file system is much cheaper.
        return nix::unistd::syncfs(File::open(root)?).map_err(io::Error::from);
    }
    found
        .iter()
        .try_for_each(|path| File::open(path)?.sync_all())
}

/// Makes a finished tree readable for everyone again if its top is not: a backup was copied back under a strict umask, for example. Returns
/// whether it was repaired.
pub(crate) fn repair(root: &Path) -> io::Result<bool> {
    let metadata = root.symlink_metadata()?;
    if !metadata.is_dir() || metadata.permissions().mode() & 0o555 == 0o555 {
        return Ok(false);
    }
    finish_tree(root).map(|()| true)
}

/// Renames a finished folder to its place and makes that durable. If the place is taken, its content is the same (it is
/// content-addressed) and stays; only its modes are repaired. The caller removes the staged folder.
pub(crate) fn settle(staged: &Path, place: &Path) -> io::Result<()> {
    match std::fs::rename(staged, place) {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            repair(place)?;
        }
        Err(error) => return Err(error),
    }
    place
        .parent()
        .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Highest number of files and folders that are synchronised one by one.
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
            finish_tree(path).unwrap();
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
    fn everybody_may_read_a_finished_tree() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("package");
        std::fs::create_dir(&below).unwrap();
        std::os::unix::fs::symlink("/nonexistent", below.join("link")).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        for (name, mode) in [("module.py", 0o600), ("tool", 0o700)] {
            let path = below.join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        std::fs::set_permissions(&below, Permissions::from_mode(0o700)).unwrap();
        finish_tree(folder.path()).unwrap();
        assert_eq!(mode(&below), 0o755);
        assert_eq!(mode(&below.join("module.py")), 0o644);
        assert_eq!(mode(&below.join("tool")), 0o755);
    }

    #[test]
    fn a_tree_that_others_cannot_read_any_more_is_repaired() {
        let folder = tempfile::tempdir().unwrap();
        let (place, staged) = (folder.path().join("place"), folder.path().join("staged"));
        for root in [&place, &staged] {
            std::fs::create_dir_all(root.join("lib")).unwrap();
            std::fs::write(root.join("lib/module.py"), "").unwrap();
            finish_tree(root).unwrap();
        }
        let narrow = || {
            for (path, mode) in [("lib/module.py", 0o600), ("lib", 0o700), ("", 0o700)] {
                let mode = Permissions::from_mode(mode);
                std::fs::set_permissions(place.join(path), mode).unwrap();
            }
        };
        let mode = |path| place.join(path).metadata().unwrap().permissions().mode() & 0o777;
        narrow();
        assert!(repair(&place).unwrap());
        assert_eq!(
            [mode(""), mode("lib"), mode("lib/module.py")],
            [0o755, 0o755, 0o644]
        );
        assert!(!repair(&place).unwrap());
        narrow();
        settle(&staged, &place).unwrap();
        assert_eq!(
            [mode(""), mode("lib"), mode("lib/module.py")],
            [0o755, 0o755, 0o644]
        );
    }

    #[test]
    fn a_tree_of_many_files_is_finished_too() {
        let folder = tempfile::tempdir().unwrap();
        for at in 0..=FSYNCS_MAX {
            std::fs::write(folder.path().join(at.to_string()), "").unwrap();
        }
        finish_tree(folder.path()).unwrap();
    }
}
