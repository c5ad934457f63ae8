//! What an initscript sends while the handler may run: its messages go to the worker as they come, and so do its connections. A task of the
//! invocation writes them to a socket, whose other end goes to the worker with the call. Another one reads the messages of the function to
//! the script, until the script has ended.
//!
//! What the worker does not read waits in the socket and in a queue of limited length. Everything here ends with the invocation: the script, if
//! it still runs, and what nobody has collected.

mod inbox;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::initscript::{ScriptKind, ScriptRun};
use pilot_model::ports::{
    BoxFuture, Clock, HandedConnection, Initialised, Input, InputKind, InputMemory, ScriptLink,
    ScriptSent,
};
use pilot_model::{Instant, Transfer, TransferWay, Version};
use pilot_protocols::FunctionBudget;
use pilot_sys::seqpacket;
use pilot_wire::script::{Note, encode};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::task::Task;
use inbox::Inbox;

pub(crate) use inbox::messages_memory;

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
    link: Arc<Link>,
    began: Instant,
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

/// What a script and its invocation have in common.
#[derive(Debug)]
struct Link {
    queue: mpsc::UnboundedSender<Event>,
    /// Guards only the value.
    seen: Mutex<Seen>,
    /// What the function has sent to the script.
    inbox: Inbox,
}

impl Link {
    fn push(&self, event: Event) {
        // An error means that the worker reads no more.
        let _ = self.queue.send(event);
    }

    /// Waits for the script's end. Until then, what the function sends to it is read.
    async fn run(
        &self,
        mut script: BoxFuture<'static, Initialised>,
        mut from: OwnedReadHalf,
        memory: FunctionBudget,
    ) -> Initialised {
        let done = tokio::select! {
            biased;
            done = &mut script => Some(done),
            read = self.inbox.fill(&mut from, &memory) => {
                if let Err(error) = read {
                    tracing::debug!(%error, "a function broke off its messages to its initscript");
                }
                None
            }
        };
        let socket: &UnixStream = from.as_ref();
        if let Err(error) = seqpacket::stop_reading(socket.as_fd()) {
            // The worker has closed its end.
            tracing::trace!(%error, "messages to an initscript");
        }
        let done = match done {
            Some(done) => done,
            None => script.await,
        };
        self.inbox.clear();
        done
    }
}

impl ScriptLink for Link {
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

    fn message(&self, id: u64) -> BoxFuture<'static, Option<Bytes>> {
        self.inbox.message(id)
    }
}

impl Begun {
    /// Begins a script whose handler does not wait for it.
    pub(crate) fn new(
        now: Instant,
        begin: impl FnOnce(Arc<dyn ScriptLink>) -> BoxFuture<'static, Initialised>,
    ) -> Self {
        let (sender, queue) = mpsc::unbounded_channel();
        let link = Arc::new(Link {
            queue: sender,
            seen: Mutex::default(),
            inbox: Inbox::default(),
        });
        Self {
            script: begin(Arc::clone(&link) as _),
            queue,
            link,
            began: now,
        }
    }

    /// Connections of a script that has ended.
    pub(crate) fn ended(now: Instant, connections: Vec<HandedConnection>) -> Self {
        let begun = Self::new(now, |_| {
            Box::pin(std::future::ready(Initialised::default()))
        });
        begun.link.inbox.close();
        for connection in connections {
            begun.link.sent(ScriptSent::Connection(connection));
        }
        begun
    }
}

