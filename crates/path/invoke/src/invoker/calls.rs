//! Calls from a handler to other functions, on this node or on others, with data handed over by reference. A task of the invocation
//! serves the daemon's end of a socket (`calls/line.rs`); the worker's end goes to the worker with the call.
//!
//! The daemon makes the memory and gives the worker a descriptor or a path; none comes from it. Everything here ends with the
//! invocation: buffers, and calls that still run. The handler's own timeout therefore bounds every call. A handler that does not
//! read its answers, or breaks the protocol, loses this socket and nothing else.

mod arriving;
mod buffers;
mod call;
mod copied;
mod elsewhere;
mod line;
mod target;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::{BlankMemory, Input, InputKind, InputMemory, InputSource, Worker};
use pilot_model::{Trace, Version};
use pilot_protocols::{FunctionBudget, MemoryBudget, Pace, read_reserved};
use pilot_sys::seqpacket;
use pilot_wire::calls::{self, Answer, Ask, End, Lengths, Reason, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant as Deadline, timeout};

use crate::invoker::Invoker;
use crate::task::Task;
use buffers::Buffers;
use call::{Call, Data};
use line::Line;

/// Most functions in a chain, the first one included.
pub(super) const CALL_DEPTH_MAX: u32 = 16;

/// Most calls of one invocation at a time. The next request waits in the socket.
const CALLS_MAX: usize = 16;

/// Memory for the events of one invocation's calls, KiB: the longest event fits.
const EVENTS_KIB_MAX: usize = calls::BODY_LEN_MAX as usize / 1024;

/// Memory for the events of all calls until their workers have them, and the share of one function's calls.
const EVENTS_BYTES_MAX: usize = 64 << 20;
const EVENTS_SHARE_MAX: usize = 16 << 20;

/// An event that is at most this long needs none of it, bytes. The numbers of workers and of their calls bound it.
const EVENT_FREE_LEN: usize = 4 << 10;

/// The memory for the events of all calls.
pub(super) fn events_memory() -> MemoryBudget {
    MemoryBudget::with(EVENTS_BYTES_MAX, EVENTS_SHARE_MAX, EVENT_FREE_LEN)
}

/// How long a handler may leave its answers unread, once the socket is full.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a handler may take to send an event that it has announced. What has arrived is in the memory for all functions.
const UNSENT_TIME_MAX: Duration = Duration::from_secs(5);

/// The calling invocation.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) invoker: Weak<Invoker>,
    pub(super) source: Arc<dyn InputSource>,
    pub(super) version: Arc<Version>,
    /// Its place in the chain, from 1.
    pub(super) depth: u32,
    pub(super) deadline: Deadline,
    pub(super) trace: Option<Trace>,
    /// For the events of its calls.
    pub(super) events: FunctionBudget,
    /// Its inputs, which it may hand on.
    pub(super) inputs: Vec<(String, Arc<dyn InputMemory>)>,
}

/// Begins to serve the calls of an invocation. Dropping the task ends them. `paths`: the worker, if it takes paths instead of descriptors.
/// Returns the worker's end too.
///
/// # Errors
/// Out of descriptors.
pub(super) fn start(caller: Caller, paths: Option<Weak<dyn Worker>>) -> io::Result<(Task, Input)> {
    let (line, theirs) = match paths {
        None => Line::connected()?,
        Some(worker) => Line::listening(worker)?,
    };
    let name = caller.version.config.name.clone();
    let task = Task::spawn(async move {
        if let Err(error) = serve(caller, line).await {
            tracing::debug!(function = %name, %error, "the calls of an invocation ended");
        }
    });
    let input = Input {
        // No declared input can have this name.
        name: ":calls".to_owned(),
        kind: InputKind::Calls,
        descriptor: Arc::new(theirs),
        object: None,
        decoded: None,
    };
    Ok((task, input))
}

/// An answer that is to be sent, with what it holds until then.
#[derive(Debug)]
struct Reply {
    answer: Answer,
    body: Bytes,
    descriptor: Option<Arc<OwnedFd>>,
    _held: Option<OwnedSemaphorePermit>,
}

impl Reply {
    fn done(id: u32) -> Self {
        Self::new(id, End::Done, Bytes::new())
    }

