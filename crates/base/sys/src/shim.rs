//! The containers' process 1 (`native/shim.c`), as a program to be shown in a container, and the socket that it calls the daemon
//! at: one connection per container, messages with descriptors ([`seqpacket`](crate::seqpacket)).
//!
//! Not here: what is said on it (`side/container`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

/// A static program for this machine's architecture. Empty where the build had no static C library: then there are no containers.
pub const BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim"));

/// What is said to the shim and by it has this number; another one is another program.
pub const PROTOCOL: u32 = 2;

/// A listening message socket (`SOCK_SEQPACKET`) at `folder`/`name`, non-blocking and close-on-exec, for one caller. The folder's path
/// may be longer than a socket's may be (unix(7): 107 bytes).
///
/// # Errors
/// The kernel's: something is at the path already, or the folder cannot be written to.
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
