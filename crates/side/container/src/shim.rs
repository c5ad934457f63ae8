//! The connection to a container's shim (`base/sys/native/shim.c`). Requests are answered in order, except the one that waits
//! until the container is at rest. Ends of processes are reported without a request.
//!
//! Invariants: a request is one message and gets one answer; when the connection ends, every waiting request fails. Dropping
//! the last reference closes the connection, which ends the container.

mod protocol;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_sys::seqpacket;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{SetOnce, oneshot};
use tokio::task::AbortHandle;

pub(crate) use protocol::{Ended, Program, ShimError, User, Whom};
use protocol::{Reply, Request};

/// A connected shim.
#[derive(Debug)]
pub(crate) struct Shim {
    connection: Arc<ShimConnection>,
    /// The task that reads; ends with this.
    reader: AbortHandle,
}

/// A program that was started.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    id: u64,
    /// As the container sees it.
    pub(crate) pid: i32,
    end: Arc<SetOnce<Ended>>,
}

impl Shim {
    /// Waits for the greeting of a shim that has just connected.
    ///
    /// # Errors
    /// It has another protocol version, or closed the connection.
    pub(crate) async fn greet(socket: UnixStream) -> Result<Self, ShimError> {
        match receive(&socket).await? {
            Some((Reply::Hello { protocol }, _)) if protocol == pilot_sys::shim::PROTOCOL => {}
            Some((reply, _)) => {
                return Err(ShimError::Protocol(format!("{reply:?} as a greeting")));
            }
            None => return Err(ShimError::Gone),
        }
        let connection = Arc::new(ShimConnection {
            socket,
            alive: AtomicBool::new(true),
            next_id: AtomicU64::new(1),
            pending: Mutex::default(),
        });
        let reader = tokio::spawn(Arc::clone(&connection).read()).abort_handle();
        Ok(Self { connection, reader })
    }

    /// False once the container is known to have ended. Only reads a flag.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection.alive.load(Ordering::Relaxed)
    }

    /// Starts a program with these descriptors as its 0, 1 and 2.
    ///
    /// # Errors
    /// The step that failed, for example `execve` with "No such file or directory".
    pub(crate) async fn exec(
        &self,
        program: &Program<'_>,
        fds: [BorrowedFd<'_>; 3],
    ) -> Result<Process, ShimError> {
        let id = self.connection.next_id();
        let end = Arc::new(SetOnce::new());
        // Before the request: the program's end may be reported before its start is handled here.
        self.connection.expect_end(id, &end)?;
        let request = Request::Exec(program);
        match self
            .connection
            .ask_as(id, &request, &fds, ANSWER_TIME_MAX)
            .await
        {
            Ok(answer) => Ok(Process {
                id,
                pid: i32::try_from(answer.value).unwrap_or(0),
                end,
            }),
            Err(error) => {
                self.connection.pending.lock().ends.remove(&id);
                Err(error)
            }
        }
    }

    /// Sends a signal without waiting for an answer. Has no effect if the program has ended.
    pub(crate) fn signal(&self, process: &Process, signal: i32, whom: Whom) {
        let request = Request::Signal {
            process: process.id,
            signal,
            whom,
        };
        self.connection.tell(&request);
    }

    /// Starts to end everything in the container but the shim, without waiting.
    pub(crate) fn kill_all_soon(&self) {
        self.connection.tell(&Request::Kill {
            within: ANSWER_TIME_MAX,
        });
    }

    /// Cleans the container, within this time.
    ///
    /// # Errors
    /// What could not be cleaned.
    pub(crate) async fn clean(&self, within: Duration) -> Result<(), ShimError> {
        self.ask(&Request::Clean { within }, within + ANSWER_TIME_MAX)
            .await
            .map(drop)
    }

    /// Waits until nothing but the shim runs in the container, at most this long.
    ///
    /// # Errors
    /// Something still runs, another request is already waiting, or the container has ended.
    pub(crate) async fn at_rest(&self, within: Duration) -> Result<(), ShimError> {
        self.ask(&Request::Rest, within).await.map(drop)
    }

    /// Records the state of a new container. `places` are the folders that [`Shim::clean`] empties; an empty list keeps those
    /// of before.
    ///
    /// # Errors
    /// `ENOTEMPTY` with the folder that is not empty.
    pub(crate) async fn seal(&self, places: &[String]) -> Result<(), ShimError> {
        self.ask(&Request::Seal { places }, ANSWER_TIME_MAX)
            .await
            .map(drop)
    }

    /// Resolves an image's `USER`.
    ///
    /// # Errors
    /// The image does not have this user or group.
    pub(crate) async fn user(&self, spec: &str) -> Result<User, ShimError> {
        let answer = self.ask(&Request::User { spec }, ANSWER_TIME_MAX).await?;
        User::decode(&answer.payload).ok_or_else(|| ShimError::Protocol("a user".to_owned()))
    }

    /// A listener on the container's loopback device; port 0 means any free one.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) async fn listen(&self, port: u16) -> Result<std::net::TcpListener, ShimError> {
        let answer = self.ask(&Request::Listen { port }, ANSWER_TIME_MAX).await?;
        Ok(one_of(answer.fds)?.into())
    }

    /// A non-blocking socket that is connecting to the container's loopback device.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) async fn connect(&self, port: u16) -> Result<std::net::TcpStream, ShimError> {
        let answer = self
            .ask(&Request::Connect { port }, ANSWER_TIME_MAX)
            .await?;
        Ok(one_of(answer.fds)?.into())
    }

    async fn ask(&self, request: &Request<'_>, within: Duration) -> Result<Done, ShimError> {
        let id = self.connection.next_id();
        self.connection.ask_as(id, request, &[], within).await
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // The reader owns the socket: this closes the connection, which ends the container.
        self.reader.abort();
    }
}

