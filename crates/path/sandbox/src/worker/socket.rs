//! The daemon's end of an invocation channel, as bytes.
//!
//! It is registered for reading only. tokio's `UnixStream` is also registered for writing, and then the kernel wakes a thread of the
//! daemon each time the worker reads an invocation, because there is room again (unix(7); EPOLLET in epoll(7)). That thread finds nothing
//! to do, and takes the processor from the worker. Here, who finds no room registers the socket for writing until there is some.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use pilot_sys::seqpacket;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{Receiver, Sender};

/// A connected stream socket that does not block, for reading. Of tokio's types, the one for pipes is registered for one direction;
/// it calls read(2), which is the same for sockets.
#[derive(Debug)]
pub(super) struct Incoming(Receiver);

/// The same socket, for writing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing<'a>(BorrowedFd<'a>);

impl Incoming {
    /// # Errors
    /// The runtime cannot register it.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Receiver::from_owned_fd_unchecked(socket).map(Self)
    }

    /// Reads into the free part of `space`, which has some. Returns the number of bytes, 0 at the end.
    pub(super) async fn read(&mut self, space: &mut BytesMut) -> io::Result<usize> {
        self.0.read_buf(space).await
    }

    /// Whether the peer has closed its end and had not read everything. Told once.
    pub(super) fn is_reset(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.0.as_raw_fd(), &mut [0], flags) == Err(Errno::ECONNRESET)
    }

    pub(super) fn outgoing(&self) -> Outgoing<'_> {
        Outgoing(self.0.as_fd())
    }

    /// The socket under another descriptor, for a task that only writes.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

impl<'a> Outgoing<'a> {
    /// Of a socket from [`Incoming::duplicate`].
    pub(super) fn of(socket: &'a OwnedFd) -> Self {
        Self(socket.as_fd())
    }

    /// Writes as much as the socket takes, and waits until it takes some. The descriptors go with the first byte. Returns the number
    /// of bytes.
    pub(super) async fn write(
        self,
        parts: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize> {
        loop {
            match seqpacket::send_stream(self.0, parts, descriptors) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.has_room().await?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Writes all of it.
    pub(super) async fn write_all(self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.write(&[IoSlice::new(bytes)], &[]).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Waits until it takes some. Without a free descriptor it waits for a moment: the daemon's shortage is not the worker's fault.
    pub(super) async fn has_room(self) -> io::Result<()> {
        match self.0.try_clone_to_owned() {
            Ok(socket) => Sender::from_owned_fd_unchecked(socket)?.writable().await,
            Err(error) if is_out_of_descriptors(&error) => {
                tokio::time::sleep(DESCRIPTOR_WAIT).await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Until the next try to write, if no descriptor is free.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(5);

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let out = [Errno::EMFILE, Errno::ENFILE];
    out.iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Incoming, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        let here = here.into_std().unwrap().into();
        (Incoming::new(here).unwrap(), there)
    }

    /// The events that an epoll instance of this process has registered for this descriptor (`tfd` in proc_pid_fdinfo(5)).
    fn registered(descriptor: i32) -> Vec<u32> {
        let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        let infos = infos.filter_map(|info| std::fs::read_to_string(info.ok()?.path()).ok());
        let lines: Vec<String> = infos
            .flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let fields = lines
            .iter()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields
            .filter(|fields| fields.first() == Some(&"tfd:"))
            .filter(|fields| fields.get(1) == Some(&descriptor.to_string().as_str()))
            .map(|fields| u32::from_str_radix(fields[3], 16).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn room_to_write_wakes_nobody_who_does_not_wait_for_it() {
        let (here, _there) = pair();
        let events = registered(here.0.as_raw_fd());
        assert!(!events.is_empty());
        // EPOLLIN, EPOLLOUT.
        for events in events {
            assert_eq!(events & 0b101, 0b001, "{events:x}");
        }
    }

    #[tokio::test]
    async fn more_than_the_socket_holds_is_written_while_the_other_end_reads() {
        let (here, mut there) = pair();
        let sent = vec![7; 4 << 20];
        let mut received = vec![0; sent.len()];
        let (written, read) = tokio::join!(
            here.outgoing().write_all(&sent),
            there.read_exact(&mut received)
        );
        written.unwrap();
        read.unwrap();
        assert!(received == sent);
    }

    #[tokio::test]
    async fn what_arrives_in_pieces_is_read_until_the_end() {
        let (mut incoming, mut there) = pair();
        let read = tokio::spawn(async move {
            let mut all = BytesMut::new();
            let mut reads = 0;
            loop {
                all.reserve(1000);
                if incoming.read(&mut all).await.unwrap() == 0 {
                    return (all, reads);
                }
                reads += 1;
            }
        });
        for piece in [&[1; 10][..], &[2; 5000], &[3; 1]] {
            there.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        drop(there);
        let (all, reads) = read.await.unwrap();
        assert_eq!(all.len(), 5011);
        assert!(reads >= 3, "{reads}");
    }

    #[tokio::test]
    async fn a_write_to_a_closed_socket_is_an_error() {
        let (here, there) = pair();
        drop(there);
        let error = here.outgoing().write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
