//! The folders that a function may write to: tmpfs of limited size, whose contents count as the sandbox's memory.
//!
//! A worker sees the files that its template wrote at import, as it would on Lambda, where the same process serves. They are the lower
//! layer of an overlay (overlayfs in Documentation/filesystems of the kernel): a file is copied when the worker changes it, and other
//! workers do not see the change. Without such files there is no overlay.
//!
//! Beside them are the files that name the sandbox's user, where the root's name another one.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use nix::sys::statvfs::{Statvfs, statvfs};
use nix::unistd::{chdir, fchdir};

use crate::message::Folders;
use crate::rootfs::users_shown;

/// Each with its share of the limit: the limit is divided by it.
const WRITABLE: [(&str, u64); 2] = [("/tmp", 1), ("/dev/shm", 2)];
/// Anyone may create files, and only the owner may remove them.
const MODE: u32 = 0o1777;

/// Mounts empty ones; with `over_template`, over what is in them.
pub(super) fn mount_own(folders: Folders) -> Result<(), String> {
    for (path, share) in WRITABLE {
        let what = |error: std::io::Error| format!("mount {path}: {error}");
        let bytes_max = folders.tmp_bytes_max / share;
        let below = match folders.over_template {
            true => Some(statvfs(path).map_err(|error| what(error.into()))?).filter(is_used),
            false => None,
        };
        match below {
            None => mount_empty(path, bytes_max).map_err(what)?,
            Some(below) => {
                let used = (below.blocks() - below.blocks_free()) * below.fragment_size();
                mount_over(path, bytes_max.saturating_sub(used)).map_err(what)?;
            }
        }
    }
    Ok(())
}

/// Mounts files of users and groups with this user over the root's, which runtimes share. Before [`mount_own`].
pub(super) fn show_user(user: u32) -> std::io::Result<()> {
    // The files keep this file system when its folder is gone.
    let folder = Path::new("/dev/shm");
    mount_with(folder, "tmpfs", "mode=755,size=64k,nr_inodes=8")?;
    for (name, text) in users_shown(user) {
        let (file, inside) = (folder.join(name), Path::new("/etc").join(name));
        fs::write(&file, text)?;
        fs::set_permissions(&file, Permissions::from_mode(0o444))?;
        let none: Option<&str> = None;
        mount(Some(&file), &inside, none, MsFlags::MS_BIND, none)?;
        let flags = MsFlags::MS_REMOUNT
            | MsFlags::MS_BIND
            | MsFlags::MS_RDONLY
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV
            | MsFlags::MS_NOEXEC;
        mount(none, &inside, none, flags, none)?;
    }
    Ok(umount2(folder, MntFlags::MNT_DETACH)?)
}

/// Empties them after a use: mounts new ones where something was written.
pub(super) fn empty(folders: Folders) -> Result<(), String> {
    let is_overlay =
        |path| statfs(path).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
    let used = WRITABLE
        .iter()
        .any(|(path, _)| is_overlay(*path) || statvfs(*path).map_or(true, |fs| is_used(&fs)));
    if !used {
        return Ok(());
    }
    for (path, _) in WRITABLE {
        let mounts = if is_overlay(path) { 2 } else { 1 };
        for _ in 0..mounts {
            umount2(path, MntFlags::MNT_DETACH).map_err(|error| format!("{path}: {error}"))?;
        }
    }
    mount_own(folders)
}

/// The root folder itself uses one inode.
fn is_used(fs: &Statvfs) -> bool {
    fs.files() - fs.files_free() > 1
}

fn mount_empty(path: &str, bytes_max: u64) -> std::io::Result<()> {
    // A size of 0 would mean no limit.
    let options = format!("mode={MODE:o},size={},nr_inodes=65536", bytes_max.max(1));
    mount_with(path, "tmpfs", &options)
}

/// Mounts an overlay of what is at `path` and a new tmpfs, which the overlay hides.
fn mount_over(path: &str, bytes_max: u64) -> std::io::Result<()> {
    let lower = File::open(path)?;
    mount_empty(path, bytes_max)?;
    let inside = |name: &str| Path::new(path).join(name);
    for folder in ["upper", "work"] {
        fs::create_dir(inside(folder))?;
        fs::set_permissions(inside(folder), Permissions::from_mode(MODE))?;
    }
    // The lower folder has no path any more, only this process's working directory.
    fchdir(&lower)?;
    let options = format!("lowerdir=.,upperdir={path}/upper,workdir={path}/work,userxattr");
    let mounted = mount_with(path, "overlay", &options);
    chdir("/")?;
    mounted
}

fn mount_with(path: impl AsRef<Path>, kind: &str, options: &str) -> std::io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let path = path.as_ref();
    Ok(mount(Some(kind), path, Some(kind), flags, Some(options))?)
}
