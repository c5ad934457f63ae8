//! The daemon's end of a message socket to an init or a template, non-blocking.
//!
//! tokio has no type for `SOCK_SEQPACKET`. Its datagram socket provides the readiness; sending and receiving, with descriptors,
//! is done here.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram as StdDatagram;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pilot_sys::seqpacket::{self, Message};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// One end of a message socket pair, registered with tokio.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UnixDatagram,
}

impl Channel {
    /// A channel, and the other end, which blocks.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        Self::of(seqpacket::pair()?)
    }

    /// The same, with the other end for a process that is not trusted: no descriptors come from it.
    pub(crate) fn pair_with_untrusted() -> io::Result<(Self, OwnedFd)> {
        Self::of(seqpacket::pair_with_untrusted()?)
    }

    fn of((here, there): (OwnedFd, OwnedFd)) -> io::Result<(Self, OwnedFd)> {
        set_nonblocking(&here)?;
        Ok((
            Self {
                socket: UnixDatagram::from_std(StdDatagram::from(here))?,
            },
            there,
        ))
    }

    /// Sends a message as JSON. Waits while the socket is full.
    pub(crate) async fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send_bytes(&serde_json::to_vec(message)?, fds).await
    }

    /// Sends a message as JSON, or fails if the socket is full.
    pub(crate) fn send_now(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        seqpacket::send(self.socket.as_fd(), &serde_json::to_vec(message)?, fds)
    }

    /// Sends raw bytes.
    pub(crate) async fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let send = || seqpacket::send(self.socket.as_fd(), bytes, fds);
        // First without tokio: the socket is nearly always writable.
        match send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        self.socket.async_io(Interest::WRITABLE, send).await
    }

    /// Whether the other end is closed.
    pub(crate) fn is_closed(&self) -> bool {
        is_closed(self.socket.as_fd())
    }

    /// The next message. `None`: the other end is closed.
    pub(crate) async fn receive(&self) -> io::Result<Option<Message>> {
        let receive = || seqpacket::receive(&self.socket);
        self.socket.async_io(Interest::READABLE, receive).await
    }
}

/// Whether the other end of a socket is closed (poll(2), `POLLHUP`). One system call.
pub(crate) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::empty())];
    let answered = poll(&mut asked, PollTimeout::ZERO);
    let events = asked[0].revents().unwrap_or(PollFlags::empty());
    answered.is_ok() && events.contains(PollFlags::POLLHUP)
}

/// Sets `O_NONBLOCK` on an open file (fcntl(2)).
pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
