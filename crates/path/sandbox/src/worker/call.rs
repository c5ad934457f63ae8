//! Calls over a worker's channel, one at a time, on the caller's task. There is no reader task, because waking one costs more
//! than everything here.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pilot_model::ports::{Answer, Call, Done, HttpHead, Part, StartError};
use pilot_model::timeline::Instant;
use pilot_protocols::{FREE_LEN, FunctionBudget, PiecePace, Reserved};
use pilot_sys::clock::monotonic_ns;
use pilot_wire::meta::{DoneMeta, HeadMeta};
use pilot_wire::{Frame, FrameDecoder, FrameKind, HEADER_LEN, Header, PIECE_LEN_MAX};

use super::output::Output;
use super::socket::{Incoming, Outgoing};
use crate::child::{ChildEnd, or_end};
use crate::refused::refused;

/// The daemon's end of a channel, and the output that belongs to it.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: Reader,
    /// When the first byte of the current answer arrived.
    first_byte: Instant,
    /// A frame that came right behind the chunks of the last part.
    pending: Option<Frame>,
    /// Of chunks with few bytes, and with none, which our workers do not send.
    pace: PiecePace,
}

/// The reading half. It also reads output.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Incoming,
    decoder: FrameDecoder,
    output: Output,
    answers: FunctionBudget,
    /// For the frame that is arriving, if it is a long one.
    reserved: Option<Reserved>,
    /// Nothing was read for the last frame.
    is_together: bool,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The worker closed its end.
    Closed {
        /// It had not read everything that was sent.
        unread: bool,
    },
    /// It violated the protocol, or the socket failed.
    Broken(String),
    /// The call does not fit into a frame. Nothing was sent, and the worker serves on.
    TooLong(String),
}

/// Enough for a typical answer, so that it takes one read.
const READ_LEN: usize = 16 * 1024;

/// Longest frame that needs no reservation: a piece of a body, with its header and a short meta.
const FREE_FRAME_LEN: usize = FREE_LEN + 8 * 1024;

/// What a frame takes beside its bytes, about.
const FRAME_OVERHEAD: usize = 256;

impl Connection {
    /// `channel` is our end of it, which does not block.
    pub(crate) fn new(
        channel: OwnedFd,
        output: Output,
        answers: FunctionBudget,
    ) -> Result<Self, StartError> {
        let stream = Incoming::new(channel).map_err(refused("register a worker's channel"))?;
        Ok(Self {
            reader: Reader {
                stream,
                decoder: FrameDecoder::default(),
                output,
                answers,
                reserved: None,
                is_together: false,
            },
            first_byte: Instant(0),
            pending: None,
            pace: PiecePace::default(),
        })
    }

    pub(super) fn into_reader(self) -> Reader {
        self.reader
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.reader.output
    }

    pub(crate) async fn frame(&mut self) -> Result<Frame, CallError> {
        match self.pending.take() {
            Some(frame) => Ok(frame),
            None => self.reader.frame().await,
        }
    }

    /// Sends the values of secrets, which the worker reads before it runs user code. If the worker ends instead, waiting for its first
    /// frame says why.
    pub(crate) async fn give(
        &mut self,
        environment: &BTreeMap<String, String>,
        ended: impl Future<Output = ChildEnd>,
    ) -> Result<(), StartError> {
        let frame = secrets_frame(environment).map_err(|problem| StartError::Sandbox {
            problem: format!("send a worker its secrets: {problem}"),
        })?;
        let (output, writer) = self.reader.output_and_writer();
        let written = output.drain_while(writer.write_all(&frame));
        let _ = or_end(written, ended).await;
        Ok(())
    }

