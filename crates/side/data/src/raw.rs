//! Connections without a protocol, for initscripts: exchanges of bytes, and then a socket for the function.
//!
//! The function gets one end of a socket pair, or a path to connect to once, and a task passes the bytes on. It never gets the TCP
//! socket itself: that one is in the daemon's network, and connect(2) with AF_UNSPEC and then another address would lead anywhere
//! from there. So a connection that was handed over leads to the address that was checked, and nowhere else, whatever the network
//! of the function is.
//!
//! A script's connection is a task of its own until it is handed over. What is passed on lives as long as both ends do, within a number
//! for all functions and one for each.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::initscript::Endpoint;
use pilot_model::ports::{
    HandedSocket, InputFaultKind as Kind, RawConnection, RemoteFault, RemoteRequest, Takes,
};
use pilot_model::{BoxFuture, FunctionName};
use pilot_sys::{seqpacket, unnamed};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::networks::Networks;

/// The connections that functions have.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    /// Guards only the value. Never held with the other one.
    tasks: Mutex<JoinSet<()>>,
    counts: Arc<Counts>,
}

/// How many connections each function has. The lock is held for one change.
#[derive(Debug, Default)]
struct Counts(Mutex<HashMap<FunctionName, usize>>);

/// One of [`RELAYS_MAX`]. Dropping it gives it back.
#[derive(Debug)]
struct Turn {
    counts: Arc<Counts>,
    function: FunctionName,
}

impl Relays {
    fn turn(&self, function: &FunctionName) -> Result<Turn, String> {
        let mut counts = self.counts.0.lock();
        let all: usize = counts.values().sum();
        let of_function = counts.get(function).copied().unwrap_or(0);
        if of_function >= RELAYS_MAX / 2 || all >= RELAYS_MAX {
            return Err(format!(
                "{of_function} connections that initscripts handed over are open for this function, and {all} in all: at most {} and \
                 {RELAYS_MAX}",
                RELAYS_MAX / 2
            ));
        }
        counts.insert(function.clone(), of_function + 1);
        Ok(Turn {
            counts: Arc::clone(&self.counts),
            function: function.clone(),
        })
    }

    fn spawn(&self, relay: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(relay);
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.counts.0.lock().is_empty()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.function) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.function);
            }
        }
    }
}

/// A script's connection.
#[derive(Debug)]
pub(crate) struct Raw {
    /// A script has a limited number of requests.
    commands: mpsc::UnboundedSender<Command>,
    task: AbortHandle,
}

#[derive(Debug)]
enum Command {
    Exchange(RemoteRequest, oneshot::Sender<Result<Vec<u8>, RemoteFault>>),
    HandOver(Takes, oneshot::Sender<Result<HandedSocket, RemoteFault>>),
}

impl Raw {
    /// Begins to connect.
    pub(crate) fn open(
        networks: Networks,
        relays: Arc<Relays>,
        function: FunctionName,
        endpoint: Endpoint,
    ) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(serve(networks, relays, function, endpoint, queue));
        Self {
            commands,
            task: task.abort_handle(),
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What was handed over is another task.
        self.task.abort();
    }
}

impl RawConnection for Raw {
    fn exchange(&self, request: RemoteRequest) -> BoxFuture<'static, Result<Vec<u8>, RemoteFault>> {
        let (sender, answer) = oneshot::channel();
        // An error means that the task is gone, and so is the answer.
        let _ = self.commands.send(Command::Exchange(request, sender));
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(closed())) })
    }

    fn hand_over(&self, takes: Takes) -> BoxFuture<'static, Result<HandedSocket, RemoteFault>> {
        let (sender, answer) = oneshot::channel();
        let _ = self.commands.send(Command::HandOver(takes, sender));
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(closed())) })
    }
}

/// A connection, and what was read beyond the replies.
struct Open {
    stream: TcpStream,
    rest: Vec<u8>,
}

