//! An input that a worker reads while it arrives: the worker has the buffer's file, which only reads, and a socket or a pipe on
//! which a task says how much is there. A pipe is for workers that take paths: a socket cannot be opened by its path.
//!
//! The task waits for the buffer as any other user does, so the function stays charged for what arrives. It never waits for the worker:
//! if there is no room, what it says next is how much is there by then. When the invocation ends, the task does, too; then it
//! closes. The messages are those of `crates/path/wire/PROTOCOL.md`, "Inputs that still arrive".

use std::fs::{File, Permissions};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, OnceLock};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use pilot_model::ports::{Clock, Input, InputFaultKind, InputKind, InputMemory};
use pilot_model::{Instant, Streamed, Transfer, TransferWay};
use pilot_sys::seqpacket;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Sender;
use tokio::task::AbortHandle;

use crate::buffers::Buffers;
use crate::buffers::buffer::{Until, Use, Waited};
use crate::room::Waiting;
use crate::stores::StoreError;

/// An input that still arrives, or did when the worker got it. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Stream {
    used: Arc<Use>,
    task: AbortHandle,
    end: Arc<OnceLock<End>>,
    /// As it was when the store had answered.
    transfer: Transfer,
    head: Instant,
    clock: Arc<dyn Clock>,
}

/// The end of the transfer.
#[derive(Debug)]
struct End {
    at: Instant,
    /// Why it failed.
    error: Option<StoreError>,
}

/// What is known of a transfer when the store has answered.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) input: String,
    pub(crate) from: String,
    pub(crate) way: TransferWay,
    pub(crate) began: Instant,
}

impl Stream {
    /// Begins to tell a worker how much is there. Returns the worker's end too.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(
        used: Use,
        buffers: &Arc<Buffers>,
        begun: Begun,
        told_by: ToldBy,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<(Self, Input)> {
        let (ours, theirs) = match told_by {
            ToldBy::Socket => socket_pair()?,
            ToldBy::Pipe => pipe()?,
        };
        let used = Arc::new(used);
        let end = Arc::<OnceLock<End>>::default();
        let task = tokio::spawn({
            let (used, buffers) = (Arc::clone(&used), Arc::clone(buffers));
            let (end, clock) = (Arc::clone(&end), Arc::clone(clock));
            async move {
                let ended = |error| {
                    let at = clock.now();
                    let _ = end.set(End { at, error });
                };
                // An error means that the worker reads no more of it.
                let _ = relay(&used, &buffers, ours, ended).await;
            }
        });
        let progress = Input {
            name: begun.input.clone(),
            kind: InputKind::Progress,
            descriptor: Arc::new(theirs),
            object: None,
            decoded: None,
        };
        let now = clock.now();
        let stream = Self {
            task: task.abort_handle(),
            used,
            end,
            head: now,
            transfer: Transfer {
                input: begun.input,
                from: begun.from,
                bytes: 0,
                way: begun.way,
                began: begun.began,
                ended: now,
                decoding: None,
                streamed: None,
                error: None,
            },
            clock: Arc::clone(clock),
        };
        Ok((stream, progress))
    }

    /// The transfer so far.
    fn so_far(&self) -> Transfer {
        let end = self.end.get();
        let error = end.and_then(|end| end.error.as_ref());
        Transfer {
            bytes: match error {
                None => *self.used.filled().borrow(),
                Some(_) => 0,
            },
            ended: end.map_or_else(|| self.clock.now(), |end| end.at),
            streamed: Some(Streamed {
                head: self.head,
                whole: end.is_some() && error.is_none(),
            }),
            error: error.map(|error| error.problem.clone()),
            ..self.transfer.clone()
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl InputMemory for Stream {
    fn bytes(&self) -> u64 {
        *self.used.filled().borrow()
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        self.used.input(name)
    }

    fn transfer(&self) -> Option<Transfer> {
        Some(self.so_far())
    }
}

/// On what a worker is told how much is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToldBy {
    /// It takes descriptors.
    Socket,
    /// It takes paths.
    Pipe,
}

/// Our end of it.
enum Teller {
    Socket(UnixStream),
    Pipe(Sender),
}

impl Teller {
    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Socket(socket) => socket.writable().await,
            Self::Pipe(pipe) => pipe.writable().await,
        }
    }

