//! Messages with descriptors over Unix socket pairs (unix(7), `SOCK_SEQPACKET`, `SCM_RIGHTS`). Messages arrive whole.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, sendmsg, shutdown,
    socketpair,
};

/// Longest message, bytes.
pub const MESSAGE_LEN_MAX: usize = 64 * 1024;

/// Most descriptors in one message.
pub const FDS_MAX: usize = 16;

/// A connected pair of message sockets, both close-on-exec.
///
/// # Errors
/// The kernel's: out of descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// A connected pair of byte-stream sockets, both close-on-exec.
///
/// # Errors
/// The kernel's: out of descriptors.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// A message socket, and the other end for a process that is not trusted: see [`refuse_descriptors`].
///
/// # Errors
/// The kernel's: out of descriptors.
pub fn pair_with_untrusted() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pair()?;
    refuse_descriptors(ours.as_fd())?;
    Ok((ours, theirs))
}

/// A byte-stream socket, and the other end for a process that is not trusted: see [`refuse_descriptors`].
///
/// # Errors
/// The kernel's: out of descriptors.
pub fn stream_pair_with_untrusted() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = stream_pair()?;
    refuse_descriptors(ours.as_fd())?;
    Ok((ours, theirs))
}

/// From now on, a peer that sends descriptors to this socket gets EPERM (`SO_PASSRIGHTS`, since Linux 6.16). Otherwise the receiver
/// closes what it does not want, and a close may block: a TCP socket with `SO_LINGER` waits until its peer has taken all data
/// (socket(7)). An older kernel does nothing here: see [`descriptors_can_be_refused`].
///
/// # Errors
/// The socket is not a Unix socket.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    let no: libc::c_int = 0;
    let len = libc::socklen_t::try_from(size_of_val(&no)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes of `no`, which live until the call returns.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            len,
        )
    };
    if failed == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        error => Err(error),
    }
}

/// From now on, whatever the other end would send fails there with EPIPE, also what it is just sending. What is sent to it still arrives.
///
/// # Errors
/// The socket is not connected.
pub fn stop_reading(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(shutdown(socket.as_raw_fd(), Shutdown::Read)?)
}

/// Whether this kernel has `SO_PASSRIGHTS`.
#[must_use]
pub fn descriptors_can_be_refused() -> bool {
    let sends_to_us = || -> io::Result<bool> {
        let (ours, theirs) = pair_with_untrusted()?;
        Ok(send(theirs.as_fd(), b"x", &[ours.as_fd()]).is_ok())
    };
    sends_to_us().is_ok_and(|sent| !sent)
}

/// include/uapi/asm-generic/socket.h; the same on x86_64 and aarch64.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Sends one message with descriptors. Blocks if the socket is blocking.
///
/// # Errors
/// `WouldBlock` on a full non-blocking socket; `BrokenPipe` when the other end is closed.
pub fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if message.len() > MESSAGE_LEN_MAX || fds.len() > FDS_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a message of {} bytes with {} descriptors is over {MESSAGE_LEN_MAX} and {FDS_MAX}",
                message.len(),
                fds.len()
            ),
        ));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(message)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Sends the beginning of `parts` over a byte stream, with descriptors attached to its first byte. How many bytes were sent.
///
/// # Errors
/// `WouldBlock` on a non-blocking socket that is full: nothing was sent. `BrokenPipe` when the other end is gone.
pub fn send_stream(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let descriptors = [ControlMessage::ScmRights(&raw)];
    let control = if fds.is_empty() {
        &[]
    } else {
        &descriptors[..]
    };
    let flags = MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        parts,
        control,
        flags,
        None,
    )?)
}

/// A message as received.
#[derive(Debug)]
pub struct Message {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message. `None`: the other end is closed.
///
/// # Errors
/// `WouldBlock` on a non-blocking socket without a message; `InvalidData` for a message that is too large. Its descriptors are
/// closed.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; MESSAGE_LEN_MAX];
    let mut space = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a message header of zeros is valid: no name, no parts, no control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = space.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&space) as _;
    // SAFETY: the header names `bytes` and `space` with their lengths, and both live until the call returns.
    let received = unsafe {
        libc::recvmsg(
            socket.as_fd().as_raw_fd(),
            &raw mut header,
            libc::MSG_CMSG_CLOEXEC,
        )
    };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // Before anything else: also a message that is refused has made descriptors.
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "its type differs between C libraries"
    )]
    let control_len = header.msg_controllen as usize;
    let fds = take_descriptors(&space[..control_len.div_ceil(size_of::<u64>())]);
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        // The kernel also cuts off the descriptors for which this process has no numbers left (unix(7)).
        socket.as_fd().try_clone_to_owned()?;
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message was cut off: it or its descriptors are over the limit",
        ));
    }
    if len == 0 && fds.is_empty() {
        return Ok(None);
    }
    bytes.truncate(len);
    Ok(Some(Message { bytes, fds }))
}

/// Words for the control data of a message: enough for [`FDS_MAX`] descriptors.
const CONTROL_WORDS: usize = 16;

