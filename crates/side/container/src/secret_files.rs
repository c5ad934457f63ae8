//! The secrets that a function gets as files: on a tmpfs of the container's own, in the folder that is mounted into it. They are written
//! when the container is specialised and removed when it is cleaned, so they are never on a disk, and never in a layer. Each file
//! belongs to the user of the image, who alone can read it; the folder does not.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use pilot_model::secret::SECRETS_MAX;

use crate::volume::is_mounted;

/// Mounts the tmpfs at an empty folder, if this daemon may. It must be there before the container starts.
///
/// # Errors
/// The kernel's.
pub(crate) fn make(at: &Path) -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = format!("mode=0711,size={BYTES_MAX},nr_inodes={}", SECRETS_MAX + 8);
    mount(
        Some("tmpfs"),
        at,
        Some("tmpfs"),
        flags,
        Some(options.as_str()),
    )?;
    Ok(())
}

/// Unmounts it. It is no error if it is not mounted.
///
/// # Errors
/// The kernel's.
pub(crate) fn unmake(at: &Path) -> io::Result<()> {
    if !is_mounted(at) {
        return Ok(());
    }
    // Lazily, because a container that is ending may still have it.
    match umount2(at, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the files of a function, for this user and group. Blocks.
///
/// # Errors
/// There is no tmpfs, or the kernel's error. Nothing is left then.
pub(crate) fn show(at: &Path, files: &[(String, Vec<u8>)], user: (u32, u32)) -> io::Result<()> {
    hide(at)?;
    if files.is_empty() {
        return Ok(());
    }
    if !is_mounted(at) {
        return Err(io::Error::other(
            "only root can mount the file system in memory that they are on: run the daemon as root, or leave file out, so that the \
             variable has the value",
        ));
    }
    let written = files
        .iter()
        .try_for_each(|(name, content)| write(&at.join(name), content, user));
    written.inspect_err(|_| drop(hide(at)))
}

/// Removes all files. Blocks.
///
/// # Errors
/// The kernel's.
pub(crate) fn hide(at: &Path) -> io::Result<()> {
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8], (user, group): (u32, u32)) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o400)
        .open(path)?;
    file.write_all(content)?;
    chown(path, Some(user), Some(group))
}

/// More than a function's files can have ([`pilot_model::secret::FILES_BYTES_MAX`]), in whole pages.
const BYTES_MAX: usize = 1 << 20;
