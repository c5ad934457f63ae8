//! Paths of Unix sockets. A socket address has room for 107 bytes (unix(7)), and data directories may be deeper.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::{O_DIRECTORY, O_PATH};

/// Calls `use_path` with the path, or with a short one for the same file: through a descriptor of its folder.
///
/// # Errors
/// Those of `use_path`; the folder cannot be opened; the file name itself is too long.
pub(crate) fn short<T>(
    path: &Path,
    use_path: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return use_path(path);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return use_path(path);
    };
    let folder = File::options()
        .read(true)
        .custom_flags(O_PATH | O_DIRECTORY)
        .open(folder)?;
    let through = format!("/proc/self/fd/{}", folder.as_raw_fd());
    use_path(&PathBuf::from(through).join(name))
}

/// `sizeof(sun_path)` without the NUL at its end.
pub(crate) const PATH_BYTES_MAX: usize = 107;