    /// Calls the worker, and returns the whole answer or the head of a streamed one.
    pub(crate) async fn call(&mut self, call: &Call) -> Result<Answer, CallError> {
        self.send(call).await?;
        let frame = self.frame().await?;
        self.first_byte = Instant(monotonic_ns());
        expect_stream(&frame, call.stream)?;
        let output = &mut self.reader.output;
        let answer = answer(frame, self.first_byte, || output.take())?;
        if !may_be_joined(&answer) {
            return Ok(answer);
        }
        // HEAD and END of a short answer may arrive together.
        let Some(next) = self.reader.decoder.next_frame().map_err(broken)? else {
            return Ok(answer);
        };
        expect_stream(&next, call.stream)?;
        if comes_later(&next) {
            self.pending = Some(next);
            return Ok(answer);
        }
        let output = &mut self.reader.output;
        let next = part(next, self.first_byte, || output.take())?;
        Ok(with_next(answer, next))
    }

    /// Whether the worker has closed its end and had not read everything. Asked when its process has ended.
    pub(crate) fn is_unread(&self) -> bool {
        self.reader.stream.is_reset()
    }

    /// The next part of a streamed answer, with those that have arrived behind it.
    pub(crate) async fn next_part(&mut self, stream: u32) -> Result<Part, CallError> {
        let frame = loop {
            // What has arrived is passed on first.
            self.reader.output.drain_while(self.pace.rest()).await;
            let frame = self.frame().await?;
            expect_stream(&frame, stream)?;
            let decoder = &mut self.reader.decoder;
            let joined = with_arrived(frame, || decoder.next_frame().map_err(broken))?;
            self.pending = joined.pending;
            self.pace.came(joined.cost);
            if !is_empty_chunk(&joined.frame) {
                break joined.frame;
            }
        };
        let output = &mut self.reader.output;
        part(frame, self.first_byte, || output.take())
    }

    async fn send(&mut self, call: &Call) -> Result<(), CallError> {
        let begin = ToWorker::new(call)?;
        let mut parts = begin.parts();
        let mut rest = &mut parts[..];
        let (output, writer) = self.reader.output_and_writer();
        let sent = output
            .drain_while(pin!(begin.send_first(writer)))
            .await
            .map_err(closed_or_broken)?;
        IoSlice::advance_slices(&mut rest, sent);
        while rest.iter().any(|part| !part.is_empty()) {
            // Output is read meanwhile, or a worker that prints while it receives a large request would block.
            let written = output
                .drain_while(pin!(writer.write(rest, &[])))
                .await
                .map_err(closed_or_broken)?;
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }
}

/// The frame `SECRETS`.
fn secrets_frame(environment: &BTreeMap<String, String>) -> Result<Vec<u8>, String> {
    let meta = serde_json::json!({ "environment": environment }).to_string();
    let header = Header::new(FrameKind::Secrets, 0, meta.as_bytes(), b"");
    let header = header.map_err(|error| error.to_string())?;
    Ok([&header.encode()[..], meta.as_bytes()].concat())
}

impl Reader {
    /// The next complete frame. Reads output while it waits.
    pub(super) async fn frame(&mut self) -> Result<Frame, CallError> {
        self.is_together = true;
        loop {
            if let Some(mut frame) = self.decoder.next_frame().map_err(broken)? {
                if let Some(reserved) = self.reserved.take() {
                    frame.body = reserved.keep(frame.body);
                }
                return Ok(frame);
            }
            let awaited = self.decoder.awaited();
            if awaited > FREE_FRAME_LEN && self.reserved.is_none() {
                let reserve = self.answers.reserve(awaited);
                self.reserved = Some(self.output.drain_while(reserve).await);
            }
            let space = self.decoder.space(READ_LEN);
            let read = self.output.drain_while(pin!(self.stream.read(space))).await;
            if read.map_err(closed_or_broken)? == 0 {
                return Err(CallError::Closed { unread: false });
            }
            self.is_together = false;
        }
    }