    fn refused(id: u32, refusal: Refusal) -> Self {
        Self::new(id, End::Refused(refusal), Bytes::new())
    }

    fn new(id: u32, end: End, body: Bytes) -> Self {
        Self {
            answer: Answer {
                id,
                descriptor: false,
                path: None,
                end,
            },
            body,
            descriptor: None,
            _held: None,
        }
    }
}

/// Serves until the worker closes its end or breaks the protocol. Reading and writing do not wait for each other.
async fn serve(caller: Caller, line: Line) -> io::Result<()> {
    let (socket, paths) = line.connect().await?;
    let (reader, writer) = socket.into_split();
    let (replies, queue) = mpsc::channel(CALLS_MAX);
    let serving = Serving {
        caller: Arc::new(caller),
        paths,
        reader,
        replies,
        buffers: Buffers::default(),
        calls: JoinSet::new(),
        places: Arc::new(Semaphore::new(CALLS_MAX)),
        events: Arc::new(Semaphore::new(EVENTS_KIB_MAX)),
        pace: Arc::default(),
    };
    tokio::select! {
        ended = serving.run() => ended,
        ended = write(queue, writer) => ended,
    }
}

/// The reading side.
struct Serving {
    caller: Arc<Caller>,
    /// The worker, if it takes paths.
    paths: Option<Weak<dyn Worker>>,
    reader: OwnedReadHalf,
    replies: mpsc::Sender<Reply>,
    buffers: Buffers,
    /// Aborted when this is dropped.
    calls: JoinSet<()>,
    /// One for each call, until its answer is sent.
    places: Arc<Semaphore>,
    /// One for each KiB of an event, until its call has ended.
    events: Arc<Semaphore>,
    /// Of its messages. Those that wait are in the socket.
    pace: Arc<Pace>,
}

