//! A socket to listen on, what is served there, and to whom. Each listener has limits of its own, so that a listener for
//! administrators answers while another one is full.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use pilot_model::access::Grant;
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::rustls::ServerConfig;

use crate::connection::stream::Stream;

/// A socket to listen on, and its rules.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: ListeningSocket,
    pub(crate) door: Door,
}

/// The rules of a listener.
#[derive(Debug, Clone)]
pub struct Door {
    /// What is served.
    pub serves: Serves,
    /// What the bytes of a connection are.
    pub transport: Transport,
    /// Whether a call of a function needs a token.
    pub calls: Access,
    /// Whether `/metrics` needs a token. The rest of the control API needs one in any case, except from [`Door::everyone`].
    pub metrics: Access,
    /// The rights of every caller, without a token: for sockets that only administrators can open.
    pub everyone: Option<Arc<Grant>>,
    /// Highest number of open connections. Further ones are refused.
    pub connections_max: usize,
    /// Highest number of open connections from one address (IPv6: from one /64 network). On a Unix socket, of one user, except root and
    /// the daemon's own, for whom some connections are kept beyond `connections_max`.
    pub connections_per_address_max: usize,
    /// Connections whose descriptor is not below this number find room only if a connection without a request makes it. The kernel gives
    /// the lowest descriptor that is free, so nearly all that this process may have are in use then: the rest is for other listeners.
    pub descriptors_end: RawFd,
}

/// What the bytes of a connection are.
#[derive(Debug, Clone)]
pub enum Transport {
    /// HTTP/1.
    Plain,
    /// HTTP/1, or HTTP/2 if the client knows that it is served ("with prior knowledge", RFC 9113 §3.3). Also called h2c.
    PlainWithHttp2,
    /// TLS. The client chooses HTTP/2 or HTTP/1 by ALPN (RFC 7301), and HTTP/1 without it. Only for TCP. The configuration must
    /// offer [`Transport::ALPN`].
    Tls(Arc<ServerConfig>),
}

impl Transport {
    /// The protocols over TLS, the best one first.
    pub const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
}

/// What a listener serves. Health is served by all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// Function URLs and the Invoke API.
    Functions,
    /// The control API and the Invoke API. No function URLs: their pages would have the origin of the control API.
    Control,
    /// Both.
    Everything,
}

/// Whether something needs a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No. Requests that a web page of another site may have made are refused instead.
    Open,
    /// Yes.
    Token,
}

impl Default for Door {
    /// Everything, calls without a token.
    fn default() -> Self {
        Self {
            serves: Serves::Everything,
            transport: Transport::Plain,
            calls: Access::Open,
            metrics: Access::Token,
            everyone: None,
            connections_max: 1024,
            connections_per_address_max: 768,
            descriptors_end: RawFd::MAX,
        }
    }
}

impl Serves {
    pub(crate) fn function_urls(self) -> bool {
        self != Self::Control
    }

    pub(crate) fn control(self) -> bool {
        self != Self::Functions
    }
}

impl Listener {
    /// TCP.
    #[must_use]
    pub fn tcp(socket: TcpListener, door: Door) -> Self {
        Self {
            socket: ListeningSocket::Tcp(socket),
            door,
        }
    }

    /// A Unix socket.
    #[must_use]
    pub fn unix(socket: UnixListener, door: Door) -> Self {
        Self {
            socket: ListeningSocket::Unix(socket),
            door,
        }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl ListeningSocket {
    /// The next connection, and the address of its client.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                // Fails only if the socket is already closed, which is noticed when it is served.
                let _ = stream.set_nodelay(true);
                Ok((Stream::Tcp(stream), peer))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((Stream::Unix(stream), THIS_MACHINE))
            }
        }
    }
}

impl fmt::Display for ListeningSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(socket) => match socket.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("tcp"),
            },
            Self::Unix(_) => f.write_str("the control socket"),
        }
    }
}

/// The address of a client of a Unix socket, where an IP address is wanted.
const THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