    pub(super) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Keeps a frame in the memory that the answers of the function may use, and waits until there is enough. Reads output meanwhile.
    pub(super) async fn keep(&mut self, frame: &mut Frame) {
        let mut reserved = self.answers.nothing();
        let len = frame.body.len() + frame.meta.len() + FRAME_OVERHEAD;
        let room = reserved.grow_to_all_of(len);
        self.output.drain_while(room).await;
        frame.body = reserved.keep(std::mem::take(&mut frame.body));
    }

    /// Whether the last frame had arrived together with the one before it.
    pub(super) fn is_together(&self) -> bool {
        self.is_together
    }

    /// The channel under another descriptor, for those that write while this reads.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.stream.duplicate()
    }

    fn output_and_writer(&mut self) -> (&mut Output, Outgoing<'_>) {
        (&mut self.output, self.stream.outgoing())
    }
}

/// A frame for the worker: the one that begins an exchange, or one about an exchange that has begun.
#[derive(Debug)]
pub(super) struct ToWorker {
    stream: u32,
    kind: FrameKind,
    header: [u8; HEADER_LEN],
    meta: Vec<u8>,
    body: Bytes,
    /// Of its inputs. They go with the first byte.
    descriptors: Vec<Arc<OwnedFd>>,
}

impl ToWorker {
    pub(super) fn new(call: &Call) -> Result<Self, CallError> {
        let inputs = match call.paths.as_slice() {
            [] => call.inputs.as_slice(),
            _ => &[],
        };
        let (kind, meta) = pilot_wire::meta::of_invocation(&call.head, &call.inputs, &call.paths);
        let header = Header::new(kind, call.stream, &meta, &call.payload)
            .and_then(|header| header.with_descriptors(inputs.len()))
            .map_err(|error| CallError::TooLong(error.to_string()))?;
        Ok(Self {
            stream: call.stream,
            kind,
            header: header.encode(),
            meta,
            body: call.payload.clone(),
            descriptors: inputs
                .iter()
                .map(|input| Arc::clone(&input.descriptor))
                .collect(),
        })
    }

    /// The client of an exchange has gone.
    pub(super) fn cancel(stream: u32) -> Result<Self, CallError> {
        Self::about(FrameKind::Cancel, stream, Bytes::new())
    }

    /// There is room for so many more bytes of its response.
    pub(super) fn window(stream: u32, bytes: u32) -> Result<Self, CallError> {
        let body = Bytes::copy_from_slice(&bytes.to_le_bytes());
        Self::about(FrameKind::Window, stream, body)
    }

    fn about(kind: FrameKind, stream: u32, body: Bytes) -> Result<Self, CallError> {
        Ok(Self {
            stream,
            kind,
            header: Header::new(kind, stream, b"", &body)
                .map_err(broken)?
                .encode(),
            meta: Vec::new(),
            body,
            descriptors: Vec::new(),
        })
    }

    pub(super) fn stream(&self) -> u32 {
        self.stream
    }

    /// Whether it begins an exchange.
    pub(super) fn is_call(&self) -> bool {
        matches!(self.kind, FrameKind::Invoke | FrameKind::Http)
    }

    /// The bytes that it makes room for, if it does.
    pub(super) fn room(&self) -> Option<u32> {
        let bytes = self.body.as_ref().try_into().map(u32::from_le_bytes);
        bytes.ok().filter(|_| self.kind == FrameKind::Window)
    }

    pub(super) fn len(&self) -> usize {
        self.header.len() + self.meta.len() + self.body.len()
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().map(AsFd::as_fd).collect()
    }

    pub(super) fn has_descriptors(&self) -> bool {
        !self.descriptors.is_empty()
    }

    /// Sends as much of the frame as the socket takes at once, with its descriptors if there are any. Bytes sent.
    async fn send_first(&self, writer: Outgoing<'_>) -> io::Result<usize> {
        writer.write(&self.parts(), &self.descriptors()).await
    }

    pub(super) fn parts(&self) -> [IoSlice<'_>; 3] {
        [&self.header, &self.meta[..], &self.body[..]].map(IoSlice::new)
    }
}

