//! The daemon's end of the socket of a script that goes on, and how what needs a descriptor reaches the worker: with the message,
//! or as a path that the worker is shown.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Weak};

use pilot_model::ports::{HandedConnection, HandedSocket, Input, InputKind, ScriptSent, Worker};
use pilot_sys::{seqpacket, unnamed};
use pilot_wire::script::{Note, encode};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use super::{Event, Link, stop_reading};

/// See the module.
pub(super) enum End {
    /// The worker has the other end, and takes descriptors.
    Connected(OwnedReadHalf, OwnedWriteHalf),
    /// The worker connects once, and takes paths.
    Listening(UnixListener, Weak<dyn Worker>),
}

impl End {
    /// With the worker's end. `is_over`: nobody reads what the function sends.
    pub(super) fn connected(is_over: bool) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
        if is_over {
            seqpacket::stop_reading(ours.as_fd())?;
        }
        let ours = StdUnixStream::from(ours);
        ours.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        Ok((Self::Connected(reader, writer), theirs))
    }

    /// With a descriptor to whose path the worker connects.
    pub(super) fn listening(worker: Weak<dyn Worker>) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = unnamed::listening()?;
        Ok((
            Self::Listening(UnixListener::from_std(ours)?, worker),
            theirs,
        ))
    }

    /// Writes until the script has ended, from when the worker has connected. `to_script`: gets what the worker writes.
    pub(super) async fn write(
        self,
        mut queue: mpsc::UnboundedReceiver<Event>,
        to_script: oneshot::Sender<OwnedReadHalf>,
        link: &Link,
    ) -> io::Result<()> {
        let (mut writer, worker) = self.connect(to_script).await?;
        while let Some(event) = queue.recv().await {
            let sent = match event {
                Event::Sent(sent) => *sent,
                Event::End(problem) => {
                    let problem = problem.as_deref();
                    return writer.write_all(&encode(Note::End { problem })).await;
                }
            };
            match &worker {
                None => with_descriptor(sent, &mut writer).await?,
                Some(worker) => with_path(sent, &mut writer, worker, link).await?,
            }
        }
        Ok(())
    }

    async fn connect(
        self,
        to_script: oneshot::Sender<OwnedReadHalf>,
    ) -> io::Result<(OwnedWriteHalf, Option<Weak<dyn Worker>>)> {
        let (reader, writer, worker) = match self {
            Self::Connected(reader, writer) => (reader, writer, None),
            Self::Listening(ours, worker) => {
                let (theirs, _) = ours.accept().await?;
                // Nobody else can connect.
                drop(ours);
                seqpacket::refuse_descriptors(theirs.as_fd())?;
                let (reader, writer) = theirs.into_split();
                (reader, writer, Some(worker))
            }
        };
        if let Err(unread) = to_script.send(reader) {
            // The script has ended.
            stop_reading(unread.as_ref());
        }
        Ok((writer, worker))
    }
}

/// To a worker that takes descriptors.
async fn with_descriptor(sent: ScriptSent, to: &mut OwnedWriteHalf) -> io::Result<()> {
    match sent {
        ScriptSent::Message { id, input, .. } => {
            let note = Note::Message {
                id,
                len: length(&input)?,
                path: None,
                object: input.object.as_deref(),
            };
            send(to, &encode(note), input.descriptor.as_fd()).await
        }
        ScriptSent::Connection(HandedConnection {
            id,
            address,
            socket: Ok(socket),
        }) => {
            let note = Note::Connection {
                id,
                path: None,
                address: &address,
            };
            send(to, &encode(note), socket.descriptor.as_fd()).await
        }
        absent => without_anything(absent, to).await,
    }
}

/// To a worker that takes paths.
async fn with_path(
    sent: ScriptSent,
    to: &mut OwnedWriteHalf,
    worker: &Weak<dyn Worker>,
    link: &Link,
) -> io::Result<()> {
    let note = match sent {
        ScriptSent::Message { id, input, .. } => {
            let (len, object) = (length(&input)?, input.object.clone());
            match shown(input, worker, link).await {
                Ok(path) => encode(Note::Message {
                    id,
                    len,
                    path: Some(&path),
                    object: object.as_deref(),
                }),
                Err(problem) => encode(Note::NoMessage {
                    id,
                    problem: &problem,
                }),
            }
        }
        ScriptSent::Connection(HandedConnection {
            id,
            address,
            socket: Ok(HandedSocket { descriptor, kept }),
        }) => {
            let input = Input {
                name: String::new(),
                kind: InputKind::Socket,
                descriptor: Arc::new(descriptor),
                object: None,
                decoded: None,
            };
            link.seen.lock().connections.extend(kept);
            match shown(input, worker, link).await {
                Ok(path) => encode(Note::Connection {
                    id,
                    path: Some(&path),
                    address: &address,
                }),
                Err(problem) => encode(Note::NoConnection {
                    id,
                    problem: &problem,
                }),
            }
        }
        absent => return without_anything(absent, to).await,
    };
    to.write_all(&note).await
}

/// What will not come.
async fn without_anything(sent: ScriptSent, to: &mut OwnedWriteHalf) -> io::Result<()> {
    let note = match &sent {
        ScriptSent::NoMessage { id, transfer } => Note::NoMessage {
            id: *id,
            problem: transfer.error.as_deref().unwrap_or_default(),
        },
        ScriptSent::Connection(HandedConnection {
            id,
            socket: Err(problem),
            ..
        }) => Note::NoConnection { id: *id, problem },
        ScriptSent::Message { .. } | ScriptSent::Connection(_) => return Ok(()),
    };
    to.write_all(&encode(note)).await
}

/// The path of an input in the worker, valid until the invocation has ended. It takes a limited time: see `pilot_protocols::Holders`.
async fn shown(input: Input, worker: &Weak<dyn Worker>, link: &Link) -> Result<String, String> {
    let Some(worker) = worker.upgrade() else {
        return Err("the worker has ended".to_owned());
    };
    let mut shown = worker.show(vec![input]).await?;
    let path = shown.paths.pop();
    link.seen.lock().shown.push(shown);
    path.ok_or_else(|| "it has no path".to_owned())
}

fn length(input: &Input) -> io::Result<u64> {
    match input.kind {
        InputKind::Memory { len } => Ok(len),
        _ => Err(io::Error::other("a message is memory that is complete")),
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
