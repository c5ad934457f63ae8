//! What an initscript sends while the handler may run: its messages go to the worker as they come, and so do its connections. A task of the
//! invocation writes them to a socket, whose other end goes to the worker with the call. Another one reads the messages of the function to
//! the script, until the script has ended.
//!
//! A worker that takes paths connects to its end instead, once, by a path. What comes with a descriptor is shown to it, and its
//! path goes to it.
//!
//! What the worker does not read waits in the socket and in a queue of limited length. Everything here ends with the invocation:
//! the script, if it still runs, and what nobody has collected.

mod end;
mod inbox;

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::initscript::{ScriptKind, ScriptRun};
use pilot_model::ports::{
    BoxFuture, Clock, HandedConnection, Initialised, Input, InputKind, InputMemory, ScriptLink,
    ScriptSent, ShownInputs, Worker,
};
use pilot_model::{Instant, Transfer, TransferWay, Version};
use pilot_protocols::FunctionBudget;
use pilot_sys::seqpacket;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};

use crate::task::Task;
use end::End;
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
    /// As long: what a worker that takes paths was shown.
    shown: Vec<ShownInputs>,
    /// As long: what makes connections by their paths possible.
    connections: Vec<Box<dyn std::fmt::Debug + Send + Sync>>,
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

    /// Waits for the script's end. Until then, what the function sends to it is read, from when the worker has connected.
    async fn run(
        &self,
        mut script: BoxFuture<'static, Initialised>,
        mut connected: oneshot::Receiver<OwnedReadHalf>,
        memory: FunctionBudget,
    ) -> Initialised {
        let mut from = None;
        let mut done = tokio::select! {
            biased;
            done = &mut script => Some(done),
            half = &mut connected => {
                from = half.ok();
                None
            }
        };
        if let (None, Some(from)) = (&done, &mut from) {
            tokio::select! {
                biased;
                ended = &mut script => done = Some(ended),
                read = self.inbox.fill(from, &memory) => {
                    if let Err(error) = read {
                        tracing::debug!(%error, "a function broke off its messages to its initscript");
                    }
                }
            }
        }
        // Whoever connects later learns that nobody reads: see `connect`.
        connected.close();
        if let Some(from) = from.or_else(|| connected.try_recv().ok()) {
            stop_reading(from.as_ref());
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
    /// `memory`: for what the function sends to the script. `paths`: the worker, if it takes paths instead of descriptors. Returns the
    /// worker's end too.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(
        begun: Begun,
        memory: FunctionBudget,
        paths: Option<Weak<dyn Worker>>,
    ) -> io::Result<(Self, Input)> {
        let (end, theirs) = match paths {
            None => End::connected(begun.link.inbox.is_closed())?,
            Some(worker) => End::listening(worker)?,
        };
        let (to_script, connected) = oneshot::channel();
        let Begun {
            script,
            queue,
            link,
            began,
        } = begun;
        let of_script = Arc::clone(&link);
        let running = Task::spawn(async move {
            let done = of_script.run(script, connected, memory).await;
            let scripts = done.fetched.transfers.iter();
            let problem = scripts
                .filter(|one| one.way == TransferWay::Script)
                .find_map(|one| one.error.clone());
            of_script.seen.lock().end = Some(done);
            of_script.push(Event::End(problem));
        });
        let to_worker = Arc::clone(&link);
        let writing = Task::spawn(async move {
            // An error means that the worker reads no more.
            let _ = end.write(queue, to_script, &to_worker).await;
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

fn stop_reading(socket: &UnixStream) {
    if let Err(error) = seqpacket::stop_reading(socket.as_fd()) {
        // The worker has closed its end.
        tracing::trace!(%error, "messages to an initscript");
    }
}

const UNFINISHED: &str = "the invocation ended before it";

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::os::unix::net::UnixStream as StdUnixStream;

    use pilot_model::WorkerId;
    use pilot_model::ports::{
        Answer, Call, HandedSocket, Part, Resources, StartStamps, WorkerFault,
    };

    use super::*;

    /// The worker's end.
    fn worker(input: &Input) -> StdUnixStream {
        let descriptor: OwnedFd = input.descriptor.try_clone().unwrap();
        StdUnixStream::from(descriptor)
    }

    fn start(begun: Begun) -> (Going, StdUnixStream) {
        let memory = messages_memory().of(&"f".parse().unwrap());
        let (going, input) = Going::start(begun, memory, None).unwrap();
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

    /// A worker that takes paths: those of this process.
    #[derive(Debug)]
    struct Shows;

    impl Worker for Shows {
        fn id(&self) -> WorkerId {
            WorkerId(1)
        }

        fn stamps(&self) -> StartStamps {
            unreachable!("nobody asks")
        }

        fn call(&self, _: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
            unreachable!("nobody calls")
        }

        fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
            let path = |input: &Input| format!("/proc/self/fd/{}", input.descriptor.as_raw_fd());
            Box::pin(std::future::ready(Ok(ShownInputs {
                paths: inputs.iter().map(path).collect(),
                kept: Box::new(inputs),
            })))
        }

        fn next(&self, _: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
            unreachable!("nobody calls")
        }

        fn kill(&self) {}

        fn resources(&self) -> &dyn Resources {
            unreachable!("nobody asks")
        }
    }

    fn start_for_paths(begun: Begun) -> (Going, String, (Input, Arc<dyn Worker>)) {
        let worker: Arc<dyn Worker> = Arc::new(Shows);
        let memory = messages_memory().of(&"f".parse().unwrap());
        let (going, input) = Going::start(begun, memory, Some(Arc::downgrade(&worker))).unwrap();
        let path = format!("/proc/self/fd/{}", input.descriptor.as_raw_fd());
        (going, path, (input, worker))
    }

    /// What came on a socket until its end: the texts of all notes.
    fn notes(worker: &mut StdUnixStream) -> Vec<String> {
        let mut bytes = Vec::new();
        worker.read_to_end(&mut bytes).unwrap();
        let (mut rest, mut notes) = (bytes.as_slice(), Vec::new());
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (note, after) = after.split_at(u32::from_le_bytes(*len) as usize);
            notes.push(String::from_utf8(note.to_vec()).unwrap());
            rest = after;
        }
        notes
    }

    #[tokio::test]
    async fn a_worker_that_takes_paths_connects_to_its_script_and_is_shown_what_comes() {
        let (_there, shown) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = shown.as_raw_fd();
        let begun = Begun::new(Instant(0), |link| {
            Box::pin(async move {
                link.sent(ScriptSent::Connection(HandedConnection {
                    id: 3,
                    address: "tcp://db:1".to_owned(),
                    socket: Ok(HandedSocket {
                        descriptor: shown.into(),
                        kept: None,
                    }),
                }));
                let message = link.message(7).await;
                Initialised {
                    said: message.map(|message| String::from_utf8_lossy(&message).into_owned()),
                    ..Initialised::default()
                }
            })
        });
        let (going, path, kept) = start_for_paths(begun);
        let told = tokio::task::spawn_blocking(move || {
            let mut worker = StdUnixStream::connect(&path).unwrap();
            worker
                .write_all(&[7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0])
                .unwrap();
            worker.write_all(b"hello").unwrap();
            // Only one may connect.
            let again = StdUnixStream::connect(&path);
            let again = again.and_then(|mut second| second.read(&mut [0]));
            assert!(!matches!(again, Ok(1)), "{again:?}");
            notes(&mut worker)
        });
        let connection = format!(
            r#"{{"op":"connection","id":"3","address":"tcp://db:1","path":"/proc/self/fd/{fd}"}}"#
        );
        assert_eq!(
            told.await.unwrap(),
            [connection, r#"{"op":"end"}"#.to_owned()]
        );
        let seen = going.link.seen.lock();
        assert_eq!(seen.end.as_ref().unwrap().said.as_deref(), Some("hello"));
        assert_eq!(seen.shown.len(), 1);
        drop(kept);
    }

    #[tokio::test]
    async fn a_script_goes_on_although_its_worker_never_connects() {
        let (sender, ended) = tokio::sync::oneshot::channel();
        let begun = Begun::new(Instant(0), |_| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                sender.send(()).unwrap();
                Initialised::default()
            })
        });
        let (going, path, kept) = start_for_paths(begun);
        ended.await.unwrap();
        // A late one learns of the end, and nobody reads what it sends.
        let told = tokio::task::spawn_blocking(move || {
            let mut worker = StdUnixStream::connect(&path).unwrap();
            let notes = notes(&mut worker);
            (notes, worker.write_all(b"x").unwrap_err().kind())
        });
        let (notes, failure) = told.await.unwrap();
        assert_eq!(notes, [r#"{"op":"end"}"#]);
        assert_eq!(failure, io::ErrorKind::BrokenPipe);
        drop((going, kept));
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
