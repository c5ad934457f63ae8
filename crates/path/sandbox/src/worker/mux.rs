//! Concurrent calls over one channel, for workers with a concurrency above 1: a task reads frames and passes each to the caller
//! that waits for its stream. Single calls do not need it ([`super::call`]).

mod outbox;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{Answer, BoxFuture, Call, Part};
use pilot_model::timeline::Instant;
use pilot_protocols::{Pace, PiecePace};
use pilot_sys::clock::monotonic_ns;
use pilot_wire::{Frame, PIECE_LEN_MAX, WINDOW_COST_MIN};
use tokio::sync::{Notify, SetOnce, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::outbox::Outbox;
use super::call::{self, CallError, Connection, Reader, ToWorker};
use super::output::OUTPUT_LEN_MAX;

/// Most frames of one stream that wait for its client. Beyond that the worker's channel is not read, which holds up its other streams.
const FRAMES_WAITING_MAX: usize = 4096;
/// Those of all streams beyond so many are kept in the memory of the function's answers.
const FREE_FRAMES: usize = 32;
/// A body so short is not counted if nothing else of its stream waits.
const SHORT_LEN: usize = 4 * 1024;
/// Longest window of a stream.
const WINDOW_MAX: u32 = 1 << 20;
/// From the end of a process to the end of its channel.
const CHANNEL_END_TIME_MAX: Duration = Duration::from_secs(1);

/// A channel with concurrent calls.
#[derive(Debug)]
pub(super) struct Mux {
    outbox: Outbox,
    streams: Arc<Streams>,
    reader: JoinHandle<()>,
    /// How much of a response the worker sends before it waits for room. 0: it never waits, and cannot be told that a client has gone.
    window: u32,
}

#[derive(Debug, Default)]
struct Streams {
    /// Guards the callers by stream, and the reason once the channel has ended.
    open: Mutex<Open>,
    /// What the worker printed until the end of exchanges whose callers have gone, and nobody has taken. The lock is held for one
    /// change.
    unclaimed: Mutex<Bytes>,
    /// No exchange is left: the rest of the channel is not read.
    closing: Notify,
    /// What the worker printed after its last answer. Set once the channel is not read any more.
    last_output: SetOnce<Bytes>,
    /// One caller has it for its log.
    is_output_taken: AtomicBool,
    /// Frames that wait for their callers.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Open {
    /// Until the worker has sent the last frame.
    senders: HashMap<u32, mpsc::Sender<Arrived>>,
    receivers: HashMap<u32, Stream>,
    /// Those whose callers have gone before that, and who waits for the last frame.
    left: HashMap<u32, Option<oneshot::Sender<()>>>,
    ended: Option<CallError>,
}

/// A frame, its time of arrival, and the output until then.
#[derive(Debug)]
struct Arrived {
    frame: Frame,
    at: Instant,
    output: Bytes,
    waits: Option<Waits>,
}

/// Counts a frame that waits for its caller, except a short one that is the only one of its stream.
#[derive(Debug)]
struct Waits(Arc<AtomicUsize>);

/// The state of one call.
#[derive(Debug)]
struct Stream {
    frames: mpsc::Receiver<Arrived>,
    first_byte: Instant,
    /// What came right behind the chunks of the last part.
    pending: Option<Arrived>,
    /// What the caller has taken since the worker was told that there is room again, bytes.
    taken: u32,
}

impl Mux {
    /// `window`: see [`ReadyMeta::window`](pilot_wire::meta::ReadyMeta::window).
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn new(connection: Connection, window: u32) -> io::Result<Self> {
        let reader = connection.into_reader();
        let streams = Arc::new(Streams::default());
        let failing = Arc::clone(&streams);
        Ok(Self {
            outbox: Outbox::new(reader.duplicate()?, move |why| failing.end(why)),
            reader: tokio::spawn(read(reader, Arc::clone(&streams))),
            streams,
            window: match window {
                0 => 0,
                window => window.clamp(PIECE_LEN_MAX, WINDOW_MAX),
            },
        })
    }

    pub(super) async fn call(&self, call: &Call) -> Result<Answer, CallError> {
        let first = ToWorker::new(call)?;
        let (sender, frames) = mpsc::channel(FRAMES_WAITING_MAX);
        {
            let mut open = self.streams.open.lock();
            if let Some(ended) = &open.ended {
                return Err(ended.clone());
            }
            open.senders.insert(call.stream, sender);
        }
        let mut closing = Closing {
            mux: self,
            stream: call.stream,
            is_answered: false,
        };
        let mut stream = Stream {
            frames,
            first_byte: Instant(0),
            pending: None,
            taken: 0,
        };
        self.outbox.put(first)?;
        let arrived = self.next_frame(&mut stream).await?;
        closing.is_answered = true;
        stream.first_byte = arrived.at;
        stream.took(&arrived.frame);
        let mut answer = call::answer(arrived.frame, arrived.at, || arrived.output)?;
        if call::may_be_joined(&answer)
            && let Ok(next) = stream.frames.try_recv()
        {
            if call::comes_later(&next.frame) {
                stream.pending = Some(next);
            } else {
                stream.took(&next.frame);
                let next = call::part(next.frame, stream.first_byte, || next.output)?;
                answer = call::with_next(answer, next);
            }
        }
        if let Answer::Http { done: None, .. } = answer {
            self.tell_room(call.stream, &mut stream);
            self.streams
                .open
                .lock()
                .receivers
                .insert(call.stream, stream);
            closing.stay_open();
        }
        Ok(answer)
    }

    pub(super) async fn next_part(&self, id: u32) -> Result<Part, CallError> {
        let stream = self.streams.open.lock().receivers.remove(&id);
        let Some(mut stream) = stream else {
            return Err(CallError::Broken(format!("no stream {id}")));
        };
        let closing = Closing {
            mux: self,
            stream: id,
            is_answered: true,
        };
        let arrived = self.next_part_of(&mut stream).await?;
        let part = call::part(arrived.frame, stream.first_byte, || arrived.output)?;
        if matches!(part, Part::Chunk(_)) {
            self.tell_room(id, &mut stream);
            self.streams.open.lock().receivers.insert(id, stream);
            closing.stay_open();
        }
        Ok(part)
    }

    /// The caller of an exchange has gone, and its futures are dropped. The worker is told, and ends the exchange when it can.
    /// Resolves then; false: it will never say so. `None`: it cannot be told.
    pub(super) fn cancel(&self, stream: u32) -> Option<BoxFuture<'static, bool>> {
        // Its caller may have gone between two parts of the response, when no future of this exchange was there to be dropped.
        self.leave(stream);
        if self.window == 0 {
            return None;
        }
        let (over, is_over) = oneshot::channel();
        match self.streams.open.lock().left.get_mut(&stream) {
            Some(waiter) => *waiter = Some(over),
            // It has sent its last frame, or never got the first one.
            None => return Some(Box::pin(std::future::ready(true))),
        }
        // If the worker cannot be told, its channel has ended, and so does the wait.
        let _ = ToWorker::cancel(stream).and_then(|frame| self.outbox.put(frame));
        Some(Box::pin(async { is_over.await.is_ok() }))
    }

    /// Nobody waits for the frames of this stream any more. What waits for its caller is dropped.
    fn leave(&self, stream: u32) {
        let _unread = {
            let mut open = self.streams.open.lock();
            let is_open = open.senders.remove(&stream).is_some();
            if is_open && self.window > 0 {
                open.left.insert(stream, None);
            }
            open.receivers.remove(&stream)
        };
    }

    /// Tells the worker that its caller has taken a part of a response.
    fn tell_room(&self, id: u32, stream: &mut Stream) {
        if self.window > 0 && stream.taken >= self.window / 2 {
            let room = ToWorker::window(id, std::mem::take(&mut stream.taken));
            // If the worker cannot be told, its channel has ended.
            let _ = room.and_then(|frame| self.outbox.put(frame));
        }
    }

    /// What the worker printed until the end of exchanges whose callers have gone.
    pub(super) fn take_unclaimed(&self) -> Bytes {
        std::mem::take(&mut *self.streams.unclaimed.lock())
    }

    /// What the worker printed after its last answer, when its process has ended. For the first one that asks: callers whose worker
    /// has died ask at the same time, and whoever ends it asks after them.
    pub(super) async fn take_last_output(&self) -> Bytes {
        if self.streams.is_output_taken.swap(true, Ordering::Relaxed) {
            return Bytes::new();
        }
        // A child process can have the channel open.
        let last = timeout(CHANNEL_END_TIME_MAX, self.streams.last_output.wait()).await;
        last.map_or_else(|_| Bytes::new(), Clone::clone)
    }

    /// The same at once, of a worker that has no exchange any more. Its process may still run, until the channel is closed.
    pub(super) async fn close(&self) -> Bytes {
        self.streams.closing.notify_one();
        self.take_last_output().await
    }

    async fn next_frame(&self, stream: &mut Stream) -> Result<Arrived, CallError> {
        match stream.frames.recv().await {
            Some(arrived) => Ok(arrived),
            None => Err(self.streams.ended()),
        }
    }

    /// The next frame, joined with those that have arrived behind it ([`call::with_arrived`]).
    async fn next_part_of(&self, stream: &mut Stream) -> Result<Arrived, CallError> {
        let first = match stream.pending.take() {
            Some(arrived) => arrived,
            None => self.next_frame(stream).await?,
        };
        // Only the last frame of an answer has output.
        let (mut at, mut output, mut waits) = (first.at, first.output, first.waits);
        let mut taken = cost(&first.frame);
        let frames = &mut stream.frames;
        let joined = call::with_arrived(first.frame, || {
            let Ok(next) = frames.try_recv() else {
                return Ok(None);
            };
            (at, output, waits) = (next.at, next.output, next.waits);
            taken += cost(&next.frame);
            Ok(Some(next.frame))
        })?;
        if let Some(pending) = &joined.pending {
            taken -= cost(pending);
        }
        stream.taken = stream.taken.saturating_add(taken);
        if let Some(pending) = joined.pending {
            stream.pending = Some(Arrived {
                frame: pending,
                at,
                output: std::mem::take(&mut output),
                waits: Some(Waits::new(&self.streams.waiting)),
            });
        }
        Ok(Arrived {
            frame: joined.frame,
            at,
            output,
            waits,
        })
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream {
    /// The caller gets this frame.
    fn took(&mut self, frame: &Frame) {
        self.taken = self.taken.saturating_add(cost(frame));
    }
}

/// What a frame takes of its stream's window, bytes.
fn cost(frame: &Frame) -> u32 {
    let len = u32::try_from(frame.body.len()).unwrap_or(u32::MAX);
    len.max(WINDOW_COST_MIN)
}

impl Waits {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Streams {
    fn end(&self, why: CallError) {
        let mut open = self.open.lock();
        open.ended = Some(why);
        open.senders.clear();
        open.left.clear();
    }

    /// Who gets a frame of this stream. `is_last`: no other one follows. If its caller has gone, [`Streams::over`] comes next.
    fn reader_of(&self, stream: u32, is_last: bool) -> FrameReader {
        let mut open = self.open.lock();
        let sender = match is_last {
            true => open.senders.remove(&stream),
            false => open.senders.get(&stream).cloned(),
        };
        if let Some(sender) = sender {
            return FrameReader::Caller(sender);
        }
        if !open.left.contains_key(&stream) {
            return FrameReader::Unknown;
        }
        FrameReader::Gone
    }

    /// Keeps what was printed for whoever takes it.
    fn keep_unclaimed(&self, output: Bytes) {
        let mut unclaimed = self.unclaimed.lock();
        *unclaimed = joined(std::mem::take(&mut unclaimed), output);
    }

    /// The worker has ended an exchange whose caller has gone.
    fn over(&self, stream: u32) {
        if let Some(Some(waiter)) = self.open.lock().left.remove(&stream) {
            let _ = waiter.send(());
        }
    }

    fn ended(&self) -> CallError {
        self.open
            .lock()
            .ended
            .clone()
            .unwrap_or(CallError::Closed { unread: false })
    }
}

/// Removes a stream when its call is done or cancelled.
struct Closing<'a> {
    mux: &'a Mux,
    stream: u32,
    /// The worker has answered. If not, the frame of the call may still wait, and is taken back.
    is_answered: bool,
}

impl Closing<'_> {
    /// Keeps the stream, because more of it follows.
    fn stay_open(self) {
        std::mem::forget(self);
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if !self.is_answered && self.mux.outbox.retract(self.stream) {
            // The worker does not know of it.
            self.mux.streams.open.lock().senders.remove(&self.stream);
        } else {
            self.mux.leave(self.stream);
        }
    }
}

/// Who gets a frame.
enum FrameReader {
    Caller(mpsc::Sender<Arrived>),
    /// The caller has gone.
    Gone,
    /// Nobody has asked for it.
    Unknown,
}

/// What was printed before and after. If it is long, as much as is kept of one invocation.
fn joined(before: Bytes, after: Bytes) -> Bytes {
    match (before.is_empty(), after.is_empty()) {
        (true, _) => after,
        (_, true) => before,
        _ if before.len() + after.len() > OUTPUT_LEN_MAX => after,
        _ => [before, after].concat().into(),
    }
}

async fn read(mut reader: Reader, streams: Arc<Streams>) {
    let ended = tokio::select! {
        ended = read_frames(&mut reader, &streams) => ended,
        () = streams.closing.notified() => CallError::Closed { unread: false },
    };
    streams.keep_unclaimed(reader.output().take());
    // It is set here alone.
    let last_output = std::mem::take(&mut *streams.unclaimed.lock());
    let _ = streams.last_output.set(last_output);
    streams.end(ended);
}

/// Reads until the channel ends. Returns why.
async fn read_frames(reader: &mut Reader, streams: &Streams) -> CallError {
    let (unexplained, pace) = (Pace::default(), PiecePace::default());
    let mut has_output = false;
    loop {
        let frame = match reader.frame().await {
            Ok(frame) => frame,
            Err(ended) => return ended,
        };
        has_output &= reader.is_together();
        let is_last = call::is_last(&frame);
        // Of answers that arrive together, the first has the output of all: it was written before them.
        let output = match !has_output && is_last {
            true => {
                let unclaimed = std::mem::take(&mut *streams.unclaimed.lock());
                joined(unclaimed, reader.output().take())
            }
            false => Bytes::new(),
        };
        has_output |= is_last;
        let mut arrived = Arrived {
            at: Instant(monotonic_ns()),
            frame,
            output,
            waits: None,
        };
        let cost = match reader.is_together() {
            true => call::cost_of_more(&arrived.frame),
            false => call::cost(&arrived.frame),
        };
        match streams.reader_of(arrived.frame.stream, is_last) {
            FrameReader::Caller(sender) => {
                if !call::is_empty_chunk(&arrived.frame) {
                    let is_only = sender.capacity() == sender.max_capacity();
                    if !is_only || arrived.frame.body.len() > SHORT_LEN {
                        arrived.waits = Some(Waits::new(&streams.waiting));
                    }
                    // Its client reads more slowly than the worker writes. Others are not to wait for it.
                    if streams.waiting.load(Ordering::Relaxed) > FREE_FRAMES {
                        reader.keep(&mut arrived.frame).await;
                    }
                    let _ = sender.send(arrived).await;
                }
                if !cost.is_zero() {
                    pace.came(cost);
                    reader.output().drain_while(pace.rest()).await;
                }
            }
            FrameReader::Gone if is_last || !cost.is_zero() => {
                streams.keep_unclaimed(arrived.output);
                if is_last {
                    // Who waits for that may take the output.
                    streams.over(arrived.frame.stream);
                }
                pace.came(cost);
                reader.output().drain_while(pace.rest()).await;
            }
            // A response has one head, and its client has gone. Or the worker cannot know that its client has hung up, or
            // sends what nobody asked for. That costs the daemon more than the worker.
            FrameReader::Gone | FrameReader::Unknown => {
                streams.keep_unclaimed(arrived.output);
                reader.output().drain_while(unexplained.wait()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
