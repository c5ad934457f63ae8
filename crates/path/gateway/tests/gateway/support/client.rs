//! An HTTP client that sends exactly the given bytes, and reads exactly one response.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        Self {
            stream: TcpStream::connect(to).await.unwrap(),
            unread: Vec::new(),
        }
    }

    /// With a receive buffer that the kernel does not grow. Its limit for the others is 32 MB from Linux 6.17 on.
    pub(crate) async fn connect_small(to: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(256 * 1024).unwrap();
        Self {
            stream: socket.connect(to).await.unwrap(),
            unread: Vec::new(),
        }
    }

    /// Sends these bytes and the end of its direction before the gateway can accept the connection, so that it finds both together.
    pub(crate) fn connect_with_all(to: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let mut stream = std::net::TcpStream::connect(to).unwrap();
        std::io::Write::write_all(&mut stream, bytes.as_ref()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self {
            stream: TcpStream::from_std(stream).unwrap(),
            unread: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a whole request and reads its response.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: pilot.test\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.send([head.as_bytes(), body].concat()).await;
        self.answer_to(method).await
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        self.answer_to("GET").await
    }

    /// Reads one response; panics if the connection ends before the response.
    pub(crate) async fn answer_to(&mut self, method: &str) -> Answer {
        self.try_answer(method)
            .await
            .expect("the connection ended within a response")
    }

    /// Reads one response; `None` if the connection ends before the response.
    pub(crate) async fn try_answer(&mut self, method: &str) -> Option<Answer> {
        let end = loop {
            if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                break at;
            }
            self.read_more().await?;
        };
        let head: Vec<u8> = self.unread.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut answer = Answer {
            status,
            headers,
            body: Vec::new(),
        };
        if method == "HEAD" || matches!(status, 100..200 | 204 | 304) {
            return Some(answer);
        }
        if let Some(length) = answer.header("content-length") {
            let length: usize = length.parse().unwrap();
            answer.body = self.take(length).await?;
        } else {
            assert_eq!(
                answer.header("transfer-encoding"),
                Some("chunked"),
                "{head}"
            );
            while let Some(chunk) = self.chunk().await? {
                answer.body.extend(chunk);
            }
        }
        Some(answer)
    }

    /// One chunk; `Some(None)` is the last one, `None` the end of the connection.
    async fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let end = loop {
            if let Some(at) = find(&self.unread, b"\r\n") {
                break at;
            }
            self.read_more().await?;
        };
        let line = self.take(end + 2).await?;
        let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = self.take(length + 2).await?;
        chunk.truncate(length);
        Some((length > 0).then_some(chunk))
    }

    /// All bytes up to the end of the connection, and how it ended.
    pub(crate) async fn until_the_end(mut self) -> (Vec<u8>, std::io::Result<usize>) {
        let mut all = std::mem::take(&mut self.unread);
        let end = self.stream.read_to_end(&mut all).await;
        (all, end)
    }

    /// Waits for the first bytes of a response.
    pub(crate) async fn begun(&mut self) {
        self.read_more().await.expect("nothing came");
    }

    /// Waits until the other side closes; returns what came before that.
    pub(crate) async fn closed(mut self) -> Vec<u8> {
        while self.read_more().await.is_some() {}
        self.unread
    }

    /// Waits for this number of bytes.
    pub(crate) async fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.take(length).await.expect("the connection ended")
    }

    /// Waits for the head of a response; leaves the rest unread.
    pub(crate) async fn head(&mut self) -> Answer {
        self.answer_to("HEAD").await
    }

    /// Waits for a chunk of a body; `None` for the last.
    pub(crate) async fn next_chunk(&mut self) -> Option<Vec<u8>> {
        self.chunk().await.expect("the connection ended")
    }

    /// Closes the write direction; reading goes on.
    pub(crate) async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Splits the connection into its directions. Nothing may have been read.
    pub(crate) fn split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        assert!(self.unread.is_empty());
        self.stream.into_split()
    }

    async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.unread.len() < length {
            self.read_more().await?;
        }
        Some(self.unread.drain(..length).collect())
    }

    async fn read_more(&mut self) -> Option<()> {
        let mut buffer = vec![0; 64 * 1024];
        let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer))
            .await
            .expect("nothing came")
            .ok()
            .filter(|read| *read > 0)?;
        self.unread.extend_from_slice(&buffer[..read]);
        Some(())
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// Longest wait; then the test fails.
const PATIENCE: Duration = Duration::from_secs(10);