/// Whether an answer is complete with this frame.
pub(super) fn is_last(frame: &Frame) -> bool {
    match frame.kind {
        FrameKind::Result | FrameKind::Error | FrameKind::End => true,
        FrameKind::Head => has_finished(&frame.meta),
        _ => false,
    }
}

/// Whether the JSON of a head has the key `finished_ns`. It is not parsed here, because its caller does that.
fn has_finished(meta: &[u8]) -> bool {
    const KEY: &[u8] = br#""finished_ns""#;
    memchr::memmem::find_iter(meta, KEY).any(|at| {
        let is_escaped = at.checked_sub(1).and_then(|before| meta.get(before)) == Some(&b'\\');
        let behind = &meta[at + KEY.len()..];
        // A text in which it occurs has a backslash before its quotation marks. A header that is this text has no colon behind it.
        !is_escaped && behind.trim_ascii_start().first() == Some(&b':')
    })
}

/// Decodes the first frame of an answer. `output` is called once the answer is complete.
pub(super) fn answer(
    frame: Frame,
    first_byte: Instant,
    output: impl FnOnce() -> Bytes,
) -> Result<Answer, CallError> {
    match frame.kind {
        FrameKind::Result => Ok(Answer::Result(
            frame.body,
            done(&frame.meta, first_byte, output)?,
        )),
        FrameKind::Error => Ok(Answer::Error(
            frame.body,
            done(&frame.meta, first_byte, output)?,
        )),
        FrameKind::Head => {
            let meta: HeadMeta = parse(&frame.meta)?;
            if !(100..600).contains(&meta.status) {
                return Err(CallError::Broken(format!("status {}", meta.status)));
            }
            let head = HttpHead {
                status: meta.status,
                headers: meta.headers,
                is_prelude: meta.prelude,
            };
            let done = meta.finished_ns.map(|finished_ns| Done {
                started: Instant(meta.started_ns),
                returned: Instant(finished_ns),
                first_byte,
                output: output(),
                is_last: false,
            });
            Ok(Answer::Http {
                head,
                first: frame.body,
                done,
            })
        }
        _ => Err(out_of_turn(&frame)),
    }
}

/// Decodes a later frame of a streamed answer.
pub(super) fn part(
    frame: Frame,
    first_byte: Instant,
    output: impl FnOnce() -> Bytes,
) -> Result<Part, CallError> {
    match frame.kind {
        FrameKind::Chunk => Ok(Part::Chunk(frame.body)),
        FrameKind::End => {
            let done = done(&frame.meta, first_byte, output)?;
            Ok(Part::End(frame.body, done))
        }
        FrameKind::Error => {
            let done = done(&frame.meta, first_byte, output)?;
            Ok(Part::Error(frame.body, done))
        }
        _ => Err(out_of_turn(&frame)),
    }
}

/// Frames that are one part of a body.
pub(super) struct Joined {
    pub(super) frame: Frame,
    /// The frame that came behind them and could not be joined.
    pub(super) pending: Option<Frame>,
    /// What they take of the worker's pace.
    pub(super) cost: Duration,
}

/// A chunk of a body, joined with those that have arrived behind it and perhaps the end, up to the length of a piece: each part costs
/// the daemon more than a byte costs the worker. `arrived` returns the next frame if there is one.
pub(super) fn with_arrived(
    mut first: Frame,
    mut arrived: impl FnMut() -> Result<Option<Frame>, CallError>,
) -> Result<Joined, CallError> {
    let mut joined: Option<BytesMut> = None;
    let mut pending = None;
    let mut cost = cost(&first);
    while first.kind == FrameKind::Chunk {
        let Some(next) = arrived()? else { break };
        let len = joined.as_ref().map_or(first.body.len(), BytesMut::len) + next.body.len();
        let goes_on =
            matches!(next.kind, FrameKind::Chunk | FrameKind::End) && next.stream == first.stream;
        if !goes_on || len > PIECE_LEN_MAX as usize {
            pending = Some(next);
            break;
        }
        cost += cost_of_more(&next);
        joined
            .get_or_insert_with(|| BytesMut::from(&first.body[..]))
            .extend_from_slice(&next.body);
        (first.kind, first.meta) = (next.kind, next.meta);
    }
    if let Some(joined) = joined {
        first.body = joined.freeze();
    }
    Ok(Joined {
        frame: first,
        pending,
        cost,
    })
}