/// Does what the script asks for, in order, until it is handed over. After a failure, nothing works any more.
async fn serve(
    networks: Networks,
    relays: Arc<Relays>,
    function: FunctionName,
    endpoint: Endpoint,
    mut queue: mpsc::UnboundedReceiver<Command>,
) {
    let mut open = connect(&networks, &endpoint).await;
    while let Some(command) = queue.recv().await {
        match command {
            Command::Exchange(request, answer) => {
                let result = match &mut open {
                    Ok(open) => open.exchange(&request).await,
                    Err(fault) => Err(fault.clone()),
                };
                if let Err(fault) = &result {
                    open = Err(fault.clone());
                }
                let _ = answer.send(result);
            }
            Command::HandOver(takes, answer) => {
                let handed = open.and_then(|open| open.hand_over(&relays, &function, takes));
                let _ = answer.send(handed);
                return;
            }
        }
    }
}

async fn connect(networks: &Networks, endpoint: &Endpoint) -> Result<Open, RemoteFault> {
    let host = endpoint.host().trim_matches(['[', ']']);
    let connected = async {
        let found = networks.resolve(host, endpoint.port().unwrap_or_default());
        let stream = TcpStream::connect(&found.await?[..]).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let connected = match timeout(CONNECT_MAX, connected).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
    };
    let stream = connected.map_err(|error| unavailable(&error))?;
    Ok(Open {
        stream,
        rest: Vec::new(),
    })
}

/// How a reply ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Bytes(usize),
    Lines(usize),
}

impl Ends {
    fn of(request: &RemoteRequest) -> Result<Self, RemoteFault> {
        let wrong = || RemoteFault {
            kind: Kind::Key,
            problem: format!(
                "a request to tcp:// begins with READ and a number of bytes, or with LINES and a number of lines, at most {READ_MAX}, and has no \
                 headers"
            ),
        };
        let count: usize = request.key.parse().map_err(|_| wrong())?;
        if count > READ_MAX || !request.headers.is_empty() {
            return Err(wrong());
        }
        match request.method.as_str() {
            "READ" => Ok(Self::Bytes(count)),
            "LINES" => Ok(Self::Lines(count)),
            _ => Err(wrong()),
        }
    }

    /// The length of the reply at the beginning of `bytes`, if it is whole.
    fn find(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Bytes(count) => (bytes.len() >= count).then_some(count),
            Self::Lines(0) => Some(0),
            Self::Lines(count) => {
                let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
                ends.map(|(at, _)| at + 1).nth(count - 1)
            }
        }
    }
}

impl Open {
    async fn exchange(&mut self, request: &RemoteRequest) -> Result<Vec<u8>, RemoteFault> {
        let ends = Ends::of(request)?;
        let sent = self.stream.write_all(&request.body).await;
        sent.map_err(|error| unavailable(&error))?;
        loop {
            if let Some(len) = ends.find(&self.rest) {
                let after = self.rest.split_off(len);
                return Ok(std::mem::replace(&mut self.rest, after));
            }
            if self.rest.len() > READ_MAX {
                return Err(broken("the reply is too long"));
            }
            if read_some(&mut self.stream, &mut self.rest).await? == 0 {
                return Err(broken("the server closed the connection"));
            }
        }
    }

    fn hand_over(
        self,
        relays: &Arc<Relays>,
        function: &FunctionName,
        takes: Takes,
    ) -> Result<HandedSocket, RemoteFault> {
        let turn = relays.turn(function).map_err(|problem| RemoteFault {
            kind: Kind::Unavailable,
            problem,
        })?;
        match takes {
            Takes::Descriptor => {
                let (ours, descriptor) = connected().map_err(|error| unavailable(&error))?;
                relays.spawn(async move {
                    let _turn = turn;
                    relay(self, ours).await;
                });
                Ok(HandedSocket {
                    descriptor,
                    kept: None,
                })
            }
            Takes::Path => {
                let (ours, descriptor) = listening().map_err(|error| unavailable(&error))?;
                let (kept, given_up) = oneshot::channel::<()>();
                relays.spawn(async move {
                    let _turn = turn;
                    tokio::select! {
                        Ok((function, _)) = ours.accept() => {
                            // Nobody else can connect.
                            drop(ours);
                            if seqpacket::refuse_descriptors(function.as_fd()).is_ok() {
                                relay(self, function).await;
                            }
                        }
                        _ = given_up => {}
                    }
                });
                Ok(HandedSocket {
                    descriptor,
                    kept: Some(Box::new(kept)),
                })
            }
        }
    }
}