impl Serving {
    async fn run(mut self) -> io::Result<()> {
        while let Some(lengths) = self.lengths().await? {
            self.pace.wait().await;
            let mut meta = vec![0; lengths.meta as usize];
            self.reader.read_exact(&mut meta).await?;
            let ask = calls::ask(&meta).map_err(invalid)?;
            if lengths.body > 0 && !matches!(ask, Ask::Call { .. }) {
                return Err(invalid("only a call has a body"));
            }
            let reply = match ask {
                Ask::Buffer { id, len } => self.make(id, len).await,
                Ask::Seal { id, buffer } => match self.seal(buffer).await {
                    Ok(()) => Reply::done(id),
                    Err(refusal) => Reply::refused(id, refusal),
                },
                Ask::Filled { buffer, len } => {
                    // One that is not there any more was released.
                    if let Ok(slot) = self.buffers.find(buffer) {
                        slot.tell(len);
                    }
                    continue;
                }
                Ask::Release { buffer } => {
                    self.buffers.release(buffer);
                    continue;
                }
                Ask::Call {
                    id,
                    function,
                    buffer,
                    input,
                } => {
                    let data = self.data(buffer, input.as_deref());
                    self.call(id, function, data, lengths.body).await?;
                    continue;
                }
            };
            self.replies.send(reply).await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The next header; `None` at the end.
    async fn lengths(&mut self) -> io::Result<Option<Lengths>> {
        let mut header = [0; calls::HEADER_LEN];
        match self.reader.read_exact(&mut header).await {
            Ok(_) => Ok(Some(Lengths::decode(header).map_err(invalid)?)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn make(&mut self, id: u32, len: u64) -> Reply {
        if let Err(refusal) = self.buffers.has_room_for(id) {
            return Reply::refused(id, refusal);
        }
        let function = &self.caller.version.config.name;
        let made = match self.caller.source.blank(function, len).await {
            Ok(blank) => self.give(id, len, blank).await,
            Err(fault) => Err(fault.into()),
        };
        made.unwrap_or_else(|refusal| Reply::refused(id, refusal))
    }

    /// Gives memory to the worker.
    async fn give(
        &mut self,
        id: u32,
        len: u64,
        blank: Arc<dyn BlankMemory>,
    ) -> Result<Reply, Refusal> {
        let mut reply = Reply::done(id);
        let shown = match &self.paths {
            None => {
                reply.descriptor = blank.descriptor();
                reply.answer.descriptor = reply.descriptor.is_some();
                None
            }
            Some(worker) => {
                let (path, shown) = line::shown(blank.as_ref(), len, worker).await?;
                reply.answer.path = Some(path);
                Some(shown)
            }
        };
        self.buffers.insert(id, len, blank, shown);
        Ok(reply)
    }

    async fn seal(&mut self, buffer: u32) -> Result<(), Refusal> {
        let slot = self.buffers.find(buffer)?;
        let sealed = slot.blank().seal().await;
        slot.fill(sealed?);
        Ok(())
    }

    fn data(&self, buffer: Option<u32>, input: Option<&str>) -> Result<Option<Data>, Refusal> {
        match (buffer, input) {
            (None, None) => Ok(None),
            (Some(buffer), None) => Ok(Some(Data::Buffer(self.buffers.find(buffer)?))),
            (None, Some(name)) => {
                let mut inputs = self.caller.inputs.iter();
                let found = inputs.find(|(known, _)| known == name);
                let Some((_, memory)) = found else {
                    let problem = "this invocation has no such input";
                    return Err(Refusal::new(Reason::NotFound, problem));
                };
                Ok(Some(Data::Input(Arc::clone(memory))))
            }
            (Some(_), Some(_)) => {
                let problem = "a call takes a buffer or an input, not both";
                Err(Refusal::new(Reason::Invalid, problem))
            }
        }
    }

    /// Reads the event and begins the call.
    async fn call(
        &mut self,
        id: u32,
        function: String,
        data: Result<Option<Data>, Refusal>,
        event_len: u32,
    ) -> io::Result<()> {
        while self.calls.try_join_next().is_some() {}
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(io::Error::other)?;
        let memory = Arc::clone(&self.events).acquire_many_owned(event_len.div_ceil(1024));
        let memory = memory.await.map_err(io::Error::other)?;
        let event_len = usize::try_from(event_len).map_err(invalid)?;
        let events = &self.caller.events;
        let event = read_reserved(&mut self.reader, event_len, events, UNSENT_TIME_MAX).await?;
        let (caller, replies) = (Arc::clone(&self.caller), self.replies.clone());
        let pace = Arc::clone(&self.pace);
        self.calls.spawn(async move {
            let (end, body) = match data {
                Err(refusal) => (End::Refused(refusal), Bytes::new()),
                Ok(data) => {
                    let call = Call {
                        function,
                        event,
                        data,
                    };
                    target::invoke(&caller, call).await
                }
            };
            drop(memory);
            if !matches!(end, End::Refused(_)) {
                pace.allow_more();
            }
            let reply = Reply {
                _held: Some(place),
                ..Reply::new(id, end, body)
            };
            // An error means that nobody reads answers any more.
            let _ = replies.send(reply).await;
        });
        Ok(())
    }
}

/// The writing side.
async fn write(mut queue: mpsc::Receiver<Reply>, mut writer: OwnedWriteHalf) -> io::Result<()> {
    while let Some(reply) = queue.recv().await {
        let sent = timeout(UNREAD_TIME_MAX, send(&reply, &mut writer)).await;
        sent.map_err(|_| io::Error::other("its answers are not read"))??;
    }
    Ok(())
}

async fn send(reply: &Reply, writer: &mut OwnedWriteHalf) -> io::Result<()> {
    let body_len = u32::try_from(reply.body.len()).map_err(io::Error::other)?;
    let message = calls::answer(&reply.answer, body_len);
    let mut rest = &message[..];
    if let Some(descriptor) = &reply.descriptor {
        let socket: &UnixStream = (*writer).as_ref();
        let parts = [IoSlice::new(&message)];
        let with_it = [descriptor.as_fd()];
        let send = || seqpacket::send_stream(socket.as_fd(), &parts, &with_it);
        let sent = socket.async_io(Interest::WRITABLE, send).await?;
        rest = rest.get(sent..).unwrap_or_default();
    }
    writer.write_all(rest).await?;
    writer.write_all(&reply.body).await
}

fn invalid(problem: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}
