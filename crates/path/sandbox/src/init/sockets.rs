//! Makes sockets in the sandbox's network for the daemon. A socket belongs to the network namespace in which it was made,
//! whoever holds it (network_namespaces(7)). So the daemon can serve and call programs in a sandbox without entering it and
//! without a relay.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrIn, bind,
    connect as connect_to, listen as listen_on, setsockopt, socket, sockopt,
};

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens on 127.0.0.1.
pub(super) fn listen(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp()?;
    // The previous use may have left connections in TIME_WAIT.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    bind(socket.as_raw_fd(), &loopback(port))?;
    let backlog = Backlog::new(BACKLOG)?;
    listen_on(&socket, backlog)?;
    Ok(socket)
}

/// Starts to connect to 127.0.0.1. The receiver of the socket waits until it is writable (connect(2), `EINPROGRESS`).
pub(super) fn connect(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp()?;
    match connect_to(socket.as_raw_fd(), &loopback(port)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn tcp() -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::Tcp,
    )
}

fn loopback(port: u16) -> SockaddrIn {
    SockaddrIn::new(127, 0, 0, 1, port)
}
