//! One connection of the open loop. It never blocks.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, socket,
};

use super::Failure;
use crate::answer::Answer;
use crate::stream::{Peer, Stream};

/// A connection and its current request.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) answer: Answer,
    pub(super) sent: Option<Duration>,
    pub(super) first_byte: Option<Duration>,
    pub(super) done: Option<Duration>,
    outgoing: Vec<u8>,
    /// How many bytes of `outgoing` are written.
    written: usize,
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for an event.
    Waits,
    /// The response is complete.
    Complete,
    /// There will be no response.
    Failed(Failure),
}

impl Connection {
    /// Starts to connect.
    pub(super) fn open(peer: &Peer) -> io::Result<Self> {
        let address = peer.address;
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd: OwnedFd = socket(family, SockType::Stream, flags, None)?;
        let stream = TcpStream::from(fd);
        stream.set_nodelay(true)?;
        let fd = stream.as_raw_fd();
        let begun = match address {
            SocketAddr::V4(address) => connect(fd, &SockaddrIn::from(address)),
            SocketAddr::V6(address) => connect(fd, &SockaddrIn6::from(address)),
        };
        match begun {
            Ok(()) | Err(nix::Error::EINPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            stream: Stream::over(stream, peer)?,
            answer: Answer::default(),
            sent: None,
            first_byte: None,
            done: None,
            outgoing: Vec::new(),
            written: 0,
        })
    }

    /// Starts the next request.
    pub(super) fn begin(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.answer.clear();
        self.sent = None;
        self.first_byte = None;
        self.done = None;
        self.outgoing.clear();
        self.written = 0;
        fill(&mut self.outgoing);
    }

    /// Writes as much of the request as possible now.
    pub(super) fn write(&mut self, start: Instant) -> Progress {
        while self.written < self.outgoing.len() {
            let now = start.elapsed();
            match self.stream.write(&self.outgoing[self.written..]) {
                Ok(0) => return Progress::Failed(Failure::Closed),
                Ok(length) => {
                    self.sent.get_or_insert(now);
                    self.written += length;
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // ENOTCONN: still connecting.
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Progress::Waits,
                    // There may still be a response: the server refused the body and closed the connection.
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset if self.sent.is_some() => {
                        return Progress::Waits;
                    }
                    _ if self.sent.is_none() => return Progress::Failed(Failure::NotConnected),
                    _ => return Progress::Failed(Failure::Closed),
                },
            }
        }
        if self.stream.wants_write() {
            // If it failed, the read says so.
            let _ = self.stream.flush();
        }
        Progress::Waits
    }

    /// Reads the available bytes.
    pub(super) fn read(&mut self, start: Instant, buffer: &mut [u8]) -> Progress {
        loop {
            let length = match self.stream.read(buffer) {
                Ok(0) if self.answer.ends_here() => {
                    self.done = Some(start.elapsed());
                    return Progress::Complete;
                }
                Ok(0) => return Progress::Failed(Failure::Closed),
                Ok(length) => length,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock => return Progress::Waits,
                    _ if self.sent.is_none() => return Progress::Failed(Failure::NotConnected),
                    _ => return Progress::Failed(Failure::Closed),
                },
            };
            let now = start.elapsed();
            self.first_byte.get_or_insert(now);
            match self.answer.push(&buffer[..length]) {
                Ok(true) => {
                    self.done = Some(now);
                    return Progress::Complete;
                }
                Ok(false) => {}
                Err(_) => return Progress::Failed(Failure::NotHttp),
            }
        }
    }
}
