//! What an initscript sends while the handler may run: its messages go to the worker as they come, and so do its connections. A task of the
//! invocation writes them to a socket, whose other end goes to the worker with the call.
//!
//! Nothing comes from the worker. What it does not read waits in the socket and in a queue of limited length. Everything here ends with
//! the invocation: the script, if it still runs, and what nobody has collected.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::initscript::{ScriptKind, ScriptRun};
use pilot_model::ports::{
    BoxFuture, Clock, HandedConnection, Initialised, Input, InputKind, InputMemory, ScriptSent,
    ScriptSink,
};
use pilot_model::{Instant, Transfer, TransferWay, Version};
use pilot_sys::seqpacket;
use pilot_wire::script::{Note, encode};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::task::Task;

/// What is to be written. A script sends a limited number.
#[derive(Debug)]
enum Event {
    Sent(Box<ScriptSent>),
    /// Why the script failed.
    End(Option<String>),
}

/// What the record of the invocation needs.
#[derive(Debug, Default)]
struct Seen {
    transfers: Vec<Transfer>,
    /// Kept until the invocation has ended.
    memory: Vec<Arc<dyn InputMemory>>,
    end: Option<Initialised>,
}

/// A script that has begun, before there is a worker.
pub(crate) struct Begun {
    script: BoxFuture<'static, Initialised>,
    queue: mpsc::UnboundedReceiver<Event>,
    sink: Arc<Sink>,
    began: Instant,
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Sink {
    queue: mpsc::UnboundedSender<Event>,
    /// Guards only the value.
    seen: Mutex<Seen>,
}

impl Sink {
    fn push(&self, event: Event) {
        // An error means that the worker reads no more.
        let _ = self.queue.send(event);
    }
}

impl ScriptSink for Sink {
    fn sent(&self, sent: ScriptSent) {
        match &sent {
            ScriptSent::Message {
                memory, transfer, ..
            } => {
                let mut seen = self.seen.lock();
                seen.memory.push(Arc::clone(memory));
                seen.transfers.push(transfer.clone());
            }
            ScriptSent::NoMessage { transfer, .. } => {
                self.seen.lock().transfers.push(transfer.clone());
            }
            ScriptSent::Connection(_) => {}
        }
        self.push(Event::Sent(Box::new(sent)));
    }
}

impl Begun {
    /// Begins a script whose handler does not wait for it.
    pub(crate) fn new(
        now: Instant,
        begin: impl FnOnce(Arc<dyn ScriptSink>) -> BoxFuture<'static, Initialised>,
    ) -> Self {
        let (sender, queue) = mpsc::unbounded_channel();
        let sink = Arc::new(Sink {
            queue: sender,
            seen: Mutex::default(),
        });
        Self {
            script: begin(Arc::clone(&sink) as _),
            queue,
            sink,
            began: now,
        }
    }

    /// Connections of a script that has ended.
    pub(crate) fn ended(now: Instant, connections: Vec<HandedConnection>) -> Self {
        let begun = Self::new(now, |_| {
            Box::pin(std::future::ready(Initialised::default()))
        });
        for connection in connections {
            begun.sink.sent(ScriptSent::Connection(connection));
        }
        begun
    }
}

/// A script whose messages go to a worker. Dropping it ends the script.
#[derive(Debug)]
pub(crate) struct Going {
    sink: Arc<Sink>,
    began: Instant,
    _tasks: [Task; 2],
}

/// What the record of the invocation gets of a script.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) said: Option<String>,
    pub(crate) run: Option<ScriptRun>,
}

