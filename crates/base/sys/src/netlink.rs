//! Netlink (netlink(7)): builds and sends messages and reads the kernel's answers. A message carries a description of its step,
//! so that an error says what failed.
//!
//! Not here: the meaning of messages, which [`route`], [`nftables`] and [`diag`] know, and policy.
//!
//! A message is a header of 16 bytes, a fixed part, and attributes. Everything is padded to 4 bytes and, unless an attribute
//! says otherwise, in the machine's byte order (include/uapi/linux/netlink.h).

pub mod credentials;
pub mod diag;
pub mod nftables;
pub mod route;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// A step that the kernel rejected.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct NetlinkError {
    /// The step.
    pub step: &'static str,
    /// Why.
    pub source: io::Error,
}

/// A request that is being built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    step: &'static str,
    bytes: Vec<u8>,
}

impl Message {
    /// A request of this type with its fixed part. `flags` are added to `NLM_F_REQUEST`.
    #[must_use]
    pub fn new(step: &'static str, kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        Self { step, bytes }.then(fixed)
    }

    /// Appends bytes and padding.
    #[must_use]
    pub fn then(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an attribute.
    #[must_use]
    pub fn with(self, kind: u16, value: &[u8]) -> Self {
        self.with_nested(kind, |mut message| {
            message.bytes.extend_from_slice(value);
            message
        })
    }

    /// Appends an attribute that is a string, with its NUL.
    #[must_use]
    pub fn with_text(self, kind: u16, value: &str) -> Self {
        self.with(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Appends an attribute whose value `inside` writes. Its length does not count the padding (nla_put() in lib/nlattr.c).
    #[must_use]
    pub fn with_nested(mut self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        let mut message = inside(self);
        let len = u16::try_from(message.bytes.len() - begin)
            .expect("names, addresses and rules of a few hundred bytes");
        message.bytes[begin..begin + 2].copy_from_slice(&len.to_ne_bytes());
        message.then(&[])
    }

    /// The message as it is sent, apart from its sequence number.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.numbered(0)
    }

    fn numbered(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let len = u32::try_from(bytes.len()).expect("attributes of at most 64 KiB each");
        bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }

    /// Whether the kernel ends its answer with an acknowledgement or the end of a list.
    fn is_answered(&self) -> bool {
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        flags & NLM_F_ACK != 0 || flags & NLM_F_DUMP == NLM_F_DUMP
    }
}

/// A message as received, without its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its type.
    pub kind: u16,
    /// Fixed part and attributes.
    pub payload: Vec<u8>,
}

impl Answer {
    /// The value of an attribute after a fixed part of `fixed_len` bytes.
    #[must_use]
    pub fn attribute(&self, fixed_len: usize, wanted: u16) -> Option<&[u8]> {
        let mut rest = self.payload.get(fixed_len..)?;
        loop {
            let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
            let value = rest.get(4..len)?;
            if kind & NLA_TYPE_MASK == wanted {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }

    /// Reads four bytes of the fixed part as a number.
    #[must_use]
    pub fn number(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(
            *self.payload.get(offset..)?.first_chunk()?,
        ))
    }
}

/// The netlink protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses and routes (rtnetlink(7)).
    Route,
    /// Packet filters.
    Netfilter,
    /// Sockets (sock_diag(7)).
    SocketDiag,
}

/// A socket to the kernel, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel's: it does not have this protocol.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let socket = bound(protocol, SockFlag::empty(), 0)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &ANSWER_TIME_MAX)?;
        Ok(socket.into())
    }

    /// Opens a socket in another network namespace. Needs `CAP_SYS_ADMIN` there and here.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(protocol: Protocol, namespace: BorrowedFd<'_>) -> io::Result<Self> {
        // A namespace is of a thread (setns(2)), and this one ends without running anything else.
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
                Self::open(protocol)
            });
            opened
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
        })
    }

    /// Sends messages together and reads until the kernel has answered every one that asks for an answer. Returns the answers
    /// without the acknowledgements.
    ///
    /// # Errors
    /// The first step that was rejected. The others may have taken effect, unless the protocol has transactions.
    pub fn transact(&mut self, messages: &[Message]) -> Result<Vec<Answer>, NetlinkError> {
        let refused = |step: &'static str| move |source: io::Error| NetlinkError { step, source };
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else {
            return Ok(Vec::new());
        };
        let begin = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        let mut awaited = 0;
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(message.numbered(self.sequence));
            awaited += usize::from(message.is_answered());
        }
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())
            .map_err(io::Error::from)
            .map_err(refused(first.step))?;
        let mut given = Vec::new();
        while awaited > 0 {
            let bytes = receive(self.socket.as_fd()).map_err(refused(last.step))?;
            for (sequence, answer) in split(&bytes) {
                // Other numbers belong to late answers of earlier transactions.
                let number = sequence.wrapping_sub(begin) as usize;
                let Some(message) = messages.get(number) else {
                    continue;
                };
                match answer.kind {
                    NLMSG_ERROR | NLMSG_DONE => match error_of(&answer) {
                        None => awaited -= usize::from(message.is_answered()),
                        Some(error) => return Err(refused(message.step)(error)),
                    },
                    _ => given.push(answer),
                }
            }
        }
        Ok(given)
    }
}

