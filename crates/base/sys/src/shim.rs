//! The shim, which is process 1 of every container (`native/shim.c`): its binary, which is mounted into the container, and the
//! socket at which it connects to the daemon. One connection per container, messages with descriptors
//! ([`seqpacket`](crate::seqpacket)).
//!
//! Not here: the protocol on that connection (`side/container`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

/// A static program for this machine's architecture. Empty if the build had no static C library: then there is no support for
/// containers.
pub const BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim"));

/// The version of the protocol. A shim with another version is rejected.
pub const PROTOCOL: u32 = 2;

/// A listening message socket (`SOCK_SEQPACKET`) at `folder`/`name`, non-blocking and close-on-exec, for one connection. The
/// folder's path may be longer than the limit for socket paths (unix(7): 107 bytes).
///
/// # Errors
/// The kernel's: something exists at the path, or the folder is not writable.
pub fn door(folder: &Path, name: &str) -> io::Result<OwnedFd> {
    let folder = std::fs::File::open(folder)?;
    let door = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    bind(door.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
    listen(&door, Backlog::new(1)?)?;
    Ok(door)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::connect;

    use super::*;

    #[test]
    fn a_caller_comes_in_through_a_folder_with_a_long_path() {
        let long = std::env::temp_dir().join(format!(
            "pilot-door-{}-{}",
            std::process::id(),
            "x".repeat(150)
        ));
        std::fs::create_dir_all(&long).unwrap();
        let door = UnixListener::from(door(&long, "socket").unwrap());
        assert_eq!(door.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let folder = std::fs::File::open(&long).unwrap();
        let path = format!("/proc/self/fd/{}/socket", folder.as_raw_fd());
        let caller = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::empty(),
            None,
        )
        .unwrap();
        connect(caller.as_raw_fd(), &UnixAddr::new(path.as_str()).unwrap()).unwrap();
        assert!(door.accept().is_ok());
        std::fs::remove_dir_all(&long).unwrap();
    }

    #[test]
    fn the_shim_is_a_program_where_it_could_be_linked() {
        assert!(BINARY.is_empty() || BINARY.starts_with(b"\x7fELF"));
    }
}