    fn try_write(&self, message: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.try_write(message),
            Self::Pipe(pipe) => pipe.try_write(message),
        }
    }

    async fn write_all(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Socket(socket) => socket.write_all(message).await,
            Self::Pipe(pipe) => pipe.write_all(message).await,
        }
    }
}

/// A pipe that the worker opens by its path, and only for reading: it is not its owner.
fn pipe() -> io::Result<(Teller, OwnedFd)> {
    let (theirs, ours) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let theirs = File::from(theirs);
    theirs.set_permissions(Permissions::from_mode(0o444))?;
    Ok((Teller::Pipe(Sender::from_owned_fd(ours)?), theirs.into()))
}

/// A socket pair. Nothing comes from the worker's end: whatever it would send fails there.
fn socket_pair() -> io::Result<(Teller, OwnedFd)> {
    let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
    let ours = StdUnixStream::from(ours);
    ours.shutdown(Shutdown::Read)?;
    ours.set_nonblocking(true)?;
    Ok((Teller::Socket(UnixStream::from_std(ours)?), theirs))
}

/// Says how much is there until all is, or until it is known that not all will be. `ended` learns why.
async fn relay(
    used: &Use,
    buffers: &Buffers,
    mut to: Teller,
    ended: impl FnOnce(Option<StoreError>),
) -> io::Result<()> {
    let mut filled = used.filled();
    let mut sent = 0;
    let mut is_heard = true;
    // It is with a worker already, which cannot give it back.
    let waiting = Waiting::default();
    let end = used.wait(&buffers.memory, Until::Whole, waiting.place(0));
    tokio::pin!(end);
    let end = loop {
        let there = *filled.borrow_and_update();
        tokio::select! {
            biased;
            end = &mut end => break end,
            changed = filled.changed(), if sent == there && is_heard => {
                is_heard = changed.is_ok();
            }
            writable = to.writable(), if sent < there && is_heard => {
                writable?;
                match to.try_write(&message(THERE, there)) {
                    Ok(MESSAGE_LEN) => sent = there,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // A part of a message is of no use. The transfer goes on: its end is part of the record.
                    Ok(_) | Err(_) => is_heard = false,
                }
            }
        }
    };
    let error = match end {
        Ok(Waited::Ready) => None,
        Ok(Waited::NoRoom(..)) => {
            let problem = "the function has no room for all of it: see data.function_mb";
            Some(StoreError::new(InputFaultKind::TooLarge, problem))
        }
        Ok(_) => {
            let problem = "the daemon gave the fetch up";
            Some(StoreError::new(InputFaultKind::Unavailable, problem))
        }
        Err(error) => Some(error),
    };
    let there = *filled.borrow();
    let last = match &error {
        None => {
            buffers.cache.used(used.buffer());
            message(WHOLE, there).to_vec()
        }
        Some(error) => {
            let text = error.problem.as_bytes();
            [
                &message(THERE, there),
                &message(FAILED, text.len() as u64)[..],
                text,
            ]
            .concat()
        }
    };
    ended(error);
    match is_heard {
        true => to.write_all(&last).await,
        false => Ok(()),
    }
}

/// A kind, and a number (little-endian).
fn message(kind: u8, value: u64) -> [u8; MESSAGE_LEN] {
    let mut message = [kind; MESSAGE_LEN];
    let (_, number) = message.split_at_mut(1);
    number.copy_from_slice(&value.to_le_bytes());
    message
}

const MESSAGE_LEN: usize = 9;
/// So many bytes are there.
const THERE: u8 = 0;
/// All are there, and this is their number.
const WHOLE: u8 = 1;
/// No more will come. So many bytes of text follow, which say why.
const FAILED: u8 = 2;

#[cfg(test)]
mod tests;
