//! A blocking HTTP/1.1 client with one connection. It has no redirects, no TLS and no proxies, and panics at every error of the
//! server. It measures times, so that tests can distinguish a streamed response from a collected one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::Value;

use crate::patience;

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: String,
    /// Path and query, raw.
    pub target: String,
    /// Headers in addition to `host` and `content-length`.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// A request without headers and body.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// With an additional header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nhost: localhost\r\n",
            self.method, self.target
        );
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() || matches!(self.method.as_str(), "POST" | "PUT") {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A response.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers in their order, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, with chunked coding decoded.
    pub body: Vec<u8>,
    /// Time from the end of sending to the head.
    pub head_after: Duration,
    /// Time from the end of sending to each chunk, if it was chunked.
    pub chunks_after: Vec<Duration>,
    /// Time from the end of sending to the end of the body.
    pub body_after: Duration,
}

impl Response {
    /// A header's first value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// A header's values.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers
            .iter()
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {} {}", self.status, self.text()))
    }

    /// Asserts that it is 2xx.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(
            (200..300).contains(&self.status),
            "status {}: {}",
            self.status,
            self.text()
        );
        self
    }

    /// `cold` or `warm`, from the daemon's header.
    #[must_use]
    pub fn start_kind(&self) -> &str {
        self.header("x-pilot-start").unwrap_or("")
    }
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<Socket>,
}

/// TCP, or a Unix socket.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection {
    /// Connects. Reads have a timeout of a minute.
    ///
    /// # Panics
    /// If no server listens.
    #[must_use]
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(READ_MAX * patience()))
            .unwrap();
        Self {
            reader: BufReader::new(Socket::Tcp(stream)),
        }
    }

    /// Connects from this address of the machine, as [`Connection::open`].
    ///
    /// # Panics
    /// If no server listens.
    #[must_use]
    pub fn open_from(from: Ipv4Addr, address: SocketAddr) -> Self {
        let SocketAddr::V4(address) = address else {
            panic!("{address} is not IPv4");
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let from = SockaddrIn::from(SocketAddrV4::new(from, 0));
        bind(socket.as_raw_fd(), &from).unwrap();
        connect(socket.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(READ_MAX * patience()))
            .unwrap();
        Self {
            reader: BufReader::new(Socket::Tcp(stream)),
        }
    }

    /// Connects to a Unix socket, as [`Connection::open`].
    ///
    /// # Panics
    /// If no server listens.
    #[must_use]
    pub fn open_unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path)
            .unwrap_or_else(|error| panic!("connect to {}: {error}", path.display()));
        stream
            .set_read_timeout(Some(READ_MAX * patience()))
            .unwrap();
        Self {
            reader: BufReader::new(Socket::Unix(stream)),
        }
    }

    /// Sends without waiting for the response.
    pub fn send(&mut self, request: &Request) {
        let bytes = request.encode();
        // A server may answer and close before it has read everything (413). Only the response counts.
        let _ = self.reader.get_mut().write_all(&bytes);
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    /// Sends and waits for the response.
    #[track_caller]
    pub fn exchange(&mut self, request: &Request) -> Response {
        // With one processor, the server can answer before `send` returns.
        let sent = Instant::now();
        self.send(request);
        self.receive_since(sent, &request.method)
    }

    /// Waits for the response to a request with this method, which was sent before. Its times count from now.
    #[track_caller]
    pub fn receive(&mut self, method: &str) -> Response {
        self.receive_since(Instant::now(), method)
    }

    #[track_caller]
    fn receive_since(&mut self, sent: Instant, method: &str) -> Response {
        let (status, headers) = self.head();
        let head_after = sent.elapsed();
        let mut response = Response {
            status,
            headers,
            body: Vec::new(),
            head_after,
            chunks_after: Vec::new(),
            body_after: head_after,
        };
        if method == "HEAD" || matches!(status, 204 | 304) {
            return response;
        }
        if response.header("transfer-encoding") == Some("chunked") {
            self.chunks(sent, &mut response);
        } else if let Some(length) = response.header("content-length") {
            response.body = vec![0; length.parse().unwrap()];
            self.reader.read_exact(&mut response.body).unwrap();
        } else {
            self.reader.read_to_end(&mut response.body).unwrap();
        }
        response.body_after = sent.elapsed();
        response
    }

    /// The next line, without its end: of an upgraded connection, or of a raw head.
    #[track_caller]
    pub fn raw_line(&mut self) -> String {
        self.line()
    }

    /// All bytes until the server ends the connection in any way.
    #[must_use]
    pub fn until_the_end(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // The bytes before a reset are kept.
        let _ = self.reader.read_to_end(&mut bytes);
        bytes
    }

    /// Waits until the response has begun, and leaves it unread.
    #[track_caller]
    pub fn response_begins(&mut self) {
        assert!(
            !self.reader.fill_buf().unwrap().is_empty(),
            "the server ended the connection"
        );
    }

    /// Some bytes as they come; 0 if the server has ended the connection in any way.
    pub fn read_some(&mut self, into: &mut [u8]) -> usize {
        self.reader.read(into).unwrap_or(0)
    }

    /// Closes the connection at once.
    pub fn hang_up(self) {
        let _ = match self.reader.get_ref() {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    #[track_caller]
    fn head(&mut self) -> (u16, Vec<(String, String)>) {
        loop {
            let line = self.line();
            let status: u16 = line
                .split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok())
                .unwrap_or_else(|| panic!("not a status line: {line:?}"));
            let mut headers = Vec::new();
            loop {
                let line = self.line();
                let Some((name, value)) = line.split_once(':') else {
                    break;
                };
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if status >= 200 {
                return (status, headers);
            }
        }
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.reader
            .read_until(b'\n', &mut line)
            .unwrap_or_else(|error| panic!("no answer: {error}"));
        assert!(
            line.ends_with(b"\n"),
            "the connection was closed before an answer"
        );
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    #[track_caller]
    fn chunks(&mut self, sent: Instant, response: &mut Response) {
        loop {
            let line = self.line();
            let size = line.split(';').next().unwrap_or("").trim();
            let length = usize::from_str_radix(size, 16)
                .unwrap_or_else(|_| panic!("not a chunk size: {line:?}"));
            let mut chunk = vec![0; length + 2];
            self.reader.read_exact(&mut chunk).unwrap();
            if length == 0 {
                return;
            }
            response.chunks_after.push(sent.elapsed());
            response.body.extend_from_slice(&chunk[..length]);
        }
    }
}

/// Percent-encodes a query value.
#[must_use]
pub fn encode_query(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

const READ_MAX: Duration = Duration::from_secs(60);