/// Two ends.
fn connected() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
    let ours = StdUnixStream::from(ours);
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs))
}

/// A socket, and a descriptor whose path leads to it.
fn listening() -> io::Result<(UnixListener, OwnedFd)> {
    let (ours, descriptor) = unnamed::listening()?;
    Ok((UnixListener::from_std(ours)?, descriptor))
}

async fn read_some(
    from: &mut (impl AsyncRead + Unpin),
    into: &mut Vec<u8>,
) -> Result<usize, RemoteFault> {
    let mut part = [0; 4096];
    let read = from.read(&mut part).await;
    let read = read.map_err(|error| unavailable(&error))?;
    into.extend_from_slice(part.get(..read).unwrap_or_default());
    Ok(read)
}

/// Passes bytes on until both directions have ended. When the function has closed its direction, or has ended, the server has a limited
/// time for the rest.
async fn relay(open: Open, function: UnixStream) {
    let Open { mut stream, rest } = open;
    let (mut from_server, mut to_server) = stream.split();
    let (mut from_function, mut to_function) = function.into_split();
    let up = async {
        let passed = tokio::io::copy(&mut from_function, &mut to_server).await;
        let _ = to_server.shutdown().await;
        passed
    };
    let down = async {
        to_function.write_all(&rest).await?;
        let passed = tokio::io::copy(&mut from_server, &mut to_function).await;
        // Dropping it closes the direction.
        drop(to_function);
        passed
    };
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    tokio::select! {
        _ = &mut up => {
            let _ = timeout(REST_MAX, down).await;
        }
        passed = &mut down => {
            // A function that is gone reads nothing.
            if passed.is_ok() {
                let _ = up.await;
            }
        }
    }
}

fn closed() -> RemoteFault {
    broken("the connection was closed")
}

fn broken(problem: &str) -> RemoteFault {
    RemoteFault {
        kind: Kind::Broken,
        problem: problem.to_owned(),
    }
}

fn unavailable(error: &io::Error) -> RemoteFault {
    RemoteFault {
        kind: Kind::Unavailable,
        problem: error.to_string(),
    }
}

