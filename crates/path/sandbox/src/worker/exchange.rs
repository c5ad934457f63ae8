//! Frames over a worker's channel, one exchange at a time, on the task that asked: no hand-over to a reader task, whose waking
//! would cost more than everything here.

use std::io::{self, IoSlice};

use bytes::Bytes;
use pilot_model::ports::{Answer, Call, CallKind, Done, HttpHead, Part};
use pilot_model::timeline::Instant;
use pilot_sys::clock::monotonic_ns;
use pilot_wire::meta::{DoneMeta, HeadMeta};
use pilot_wire::{Frame, FrameDecoder, Header, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::output::Output;

/// The daemon's end of a channel, and the output that belongs to it.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: FrameDecoder,
    output: Output,
    /// When the application of a streamed answer was called.
    streamed_since: Instant,
    /// When the answer under way began to arrive.
    first_byte: Instant,
}

/// Why an exchange has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exchanged {
    /// The worker closed its end.
    Closed,
    /// It broke the protocol, or the socket failed.
    Broken(String),
}

/// Room for an ordinary answer, so that it is read with one call.
const READ_LEN: usize = 16 * 1024;

impl Connection {
    pub(crate) fn new(stream: UnixStream, output: Output) -> Self {
        Self {
            stream,
            decoder: FrameDecoder::default(),
            output,
            streamed_since: Instant(0),
            first_byte: Instant(0),
        }
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// One exchange, up to the whole answer or the head of a streamed one.
    pub(crate) async fn call(&mut self, call: &Call) -> Result<Answer, Exchanged> {
        self.send(call).await?;
        let frame = self.frame().await?;
        self.first_byte = Instant(monotonic_ns());
        if frame.stream != call.stream {
            return Err(out_of_turn(&frame));
        }
        match frame.kind {
            Kind::Result => Ok(Answer::Result(frame.body, self.done(&frame.meta)?)),
            Kind::Error => Ok(Answer::Error(frame.body, self.done(&frame.meta)?)),
            Kind::Head => {
                let meta: HeadMeta = parse(&frame.meta)?;
                if !(100..600).contains(&meta.status) {
                    return Err(Exchanged::Broken(format!("status {}", meta.status)));
                }
                self.streamed_since = Instant(meta.started_ns);
                let head = HttpHead {
                    status: meta.status,
                    headers: meta.headers,
                };
                // A complete answer comes as HEAD and END in one piece.
                let (first, done) = match self.decoder.next_frame().map_err(broken)? {
                    None => (frame.body, None),
                    Some(next) => match self.part(next, call.stream)? {
                        Part::Chunk(chunk) => (joined(frame.body, chunk), None),
                        Part::End(last, done) => (joined(frame.body, last), Some(done)),
                    },
                };
                Ok(Answer::Http { head, first, done })
            }
            _ => Err(out_of_turn(&frame)),
        }
    }

    /// The next part of a streamed answer.
    pub(crate) async fn next_part(&mut self, stream: u32) -> Result<Part, Exchanged> {
        let frame = self.frame().await?;
        self.part(frame, stream)
    }

    fn part(&mut self, frame: Frame, stream: u32) -> Result<Part, Exchanged> {
        match frame.kind {
            Kind::Chunk if frame.stream == stream => Ok(Part::Chunk(frame.body)),
            Kind::End if frame.stream == stream => {
                let done = self.done(&frame.meta)?;
                Ok(Part::End(frame.body, done))
            }
            _ => Err(out_of_turn(&frame)),
        }
    }

    fn done(&mut self, meta: &[u8]) -> Result<Done, Exchanged> {
        let meta: DoneMeta = parse(meta)?;
        Ok(Done {
            started: Instant(meta.started_ns),
            returned: Instant(meta.finished_ns),
            first_byte: self.first_byte,
            output: self.output.take(),
        })
    }

    async fn send(&mut self, call: &Call) -> Result<(), Exchanged> {
        let kind = match call.kind {
            CallKind::Event => Kind::Invoke,
            CallKind::Http => Kind::Http,
        };
        let header = Header::new(kind, call.stream, &call.meta, &call.body)
            .map_err(broken)?
            .encode();
        let mut parts = [
            IoSlice::new(&header),
            IoSlice::new(&call.meta),
            IoSlice::new(&call.body),
        ];
        let mut rest = &mut parts[..];
        while rest.iter().any(|part| !part.is_empty()) {
            // A worker that prints while a large request is written to it must not wait for us.
            let written = self
                .output
                .drain_while(self.stream.write_vectored(rest))
                .await
                .map_err(closed_or_broken)?;
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }

    /// The next whole frame; output is read meanwhile.
    pub(crate) async fn frame(&mut self) -> Result<Frame, Exchanged> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(broken)? {
                return Ok(frame);
            }
            let space = self.decoder.space(READ_LEN);
            let read = self.output.drain_while(self.stream.read_buf(space)).await;
            if read.map_err(closed_or_broken)? == 0 {
                return Err(Exchanged::Closed);
            }
        }
    }
}

fn parse<'a, T: serde::Deserialize<'a>>(meta: &'a [u8]) -> Result<T, Exchanged> {
    serde_json::from_slice(meta).map_err(broken)
}

fn joined(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (_, true) => first,
        (true, false) => second,
        (false, false) => [first, second].concat().into(),
    }
}

fn out_of_turn(frame: &Frame) -> Exchanged {
    Exchanged::Broken(format!(
        "a frame {:?} of stream {} out of turn",
        frame.kind, frame.stream
    ))
}

fn broken(problem: impl std::fmt::Display) -> Exchanged {
    Exchanged::Broken(problem.to_string())
}

fn closed_or_broken(error: io::Error) -> Exchanged {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Exchanged::Closed,
        _ => Exchanged::Broken(error.to_string()),
    }
}
