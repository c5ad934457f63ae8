//! Frames on their way to a worker that serves several calls at once.
//!
//! A frame belongs to the outbox as soon as it is put there. A call that is cancelled therefore never leaves a part of one, which
//! would make the next frame the rest of its body. A caller writes its frame itself, unless another one is writing. A task writes
//! what does not fit into the socket at once.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_sys::seqpacket;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::super::call::{CallError, ToWorker, closed_or_broken};
use super::super::socket::Outgoing;

/// Most frames per write. Each has three parts, and a write takes 1,024 (`UIO_MAXIOV`, sendmsg(2)).
const FRAMES_PER_WRITE: usize = 64;

/// Most bytes that are written together, beyond the last frame. What is being written is sent although its call is cancelled.
const LEN_TOGETHER: usize = 64 * 1024;

/// Frames that wait, and the task that writes those that the callers leave.
#[derive(Debug)]
pub(super) struct Outbox {
    shared: Arc<Shared>,
    writer: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// The worker's channel, which does not block.
    socket: OwnedFd,
    /// Locked for moments, never while writing.
    queue: Mutex<Queue>,
    /// A caller has left something.
    has_rest: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<ToWorker>,
    /// Frames that somebody could write only in part. They go first.
    begun: Option<Batch>,
    /// Somebody has taken frames. Who has written them looks whether others have come.
    is_writing: bool,
    /// Why nothing can be sent any more.
    failed: Option<CallError>,
}

/// Frames that are being written.
#[derive(Debug, Default)]
struct Batch {
    frames: VecDeque<ToWorker>,
    /// Bytes of the first one that are written.
    written: usize,
}

impl Outbox {
    /// `fail` is called if the worker cannot be written to any more.
    pub(super) fn new(socket: OwnedFd, fail: impl FnOnce(CallError) + Send + 'static) -> Self {
        let shared = Arc::new(Shared {
            socket,
            queue: Mutex::default(),
            has_rest: Notify::new(),
        });
        let writer = Arc::clone(&shared);
        Self {
            shared,
            writer: tokio::spawn(async move { fail(writer.write().await) }),
        }
    }

    /// Sends a frame, at once if there is room for it.
    ///
    /// # Errors
    /// The worker cannot be written to any more.
    pub(super) fn put(&self, frame: ToWorker) -> Result<(), CallError> {
        let shared = &*self.shared;
        let batch = {
            let mut queue = shared.queue.lock();
            if let Some(failed) = &queue.failed {
                return Err(failed.clone());
            }
            queue.add(frame)?;
            queue.take()
        };
        // Who is writing looks at the queue afterwards.
        let Some(mut batch) = batch else {
            return Ok(());
        };
        // If there is no room, or another error, the task tries the rest.
        let _ = batch.write_what_fits(&shared.socket);
        if shared.queue.lock().put_back(batch) {
            shared.has_rest.notify_one();
        }
        Ok(())
    }

    /// The call is cancelled: its frame is not sent, unless somebody has begun to. Returns whether it is not.
    pub(super) fn retract(&self, stream: u32) -> bool {
        let mut queue = self.shared.queue.lock();
        let before = queue.waiting.len();
        let is_meant = |frame: &ToWorker| frame.stream() == stream && frame.is_call();
        queue.waiting.retain(|frame| !is_meant(frame));
        queue.waiting.len() < before
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl Shared {
    /// Writes what is due. Returns why the worker cannot be written to any more.
    async fn write(&self) -> CallError {
        loop {
            self.has_rest.notified().await;
            loop {
                let batch = self.queue.lock().take();
                let Some(mut batch) = batch else { break };
                while let Err(error) = batch.write_what_fits(&self.socket) {
                    let waited = match error.kind() {
                        ErrorKind::WouldBlock => Outgoing::of(&self.socket).has_room().await,
                        _ => Err(error),
                    };
                    if let Err(error) = waited {
                        return self.queue.lock().fail(closed_or_broken(error));
                    }
                }
                self.queue.lock().put_back(batch);
            }
        }
    }
}

impl Queue {
    /// A worker that does not read has one frame of room for each response here, and not one after the other.
    fn add(&mut self, frame: ToWorker) -> Result<(), CallError> {
        let same = |known: &&mut ToWorker| known.stream() == frame.stream();
        if let Some(more) = frame.room()
            && let Some((known, room)) = (self.waiting.iter_mut().filter(same))
                .find_map(|known| known.room().map(|room| (known, room)))
        {
            *known = ToWorker::window(frame.stream(), room.saturating_add(more))?;
            return Ok(());
        }
        self.waiting.push_back(frame);
        Ok(())
    }

    /// What is written next. `None`: nothing waits, or somebody is writing.
    fn take(&mut self) -> Option<Batch> {
        if self.is_writing {
            return None;
        }
        let batch = self.begun.take().or_else(|| {
            let mut len = 0;
            let short = self.waiting.iter().take_while(|frame| {
                let fits = len < LEN_TOGETHER;
                len += frame.len();
                fits
            });
            let count = short.count();
            let frames: VecDeque<ToWorker> = self.waiting.drain(..count).collect();
            (!frames.is_empty()).then_some(Batch { frames, written: 0 })
        })?;
        self.is_writing = true;
        Some(batch)
    }

    /// After writing. Returns whether something is left to write.
    fn put_back(&mut self, batch: Batch) -> bool {
        self.is_writing = false;
        self.begun = (!batch.frames.is_empty()).then_some(batch);
        self.begun.is_some() || !self.waiting.is_empty()
    }

    fn fail(&mut self, error: CallError) -> CallError {
        self.waiting.clear();
        self.failed.insert(error).clone()
    }
}

impl Batch {
    /// # Errors
    /// [`ErrorKind::WouldBlock`]: some frames are left.
    fn write_what_fits(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while let Some(first) = self.frames.front() {
            // Descriptors go with the first byte of their frame, which is then written alone.
            let count = match first.has_descriptors() {
                true => 1,
                false => {
                    let plain = self.frames.iter().take(FRAMES_PER_WRITE);
                    plain.take_while(|frame| !frame.has_descriptors()).count()
                }
            };
            let descriptors = match self.written {
                0 => first.descriptors(),
                _ => Vec::new(),
            };
            let frames = self.frames.iter().take(count);
            let mut parts: Vec<IoSlice<'_>> = frames.flat_map(ToWorker::parts).collect();
            let mut rest = &mut parts[..];
            IoSlice::advance_slices(&mut rest, self.written);
            match seqpacket::send_stream(socket.as_fd(), rest, &descriptors) {
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(first) = self.frames.front()
            && self.written >= first.len()
        {
            self.written -= first.len();
            self.frames.pop_front();
        }
    }
}