/// The descriptors in the control data of a message that has just been received, also of one that was cut off.
fn take_descriptors(control: &[u64]) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    let mut rest = control;
    // The kernel's layout (include/linux/socket.h, struct cmsghdr): the length with this header, the level, the type, the data.
    while let [len, kind, after @ ..] = rest {
        let data_len = usize::try_from(*len)
            .unwrap_or(0)
            .saturating_sub(CONTROL_HEADER_LEN);
        let data = &after[..data_len.div_ceil(size_of::<u64>()).min(after.len())];
        let [level, kind] = halves(*kind);
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            let numbers = data.iter().flat_map(|word| halves(*word));
            for number in numbers.take(data_len / size_of::<RawFd>()) {
                // SAFETY: the kernel has just made this descriptor, so this is its only owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        rest = &after[data.len()..];
    }
    fds
}

const CONTROL_HEADER_LEN: usize = 16;

/// The two numbers that lie one after the other in a word of memory.
fn halves(word: u64) -> [i32; 2] {
    let bytes = word.to_ne_bytes();
    let (first, second) = bytes.split_at(4);
    [first, second].map(|half| i32::from_ne_bytes(half.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_too_many_descriptors_leaves_none() {
        let (here, there) = pair().unwrap();
        let many = [here.as_raw_fd(); 4 * FDS_MAX];
        sendmsg::<()>(
            there.as_raw_fd(),
            &[IoSlice::new(b"x")],
            &[ControlMessage::ScmRights(&many)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        // Nothing else refers to this end, unless a descriptor of the message was leaked.
        assert_eq!(
            receive(&here).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        drop(here);
        let closed = send(there.as_fd(), b"x", &[]).unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_message_whose_descriptors_find_no_number_says_so() {
        // The limit is one of the process, so the test runs itself again.
        const ALONE: &str = "PILOT_TEST_ALONE";
        const NAME: &str = "seqpacket::tests::a_message_whose_descriptors_find_no_number_says_so";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let again = again.args([NAME, "--exact", "--nocapture"]).env(ALONE, "1");
            let done = again.output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (here, there) = pair().unwrap();
        send(there.as_fd(), b"x", &[there.as_fd()]).unwrap();
        let next = here.try_clone().unwrap().as_raw_fd();
        let limit = libc::rlimit {
            rlim_cur: next.try_into().unwrap(),
            rlim_max: next.try_into().unwrap(),
        };
        // SAFETY: the kernel reads `limit`, which lives until the call returns.
        let failed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(failed, 0);
        assert_eq!(
            receive(&here).unwrap_err().raw_os_error(),
            Some(libc::EMFILE)
        );
    }

    #[test]
    fn an_untrusted_peer_sends_bytes_and_no_descriptors() {
        if !descriptors_can_be_refused() {
            eprintln!("SKIPPED: this kernel has no SO_PASSRIGHTS (Linux 6.16)");
            return;
        }
        for (ours, theirs) in
            [pair_with_untrusted(), stream_pair_with_untrusted()].map(Result::unwrap)
        {
            let refused = send(theirs.as_fd(), b"x", &[ours.as_fd()]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            send(theirs.as_fd(), b"x", &[]).unwrap();
            assert_eq!(receive(&ours).unwrap().unwrap().bytes, b"x");
            // The other way is open.
            send(ours.as_fd(), b"y", &[ours.as_fd()]).unwrap();
            assert_eq!(receive(&theirs).unwrap().unwrap().fds.len(), 1);
        }
    }

    #[test]
    fn who_stops_reading_ends_a_send_that_waits_and_still_sends() {
        let (ours, theirs) = stream_pair().unwrap();
        let other = theirs.try_clone().unwrap();
        // More than the socket takes: it waits for a reader.
        let sending = std::thread::spawn(move || {
            let mut theirs = std::os::unix::net::UnixStream::from(other);
            std::io::Write::write_all(&mut theirs, &vec![0; 8 << 20])
        });
        let mut first = [0];
        let read = nix::unistd::read(&ours, &mut first).unwrap();
        assert_eq!(read, 1);
        stop_reading(ours.as_fd()).unwrap();
        let ended = sending.join().unwrap().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::BrokenPipe);
        send(ours.as_fd(), b"x", &[]).unwrap();
        assert_eq!(receive(&theirs).unwrap().unwrap().bytes, b"x");
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (here, there) = pair().unwrap();
        let (extra, _other) = stream_pair().unwrap();
        send(here.as_fd(), b"hello", &[extra.as_fd()]).unwrap();
        let message = receive(&there).unwrap().unwrap();
        assert_eq!(message.bytes, b"hello");
        assert_eq!(message.fds.len(), 1);
    }

    #[test]
    fn the_end_of_the_other_side_is_none() {
        let (here, there) = pair().unwrap();
        drop(here);
        assert!(receive(&there).unwrap().is_none());
    }

    #[test]
    fn a_message_over_the_limit_is_refused_before_it_is_sent() {
        let (here, _there) = pair().unwrap();
        let error = send(here.as_fd(), &vec![0; MESSAGE_LEN_MAX + 1], &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