/// A script whose messages go to a worker. Dropping it ends the script.
#[derive(Debug)]
pub(crate) struct Going {
    link: Arc<Link>,
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
    /// `memory`: for what the function sends to the script. Returns the worker's end too.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(begun: Begun, memory: FunctionBudget) -> io::Result<(Self, Input)> {
        let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
        if begun.link.inbox.is_closed() {
            seqpacket::stop_reading(ours.as_fd())?;
        }
        let ours = StdUnixStream::from(ours);
        ours.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        let Begun {
            script,
            queue,
            link,
            began,
        } = begun;
        let of_script = Arc::clone(&link);
        let running = Task::spawn(async move {
            let done = of_script.run(script, reader, memory).await;
            let scripts = done.fetched.transfers.iter();
            let problem = scripts
                .filter(|one| one.way == TransferWay::Script)
                .find_map(|one| one.error.clone());
            of_script.seen.lock().end = Some(done);
            of_script.push(Event::End(problem));
        });
        let writing = Task::spawn(async move {
            // An error means that the worker reads no more.
            let _ = write(queue, writer).await;
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
            link,
            began,
            _tasks: [running, writing],
        };
        Ok((going, input))
    }

    /// The invocation has ended: so does the script.
    pub(crate) fn end(self, version: &Version, clock: &dyn Clock) -> Record {
        let seen = std::mem::take(&mut *self.link.seen.lock());
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
async fn write(
    mut queue: mpsc::UnboundedReceiver<Event>,
    mut to: OwnedWriteHalf,
) -> io::Result<()> {
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

async fn write_one(sent: ScriptSent, to: &mut OwnedWriteHalf) -> io::Result<()> {
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
async fn send(to: &mut OwnedWriteHalf, note: &[u8], with_it: BorrowedFd<'_>) -> io::Result<()> {
    let socket: &UnixStream = (*to).as_ref();
    let parts = [IoSlice::new(note)];
    let send = || seqpacket::send_stream(socket.as_fd(), &parts, &[with_it]);
    let sent = socket.async_io(Interest::WRITABLE, send).await?;
    to.write_all(note.get(sent..).unwrap_or_default()).await
}

const UNFINISHED: &str = "the invocation ended before it";

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;

    use super::*;

    /// The worker's end.
    fn worker(input: &Input) -> StdUnixStream {
        let descriptor: OwnedFd = input.descriptor.try_clone().unwrap();
        StdUnixStream::from(descriptor)
    }

    fn start(begun: Begun) -> (Going, StdUnixStream) {
        let memory = messages_memory().of(&"f".parse().unwrap());
        let (going, input) = Going::start(begun, memory).unwrap();
        (going, worker(&input))
    }

    #[tokio::test]
    async fn a_script_waits_for_its_function_and_its_end_ends_what_the_function_sends() {
        let begun = Begun::new(Instant(0), |link| {
            Box::pin(async move {
                let said = link.message(7).await.map(|message| {
                    let text = String::from_utf8_lossy(&message);
                    format!("got {text}")
                });
                Initialised {
                    said,
                    ..Initialised::default()
                }
            })
        });
        let (going, mut worker) = start(begun);
        let sending = tokio::task::spawn_blocking(move || {
            worker.write_all(&[7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0])?;
            worker.write_all(b"hello")?;
            let mut notes = Vec::new();
            worker.read_to_end(&mut notes)?;
            assert_eq!(&notes[4..], br#"{"op":"end"}"#);
            worker.write_all(b"more")
        });
        let ended = sending.await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::BrokenPipe);
        let seen = going.link.seen.lock();
        let done = seen.end.as_ref().unwrap();
        assert_eq!(done.said.as_deref(), Some("got hello"));
    }

    #[tokio::test]
    async fn what_is_sent_to_a_script_that_has_ended_fails_at_once() {
        let (_going, mut worker) = start(Begun::ended(Instant(0), Vec::new()));
        let ended = worker.write_all(b"x").unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn the_end_of_the_invocation_closes_the_socket_of_a_script_that_waits() {
        let begun = Begun::new(Instant(0), |link| {
            Box::pin(async move {
                link.message(7).await;
                Initialised::default()
            })
        });
        let (going, mut worker) = start(begun);
        drop(going);
        let read = tokio::task::spawn_blocking(move || worker.read(&mut [0])).await;
        assert_eq!(read.unwrap().unwrap(), 0);
    }
}