impl Process {
    /// Resolves when it has ended.
    pub(crate) async fn ended(&self) -> Ended {
        *self.end.wait().await
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<Ended> {
        self.end.get().copied()
    }
}

#[derive(Debug)]
struct ShimConnection {
    /// A message socket. Only the readiness of tokio's stream socket is used.
    socket: UnixStream,
    /// Only the reader clears it.
    alive: AtomicBool,
    next_id: AtomicU64,
    /// Guards only the maps; never held across an await.
    pending: Mutex<PendingReplies>,
}

type Answer = Result<Done, ShimError>;

/// What a successful request gives.
#[derive(Debug)]
struct Done {
    value: u32,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// Requests and processes that are waited for. Bounded by the processes and requests of one container.
#[derive(Debug, Default)]
struct PendingReplies {
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    ends: HashMap<u64, Arc<SetOnce<Ended>>>,
    /// The connection has ended; nothing can be added.
    closed: bool,
}

impl ShimConnection {
    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn expect_end(&self, id: u64, end: &Arc<SetOnce<Ended>>) -> Result<(), ShimError> {
        let mut pending = self.pending.lock();
        if pending.closed {
            return Err(ShimError::Gone);
        }
        pending.ends.insert(id, Arc::clone(end));
        Ok(())
    }

    async fn ask_as(
        &self,
        id: u64,
        request: &Request<'_>,
        fds: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Answer {
        let message = request.encode(id)?;
        let (tell, told) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            if pending.closed {
                return Err(ShimError::Gone);
            }
            pending.answers.insert(id, tell);
        }
        // Also removes the entry if this future is dropped.
        let _entry = Entry {
            connection: self,
            id,
        };
        let exchange = async {
            self.socket
                .async_io(Interest::WRITABLE, || {
                    seqpacket::send(self.socket.as_fd(), &message, fds)
                })
                .await
                .map_err(|_| ShimError::Gone)?;
            told.await.unwrap_or(Err(ShimError::Gone))
        };
        tokio::time::timeout(within, exchange)
            .await
            .unwrap_or(Err(ShimError::TooSlow(within)))
    }

    /// Sends a request without waiting for its answer. It is dropped if the socket is full: then the shim has not read some
    /// hundred messages, so it hangs, and cleaning its container will fail.
    fn tell(&self, request: &Request<'_>) {
        if let Ok(message) = request.encode(self.next_id()) {
            drop(seqpacket::send(self.socket.as_fd(), &message, &[]));
        }
    }

    async fn read(self: Arc<Self>) {
        let problem = loop {
            match receive(&self.socket).await {
                Ok(Some((reply, fds))) => self.handle(reply, fds),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if let Some(problem) = problem {
            tracing::warn!(%problem, "the connection to a container's shim failed");
        }
        self.alive.store(false, Ordering::Relaxed);
        let mut pending = self.pending.lock();
        pending.closed = true;
        // Dropping the senders makes the waiting requests fail.
        pending.answers.clear();
        for (_, end) in pending.ends.drain() {
            drop(end.set(Ended::Unknown));
        }
    }

    fn handle(&self, reply: Reply, fds: Vec<OwnedFd>) {
        match reply {
            Reply::Done { id, value, payload } => {
                let done = Done {
                    value,
                    payload,
                    fds,
                };
                self.answer(id, Ok(done));
            }
            Reply::Failed { id, error, what } => {
                let error = io::Error::from_raw_os_error(error);
                self.answer(id, Err(ShimError::Failed { what, error }));
            }
            Reply::Exited { id, end } => {
                if let Some(waiting) = self.pending.lock().ends.remove(&id) {
                    drop(waiting.set(end));
                }
            }
            // It is sent once and was handled at the start.
            Reply::Hello { .. } => {}
        }
    }

    fn answer(&self, id: u64, answer: Answer) {
        if let Some(waiting) = self.pending.lock().answers.remove(&id) {
            // An error means that the caller is gone.
            drop(waiting.send(answer));
        }
    }
}

/// Owns an entry of [`PendingReplies::answers`].
struct Entry<'a> {
    connection: &'a ShimConnection,
    id: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.connection.pending.lock().answers.remove(&self.id);
    }
}

async fn receive(socket: &UnixStream) -> Result<Option<(Reply, Vec<OwnedFd>)>, ShimError> {
    let message = socket
        .async_io(Interest::READABLE, || seqpacket::receive(socket))
        .await;
    match message {
        Ok(Some(message)) => {
            let reply = Reply::decode(&message.bytes)
                .ok_or_else(|| ShimError::Protocol(format!("{:?}", message.bytes)))?;
            Ok(Some((reply, message.fds)))
        }
        Ok(None) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(failed("the shim's socket", error)),
    }
}

fn one_of(fds: Vec<OwnedFd>) -> Result<OwnedFd, ShimError> {
    fds.into_iter()
        .next()
        .ok_or_else(|| ShimError::Protocol("an answer without its socket".to_owned()))
}

fn failed(what: &str, error: io::Error) -> ShimError {
    ShimError::Failed {
        what: what.to_owned(),
        error,
    }
}

/// Longest time for requests that carry none. The shim never waits for these.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod on_the_host;
#[cfg(test)]
mod tests;
