//! The data directory itself: only its owner may enter it, because code, environments, logs and tokens are in it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use nix::unistd::{AccessFlags, access};

/// Creates the data directory, or narrows the rights of an existing one.
///
/// # Errors
/// It cannot be created, or others may enter it and it is not a data directory, so that its rights are not ours to change.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))
            .context("cannot create the data directory, choose another one with --data-dir")?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot create the data directory {shown}"));
        }
    }
    if check(path)? == Rights::Narrow {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot change the rights of {shown}"))?;
    tracing::info!(data_dir = %shown, "only the daemon's user may enter the data directory now");
    Ok(())
}

/// Who may enter an existing data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Its owner.
    Narrow,
    /// Others, too, which a daemon changes.
    Wide,
}

/// Whether a daemon could use this existing folder. Changes nothing.
///
/// # Errors
/// See [`prepare`].
pub(crate) fn check(path: &Path) -> anyhow::Result<Rights> {
    let shown = path.display();
    let found = fs::metadata(path).with_context(|| format!("cannot use {shown}"))?;
    if !found.is_dir() {
        bail!("the data directory {shown} is not a folder");
    }
    access(
        path,
        AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
    )
    .map_err(io::Error::from)
    .map_err(|error| refused(path, error))?;
    if found.mode() & 0o077 == 0 {
        return Ok(Rights::Narrow);
    }
    if found.uid() != nix::unistd::geteuid().as_raw() {
        bail!(
            "the data directory {shown} belongs to another user, and others may enter it: give it to the daemon's user (chown), \
             or choose another one with --data-dir"
        );
    }
    if !is_data_directory(path)? {
        bail!(
            "{shown} has other files, and others may enter it: choose an empty or a new folder with --data-dir"
        );
    }
    Ok(Rights::Wide)
}

/// Why the daemon cannot use an existing folder.
fn refused(path: &Path, error: io::Error) -> anyhow::Error {
    let shown = path.display();
    let problem = match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "the data directory {shown} is on a file system that is read-only: mount it for writing, or choose another one with --data-dir"
        ),
        _ => format!(
            "this user cannot read and write the data directory {shown}; run the daemon as its owner, or choose another one with \
             --data-dir"
        ),
    };
    anyhow::Error::new(error).context(problem)
}

/// Whether it is empty, or a daemon has used it.
fn is_data_directory(path: &Path) -> io::Result<bool> {
    let has = |name| path.join(name).symlink_metadata().is_ok();
    Ok(has("registry.sqlite") || has("lock") || fs::read_dir(path)?.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn open_to_all(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_new_one_and_an_old_one_are_for_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        prepare(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        open_to_all(&path);
        prepare(&path).unwrap();
        assert_eq!(mode(&path), 0o700, "an empty one");
        open_to_all(&path);
        fs::write(path.join("registry.sqlite"), "").unwrap();
        prepare(&path).unwrap();
        assert_eq!(mode(&path), 0o700, "one that was used");
    }

    #[test]
    fn a_folder_of_something_else_keeps_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        open_to_all(folder.path());
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        let problem = prepare(folder.path()).unwrap_err();
        assert!(problem.to_string().contains("--data-dir"), "{problem:#}");
        assert_eq!(mode(folder.path()), 0o755);
    }

    #[test]
    fn a_file_system_that_is_read_only_is_not_blamed_on_the_user() {
        let said = |number| {
            let error = io::Error::from_raw_os_error(number);
            format!("{:#}", refused(Path::new("/data"), error))
        };
        let read_only = said(nix::libc::EROFS);
        assert!(
            read_only.contains("/data is on a file system that is read-only"),
            "{read_only}"
        );
        assert!(!read_only.contains("owner"), "{read_only}");
        assert!(said(nix::libc::EACCES).contains("run the daemon as its owner"));
    }
}
