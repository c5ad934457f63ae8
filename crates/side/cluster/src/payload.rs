//! The payload of a call that arrives: its event, and its data, which goes into memory of the target as it arrives. What is sent is not
//! believed: lengths are limits, and a sender that does not go on is given up.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use nix::libc::off_t;
use nix::sys::uio::pwrite;
use pilot_model::FunctionName;
use pilot_model::calls::{Reason, Refusal};
use pilot_model::ports::{Arrived, InputMemory, InputSource};
use pilot_protocols::FunctionBudget;
use tokio::time::{Instant, timeout, timeout_at};

use crate::link::chain;
use crate::message::Lengths;

/// Where a payload goes.
pub(crate) struct Destination {
    pub(crate) function: FunctionName,
    pub(crate) memory: Arc<dyn InputSource>,
    /// For the event.
    pub(crate) events: FunctionBudget,
    /// How long the sender may send nothing.
    pub(crate) silence_max: Duration,
}

/// Takes event and data.
///
/// # Errors
/// The sender stops, or sends something else than it has announced; there is no room for it.
pub(crate) async fn take<B>(body: B, lengths: Lengths, to: Destination) -> Result<Arrived, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let mut arriving = Arriving {
        body,
        part: Bytes::new(),
        silence_max: to.silence_max,
        moved: 0,
        since: Instant::now(),
    };
    let event_len = usize::try_from(lengths.event).unwrap_or(usize::MAX);
    let reserved = timeout(ROOM_TIME_MAX, to.events.reserve(event_len)).await;
    let reserved = reserved.map_err(|_| {
        Refusal::new(
            Reason::NoRoom,
            "there is no room for the event: too many calls arrive here at the same time",
        )
    })?;
    let mut event = BytesMut::with_capacity(event_len);
    while event.len() < event_len {
        event.extend_from_slice(&arriving.next(event_len - event.len()).await?);
    }
    let event = reserved.keep(event.freeze());
    let data = match lengths.data {
        None => None,
        Some(len) => Some(data(&mut arriving, len, &to).await?),
    };
    arriving.end().await?;
    Ok(Arrived { event, data })
}

/// Takes the data into memory of the function. There is none before the first byte has come: an announcement alone takes no room.
async fn data<B>(
    arriving: &mut Arriving<B>,
    len: u64,
    to: &Destination,
) -> Result<Arc<dyn InputMemory>, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    if len > 0 {
        arriving.await_first().await?;
    }
    let blank = to.memory.blank(&to.function, len).await;
    let blank = blank.map_err(Refusal::from)?;
    let failed = |problem: &str| {
        Refusal::new(
            Reason::Unavailable,
            format!("the data cannot be written: {problem}"),
        )
    };
    let file = blank.descriptor();
    let file = file.ok_or_else(|| failed("the memory is sealed"))?;
    // Waiting for room was not the sender's doing.
    arriving.since = Instant::now();
    let mut at = 0;
    while at < len {
        let most = usize::try_from(len - at).unwrap_or(usize::MAX);
        let part = arriving.next(most).await?;
        let mut rest = &part[..];
        while !rest.is_empty() {
            let offset = off_t::try_from(at).map_err(|_| failed("it is too long"))?;
            let written =
                pwrite(file.as_fd(), rest, offset).map_err(|error| failed(error.desc()))?;
            rest = rest.get(written..).unwrap_or_default();
            at += written as u64;
        }
    }
    // Nobody else has it: what writes is gone before it is sealed.
    drop(file);
    blank.seal().await.map_err(Refusal::from)
}

/// A body that is taken in pieces.
struct Arriving<B> {
    body: B,
    /// What has come and was not taken.
    part: Bytes,
    silence_max: Duration,
    /// Bytes since `since`.
    moved: usize,
    since: Instant,
}

impl<B> Arriving<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    /// The next bytes, at least one and at most `most`.
    async fn next(&mut self, most: usize) -> Result<Bytes, Refusal> {
        self.await_first().await?;
        Ok(self.part.split_to(most.min(self.part.len())))
    }

    /// Waits until there is something to take.
    async fn await_first(&mut self) -> Result<(), Refusal> {
        while self.part.is_empty() {
            match self.frame().await? {
                Some(part) => self.part = part,
                None => return Err(Refusal::new(Reason::Invalid, SHORT)),
            }
        }
        Ok(())
    }

    /// There must be nothing more.
    async fn end(&mut self) -> Result<(), Refusal> {
        while self.part.is_empty() {
            match self.frame().await? {
                Some(part) => self.part = part,
                None => return Ok(()),
            }
        }
        let problem = "more was sent than announced: nothing was run";
        Err(Refusal::new(Reason::Invalid, problem))
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, Refusal> {
        let slow = |_| {
            let problem = format!(
                "less than {} KiB came within {} s: nothing was run",
                PACE_BYTES >> 10,
                self.silence_max.as_secs_f64()
            );
            Refusal::new(Reason::Unavailable, problem)
        };
        let frame = timeout_at(self.since + self.silence_max, self.body.frame()).await;
        match frame.map_err(slow)? {
            None => Ok(None),
            Some(Err(error)) => {
                let problem = format!("the call broke off: {}", chain(&error));
                Err(Refusal::new(Reason::Unavailable, problem))
            }
            Some(Ok(frame)) => {
                // Trailers mean nothing.
                let part = frame.into_data().unwrap_or_default();
                self.moved += part.len();
                if self.moved >= PACE_BYTES {
                    self.moved = 0;
                    self.since = Instant::now();
                }
                Ok(Some(part))
            }
        }
    }
}

const SHORT: &str = "less was sent than announced: nothing was run";
/// So many bytes must come within the time for silence.
pub(crate) const PACE_BYTES: usize = 64 << 10;
/// How long an event waits for memory.
const ROOM_TIME_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