/// Connections of all functions that are passed on at the same time. One function has at most half of them.
const RELAYS_MAX: usize = 128;
/// Bytes of a reply, and lines of one.
const READ_MAX: usize = 64 << 10;
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a server may go on to send after the function has closed its direction.
const REST_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;

    use bytes::Bytes;

    use super::*;

    fn request(method: &str, count: usize, body: &'static [u8]) -> RemoteRequest {
        RemoteRequest {
            method: method.to_owned(),
            key: count.to_string(),
            headers: Vec::new(),
            body: Bytes::from_static(body),
        }
    }

    fn open(relays: &Arc<Relays>, port: u16) -> Raw {
        let networks = Networks::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let endpoint = format!("tcp://127.0.0.1:{port}").parse().unwrap();
        Raw::open(
            networks,
            Arc::clone(relays),
            "resize".parse().unwrap(),
            endpoint,
        )
    }

    /// A server that greets, answers `hello` and then sends back in capitals what it gets.
    fn server() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.write_all(b"220 ready\r\n220 really\r\n").unwrap();
                let mut part = [0; 64];
                while let Ok(read @ 1..) = stream.read(&mut part) {
                    let text = part[..read].to_ascii_uppercase();
                    stream.write_all(&text).unwrap();
                }
            }
        });
        port
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_is_greeted_and_handed_over_and_ends_with_its_ends() {
        let relays = Arc::new(Relays::default());
        let raw = open(&relays, server());
        // Sent at the same time, answered in order.
        let (first, second) = (
            raw.exchange(request("LINES", 1, b"")),
            raw.exchange(request("READ", 5, b"abc")),
        );
        let handed = raw.hand_over(Takes::Descriptor);
        assert_eq!(first.await.unwrap(), b"220 ready\r\n");
        assert_eq!(second.await.unwrap(), b"220 r");
        let socket = handed.await.unwrap().descriptor;
        // It lives without the script.
        drop(raw);
        let text = tokio::task::spawn_blocking(move || {
            let mut socket = StdUnixStream::from(socket);
            socket.write_all(b"more").unwrap();
            let mut text = vec![0; "eally\r\nABCMORE".len()];
            socket.read_exact(&mut text).unwrap();
            text
        });
        assert_eq!(text.await.unwrap(), b"eally\r\nABCMORE");
        // The function's end is closed, so the server's is, and nothing is left.
        while !relays.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_by_a_path_is_taken_once_or_given_up() {
        let relays = Arc::new(Relays::default());
        let port = server();
        let handed = open(&relays, port).hand_over(Takes::Path).await.unwrap();
        let path = format!("/proc/self/fd/{}", handed.descriptor.as_raw_fd());
        let of_task = path.clone();
        let text = tokio::task::spawn_blocking(move || {
            let mut socket = StdUnixStream::connect(of_task).unwrap();
            let mut text = vec![0; 9];
            socket.read_exact(&mut text).unwrap();
            text
        });
        assert_eq!(text.await.unwrap(), b"220 ready");
        while !relays.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(StdUnixStream::connect(path).is_err());
        // The invocation has ended, and nobody has connected.
        let handed = open(&relays, port).hand_over(Takes::Path).await.unwrap();
        let path = format!("/proc/self/fd/{}", handed.descriptor.as_raw_fd());
        drop(handed.kept);
        while !relays.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(StdUnixStream::connect(path).is_err());
    }

    #[tokio::test]
    async fn what_is_no_request_and_a_server_that_is_not_there_are_told() {
        let relays = Arc::new(Relays::default());
        let raw = open(&relays, server());
        let wrong = raw.exchange(request("GET", 1, b"")).await.unwrap_err();
        assert!(wrong.problem.contains("begins with READ"), "{wrong}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let raw = open(&relays, port);
        assert!(raw.exchange(request("READ", 1, b"")).await.is_err());
        assert!(raw.hand_over(Takes::Descriptor).await.is_err());
        assert!(raw.exchange(request("READ", 1, b"")).await.is_err());
        let refused = Raw::open(
            Networks::new(Vec::new()),
            Arc::clone(&relays),
            "resize".parse().unwrap(),
            "tcp://127.0.0.1:1".parse().unwrap(),
        );
        let refused = refused.hand_over(Takes::Path).await.unwrap_err();
        assert!(
            refused.problem.contains("data.initscript_networks"),
            "{refused}"
        );
    }

    #[test]
    fn a_function_has_half_of_the_connections() {
        let relays = Arc::new(Relays::default());
        let (one, other): (FunctionName, FunctionName) =
            ("one".parse().unwrap(), "other".parse().unwrap());
        let turns: Vec<_> = (0..RELAYS_MAX / 2)
            .map(|_| relays.turn(&one).unwrap())
            .collect();
        assert!(relays.turn(&one).is_err());
        assert!(relays.turn(&other).is_ok());
        drop(turns);
        assert!(relays.is_empty());
    }

    #[test]
    fn a_reply_ends_after_bytes_or_lines() {
        assert_eq!(Ends::Bytes(3).find(b"ab"), None);
        assert_eq!(Ends::Bytes(3).find(b"abcd"), Some(3));
        assert_eq!(Ends::Lines(2).find(b"a\nb"), None);
        assert_eq!(Ends::Lines(2).find(b"a\nb\nc"), Some(4));
        assert_eq!(Ends::Lines(0).find(b""), Some(0));
    }
}
