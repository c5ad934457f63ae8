//! Fakes for this crate's tests: an instance without a process, a `Reach` to a local port, and an HTTP peer that writes exactly
//! the given bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{Resources, WorkerMemory};
use pilot_model::{
    BoxFuture, Environment, EnvironmentId, FunctionConfig, FunctionSpec, Instant, Version,
    VersionId, WorkerId,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::SetOnce;

use crate::{End, Held, Instance, MemoryBudget, Reach, Retire, Start};

/// An instance that ends when the test says so.
#[derive(Debug, Default)]
pub(crate) struct FakeInstance {
    end: Arc<SetOnce<End>>,
    output: Mutex<Vec<u8>>,
    /// `kill`, `at once`, `gracefully`.
    let_go: Mutex<Vec<&'static str>>,
    grace: Mutex<Option<Duration>>,
    held: Mutex<Option<Held>>,
}

impl FakeInstance {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn end(&self, end: End) {
        drop(self.end.set(end));
    }

    pub(crate) fn print(&self, text: &str) {
        self.output.lock().extend_from_slice(text.as_bytes());
    }

    pub(crate) fn let_go(&self) -> Vec<&'static str> {
        self.let_go.lock().clone()
    }

    /// The time that it was given.
    pub(crate) fn grace(&self) -> Option<Duration> {
        *self.grace.lock()
    }
}

impl Instance for FakeInstance {
    fn ended(&self) -> BoxFuture<'static, End> {
        let end = Arc::clone(&self.end);
        Box::pin(async move { *end.wait().await })
    }

    fn is_alive(&self) -> bool {
        !self.end.initialized()
    }

    fn kill(&self) {
        self.let_go.lock().push("kill");
        self.end(End::Signalled(9));
    }

    fn retire(&self, how: Retire) {
        match how {
            Retire::AtOnce { .. } => self.let_go.lock().push("at once"),
            Retire::Gracefully { held, grace, .. } => {
                self.let_go.lock().push("gracefully");
                *self.grace.lock() = Some(grace);
                *self.held.lock() = Some(held);
            }
        }
    }

    fn take_output(&self) -> Bytes {
        std::mem::take(&mut *self.output.lock()).into()
    }

    fn printed(&self) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(!self.output.lock().is_empty()))
    }

    fn resources(&self) -> &dyn Resources {
        self
    }

    fn memory_bytes_max(&self) -> u64 {
        64 << 20
    }
}

impl Resources for FakeInstance {
    fn memory(&self) -> WorkerMemory {
        WorkerMemory::default()
    }
}

/// Connects to one local address, whatever port is asked for.
#[derive(Debug)]
pub(crate) struct FakeReach {
    address: Mutex<Option<SocketAddr>>,
    tries: AtomicUsize,
    connects: AtomicUsize,
}

impl FakeReach {
    /// `None`: nothing listens yet.
    pub(crate) fn to(address: Option<SocketAddr>) -> Arc<Self> {
        Arc::new(Self {
            address: Mutex::new(address),
            tries: AtomicUsize::new(0),
            connects: AtomicUsize::new(0),
        })
    }

    pub(crate) fn listens(&self, address: SocketAddr) {
        *self.address.lock() = Some(address);
    }

    pub(crate) fn listens_no_more(&self) {
        *self.address.lock() = None;
    }

    pub(crate) fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }

    /// Number of connections made.
    pub(crate) fn connects(&self) -> usize {
        self.connects.load(Ordering::SeqCst)
    }
}

impl Reach for FakeReach {
    fn connect(&self, _port: u16) -> BoxFuture<'static, io::Result<TcpStream>> {
        self.tries.fetch_add(1, Ordering::SeqCst);
        let Some(address) = *self.address.lock() else {
            return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
        };
        self.connects.fetch_add(1, Ordering::SeqCst);
        Box::pin(TcpStream::connect(address))
    }
}

/// A start of a version whose configuration `change` has edited.
pub(crate) fn start(change: impl FnOnce(&mut FunctionConfig)) -> Start {
    let name = "hello".parse().unwrap();
    let mut config = FunctionSpec {
        handler: Some("app.handler".to_owned()),
        ..FunctionSpec::default()
    }
    .check(&name)
    .unwrap();
    change(&mut config);
    let version = Version {
        id: VersionId::from_hex("0000000000000003"),
        number: 3,
        config,
        code_dir: "/nonexistent/code".into(),
        layers: None,
        environment: Environment {
            id: EnvironmentId::from_hex("00000000000000e0"),
            python: None,
            node: None,
        },
        own_imports: None,
        modules: Vec::new(),
    };
    Start {
        answers: MemoryBudget::default().of(&version.config.name),
        id: WorkerId(7),
        version: Arc::new(version),
        asked: Instant(1),
        forked: Instant(2),
        sandboxed: Instant(3),
        ready_max: Duration::from_secs(20),
    }
}

/// One end of an HTTP connection that writes the given bytes and reads heads and bodies of known length.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: BufReader<TcpStream>,
}

/// A message from the other end.
#[derive(Debug)]
pub(crate) struct Message {
    /// Request or status line.
    pub(crate) line: String,
    /// In their order and spelling.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// The value of the header with exactly this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(other, _)| other == name);
        found.next().map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Peer {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Fails if the other side has closed.
    pub(crate) async fn try_write(&mut self, text: &str) -> std::io::Result<()> {
        self.stream.write_all(text.as_bytes()).await
    }

    /// Sends a request without waiting for the answer.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let len = body.len();
        self.write(format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
        ))
        .await;
    }

    /// Sends a request and waits for the answer.
    pub(crate) async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Message {
        self.ask(method, path, headers, body).await;
        self.read().await
    }

    pub(crate) async fn read(&mut self) -> Message {
        let mut message = self.read_head().await;
        let len = message
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map_or(0, |(_, value)| value.parse().unwrap());
        message.body = vec![0; len];
        self.stream.read_exact(&mut message.body).await.unwrap();
        message
    }

    pub(crate) async fn read_head(&mut self) -> Message {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line).await.unwrap();
            assert!(read > 0, "the connection was closed after {lines:?}");
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let mut lines = lines.into_iter();
        Message {
            line: lines.next().unwrap(),
            headers: lines
                .map(|line| {
                    let (name, value) = line.split_once(':').unwrap();
                    (name.to_owned(), value.trim().to_owned())
                })
                .collect(),
            body: Vec::new(),
        }
    }

    /// Reads until the other end closes.
    pub(crate) async fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is an end too.
        drop(self.stream.read_to_end(&mut rest).await);
        rest
    }
}
