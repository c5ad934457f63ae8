//! Listening sockets without a name, for processes that cannot receive descriptors: they connect by a path in `/proc`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

/// A listening stream socket, non-blocking, and a descriptor that leads to it (`O_PATH`): connect(2) takes its path in `/proc`, whatever
/// the root of the one who connects is. The socket has no other name: the one that it is made with is gone, and nobody else could enter
/// its folder.
///
/// # Errors
/// The kernel's: out of descriptors, or no room for the name.
pub fn listening() -> io::Result<(UnixListener, OwnedFd)> {
    let memory = Path::new("/dev/shm");
    let parent = match memory.is_dir() {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    };
    let folder = Folder(mkdtemp(&parent.join("pilot-XXXXXX"))?);
    let path = folder.0.join("connection");
    let ours = UnixListener::bind(&path)?;
    ours.set_nonblocking(true)?;
    // The function's user may be any.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    let descriptor = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_PATH)
        .open(&path)?;
    Ok((ours, descriptor.into()))
}

/// A folder, until this is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is a name that leads nowhere.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_without_a_name_is_connected_to_by_the_path_of_its_descriptor() {
        let (ours, descriptor) = listening().unwrap();
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let mut there = UnixStream::connect(path).unwrap();
        ours.set_nonblocking(false).unwrap();
        let (mut here, _) = ours.accept().unwrap();
        here.write_all(b"x").unwrap();
        let mut byte = [0];
        there.read_exact(&mut byte).unwrap();
        let name = ours.local_addr().unwrap();
        assert!(!name.as_pathname().unwrap().exists());
    }
}
