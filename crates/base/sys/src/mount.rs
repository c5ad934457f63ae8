//! Mounts as descriptors: a folder or file is cloned in one mount namespace and attached in another (open_tree(2),
//! mount_setattr(2), move_mount(2); Linux 5.2, 5.12).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const OPEN_TREE_CLONE: libc::c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;

/// A read-only copy of what is mounted at and below `path`, without devices and set-user-id bits, not attached anywhere yet.
/// Needs `CAP_SYS_ADMIN` over the caller's mount namespace.
///
/// # Errors
/// The kernel's.
pub fn clone_read_only(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = OPEN_TREE_CLONE | (libc::O_CLOEXEC | libc::AT_RECURSIVE) as libc::c_uint;
    // SAFETY: the path is NUL-terminated and lives through the call; the rest are integers.
    let result =
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor, so this is its only owner.
    let tree = unsafe { OwnedFd::from_raw_fd(fd) };
    let unusable = Restrictions {
        read_only: true,
        no_devices: true,
        no_programs: false,
    };
    set_attributes(tree.as_raw_fd(), c"", libc::AT_EMPTY_PATH, unusable)?;
    Ok(tree)
}

/// What is taken away from mounts, in addition to set-user-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restrictions {
    /// Nothing can be written, except to devices and sockets.
    pub read_only: bool,
    /// Devices cannot be opened.
    pub no_devices: bool,
    /// Programs cannot be executed.
    pub no_programs: bool,
}

/// Restricts all mounts at and below `path`, or none of them. Flags that they have already stay. Needs `CAP_SYS_ADMIN` over the
/// caller's mount namespace.
///
/// # Errors
/// The kernel's: `ENOSYS` before Linux 5.12.
pub fn restrict(path: &Path, restrictions: Restrictions) -> io::Result<()> {
    set_attributes(libc::AT_FDCWD, &c_path(path)?, 0, restrictions)
}

fn set_attributes(
    at: RawFd,
    path: &CStr,
    flags: libc::c_int,
    restrictions: Restrictions,
) -> io::Result<()> {
    let Restrictions {
        read_only,
        no_devices,
        no_programs,
    } = restrictions;
    let set = [
        (read_only, MOUNT_ATTR_RDONLY),
        (no_devices, MOUNT_ATTR_NODEV),
        (no_programs, MOUNT_ATTR_NOEXEC),
        (true, MOUNT_ATTR_NOSUID),
    ];
    let attributes = MountAttr {
        attr_set: set
            .iter()
            .fold(0, |bits, (wanted, bit)| bits | (u64::from(*wanted) * bit)),
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: `path` is NUL-terminated; `attributes` has the layout and size that the call is given; both live through the call.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at,
            path.as_ptr(),
            flags | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Attaches such a copy in the caller's mount namespace at `path`, which must exist and be of the same kind. Needs
/// `CAP_SYS_ADMIN` over that namespace only.
///
/// # Errors
/// The kernel's.
pub fn attach(tree: impl AsFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: both paths are NUL-terminated and live through the call; the rest are integers.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
