//! The daemon's end of a message socket to an init or a template, non-blocking.
//!
//! tokio has no type for `SOCK_SEQPACKET`. It provides the readiness; sending and receiving, with descriptors, is done here. As an
//! invocation channel (`worker/socket.rs`), the socket is registered for reading only: otherwise the kernel would wake a thread of the
//! daemon whenever the peer takes a message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pilot_sys::seqpacket::{self, Message};
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One end of a message socket pair, registered with tokio.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: AsyncFd<OwnedFd>,
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
                socket: registered(here, Interest::READABLE)?,
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
        seqpacket::send(
            self.socket.get_ref().as_fd(),
            &serde_json::to_vec(message)?,
            fds,
        )
    }

    /// Sends raw bytes.
    pub(crate) async fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_to(self.socket.get_ref(), bytes, fds).await
    }

    /// Whether the other end is closed.
    pub(crate) fn is_closed(&self) -> bool {
        is_closed(self.socket.get_ref().as_fd())
    }

    /// The next message. `None`: the other end is closed.
    pub(crate) async fn receive(&self) -> io::Result<Option<Message>> {
        let receive = |socket: &OwnedFd| seqpacket::receive(socket);
        self.socket.async_io(Interest::READABLE, receive).await
    }
}

/// Sends a message to a non-blocking socket. Waits while it is full.
pub(crate) async fn send_to(
    socket: &OwnedFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let send = || seqpacket::send(socket.as_fd(), bytes, fds);
    // First without tokio: the socket is nearly always writable.
    match send() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        done => return done,
    }
    // Under another descriptor, because one is registered once.
    let writable = registered(socket.try_clone()?, Interest::WRITABLE)?;
    writable.async_io(Interest::WRITABLE, |_| send()).await
}

/// Registers a socket with tokio, for reading or for writing.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that are not what they say; an OwnedFd is open until it is dropped"
)]
fn registered(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(socket, interest)
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
