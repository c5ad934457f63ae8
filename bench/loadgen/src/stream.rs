//! A connection to a server, with TLS or without. It reads and writes like a socket: on one that does not block, `WouldBlock` means
//! that the socket is not ready. TLS needs both directions for each of them, so a caller that got `WouldBlock` waits for either.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::control::LOOK_EVERY;
use crate::error::LoadError;

/// A server, as connections are made to it.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// `None`: without TLS.
    pub tls: Option<Tls>,
}

/// TLS to a server.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The trusted authorities. Its protocols must be `http/1.1` alone.
    pub config: Arc<ClientConfig>,
    /// Whose certificate the server must have.
    pub name: ServerName<'static>,
}

impl Peer {
    /// Makes a connection, with its handshake, and closes it.
    ///
    /// # Errors
    /// No server is there, or its certificate is not accepted.
    pub fn check(&self) -> Result<(), LoadError> {
        Stream::connect(self).map(drop)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    tcp: TcpStream,
    session: Option<Box<Session>>,
}

#[derive(Debug)]
struct Session {
    connection: ClientConnection,
    /// Bytes that are decrypted and not read yet.
    decrypted: usize,
}

impl Stream {
    /// Connects and shakes hands. Blocks. Later reads end with `WouldBlock` after a time.
    pub(crate) fn connect(peer: &Peer) -> Result<Self, LoadError> {
        let address = peer.address;
        let failed = |source| LoadError::Connect { address, source };
        let set_up = || -> io::Result<TcpStream> {
            let tcp = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
            tcp.set_nodelay(true)?;
            tcp.set_read_timeout(Some(LOOK_EVERY))?;
            Ok(tcp)
        };
        let tcp = set_up().map_err(failed)?;
        let mut stream = Self::over(tcp, peer).map_err(failed)?;
        let began = Instant::now();
        while let Err(error) = stream.shake_hands() {
            let waits = matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
            );
            if waits && began.elapsed() < CONNECT_PATIENCE {
                continue;
            }
            return Err(match tls_error(&error) {
                Some(source) => LoadError::Tls {
                    address,
                    source: source.clone(),
                },
                None => failed(error),
            });
        }
        Ok(stream)
    }

    /// On a socket that is connected, or connecting.
    pub(crate) fn over(tcp: TcpStream, peer: &Peer) -> io::Result<Self> {
        let session = peer.tls.as_ref().map(|tls| {
            let connection = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
            let connection = connection.map_err(io::Error::other)?;
            io::Result::Ok(Box::new(Session {
                connection,
                decrypted: 0,
            }))
        });
        Ok(Self {
            tcp,
            session: session.transpose()?,
        })
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.tcp.set_nonblocking(nonblocking)
    }

    /// Whether bytes wait for the socket to take them.
    pub(crate) fn wants_write(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.connection.wants_write())
    }

    /// Whether bytes have arrived that are not read yet, so that the socket does not show them.
    pub(crate) fn holds_bytes(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.decrypted > 0)
    }

    /// Goes on with the handshake. `Ok`: it is complete.
    fn shake_hands(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        while session.connection.is_handshaking() {
            session.flush(&mut self.tcp)?;
            if session.connection.is_handshaking() && session.receive(&mut self.tcp)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        session.flush(&mut self.tcp)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else {
            return self.tcp.read(buffer);
        };
        loop {
            match session.connection.reader().read(buffer) {
                Ok(length) => {
                    session.decrypted = session.decrypted.saturating_sub(length);
                    return Ok(length);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The server has closed the connection without saying so in TLS.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) => return Err(error),
            }
            // An answer of TLS itself, for example to an update of the keys.
            match session.flush(&mut self.tcp) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            session.receive(&mut self.tcp)?;
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.session.is_none() {
            return self.tcp.write(bytes);
        }
        self.shake_hands()?;
        let Some(session) = &mut self.session else {
            return Ok(0);
        };
        let length = session.connection.writer().write(bytes)?;
        match session.flush(&mut self.tcp) {
            // What is not sent yet is sent with the next call.
            Err(error) if error.kind() == ErrorKind::WouldBlock && length > 0 => Ok(length),
            Err(error) => Err(error),
            Ok(()) if length == 0 && !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Ok(()) => Ok(length),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.shake_hands()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl Session {
    fn flush(&mut self, tcp: &mut TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(tcp) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once from the socket and decrypts. Returns the number of bytes that were read; 0: the server has closed.
    fn receive(&mut self, tcp: &mut TcpStream) -> io::Result<usize> {
        let length = self.connection.read_tls(tcp)?;
        match self.connection.process_new_packets() {
            Ok(state) => self.decrypted = state.plaintext_bytes_to_read(),
            Err(error) => {
                // The alert that says why.
                let _ = self.flush(tcp);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
        Ok(length)
    }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
