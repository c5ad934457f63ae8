//! What the kernel knows about the other end of a TCP connection on this machine (sock_diag(7);
//! include/uapi/linux/{sock_diag,inet_diag}.h).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;

use super::{Answer, Message, NLM_F_ACK, Netlink, NetlinkError, Protocol};

/// A socket of the calling thread's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// Its inode, as in `/proc/PID/fd` (`socket:[…]`). 0: no process has it.
    pub inode: u32,
    /// Its owner, in the caller's user namespace.
    pub user: u32,
}

/// Asks for sockets.
#[derive(Debug)]
pub struct Diag {
    netlink: Netlink,
}

impl Diag {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            netlink: Netlink::open(Protocol::SocketDiag)?,
        })
    }

    /// As [`Diag::open`], for the sockets of another network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(namespace: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self {
            netlink: Netlink::open_in(Protocol::SocketDiag, namespace)?,
        })
    }

    /// The socket with these addresses that is connected. `None`: there is none.
    ///
    /// # Errors
    /// The kernel's: it has no `inet_diag`.
    pub fn connected(
        &mut self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Result<Option<Socket>, NetlinkError> {
        self.ask(local, remote)
    }

    /// The socket that gets connections to this address. `None`: there is none.
    ///
    /// # Errors
    /// The kernel's: it has no `inet_diag`.
    pub fn listening(&mut self, local: SocketAddrV4) -> Result<Option<Socket>, NetlinkError> {
        self.ask(local, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
    }

    /// The kernel also finds a listener for a connection that does not exist, so the answer's addresses are compared
    /// (inet_diag_find_one_icsk() in net/ipv4/inet_diag.c). IPv6 sockets with IPv4 addresses are found, too.
    fn ask(
        &mut self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Result<Option<Socket>, NetlinkError> {
        let mut fixed = Vec::with_capacity(REQUEST_LEN);
        fixed.extend([AF_INET, IPPROTO_TCP, 0, 0]);
        fixed.extend(u32::MAX.to_ne_bytes());
        fixed.extend(ports(local, remote));
        for address in [local.ip(), remote.ip()] {
            fixed.extend(address.octets());
            fixed.extend([0; 12]);
        }
        fixed.extend([0; 4]);
        // INET_DIAG_NOCOOKIE.
        fixed.extend([0xff; 8]);
        let message = Message::new("look a socket up", SOCK_DIAG_BY_FAMILY, NLM_F_ACK, &fixed);
        match self.netlink.transact(&[message]) {
            Ok(answers) => Ok(answers
                .first()
                .filter(|answer| answer.payload.get(4..8) == Some(&ports(local, remote)))
                .and_then(socket_of)),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn ports(local: SocketAddrV4, remote: SocketAddrV4) -> [u8; 4] {
    let [a, b] = local.port().to_be_bytes();
    let [c, d] = remote.port().to_be_bytes();
    [a, b, c, d]
}

/// `struct inet_diag_msg`.
fn socket_of(answer: &Answer) -> Option<Socket> {
    Some(Socket {
        user: answer.number(64)?,
        inode: answer.number(68)?,
    })
}

const REQUEST_LEN: usize = 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address}"),
        }
    }

    fn inode(socket: &impl std::os::fd::AsRawFd) -> u64 {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn both_ends_of_a_connection_and_its_listener_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = v4(listener.local_addr().unwrap());
        let client = TcpStream::connect(there).unwrap();
        let here = v4(client.local_addr().unwrap());
        let mut diag = Diag::open().unwrap();
        let found = diag.connected(here, there).unwrap().unwrap();
        assert_eq!(u64::from(found.inode), inode(&client));
        assert_eq!(found.user, nix::unistd::geteuid().as_raw());
        let (accepted, _) = listener.accept().unwrap();
        let found = diag.connected(there, here).unwrap().unwrap();
        assert_eq!(u64::from(found.inode), inode(&accepted));
        let found = diag.listening(there).unwrap().unwrap();
        assert_eq!(u64::from(found.inode), inode(&listener));
        // The listener is no answer to the question for a connection.
        let nobody = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        assert_eq!(diag.connected(there, nobody).unwrap(), None);
        drop(listener);
        assert_eq!(diag.listening(there).unwrap(), None);
    }
}
