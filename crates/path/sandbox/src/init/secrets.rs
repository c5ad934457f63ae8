//! The secrets that a function gets as files: a tmpfs of its own, which is mounted for the use of a sandbox and gone before the next.
//!
//! The files belong to the function's user, who alone can read them (mode 0400), and the mount is read-only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use pilot_model::secret::SECRETS_INSIDE;

use super::failed;
use crate::message::InitReply;

/// Mounts the folder with these files, whose contents are in `contents`, one after the other.
pub(super) fn show(
    files: &[(String, usize)],
    user: Option<u32>,
    contents: Option<OwnedFd>,
) -> InitReply {
    let Some(contents) = contents else {
        return failed("the descriptor of the secrets is missing");
    };
    match write(files, user, &File::from(contents)) {
        Ok(()) => InitReply::Done,
        Err(error) => {
            // None is better than half of them.
            let _ = hide();
            failed(format!("mount {SECRETS_INSIDE}: {error}"))
        }
    }
}

/// Removes the folder's files. Nothing uses them any more.
pub(super) fn hide() -> io::Result<()> {
    loop {
        match umount2(SECRETS_INSIDE, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            // Nothing is mounted there; or the sandbox's root was made without the folder (builds).
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn write(files: &[(String, usize)], user: Option<u32>, contents: &File) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = format!("mode=0700,size={BYTES_MAX},nr_inodes={FILES_MAX}");
    mount(
        Some("tmpfs"),
        SECRETS_INSIDE,
        Some("tmpfs"),
        flags,
        Some(options.as_str()),
    )?;
    let folder = Path::new(SECRETS_INSIDE);
    for (name, len) in files {
        let path = folder.join(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)?;
        let copied = io::copy(&mut contents.take(*len as u64), &mut file)?;
        if copied != *len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        chown(&path, user, user)?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o500))?;
    chown(folder, user, user)?;
    let none: Option<&str> = None;
    let read_only = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(none, SECRETS_INSIDE, none, read_only, none)?;
    Ok(())
}

/// More than a function's files can have ([`pilot_model::secret::FILES_BYTES_MAX`]), in whole pages.
const BYTES_MAX: usize = 1 << 20;
/// The folder and [`pilot_model::secret::SECRETS_MAX`] files.
const FILES_MAX: usize = pilot_model::secret::SECRETS_MAX + 8;