impl From<OwnedFd> for Netlink {
    /// A socket made by [`Netlink::open`] in another process.
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket,
            sequence: 0,
        }
    }
}

impl From<Netlink> for OwnedFd {
    fn from(netlink: Netlink) -> Self {
        netlink.socket
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that becomes readable whenever something in the multicast `groups` changes (bits, as in `RTMGRP_…`).
///
/// # Errors
/// The kernel's.
pub fn events(groups: u32) -> io::Result<OwnedFd> {
    bound(Protocol::Route, SockFlag::SOCK_NONBLOCK, groups)
}

/// A number of the calling thread's network namespace that no other namespace ever has until the machine restarts
/// (`SO_NETNS_COOKIE`, Linux 5.14). An older kernel has only the inode number, which may be used again once the namespace is gone.
///
/// # Errors
/// The kernel's.
pub fn namespace_id() -> io::Result<u64> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    let mut cookie: u64 = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&cookie)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, and the length to `len`; both live until the call returns.
    let failed = unsafe {
        libc::getsockopt(
            probe.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if failed == 0 {
        return Ok(cookie);
    }
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// include/uapi/asm-generic/socket.h; the same on x86_64 and aarch64.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Discards everything that waits on a socket of [`events`].
pub fn drain(events: &OwnedFd) {
    for _ in 0..DRAIN_ROUNDS_MAX {
        // An overflow (ENOBUFS) counts as an event, too: only an empty socket ends the loop.
        match receive(events.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}

fn bound(protocol: Protocol, flags: SockFlag, groups: u32) -> io::Result<OwnedFd> {
    let protocol = match protocol {
        Protocol::Route => SockProtocol::NetlinkRoute,
        Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
        Protocol::SocketDiag => SockProtocol::NetlinkSockDiag,
    };
    let flags = SockFlag::SOCK_CLOEXEC | flags;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; RECEIVE_LEN_MAX];
    let len = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_TRUNC)?;
    if len > bytes.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the kernel's answer of {len} bytes is over {RECEIVE_LEN_MAX}"),
        ));
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// The messages in a received buffer, with their numbers. An incomplete last one is skipped.
fn split(mut bytes: &[u8]) -> Vec<(u32, Answer)> {
    let mut answers = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER_LEN>() {
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let len = word(0) as usize;
        let Some(payload) = bytes.get(HEADER_LEN..len) else {
            break;
        };
        answers.push((
            word(8),
            Answer {
                kind: u16::from_ne_bytes([header[4], header[5]]),
                payload: payload.to_owned(),
            },
        ));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    answers
}

/// Both an acknowledgement and the end of a list begin with a negative error number, or 0.
fn error_of(answer: &Answer) -> Option<io::Error> {
    let code = answer.number(0).unwrap_or(0).cast_signed();
    (code != 0).then(|| io::Error::from_raw_os_error(-code))
}

/// Many times more than a socket buffers.
const DRAIN_ROUNDS_MAX: usize = 10_000;

const HEADER_LEN: usize = 16;

/// Longest piece of a list (netlink_dump() in net/netlink/af_netlink.c).
const RECEIVE_LEN_MAX: usize = 32 * 1024;

/// The kernel answers during the send call, so a longer wait would never end.
const ANSWER_TIME_MAX: TimeVal = TimeVal::new(5, 0);

const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_TYPE_MASK: u16 = 0x3fff;

#[cfg(test)]
mod tests;