/// What a frame takes of its worker's pace.
pub(super) fn cost(frame: &Frame) -> Duration {
    match frame.kind {
        FrameKind::Chunk => PiecePace::cost(frame.body.len()),
        _ => Duration::ZERO,
    }
}

/// The same of one that has arrived together with the frame before it.
pub(super) fn cost_of_more(frame: &Frame) -> Duration {
    match frame.kind {
        FrameKind::Chunk => PiecePace::cost_of_more(frame.body.len()),
        _ => Duration::ZERO,
    }
}

/// Whether the frame says nothing.
pub(super) fn is_empty_chunk(frame: &Frame) -> bool {
    frame.kind == FrameKind::Chunk && frame.body.is_empty()
}

/// Whether the answer is a head that is sent together with the part that follows it. The head of a WebSocket is sent for itself,
/// because what follows is the end of its messages.
pub(super) fn may_be_joined(answer: &Answer) -> bool {
    matches!(answer, Answer::Http { head, done: None, .. } if head.status != SWITCHING)
}

/// Switching Protocols (RFC 9110 §15.2.2).
const SWITCHING: u16 = 101;

/// Whether the frame behind a head is heard after the head, even if both have arrived. An exception is: how soon it arrives is chance,
/// and the application has sent status and headers before it. So the answer always begins, and breaks off.
pub(super) fn comes_later(frame: &Frame) -> bool {
    frame.kind == FrameKind::Error
}

/// Joins the head of a streamed answer with the part that arrived with it, which does not come later.
pub(super) fn with_next(answer: Answer, next: Part) -> Answer {
    let Answer::Http { head, first, .. } = answer else {
        return answer;
    };
    let (more, done) = match next {
        Part::Chunk(more) => (more, None),
        Part::End(more, done) => (more, Some(done)),
        Part::Error(body, done) => return Answer::Error(body, done),
    };
    Answer::Http {
        head,
        first: joined(first, more),
        done,
    }
}

fn done(
    meta: &[u8],
    first_byte: Instant,
    output: impl FnOnce() -> Bytes,
) -> Result<Done, CallError> {
    let meta: DoneMeta = parse(meta)?;
    Ok(Done {
        started: Instant(meta.started_ns),
        returned: Instant(meta.finished_ns),
        first_byte,
        output: output(),
        is_last: meta.last,
    })
}

fn parse<'a, T: serde::Deserialize<'a>>(meta: &'a [u8]) -> Result<T, CallError> {
    serde_json::from_slice(meta).map_err(broken)
}

fn joined(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (_, true) => first,
        (true, false) => second,
        (false, false) => [first, second].concat().into(),
    }
}

fn expect_stream(frame: &Frame, stream: u32) -> Result<(), CallError> {
    if frame.stream == stream {
        Ok(())
    } else {
        Err(out_of_turn(frame))
    }
}

fn out_of_turn(frame: &Frame) -> CallError {
    CallError::Broken(format!(
        "unexpected frame {:?} of stream {}",
        frame.kind, frame.stream
    ))
}

fn broken(problem: impl std::fmt::Display) -> CallError {
    CallError::Broken(problem.to_string())
}

pub(super) fn closed_or_broken(error: io::Error) -> CallError {
    match error.kind() {
        // The kernel resets a socket whose peer had something to read when it closed its end (unix_release_sock() in net/unix/af_unix.c).
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            CallError::Closed { unread: true }
        }
        _ => CallError::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