impl Going {
    /// Returns the worker's end too.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(begun: Begun) -> io::Result<(Self, Input)> {
        let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
        let ours = StdUnixStream::from(ours);
        // Nothing comes from the worker. Whatever it would send fails there.
        ours.shutdown(Shutdown::Read)?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        let Begun {
            script,
            queue,
            sink,
            began,
        } = begun;
        let of_script = Arc::clone(&sink);
        let running = Task::spawn(async move {
            let done = script.await;
            let scripts = done.fetched.transfers.iter();
            let problem = scripts
                .filter(|one| one.way == TransferWay::Script)
                .find_map(|one| one.error.clone());
            of_script.seen.lock().end = Some(done);
            of_script.push(Event::End(problem));
        });
        let writing = Task::spawn(async move {
            // An error means that the worker reads no more.
            let _ = write(queue, ours).await;
        });
        let input = Input {
            // No declared input can have this name.
            name: ":init".to_owned(),
            kind: InputKind::Script,
            descriptor: Arc::new(theirs),
            object: None,
            decoded: None,
        };
        let going = Self {
            sink,
            began,
            _tasks: [running, writing],
        };
        Ok((going, input))
    }

    /// The invocation has ended: so does the script.
    pub(crate) fn end(self, version: &Version, clock: &dyn Clock) -> Record {
        let seen = std::mem::take(&mut *self.sink.seen.lock());
        if let Some(done) = seen.end {
            return Record {
                transfers: done.fetched.transfers,
                said: done.said,
                run: done.run,
            };
        }
        let Some(config) = version.config.script(ScriptKind::Own) else {
            return Record::default();
        };
        let mut transfers = seen.transfers;
        let of_script = Transfer {
            input: ScriptKind::Own.transfer_name().to_owned(),
            from: config.module.clone(),
            bytes: transfers.iter().map(|one| one.bytes).sum(),
            way: TransferWay::Script,
            began: self.began,
            ended: clock.now(),
            decoding: None,
            streamed: None,
            error: Some(UNFINISHED.to_owned()),
        };
        transfers.insert(0, of_script);
        Record {
            transfers,
            said: Some(format!("left behind: {UNFINISHED}\n")),
            run: None,
        }
    }
}

/// Writes until the script has ended.
async fn write(mut queue: mpsc::UnboundedReceiver<Event>, mut to: UnixStream) -> io::Result<()> {
    while let Some(event) = queue.recv().await {
        match event {
            Event::Sent(sent) => write_one(*sent, &mut to).await?,
            Event::End(problem) => {
                let problem = problem.as_deref();
                return to.write_all(&encode(Note::End { problem })).await;
            }
        }
    }
    Ok(())
}

async fn write_one(sent: ScriptSent, to: &mut UnixStream) -> io::Result<()> {
    match sent {
        ScriptSent::Message { id, input, .. } => {
            let InputKind::Memory { len } = input.kind else {
                return Err(io::Error::other("a message is memory that is complete"));
            };
            let object = input.object.as_deref();
            let note = encode(Note::Message { id, len, object });
            send(to, &note, input.descriptor.as_fd()).await
        }
        ScriptSent::NoMessage { id, transfer } => {
            let problem = transfer.error.as_deref().unwrap_or_default();
            to.write_all(&encode(Note::NoMessage { id, problem })).await
        }
        ScriptSent::Connection(handed) => {
            let (id, address) = (handed.id, handed.address.as_str());
            match handed.socket {
                Ok(socket) => {
                    let note = encode(Note::Connection { id, address });
                    send(to, &note, socket.descriptor.as_fd()).await
                }
                Err(problem) => {
                    let problem = problem.as_str();
                    to.write_all(&encode(Note::NoConnection { id, problem }))
                        .await
                }
            }
        }
    }
}

/// Sends a message whose descriptor comes with its first byte.
async fn send(to: &mut UnixStream, note: &[u8], with_it: BorrowedFd<'_>) -> io::Result<()> {
    let parts = [IoSlice::new(note)];
    let send = || seqpacket::send_stream(to.as_fd(), &parts, &[with_it]);
    let sent = to.async_io(Interest::WRITABLE, send).await?;
    to.write_all(note.get(sent..).unwrap_or_default()).await
}

const UNFINISHED: &str = "the invocation ended before it";
